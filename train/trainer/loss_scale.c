#include "train/trainer/loss_scale.h"

#include <inttypes.h>
#include <math.h>

static bool is_scale(double x)
{
    return isfinite((float)x) && (float)x > 0;
}

enum status loss_scale_start_constant(struct loss_scale *s, double scale, struct error *err)
{
    if (!is_scale(scale))
        return fail(err, ERR_USAGE, "--loss-scale %g: must be a number above 0", scale);
    *s = (struct loss_scale){.scale = (float)scale, .minimum = (float)scale};
    return OK;
}

enum status loss_scale_start_dynamic(struct loss_scale *s, double initial, double minimum,
                                     uint64_t window, uint64_t hysteresis, struct error *err)
{
    if (!is_scale(initial) || !is_scale(minimum) || minimum > initial)
        return fail(err, ERR_USAGE,
                    "--initial-loss-scale %g, --min-loss-scale %g: must be numbers above 0, the "
                    "minimum not above the initial one",
                    initial, minimum);
    if (!window || !hysteresis)
        return fail(err, ERR_USAGE,
                    "--loss-scale-window %" PRIu64 ", --hysteresis %" PRIu64 ": must be above 0",
                    window, hysteresis);
    *s = (struct loss_scale){.dynamic = true,
                             .minimum = (float)minimum,
                             .window = window,
                             .hysteresis = hysteresis,
                             .scale = (float)initial,
                             .hysteresis_tracker = hysteresis};
    return OK;
}

static void shrink_scale(struct loss_scale *s)
{
    const float half = s->scale * 0.5f;
    s->growth_tracker = 0;
    if (s->hysteresis_tracker > 0) s->hysteresis_tracker--;
    if (s->hysteresis_tracker > 0) return;
    s->overflowed_at_minimum = s->scale <= s->minimum;
    s->scale = half > s->minimum ? half : s->minimum;
}

static void grow_scale(struct loss_scale *s)
{
    if (++s->growth_tracker < s->window) return;
    s->growth_tracker = 0;
    s->hysteresis_tracker = s->hysteresis;
    s->scale *= 2;
}

void loss_scale_update(struct loss_scale *s, bool found_inf)
{
    s->overflowed_at_minimum = found_inf && !s->dynamic;
    if (!s->dynamic) return;
    if (found_inf)
        shrink_scale(s);
    else
        grow_scale(s);
}

bool loss_scale_is_exhausted(const struct loss_scale *s)
{
    return s->overflowed_at_minimum;
}

enum status loss_scale_load(struct loss_scale *s, const struct training *t, struct error *err)
{
    if (!s->dynamic || isnan(t->loss_scale)) return OK;
    if (!is_scale(t->loss_scale))
        return fail(err, ERR_CORRUPT, "loss scale of the checkpoint: %g is not above 0",
                    t->loss_scale);
    s->scale = (float)t->loss_scale;
    s->growth_tracker = t->growth_tracker;
    s->hysteresis_tracker = t->hysteresis_tracker;
    s->overflowed_at_minimum = false;
    return OK;
}

void loss_scale_save(const struct loss_scale *s, struct training *t)
{
    if (!s->dynamic) return;
    t->loss_scale = (double)s->scale;
    t->growth_tracker = s->growth_tracker;
    t->hysteresis_tracker = s->hysteresis_tracker;
}
