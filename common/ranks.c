#include "common/ranks.h"
#include "common/count.h"

#include <errno.h>
#include <stdlib.h>

/* The variables of each launcher. Slurm's size is that of a step: a batch script, which is a single
 * process, only has the size of the job. */
static const struct {
    const char *rank, *size;
    bool shares_output;
} launchers[] = {
    {"RANK", "WORLD_SIZE", false},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", true},
    {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", true},
    {"PMI_RANK", "PMI_SIZE", true},
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", true},
};

static bool parse(const char *text, unsigned *n)
{
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    *n = (unsigned)value;
    return *text >= '0' && *text <= '9' && !*end && !errno && value <= MAX_RANKS_OF_A_JOB;
}

enum status ranks_from_environment(struct ranks *out, struct error *err)
{
    *out = (struct ranks){.rank = 0, .size = 1};
    for (size_t i = 0; i < COUNT(launchers); i++) {
        const char *rank = getenv(launchers[i].rank), *size = getenv(launchers[i].size);
        if (!rank || !size || !*rank || !*size) continue;
        out->share_output = launchers[i].shares_output;
        if (parse(rank, &out->rank) && parse(size, &out->size) && out->rank < out->size) return OK;
        return fail(err, ERR_USAGE,
                    "the environment has %s=%s and %s=%s, which is not a rank; --world-size 1 does "
                    "without it",
                    launchers[i].rank, rank, launchers[i].size, size);
    }
    return OK;
}
