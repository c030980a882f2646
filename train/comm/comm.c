/* comm.c - groups and the end of a job for any backend; loading the library
 * with MPI. */
#include "train/comm/comm.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "common/library.h"
#include "common/memory.h"
#include "common/threads.h"
#include "train/comm/comm_mpi.h"

static const char MPI_LIBRARY[] = "libferry_mpi.so";

static enum status check_group_ranks(struct comm_group *g, const unsigned *ranks, struct error *err)
{
    const struct comm *c = g->comm;
    g->index = g->size;
    for (unsigned i = 0; i < g->size; i++) {
        if (ranks[i] >= c->size)
            return fail(err, ERR_OURS, "group: rank %u is out of range (%u ranks)", ranks[i],
                        c->size);
        for (unsigned k = 0; k < i; k++)
            if (ranks[k] == ranks[i])
                return fail(err, ERR_OURS, "group: rank %u is listed twice", ranks[i]);
        if (ranks[i] == c->rank) g->index = i;
    }
    if (g->index == g->size)
        return fail(err, ERR_OURS, "group: this rank, %u, is not a member", c->rank);
    return OK;
}

enum status comm_group_open(struct comm_group *g, struct comm *c, const unsigned *ranks,
                            unsigned size, struct error *err)
{
    *g = (struct comm_group){.comm = c, .size = size};
    TRY(check_group_ranks(g, ranks, err));
    unsigned *copy = must_malloc(size * sizeof *copy);
    memcpy(copy, ranks, size * sizeof *copy);
    g->ranks = copy;
    enum status st = c->backend->group_open(g, err);
    if (st) free(copy);
    return st;
}

void comm_group_close(struct comm_group *g)
{
    g->comm->backend->group_close(g);
    free((unsigned *)g->ranks);
    *g = (struct comm_group){0};
}

void comm_fail(struct comm *c, const struct error *err)
{
    c->backend->fail(c, err);
}

enum status comm_close(struct comm *c, enum status st, struct error *err)
{
    st = c->backend->close(c, st, err);
    *c = (struct comm){0};
    return st;
}

void comm_print_death(char text[COMM_DEATH_TEXT], unsigned rank, int wait_status)
{
    if (WIFSIGNALED(wait_status))
        (void)snprintf(text, COMM_DEATH_TEXT, "rank %u has died: signal %d (%s)", rank,
                       WTERMSIG(wait_status), strsignal(WTERMSIG(wait_status)));
    else
        (void)snprintf(text, COMM_DEATH_TEXT, "rank %u has ended too early: exit code %d", rank,
                       WEXITSTATUS(wait_status));
}

enum status comm_send(struct comm_group *g, unsigned to, const void *data, size_t bytes,
                      struct error *err)
{
    const struct comm_message m = {true, to, (void *)(uintptr_t)data, bytes};
    return g->comm->backend->exchange(g, &m, 1, err);
}

enum status comm_receive(struct comm_group *g, unsigned from, void *data, size_t bytes,
                         struct error *err)
{
    const struct comm_message m = {false, from, data, bytes};
    return g->comm->backend->exchange(g, &m, 1, err);
}

/* Even for 0 bytes, all_gather returns only after all members have called it.
 */
enum status comm_barrier(struct comm_group *g, struct error *err)
{
    return g->comm->backend->all_gather(g, NULL, NULL, 0, err);
}

enum status comm_agree(struct comm_group *g, enum status own, struct error *err)
{
    struct error mine = {.code = OK}, *all = must_calloc(g->size, sizeof *all);
    unsigned i = 0;
    if (own) mine = *err;
    mine.code = own;
    enum status st = g->comm->backend->all_gather(g, &mine, all, sizeof mine, err);
    while (!st && i < g->size && !all[i].code)
        i++;
    if (!st && i < g->size) {
        *err = all[i];
        st = i == g->index ? err->code : fail_in(err, "rank %u", g->ranks[i]);
    }
    free(all);
    return st;
}

enum status comm_any(struct comm_group *g, bool *any, struct error *err)
{
    int32_t said = *any;
    TRY(g->comm->backend->all_reduce(g, &said, 1, COMM_INT32, COMM_MAX, err));
    *any = said > 0;
    return OK;
}

unsigned comm_threads(const struct comm *c, unsigned asked)
{
    const unsigned threads = asked ? asked : threads_available(),
                   sharers = asked ? c->host_size : c->cpu_sharers;
    if (!sharers) return threads;
    return threads > sharers ? threads / sharers : 1;
}

enum status comm_end(struct comm *c, enum status st, struct error *err)
{
    struct error own = *err;
    const bool is_rank_0 = c->rank == 0;
    const enum status of_all = comm_close(c, st, err);
    if (!st || st == ERR_RANK || !is_rank_0) return of_all;
    *err = own;
    return st;
}

/* ---- the library with MPI in it ---- */

/* Where libraries of Ferry are, else where the system looks. Open MPI's plugins
 * look for its names among global ones. */
static void *open_mpi_library(void)
{
    char path[LIBRARY_PATH];
    return dlopen(library_find(path, MPI_LIBRARY, MPI_LIBRARY) ? path : MPI_LIBRARY,
                  RTLD_NOW | RTLD_GLOBAL);
}

static enum status load_mpi(void **library, struct error *err)
{
    *library = open_mpi_library();
    return *library ? OK
                    : fail(err, ERR_UNSUPPORTED,
                           "MPI: this build has none, or its library is missing: %s", dlerror());
}

enum status comm_mpi_version(char *text, size_t room, struct error *err)
{
    enum { LONGEST = 8192 }; /* MPICH's MPI_MAX_LIBRARY_VERSION_STRING */
    char all[LONGEST] = "";
    int (*version)(char *, int *) = NULL, length;
    void *library;
    TRY(load_mpi(&library, err));
    *(void **)&version = dlsym(library, "MPI_Get_library_version");
    if (!version) return fail(err, ERR_UNSUPPORTED, "MPI: %s", dlerror());
    (void)version(all, &length);
    all[strcspn(all, ",\n")] = '\0';
    for (char *tab = all; (tab = strchr(tab, '\t'));)
        *tab = ' ';
    (void)snprintf(text, room, "%s", all);
    return OK;
}

enum status comm_mpi_open(struct comm *c, struct error *err)
{
    comm_mpi_start_fn *start = NULL;
    void *library;
    TRY(load_mpi(&library, err));
    *(void **)&start = dlsym(library, "comm_mpi_start"); /* as POSIX has it: ISO C has no way */
    if (!start) return fail(err, ERR_UNSUPPORTED, "MPI: %s", dlerror());
    const struct comm_mpi_program program = {interrupted, work_stop};
    return start(c, &program, err);
}
