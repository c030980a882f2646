/* doctor_command.c - ferry doctor: what this machine and this build have, what
 * is missing, and how to get it.
 *
 * Nothing here may fail on an odd machine: what cannot be read has no line. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "common/colour.h"
#include "common/count.h"
#include "common/facts.h"
#include "common/file.h"
#include "common/host_memory.h"
#include "common/json.h"
#include "common/library.h"
#include "common/numbers.h"
#include "common/ranks.h"
#include "common/result.h"
#include "common/threads.h"
#include "common/version.h"
#include "formats/hub_cache.h"
#include "train/cli/engine_commands.h"
#include "train/loop/engine.h"

struct doctor_flags {
    bool json;
};

static const struct arg doctor_args[] = {
    {"--json", ARG_FLAG, offsetof(struct doctor_flags, json), NULL, NULL,
     "print the result as JSON"},
};
static const struct arg_group doctor_groups[] = {{"Output", doctor_args, COUNT(doctor_args), 0}};

/* ---- the build ---- */

static void add_program(struct facts *f)
{
    cJSON *build = cJSON_CreateObject();
    version_add_build(build);
    facts_add(f, "ferry", FACT_OK, NULL, "%s, %s, %s", ferry_version,
              json_as_text(json_get(build, "compiler")), json_as_text(json_get(build, "target")));
    cJSON_Delete(build);
}

static void add_engine(struct facts *f)
{
    const struct engine *e;
    struct error err;
    char path[LIBRARY_PATH];
    if (!library_find(path, "libferry_engine.so", NULL)) {
        facts_add(f, "engine", FACT_MISSING, "to run and train models: make",
                  "this build has no libferry_engine.so");
    } else if (engine_open(&e, &err)) {
        facts_add(f, "engine", FACT_WARNING, "models cannot run; convert and verify can", "%s",
                  err.text);
    } else {
        facts_add(f, "engine", FACT_OK, NULL, "%s", path);
        e->describe(f);
    }
}

/* ---- the machine ---- */

/* The variables of a list that are set: "RANK=0 WORLD_SIZE=2". */
static void add_variables(struct facts *f, const char *name, const char *const *variables)
{
    struct strbuf text = {0};
    for (; *variables; variables++) {
        const char *value = getenv(*variables);
        if (value) strbuf_printf(&text, "%s%s=%s", text.length ? " " : "", *variables, value);
    }
    facts_add(f, name, FACT_OK, NULL, "%s", text.length ? text.data : "none is set");
    strbuf_release(&text);
}

static void add_job(struct facts *f)
{
    static const char *const variables[] = {"RANK",
                                            "WORLD_SIZE",
                                            "LOCAL_RANK",
                                            "MASTER_ADDR",
                                            "OMPI_COMM_WORLD_RANK",
                                            "OMPI_COMM_WORLD_SIZE",
                                            "MV2_COMM_WORLD_RANK",
                                            "MV2_COMM_WORLD_SIZE",
                                            "PMI_RANK",
                                            "PMI_SIZE",
                                            "SLURM_JOB_ID",
                                            "SLURM_PROCID",
                                            "SLURM_STEP_NUM_TASKS",
                                            NULL};
    struct ranks r;
    struct error err;
    add_variables(f, "job variables", variables);
    if (ranks_from_environment(&r, &err))
        facts_add(f, "job", FACT_BROKEN, "unset these variables", "%s", err.text);
    else if (r.size == 1)
        facts_add(f, "job", FACT_OK, NULL, "one process");
    else
        facts_add(f, "job", FACT_OK, r.share_output ? NULL : "ferry train takes mpirun or srun",
                  "rank %u of %u", r.rank, r.size);
}

static void add_mpirun(struct facts *f)
{
    const char *folders = getenv("PATH");
    char *rest = arena_printf(f->arena, "%s", folders ? folders : ""), *folder;
    while ((folder = strsep(&rest, ":"))) {
        const char *path = path_join(f->arena, *folder ? folder : ".", "mpirun");
        if (access(path, X_OK)) continue;
        facts_add(f, "mpirun", FACT_OK, NULL, "%s", path_real(f->arena, path));
        return;
    }
    facts_add(f, "mpirun", FACT_MISSING, "for ranks on several hosts: apt install openmpi-bin",
              "not in PATH");
}

