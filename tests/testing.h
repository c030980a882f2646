/* testing.h - cmocka with what it wants included before it, and random numbers of a printed seed.
 */
#ifndef FERRY_TESTS_TESTING_H
#define FERRY_TESTS_TESTING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

/* cmocka's fail() has the name of ours, which fills a struct error; its fail_msg() uses it. */
#undef fail
#undef fail_msg
#define fail_msg(...)                                                                              \
    do {                                                                                           \
        print_error("ERROR: " __VA_ARGS__);                                                        \
        print_error("\n");                                                                         \
        _fail(__FILE__, __LINE__);                                                                 \
    } while (0)

#include "common/status.h"

/* The seed is FERRY_TEST_SEED or 1; a test that uses random numbers prints it when it fails. */
static inline uint64_t test_seed(void)
{
    const char *text = getenv("FERRY_TEST_SEED");
    return text ? strtoull(text, NULL, 10) : 1;
}

/* FERRY_TEST_DEVICE=cuda: engine tests run on a GPU, real or emulated (tests/gpu), fewer of them
 * unless FERRY_TEST_ALL is set. */
static inline int test_on_gpu(void)
{
    const char *device = getenv("FERRY_TEST_DEVICE");
    return device && strcmp(device, "cuda") == 0;
}

static inline int test_few(void)
{
    return test_on_gpu() && !getenv("FERRY_TEST_ALL");
}

/* FERRY_TEST_SHARE=K/N, K from 0 to N - 1: tests of many cases take each Nth
 * case, from case K. Unset: all cases. */
struct test_share {
    unsigned first, of;
};

static inline struct test_share test_share(void)
{
    const char *text = getenv("FERRY_TEST_SHARE");
    struct test_share s = {0, 1};
    if (text && (sscanf(text, "%u/%u", &s.first, &s.of) != 2 || s.first >= s.of)) {
        print_error("FERRY_TEST_SHARE=%s is not K/N with K < N\n", text);
        exit(2);
    }
    return s;
}

/* Whether only a share of the cases is taken. */
static inline bool test_is_share(void)
{
    return test_share().of > 1;
}

/* Whether case i of count cases is taken; some case always is. */
static inline bool test_takes(size_t i, size_t count)
{
    const struct test_share s = test_share();
    const size_t of = s.of < count ? s.of : count;
    return i % of == s.first % of;
}

/* Rounds of a test with random numbers, at least one. */
static inline int test_rounds(int all)
{
    const int of = (int)test_share().of;
    return (all + of - 1) / of;
}

/* Whether sanitizers, which take memory of their own, are built in. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#elif defined(__has_feature)
enum { SANITIZED = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) };
#else
enum { SANITIZED = 0 };
#endif

/* An emulator of another CPU does not heed such a limit, and says so. */
static inline int test_can_limit_address_space(void)
{
    struct rlimit old, now = {0};
    if (getrlimit(RLIMIT_AS, &old)) return 0;
    const struct rlimit limit = {(rlim_t)1 << 46, old.rlim_max};
    const int obeyed = setrlimit(RLIMIT_AS, &limit) == 0 && getrlimit(RLIMIT_AS, &now) == 0 &&
                       now.rlim_cur == limit.rlim_cur;
    return setrlimit(RLIMIT_AS, &old) == 0 && obeyed;
}

static inline int test_is_emulated(void)
{
    return !test_can_limit_address_space();
}

/* splitmix64 (Steele, Lea, Flood 2014) */
static inline uint64_t test_random(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* Where a fuzzer chooses: its bytes, which test_below() takes in place of random numbers, and zeros
 * behind them. */
static const uint8_t *test_choices, *test_choices_end;

static inline uint64_t test_choose(uint64_t bound)
{
    uint64_t n = 0;
    for (uint64_t most = bound - 1; most; most >>= 8)
        n = n << 8 | (test_choices < test_choices_end ? *test_choices++ : 0);
    return n % bound;
}

static inline uint64_t test_below(uint64_t *state, uint64_t bound)
{
    return test_choices ? test_choose(bound) : test_random(state) % bound;
}

#define assert_ok(call)                                                                            \
    do {                                                                                           \
        enum status assert_st_ = (call);                                                           \
        if (assert_st_) fail_msg("%s is %d: %s", #call, (int)assert_st_, err.text);                \
    } while (0)

/* The call fails with this status and a message that contains `part`. */
#define assert_fails(call, status, part)                                                           \
    do {                                                                                           \
        err.text[0] = '\0';                                                                        \
        assert_int_equal(call, status);                                                            \
        if (!strstr(err.text, part)) fail_msg("\"%s\" lacks \"%s\"", err.text, part);              \
    } while (0)

#endif
