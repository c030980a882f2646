#include "kernels/device.h"

#include <stdint.h>
#include <string.h>

#include "tests/testing.h"

/* The folder of this program lacks the library. */
static void cuda_without_its_library_is_refused(void **state)
{
    const struct device *device = NULL;
    struct error err = {0};
    (void)state;
    assert_int_equal(cuda_device_load(&device, &err), ERR_DEVICE);
    assert_non_null(strstr(err.text, "no GPU can be used: "));
    assert_non_null(strstr(err.text, "this build has no CUDA support (libferry_cuda.so): "));
}

static void cpu_memory_is_zeroed_and_aligned(void **state)
{
    unsigned char *memory;
    void *allocated;
    (void)state;
    assert_int_equal(cpu_device.open(7, NULL), OK);
    assert_int_equal(cpu_device.allocate(&allocated, 1000, "a test", NULL), OK);
    memory = allocated;
    assert_int_equal((uintptr_t)memory % 256, 0);
    for (size_t i = 0; i < 1000; i++)
        assert_int_equal(memory[i], 0);
    cpu_device.release(memory);
    cpu_device.close();
}

static void cpu_memory_that_there_is_not_is_an_error(void **state)
{
    void *memory;
    struct error err = {0};
    (void)state;
    assert_int_equal(cpu_device.allocate(&memory, UINT64_MAX - 8, "the cache", &err), ERR_MEMORY);
    assert_non_null(strstr(err.text, "not enough memory for the cache"));
}

static void ranks_of_a_host_share_its_memory(void **state)
{
    uint64_t all, each;
    struct error err = {0};
    (void)state;
    assert_int_equal(cpu_device.free_memory(1, &all, &err), OK);
    assert_int_equal(cpu_device.free_memory(4, &each, &err), OK);
    assert_in_range(each, all / 8, all / 2); /* other processes allocate and free meanwhile */
}

static void cpu_copies(void **state)
{
    const char from[] = "bytes";
    char up[sizeof from], across[sizeof from], down[sizeof from];
    (void)state;
    assert_int_equal(cpu_device.upload(up, from, sizeof from, NULL), OK);
    assert_int_equal(cpu_device.copy(across, up, sizeof from, NULL), OK);
    assert_int_equal(cpu_device.download(down, across, sizeof from, NULL), OK);
    assert_int_equal(cpu_device.synchronize(NULL), OK);
    assert_string_equal(down, from);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cuda_without_its_library_is_refused),
        cmocka_unit_test(cpu_memory_is_zeroed_and_aligned),
        cmocka_unit_test(cpu_memory_that_there_is_not_is_an_error),
        cmocka_unit_test(ranks_of_a_host_share_its_memory),
        cmocka_unit_test(cpu_copies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
