#include "validate/report/texts.h"

#include <math.h>

const char *number_text(struct arena *a, double x)
{
    if (isnan(x)) return "-";
    if (isinf(x)) return x < 0 ? "-inf" : "inf";
    return arena_printf(a, "%.3g", x);
}

const char *badness_text(struct arena *a, const struct compared *t)
{
    if (t->outcome == ONLY_IN_A || t->outcome == ONLY_IN_B || t->outcome == SHAPE_DIFFERS)
        return outcome_names[t->outcome];
    if (!t->counted || !statistics_have_distances(t->read[0]->dtype, t->read[1]->dtype))
        return t->outcome == DTYPE_DIFFERS ? "dtype" : "bits";
    if (t->statistics.unpaired) return "NaN or Inf";
    return number_text(a, statistics_relative_error(&t->statistics));
}

const char *dtypes_text(struct arena *a, const struct tensor *t)
{
    uint64_t dtypes = stored_dtypes(t);
    const char *text = NULL;
    for (int d = 0; d < NUM_DTYPES; d++) {
        if (!(dtypes >> d & 1)) continue;
        text = text ? arena_printf(a, "%s and %s", text, dtype_infos[d].name) : dtype_infos[d].name;
    }
    return text;
}
