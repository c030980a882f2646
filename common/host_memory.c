#include "common/host_memory.h"

#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/checked.h"

/* ---- numbers in kernel files ---- */

static FILE *open_in(const char *root, const char *path)
{
    char whole[PATH_MAX];
    int n = snprintf(whole, sizeof whole, "%s%s", root, path);
    return n > 0 && (size_t)n < sizeof whole ? fopen(whole, "re") : NULL;
}

/* The number behind a word that begins a line; false: no such line. */
static bool find_number(const char *root, const char *path, const char *word, uint64_t *out)
{
    char line[256];
    const size_t n = strlen(word);
    bool found = false;
    FILE *f = open_in(root, path);
    while (f && !found && fgets(line, sizeof line, f))
        found = strncmp(line, word, n) == 0 && sscanf(line + n, "%" SCNu64, out) == 1;
    if (f) fclose(f);
    return found;
}

/* ---- the host ---- */

static uint64_t host_available(const char *root)
{
    uint64_t kib;
    return find_number(root, "/proc/meminfo", "MemAvailable:", &kib) ? kib * 1024 : UINT64_MAX;
}

/* ---- cgroups ---- */

/* Folder and file names of a cgroup version. */
struct cgroup_version {
    const char *mount, *limit, *usage;
    const char *file_pages[2]; /* words of memory.stat: pages the kernel can drop */
};

// clang-format off
static const struct cgroup_version version_1 = {
    "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
    {"total_inactive_file ", "total_active_file "}};
static const struct cgroup_version version_2 = {
    "/sys/fs/cgroup", "memory.max", "memory.current", {"inactive_file ", "active_file "}};
// clang-format on

static bool cgroup_number(const char *root, const struct cgroup_version *v, const char *group,
                          const char *file, const char *word, uint64_t *out)
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s%s/%s", v->mount, group, file);
    return n > 0 && (size_t)n < sizeof path && find_number(root, path, word, out);
}

/* The memory that one group leaves. Only a number is a limit. */
static uint64_t left_in_group(const char *root, const struct cgroup_version *v, const char *group)
{
    uint64_t limit, usage, file_pages = 0, pages;
    if (!cgroup_number(root, v, group, v->limit, "", &limit)) return UINT64_MAX;
    if (!cgroup_number(root, v, group, v->usage, "", &usage)) return UINT64_MAX;
    for (unsigned i = 0; i < 2; i++)
        if (cgroup_number(root, v, group, "memory.stat", v->file_pages[i], &pages))
            file_pages += pages;
    usage -= min_u64(usage, file_pages);
    return limit > usage ? limit - usage : 0;
}

/* A limit holds for all groups below it. Skips missing folders: a container may
 * see its own group as the root of the tree, under another name. */
static uint64_t left_in_groups(const char *root, const struct cgroup_version *v, char *group)
{
    uint64_t least = UINT64_MAX;
    for (char *end = group + strlen(group); end; end = strrchr(group, '/')) {
        *end = '\0';
        least = min_u64(least, left_in_group(root, v, group));
    }
    return least;
}

/* A line is NUMBER:CONTROLLERS:PATH, in version 2 "0::PATH". */
static uint64_t cgroups_available(const char *root)
{
    char line[PATH_MAX];
    uint64_t least = UINT64_MAX;
    FILE *f = open_in(root, "/proc/self/cgroup");
    while (f && fgets(line, sizeof line, f)) {
        char *controllers = strchr(line, ':'), *path;
        if (!controllers || !(path = strchr(controllers + 1, ':'))) continue;
        *path++ = '\0';
        path[strcspn(path, "\n")] = '\0';
        if (!controllers[1]) least = min_u64(least, left_in_groups(root, &version_2, path));
        if (strcmp(controllers + 1, "memory") == 0)
            least = min_u64(least, left_in_groups(root, &version_1, path));
    }
    if (f) fclose(f);
    return least;
}

/* ---- the process ---- */

/* A field of /proc/self/statm, which counts pages. */
static uint64_t own_bytes(bool resident)
{
    uint64_t size = 0, pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fscanf(f, "%" SCNu64 " %" SCNu64, &size, &pages) != 2) size = pages = 0;
    if (f) fclose(f);
    return (resident ? pages : size) * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t host_memory_resident(void)
{
    return own_bytes(true);
}

uint64_t host_memory_peak(void)
{
    uint64_t kib;
    return find_number("", "/proc/self/status", "VmHWM:", &kib) ? kib * 1024 : 0;
}

uint64_t host_memory_address_space(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur == RLIM_INFINITY) return UINT64_MAX;
    return limit.rlim_cur - min_u64(limit.rlim_cur, own_bytes(false));
}

uint64_t host_memory_available_in(const char *root)
{
    return min_u64(host_available(root), cgroups_available(root));
}

uint64_t host_memory_available(void)
{
    return host_memory_available_in("");
}
