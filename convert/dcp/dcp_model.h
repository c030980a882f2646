/* dcp_model.h - makes own tensors, states of the optimizer and groups of parameters of the entries
 * of a DCP folder (dcp_entry.h). */
#ifndef FERRY_CONVERT_DCP_MODEL_H
#define FERRY_CONVERT_DCP_MODEL_H

#include "convert/dcp/titan_names.h"
#include "convert/source_kind.h"

/* Takes the entries of c->catalog.stored. titan: how torchtitan's names become Hugging Face's;
 * NULL: they are these already. Of several subtrees of parameters takes the one whose last key is
 * "model", "module" or "state_dict", else those without a key above; notes what is not read.
 * ERR_UNSUPPORTED where none of them is the model; ERR_CORRUPT where two entries have the same name
 * without wrappers. Settings of groups that cannot be read are noted, states that cannot be read
 * are unread. */
MUST_CHECK enum status dcp_model_take(struct checkpoint *c, const struct titan_names *titan,
                                      struct error *err);

/* The value of the object of this name; NULL: there is none, or it cannot be read. In the arena of
 * c. */
const struct value *dcp_object_value(struct checkpoint *c, const char *name);

#endif