static void add_cpus(struct facts *f)
{
    static const char *const variables[] = {
        "FERRY_CPU",         "FERRY_CUDA_LIBRARY",   "CUDA_VISIBLE_DEVICES",
        "OMP_NUM_THREADS",   "OMP_PROC_BIND",        "OMP_WAIT_POLICY",
        "OPENBLAS_CORETYPE", "OPENBLAS_NUM_THREADS", NULL};
    add_variables(f, "variables", variables);
    facts_add(f, "CPUs", FACT_OK, NULL, "%u", threads_available());
}

static void add_memory(struct facts *f)
{
    const uint64_t left = host_memory_available(), least = (uint64_t)256 << 20;
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (left == UINT64_MAX || pages <= 0 || page <= 0) return;
    facts_add(f, "memory", left < least ? FACT_WARNING : FACT_OK,
              left < least ? "convert takes 256 MiB, less with --max-memory" : NULL,
              "%s available of %s", bytes_text(left), bytes_text((uint64_t)pages * (uint64_t)page));
}

/* A limit of ulimit; warns, or is broken,
 * below these numbers. */
static void add_limit(struct facts *f, const char *name, unsigned resource, uint64_t low,
                      uint64_t broken, const char *advice)
{
    struct rlimit limit;
    if (getrlimit(resource, &limit)) return;
    const bool is_bytes = resource != RLIMIT_NOFILE;
    const uint64_t most = resource == RLIMIT_NOFILE ? limit.rlim_max : limit.rlim_cur;
    const enum fact_state state = most < broken ? FACT_BROKEN : most < low ? FACT_WARNING : FACT_OK;
    const char *text = most == RLIM_INFINITY ? "unlimited"
                       : is_bytes            ? bytes_text(most)
                                             : grouped_text(most);
    facts_add(f, name, state, state ? advice : NULL, "%s", text);
}

static void add_limits(struct facts *f)
{
    const uint64_t any = RLIM_INFINITY, gb = 1000000000;
    add_limit(f, "ulimit -n", RLIMIT_NOFILE, 1024, 16,
              "checkpoints of many files are slower: ulimit -Hn 4096");
    add_limit(f, "ulimit -v", RLIMIT_AS, 8 * gb, 0, "the engine reserves more than it uses");
    add_limit(f, "ulimit -f", RLIMIT_FSIZE, any, 0, "larger files cannot be written");
    add_limit(f, "ulimit -l", RLIMIT_MEMLOCK, 0, 0, NULL);
}

static void add_disk(struct facts *f, const char *name, const char *path, uint64_t low,
                     const char *advice)
{
    struct statvfs disk;
    const char *whole = path_real(f->arena, path);
    if (!whole || statvfs(path, &disk)) {
        facts_add(f, name, FACT_MISSING, advice, "%s is not there", path);
        return;
    }
    const uint64_t left = (uint64_t)disk.f_bavail * disk.f_frsize;
    const bool may_write = access(path, W_OK) == 0;
    const enum fact_state state = left < low || !may_write ? FACT_WARNING : FACT_OK;
    facts_add(f, name, state, state ? advice : NULL, "%s, %s free%s", whole, bytes_text(left),
              may_write ? "" : ", not writable");
}

static void add_folders(struct facts *f)
{
    const uint64_t gb = 1000000000;
    const char *temporary = getenv("TMPDIR"), *cache = hub_cache_folder(f->arena);
    add_disk(f, "this folder", ".", gb, "a checkpoint may need more");
    add_disk(f, "TMPDIR", temporary && *temporary ? temporary : "/tmp", gb / 10,
             "name another folder in TMPDIR");
    add_disk(f, "/dev/shm", "/dev/shm", (uint64_t)64 << 20,
             "MPI and NCCL need it; in a container: docker run --shm-size 1g");
    if (cache)
        facts_add(f, "HF cache", path_is_folder(cache) ? FACT_OK : FACT_MISSING,
                  path_is_folder(cache) ? NULL : "hf download ORG/NAME makes it", "%s", cache);
}

