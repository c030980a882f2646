/* convert_commands.h - the subcommands of this folder, rows of ferry's table. */
#ifndef FERRY_CONVERT_CLI_CONVERT_COMMANDS_H
#define FERRY_CONVERT_CLI_CONVERT_COMMANDS_H

#include "common/args.h"

extern const struct command command_convert, command_inspect, command_print, command_models,
    command_synth;

#endif
