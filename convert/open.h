/* open.h - opens anything for looking at: a checkpoint, or a single file of tensors. */
#ifndef FERRY_CONVERT_OPEN_H
#define FERRY_CONVERT_OPEN_H

#include "convert/source.h"

/* What a checkpoint was read as. */
enum reading {
    AS_MODEL,   /* logical tensors; all others have stored ones only */
    AS_FILE,    /* one .safetensors or torch.save file */
    AS_UNKNOWN, /* a DCP folder of another program, a Hugging Face folder of a family without a map
                 */
    AS_CONTRADICTS, /* a model whose config says something else than its tensors are */
    AS_REFUSED /* of a family that has a map, or Megatron's; it cannot be read as what it says it
                * is:  the last note tells why */
};

/* source_open, and beyond it what has stored tensors only (c->format says which kind,
 * the catalog has no logical tensors). */
MUST_CHECK enum status inspect_open(struct checkpoint *c, const char *path,
                                    const struct source_options *o, const struct model_maps *maps,
                                    enum reading *reading, struct error *err);

/* What a command has opened to look at. */
struct opened {
    struct model_maps maps;
    struct checkpoint checkpoint;
    enum reading reading;
    bool stored_only; /* not AS_MODEL */
};
/* Opens path, by inspect_open where stored tensors alone will do, and prints its notes unless
 * quiet. model_map: a file of the user (NULL: none). opened_close afterwards, after a failure too.
 */
MUST_CHECK enum status opened_open(struct opened *o, const char *path,
                                   const struct source_options *source, const char *model_map,
                                   bool stored_will_do, bool quiet, struct error *err);
void opened_close(struct opened *o);

#endif
