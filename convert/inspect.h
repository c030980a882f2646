/* inspect.h - opens anything for looking at: a checkpoint, or a single file of tensors. */
#ifndef FERRY_CONVERT_INSPECT_H
#define FERRY_CONVERT_INSPECT_H

#include "convert/options.h"
#include "convert/source.h"

/* source_open, and beyond it: one .safetensors or torch.save file, a DCP folder of another program,
 * a Hugging Face folder of a model that has no map. Those have stored tensors only (c->format says
 * which kind, c->num_tensors is 0), which *stored_only tells. */
MUST_CHECK enum status inspect_open(struct catalog *c, const char *path,
                                    const struct source_options *o, const struct model_maps *maps,
                                    bool *stored_only, struct error *err);

/* What a command has opened to look at. */
struct opened {
    struct model_maps maps;
    struct catalog catalog;
    bool stored_only;
};
/* Opens it as the flags say, by inspect_open where stored tensors alone will do, and prints its
 * notes unless quiet. opened_close afterwards, after a failure too. */
MUST_CHECK enum status opened_open(struct opened *o, const char *path, const struct source_flags *f,
                                   bool stored_will_do, bool quiet, struct error *err);
void opened_close(struct opened *o);

#endif
