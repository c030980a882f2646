/* result.h - the JSON object that a command prints on stdout with --json when
 * it ends, in success and failure.
 *
 *   {"ferry": "0.1.0+fc116cac", "schema": 1, "command": "convert",
 *    ...                            the command's fields; none if it failed early
 *    "seconds": 0.31,               wall time of the command
 *    "exit_code": 0, "error": null} the text of stderr if exit_code is 2 or more
 *
 * One object per process. args_main() begins and ends it; commands fill it. Of
 * several processes with one output only rank 0 prints it. Without --json these
 * functions do nothing. JSON.md is the page for users. */
#ifndef FERRY_COMMON_RESULT_H
#define FERRY_COMMON_RESULT_H

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "common/status.h"

/* Increase it when a field is removed or changes its meaning. */
enum { RESULT_SCHEMA = 1 };

/* This process will print the result of this command (not copied). */
void result_begin(const char *command);
/* This process prints no result: another one of the same job does. */
void result_silence(void);
bool result_is_wanted(void);

/* Sets the command's fields, an object that result_end() frees; a second call
 * replaces the first. Also for commands that fail. NaN and infinite numbers are
 * printed as null. */
void result_set(cJSON *fields);

/* For fields too large for memory, instead of result_set(): the first call
 * prints the beginning of the object, each call a field's name. The caller then
 * prints the value as JSON on stdout. */
void result_stream_field(const char *name);

/* Prints the rest of the object and frees it. err has the message for st. */
void result_end(enum status st, const struct error *err);

#endif
