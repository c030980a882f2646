/* host_memory.h - memory that this process can still get, in bytes. */
#ifndef FERRY_COMMON_HOST_MEMORY_H
#define FERRY_COMMON_HOST_MEMORY_H

#include <stdint.h>

/* The smallest of the host's MemAvailable (without swapping, with droppable
 * file pages) and the rest of each memory cgroup of the process (version 1 and
 * 2: containers, Slurm, systemd). UINT64_MAX if none is known. */
uint64_t host_memory_available(void);

/* With `root` in front of /proc and /sys, for tests. */
uint64_t host_memory_available_in(const char *root);

/* Address space that ulimit -v leaves; libraries reserve more of it than they
 * use. UINT64_MAX: no limit. */
uint64_t host_memory_address_space(void);

/* Resident bytes of this process: code, libraries, heap. */
uint64_t host_memory_resident(void);

/* Their largest number since the program began. getrusage() would count the
 * process that started it, too. 0 if unknown. */
uint64_t host_memory_peak(void);

#endif
