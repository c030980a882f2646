/* testing_reference.h - what one rank has trained, and the comparison of other
 * ranks with it: each step, and all weights and buffers afterwards, in f64.
 * Tests only. */
#ifndef FERRY_TRAIN_TRAINER_TESTING_REFERENCE_H
#define FERRY_TRAIN_TRAINER_TESTING_REFERENCE_H

#include <math.h>
#include <stdlib.h>

#include "common/memory.h"
#include "train/trainer/testing_step.h"

enum { REFERENCE_STEPS = 20, REFERENCE_TENSORS = 1024 };

static const double tolerance = 1e-10;

/* A logical tensor after the last step, flat, with the padding that one rank
 * has; on the heap. */
struct trained {
    char *name;
    uint64_t numel;
    double *values;
};

struct reference {
    struct step_result results[REFERENCE_STEPS];
    struct trained tensors[REFERENCE_TENSORS];
    size_t count;
};

static inline void reference_release(struct reference *r)
{
    for (size_t i = 0; i < r->count; i++) {
        free(r->tensors[i].name);
        free(r->tensors[i].values);
    }
    r->count = 0;
}

/* ---- weights ---- */

static inline struct trained *reference_find(struct reference *r, const char *name)
{
    for (size_t i = 0; i < r->count; i++)
        if (strcmp(r->tensors[i].name, name) == 0) return &r->tensors[i];
    return NULL;
}

static inline struct trained *reference_add(struct reference *r, const char *name, uint64_t numel)
{
    struct trained *t = reference_find(r, name);
    if (t) return t;
    assert_true(r->count < REFERENCE_TENSORS);
    t = &r->tensors[r->count++];
    *t = (struct trained){strdup(name), numel, must_calloc(numel, sizeof *t->values)};
    return t;
}

/* Visits element `at` of a tensor, with its value. */
typedef enum status visit_element(struct trained *t, uint64_t at, double value);

static inline enum status keep_element(struct trained *t, uint64_t at, double value)
{
    assert_true(at < t->numel);
    t->values[at] = value;
    return OK;
}

static inline enum status compare_element(struct trained *t, uint64_t at, double value)
{
    if (at >= t->numel || fabs(value - t->values[at]) <= tolerance) return OK; /* or padding */
    return fail(&err, DIFFERENT, "%s[%lu] is %.15g, not %.15g", t->name, (unsigned long)at, value,
                t->values[at]);
}

/* This rank's elements of tensor number k of a parameter. */
static inline enum status visit_tensor(struct trained *t, const struct test_session *s,
                                       const struct parameter *x, uint64_t k, visit_element *visit)
{
    const uint64_t first = test_first(&s->step, x) + k * (x->numel / x->num_tensors);
    uint64_t a, b;
    for (unsigned i = 0; i < x->cut->count; i++)
        for (uint64_t e = 0; e < pair_count(&x->cut->pairs[i]); e++) {
            pair_element(&x->cut->pairs[i], e, &a, &b);
            TRY(visit(t, a, test_get(&s->step, VALUE_PARAMETER, first + b)));
        }
    return OK;
}

/* Keeps the parameters of one rank. */
static inline void reference_keep(struct reference *r, const struct test_session *s)
{
    const struct parameters *p = &s->model.parameters;
    for (size_t i = 0; i < p->count; i++) {
        const struct parameter *x = &p->items[i];
        for (uint64_t k = 0; x->tensors && k < x->num_tensors; k++)
            assert_ok(visit_tensor(reference_add(r, x->tensors[k], x->numel / x->num_tensors), s, x,
                                   k, keep_element));
    }
}

static inline enum status reference_compare(struct reference *r, const struct test_session *s)
{
    const struct parameters *p = &s->model.parameters;
    for (size_t i = 0; i < p->count; i++) {
        const struct parameter *x = &p->items[i];
        for (uint64_t k = 0; x->tensors && k < x->num_tensors; k++) {
            struct trained *t = reference_find(r, x->tensors[k]);
            if (!t) return fail(&err, DIFFERENT, "%s: one rank has none", x->tensors[k]);
            if (visit_tensor(t, s, x, k, compare_element))
                return fail_in(&err, "rank %u", s->comm.rank);
        }
    }
    return OK;
}

/* ---- steps ---- */

static inline bool near(double got, double want)
{
    return fabs(got - want) <= tolerance * fabs(want);
}

static inline enum status compare_steps(const struct step_result *got,
                                        const struct step_result *want, unsigned steps)
{
    for (unsigned i = 0; i < steps; i++)
        if (!near(got[i].loss, want[i].loss) || !near(got[i].grad_norm, want[i].grad_norm) ||
            !near(got[i].params_norm, want[i].params_norm) || got[i].skipped)
            return fail(&err, DIFFERENT,
                        "step %u: loss %.15g, norm %.15g, of parameters %.15g; of one rank: "
                        "%.15g, %.15g, %.15g",
                        i + 1, got[i].loss, got[i].grad_norm, got[i].params_norm, want[i].loss,
                        want[i].grad_norm, want[i].params_norm);
    return OK;
}

#endif
