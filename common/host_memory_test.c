#include "common/host_memory.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/folder.h"

static void put(const char *path, const char *text)
{
    const char *whole = arena_printf(&arena, "%s%s", folder, path);
    assert_ok(folder_create(path_parent(&arena, whole), &err));
    assert_ok(file_replace_all(whole, text, strlen(text), false, &err));
}

static void a_host_that_says_nothing_has_no_limit(void **state)
{
    (void)state;
    assert_true(host_memory_available_in(folder) == UINT64_MAX);
}

static void the_host_says_what_is_available(void **state)
{
    (void)state;
    put("/proc/meminfo", "MemTotal: 4000 kB\nMemFree: 1000 kB\nMemAvailable:    2000 kB\n");
    put("/proc/self/cgroup", "0::/\n");
    assert_int_equal(host_memory_available_in(folder), 2000 * 1024);
}

static void a_group_of_version_2_leaves_its_limit_less_what_is_used(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/slice/job_7\n");
    put("/sys/fs/cgroup/slice/job_7/memory.max", "max\n");
    put("/sys/fs/cgroup/slice/job_7/memory.current", "600\n");
    put("/sys/fs/cgroup/slice/memory.max", "10000\n");
    put("/sys/fs/cgroup/slice/memory.current", "7000\n");
    assert_int_equal(host_memory_available_in(folder), 3000); /* of the parent */
    put("/sys/fs/cgroup/slice/job_7/memory.max", "1000\n");
    assert_int_equal(host_memory_available_in(folder), 400);
    put("/sys/fs/cgroup/slice/job_7/memory.stat", "anon 1\nfile 250\nactive_file 100\n"
                                                  "inactive_file 150\n");
    assert_int_equal(host_memory_available_in(folder), 650);
    put("/sys/fs/cgroup/slice/job_7/memory.current", "5000\n");
    assert_int_equal(host_memory_available_in(folder), 0);
}

/* Its own group is the folder of what a container sees, whatever it is called. */
static void a_container_of_version_1_sees_its_limit_at_the_root(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "5:cpu,cpuacct:/docker/1234\n4:memory:/docker/1234\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "5000\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "3000\n");
    put("/sys/fs/cgroup/memory/memory.stat", "active_file 77\ntotal_inactive_file 500\n");
    assert_int_equal(host_memory_available_in(folder), 2500);
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"); /* none */
    put("/proc/meminfo", "MemAvailable: 9 kB\n");
    assert_int_equal(host_memory_available_in(folder), 9 * 1024);
}

static void address_space_is_limited(void **state)
{
    (void)state;
    const rlim_t most = (rlim_t)1 << 46; /* sanitizers take a good part of it */
    if (!test_can_limit_address_space()) skip();
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit limit = {most, most};
        if (setrlimit(RLIMIT_AS, &limit)) _exit(2);
        const uint64_t left = host_memory_address_space();
        _exit(left == 0 || left >= most);
    }
    int how;
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_int_equal(how, 0);
    assert_true(host_memory_resident() > 0 && host_memory_available() > 0);
}

/* A child of a large process has its own peak. */
static void the_peak_is_of_this_program_alone(void **state)
{
    (void)state;
    if (test_is_emulated()) skip(); /* a shell cannot start it */
    if (getenv("HOST_MEMORY_TEST_PRINTS")) {
        printf("%llu\n", (unsigned long long)host_memory_peak());
        fflush(stdout);
        _exit(0);
    }
    const size_t size = (size_t)256 << 20;
    volatile char *much = malloc(size);
    char line[64] = "";
    for (size_t i = 0; i < size; i += 4096)
        much[i] = 1;
    assert_true(host_memory_peak() >= size);
    setenv("HOST_MEMORY_TEST_PRINTS", "1", 1);
    char command[PATH_MAX + 64], self[PATH_MAX] = "";
    assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    snprintf(command, sizeof command, "exec '%s' 2>/dev/null", self);
    FILE *child = popen(command, "r");
    while (child && fgets(line, sizeof line, child) && !strtoull(line, NULL, 10))
        ;
    pclose(child);
    unsetenv("HOST_MEMORY_TEST_PRINTS");
    free((void *)(uintptr_t)much);
    assert_in_range(strtoull(line, NULL, 10), 1, size - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(a_host_that_says_nothing_has_no_limit),
        FOLDER_TEST(the_host_says_what_is_available),
        FOLDER_TEST(a_group_of_version_2_leaves_its_limit_less_what_is_used),
        FOLDER_TEST(a_container_of_version_1_sees_its_limit_at_the_root),
        FOLDER_TEST(address_space_is_limited),
        FOLDER_TEST(the_peak_is_of_this_program_alone),
    };
    return cmocka_run_group_tests_name("host_memory", tests, NULL, NULL);
}
