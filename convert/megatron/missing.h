/* missing.h - which parameters a Megatron checkpoint lacks. */
#ifndef FERRY_CONVERT_MEGATRON_MISSING_H
#define FERRY_CONVERT_MEGATRON_MISSING_H

#include "convert/megatron/megatron_source.h"

/* Lists missing parameters as gaps. The model map of the family names all of them, and their
 * shapes must be the map's; without a family, a layer must have what another layer of its kind
 * has. */
MUST_CHECK enum status megatron_find_missing(struct megatron_source *m, struct error *err);

#endif
