/* contents.h - the files that make up a checkpoint of a format: --overwrite
 * removes no others. */
#ifndef FERRY_CONVERT_CLI_CONTENTS_H
#define FERRY_CONVERT_CLI_CONTENTS_H

#include "ckpt/publish.h"
#include "convert/target.h"

/* All files below a folder except locks and journals, as relative paths, sorted
 * within each folder. In arena a. */
MUST_CHECK enum status contents_list(const char *folder, struct arena *a, struct name_list *out,
                                     struct error *err);

/* publish_options.may_replace; context is the struct target that replaces the
 * folder. ERR_EXISTS if the folder is not a checkpoint of the target's format,
 * or holds a foreign file or folder.
 *
 * Foreign entries are named neither by the format's row in format.c, nor by the
 * folder's index or ferry.json, nor by the new plan. Foreign folders are not
 * searched. */
publish_may_replace contents_may_replace;

#endif
