/* result.h - the object that a command prints on stdout with --json, when it ends, whether it
 * worked or failed.
 *
 *   {"ferry": "0.1.0", "schema": 1, "command": "convert",
 *    ...                                  the command's own fields; none if it failed early
 *    "seconds": 0.31,                     wall time of the command
 *    "exit_code": 0, "error": null}       the text of stderr if exit_code is 2 or more
 *
 * A process has one such object. args_main() begins and ends it; commands fill it. If several
 * processes print to one place, only rank 0 prints it. Without --json these functions do nothing.
 * JSON.md is the page for users. */
#ifndef FERRY_COMMON_RESULT_H
#define FERRY_COMMON_RESULT_H

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "common/status.h"

/* Increase it when a field changes its meaning or is removed, not when one is added. */
enum { RESULT_SCHEMA = 1 };

/* From now on this process prints the result of this command (not copied). */
void result_begin(const char *command);
/* This process prints no result: another one of the same job does. */
void result_silence(void);
bool result_is_wanted(void);

/* Sets the command's own fields, an object that result_end() frees; a second call replaces the
 * first. Also for commands that fail. Numbers that are not finite are printed as null. */
void result_set(cJSON *fields);

/* For fields that do not fit into memory, in place of result_set(): the first call prints the
 * beginning of the object, each call the name of a field. The caller then prints the value as JSON
 * on stdout. */
void result_stream_field(const char *name);

/* Prints the rest of the object and frees it. err has the message for st. */
void result_end(enum status st, const struct error *err);

#endif
