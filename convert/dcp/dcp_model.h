/* dcp_model.h - makes native tensors, optimizer states and parameter groups
 * from the entries of a DCP folder (dcp_entry.h). */
#ifndef FERRY_CONVERT_DCP_MODEL_H
#define FERRY_CONVERT_DCP_MODEL_H

#include "convert/dcp/titan_names.h"
#include "convert/source_kind.h"

/* Takes the entries of c->catalog.stored. titan: how torchtitan's names become
 * Hugging Face's; NULL: they already are. Of several subtrees of parameters,
 * takes the one whose last key is "model", "module" or "state_dict", else the
 * entries without a key above; notes what is not read. ERR_UNSUPPORTED if no
 * subtree is the model; ERR_CORRUPT if two entries have the same name without
 * wrappers. Notes unreadable group settings; marks unreadable states as
 * unread. */
MUST_CHECK enum status dcp_model_take(struct checkpoint *c, const struct titan_names *titan,
                                      struct error *err);

/* The value of the object of this name, in c's arena; NULL: none, or
 * unreadable. */
const struct value *dcp_object_value(struct checkpoint *c, const char *name);

#endif
