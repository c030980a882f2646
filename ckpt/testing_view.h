/* testing_view.h - evaluates a pair one element at a time. */
#ifndef FERRY_CKPT_TESTING_VIEW_H
#define FERRY_CKPT_TESTING_VIEW_H

#include "ckpt/view.h"
#include "tests/testing.h"

/* Element n of a pair, in the order of its axes: *a and *b are flat in the two
 * tensors. */
static inline void pair_element(const struct pair *p, uint64_t n, uint64_t *a, uint64_t *b)
{
    *a = p->a_offset;
    *b = p->b_offset;
    for (unsigned k = p->num_axes; k-- > 0; n /= p->axes[k].extent) {
        *a += n % p->axes[k].extent * p->axes[k].a_stride;
        *b += n % p->axes[k].extent * p->axes[k].b_stride;
    }
}

#endif