/* ---- the command ---- */

static bool is_fine(const struct facts *f, const char *name)
{
    for (size_t i = 0; i < f->count; i++)
        if (strcmp(f->rows[i].name, name) == 0) return f->rows[i].state == FACT_OK;
    return false;
}

/* Abilities, and the line that decides about each. */
static const struct {
    const char *name, *line;
} abilities[] = {{"compute", "engine"}, {"mpi", "MPI"}, {"gpu", "CUDA"}};

static void set_answer(const struct facts *f)
{
    cJSON *o = cJSON_CreateObject(), *lines = cJSON_AddArrayToObject(o, "lines");
    for (size_t i = 0; i < COUNT(abilities); i++)
        cJSON_AddBoolToObject(o, abilities[i].name, is_fine(f, abilities[i].line));
    for (size_t i = 0; i < f->count; i++) {
        cJSON *line = cJSON_CreateObject();
        json_add_text(line, "name", f->rows[i].name);
        json_add_text(line, "value", f->rows[i].value);
        json_add_text(line, "state", fact_state_name(f->rows[i].state));
        json_add_text(line, "advice", f->rows[i].advice);
        cJSON_AddItemToArray(lines, line);
    }
    result_set(o);
}

static void print_lines(const struct facts *f)
{
    const bool coloured = colour_is_wanted(stdout);
    struct strbuf text = {0};
    for (size_t i = 0; i < f->count; i++) {
        const struct fact *r = &f->rows[i];
        const char *state = fact_state_name(r->state);
        enum colour c = r->state == FACT_OK       ? COLOUR_GREEN
                        : r->state == FACT_BROKEN ? COLOUR_RED
                                                  : COLOUR_YELLOW;
        strbuf_printf(&text, "%-14s %s  [", r->name, r->value);
        strbuf_add_coloured(&text, coloured ? c : COLOUR_NONE, state, strlen(state));
        strbuf_printf(&text, "]%s%s\n", r->advice ? "  " : "", r->advice ? r->advice : "");
    }
    fwrite(text.data, 1, text.length, stdout);
    strbuf_release(&text);
}

static enum status find_broken(const struct facts *f, struct error *err)
{
    for (size_t i = 0; i < f->count; i++)
        if (f->rows[i].state == FACT_BROKEN)
            return fail(err, ERR_UNSUPPORTED, "%s: %s", f->rows[i].name, f->rows[i].value);
    return OK;
}

static enum status doctor(void *options, const char *const *positional, size_t num_positional,
                          struct error *err)
{
    const struct doctor_flags *flags = options;
    struct arena a;
    struct facts f = {.arena = &a};
    (void)positional, (void)num_positional;
    if (ranks_print_by_rank_0()) return OK;
    arena_init(&a);
    add_program(&f);
    add_cpus(&f);
    add_engine(&f);
    add_mpirun(&f);
    add_job(&f);
    add_memory(&f);
    add_limits(&f);
    add_folders(&f);
    set_answer(&f);
    if (!flags->json) print_lines(&f);
    enum status st = find_broken(&f, err);
    free(f.rows);
    arena_release(&a);
    return st;
}

const struct command command_doctor = {
    .name = "doctor",
    .summary = "show what this machine and this build have, and what is missing",
    .positional = "",
    .text = "A line is NAME VALUE [STATE] ADVICE. The state is ok, missing (an optional thing), "
            "warning (works, but not well) or broken (no command can work; exit code 3). For a GPU "
            "it opens the first one.",
    .groups = doctor_groups,
    .num_groups = COUNT(doctor_groups),
    .options_bytes = sizeof(struct doctor_flags),
    .run = doctor,
};
