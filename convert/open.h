/* open.h - opens a checkpoint, or a single file of tensors, to look at it. */
#ifndef FERRY_CONVERT_OPEN_H
#define FERRY_CONVERT_OPEN_H

#include "convert/source.h"

/* How a path was read. */
enum reading {
    AS_MODEL,   /* a model, with logical tensors; all others have stored tensors only */
    AS_FILE,    /* a .safetensors or torch.save file */
    AS_UNKNOWN, /* another program's DCP folder, or a Hugging Face folder of a family without a map
                 */
    AS_CONTRADICTS, /* a model whose tensors contradict its config */
    AS_REFUSED /* a known family or a Megatron checkpoint that cannot be read as a model; the last
                  note says why */
};

/* Like source_open(), but opens what is no readable model as stored tensors:
 * c->format then says what kind it is, and the catalog has no logical
 * tensors. */
MUST_CHECK enum status inspect_open(struct checkpoint *c, const char *path,
                                    const struct source_options *o, const struct model_maps *maps,
                                    enum reading *reading, struct error *err);

/* A path that a command has opened. */
struct opened {
    struct model_maps maps;
    struct checkpoint checkpoint;
    enum reading reading;
    bool stored_only; /* not AS_MODEL */
};
/* Opens path with inspect_open() if stored_will_do, else with source_open();
 * prints its notes unless quiet. model_map: file of --model-map (NULL: none).
 * Call opened_close() afterwards, even after a failure. */
MUST_CHECK enum status opened_open(struct opened *o, const char *path,
                                   const struct source_options *source, const char *model_map,
                                   bool stored_will_do, bool quiet, struct error *err);
void opened_close(struct opened *o);

#endif
