/* texts.h - short texts that the tables, the summary and the HTML page share; in arena a. */
#ifndef FERRY_VALIDATE_REPORT_TEXTS_H
#define FERRY_VALIDATE_REPORT_TEXTS_H

#include "validate/compare/compare.h"

/* "1.23e-05", "inf"; "-" for NaN, which means not known. */
const char *number_text(struct arena *a, double x);
/* The difference of a tensor in a few characters: its relative error, or "shape", "only in A",
 * "dtype", "bits". */
const char *badness_text(struct arena *a, const struct compared *t);
/* "BF16", "BF16 and F32": the dtypes in which the parts of a tensor are stored. */
const char *dtypes_text(struct arena *a, const struct tensor *t);

#endif
