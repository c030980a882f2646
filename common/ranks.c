#include "common/ranks.h"
#include "common/count.h"

#include <errno.h>
#include <stdlib.h>

/* Variables of each launcher. Slurm's size is the step's: a batch script, a
 * single process, has only the size of the job. */
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

static bool parse_rank_variable(const char *text, unsigned *n)
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
        if (parse_rank_variable(rank, &out->rank) && parse_rank_variable(size, &out->size) &&
            out->rank < out->size)
            return OK;
        return fail(err, ERR_USAGE,
                    "%s=%s and %s=%s in the environment are not a valid rank; --world-size 1 "
                    "ignores them",
                    launchers[i].rank, rank, launchers[i].size, size);
    }
    return OK;
}

bool ranks_print_by_rank_0(void)
{
    struct ranks r;
    return ranks_from_environment(&r, NULL) == OK && r.share_output && r.rank > 0;
}
