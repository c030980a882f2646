/* asan.h - marks bytes within a block as untouchable for AddressSanitizer,
 * which knows only whole blocks. Without it WITH_ASAN is 0 and the macros do
 * nothing. */
#ifndef FERRY_COMMON_ASAN_H
#define FERRY_COMMON_ASAN_H

#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN 1
#elif defined(__has_feature)
#define WITH_ASAN __has_feature(address_sanitizer)
#else
#define WITH_ASAN 0
#endif

#if WITH_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(start, bytes) ((void)(start), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(start, bytes) ((void)(start), (void)(bytes))
#endif

#endif
