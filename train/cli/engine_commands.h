/* engine_commands.h - commands that compute or train, for the table in ferry.c. */
#ifndef FERRY_TRAIN_CLI_ENGINE_COMMANDS_H
#define FERRY_TRAIN_CLI_ENGINE_COMMANDS_H

#include "common/args.h"

extern const struct command command_forward, command_generate, command_perplexity, command_bench,
    command_data, command_train, command_doctor;

#endif
