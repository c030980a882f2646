/* contents.h - which files a checkpoint of a format is made of, so that --overwrite removes no
 * others. */
#ifndef FERRY_CONVERT_CLI_CONTENTS_H
#define FERRY_CONVERT_CLI_CONTENTS_H

#include "ckpt/publish.h"
#include "convert/target.h"

/* All files below a folder, as paths relative to it, sorted within each folder; without locks and
 * journals. In arena a. */
MUST_CHECK enum status contents_list(const char *folder, struct arena *a, struct name_list *out,
                                     struct error *err);

/* publish_options.may_replace; context is the struct target that is to take the folder's place.
 * ERR_EXISTS if the folder is no checkpoint of the target's format, or holds a file or folder that
 * does not belong to one: such an entry is named neither by the format's row in format.c, nor by
 * the folder's own index or ferry.json, nor by the new plan. Folders that do not belong are not
 * searched. */
publish_may_replace contents_may_replace;

#endif
