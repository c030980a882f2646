/* result.h - what a command answers with --json: one object on stdout, printed when the command has
 * ended, whether it worked or failed.
 *
 *   {"ferry": "0.1.0", "schema": 1, "command": "convert",
 *    ...                                  the command's own fields; none where it failed early
 *    "seconds": 0.31,                     wall time of the command
 *    "exit_code": 0, "error": null}       the text of stderr where exit_code is 2 or more
 *
 * There is one such object in a process. args_main() begins and ends it; commands fill it. Of
 * several processes that print to one place rank 0 alone answers. Where --json was not given, all
 * of this does nothing. JSON.md is the page for users. */
#ifndef FERRY_COMMON_RESULT_H
#define FERRY_COMMON_RESULT_H

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "common/status.h"

/* Goes up when a field changes its meaning or goes away; not when one is added. */
enum { RESULT_SCHEMA = 1 };

/* From now on this process answers, for this command (not copied). */
void result_begin(const char *command);
/* This process does not answer: another one of the same job does. */
void result_silence(void);
bool result_is_wanted(void);

/* The command's own fields, an object that becomes ours: the last one holds. Before or after a
 * failure is known. Numbers that are not finite are printed as null. */
void result_set(cJSON *fields);

/* For what does not fit into memory: prints what the object begins with, at the first call, and the
 * name of a field; the caller prints the value, as JSON, before it calls again or returns. It takes
 * the place of result_set(). */
void result_stream_field(const char *name);

/* Prints what is left of the object; frees it. err->text: why st is what it is. */
void result_end(enum status st, const struct error *err);

#endif
