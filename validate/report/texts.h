/* texts.h - short texts shared by tables, summary and HTML page; in arena a. */
#ifndef FERRY_VALIDATE_REPORT_TEXTS_H
#define FERRY_VALIDATE_REPORT_TEXTS_H

#include "validate/compare/compare.h"

/* "1.23e-05", "inf"; "-" for NaN (not known). */
const char *number_text(struct arena *a, double x);
/* The difference of a tensor in short: its relative error, or "shape differs",
 * "only in A", "dtype", "bits". */
const char *badness_text(struct arena *a, const struct compared *t);
/* "BF16", "BF16 and F32": stored dtypes of a tensor's parts. */
const char *dtypes_text(struct arena *a, const struct tensor *t);

#endif
