/* validate_commands.h - the subcommands of this folder, rows of ferry's table. */
#ifndef FERRY_VALIDATE_VALIDATE_COMMANDS_H
#define FERRY_VALIDATE_VALIDATE_COMMANDS_H

#include "common/args.h"

extern const struct command command_verify, command_digest;

#endif
