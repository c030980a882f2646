/* commands.h - the subcommands of this folder, one row each of ferry's table. */
#ifndef FERRY_VALIDATE_COMMANDS_H
#define FERRY_VALIDATE_COMMANDS_H

#include "common/args.h"

extern const struct command command_verify, command_digest;

/* What reports say of the program; main() sets it. */
extern const char *report_program_version;

#endif
