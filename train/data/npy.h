/* npy.h - arrays in NumPy's .npy files, as by numpy.save.
 *
 *   1.   0  6 bytes  "\x93NUMPY"
 *   2.   6  2 bytes  version 1.0 (2.0 is read, too)
 *   3.   8  u16      N, bytes of the header (u32 in version 2.0)
 *   4.  10  N bytes  "{'descr': '<i4', 'fortran_order': False,
 *                    'shape': (601, 2), }", blanks, a line end; the data begin at a
 *                    multiple of 64
 *   5.      rest     elements, little-endian, row-major */
#ifndef FERRY_TRAIN_DATA_NPY_H
#define FERRY_TRAIN_DATA_NPY_H

#include <stddef.h>
#include <stdint.h>

#include "common/dtype.h"
#include "common/status.h"

struct npy {
    enum dtype dtype;  /* I16, I32, I64 or U32 */
    unsigned num_dims; /* 1 or 2 */
    uint64_t shape[2];
};

/* Writes a file beside path and renames it: readers see the old or the new one.
 */
MUST_CHECK enum status npy_write(const char *path, const struct npy *shape, const void *data,
                                 struct error *err);
/* Reads an array of exactly this shape and type; *data: on the heap.
 * ERR_CORRUPT: any other. */
MUST_CHECK enum status npy_read(const char *path, const struct npy *shape, void **data,
                                struct error *err);

#endif
