/* host_memory.h - what memory this process could still get, in bytes. */
#ifndef FERRY_COMMON_HOST_MEMORY_H
#define FERRY_COMMON_HOST_MEMORY_H

#include <stdint.h>

/* The less that these leave, UINT64_MAX where none says anything: the host (MemAvailable: without
 * swapping, file pages given up), and the memory cgroups that the process is in (version 1 and 2:
 * containers, Slurm, systemd). */
uint64_t host_memory_available(void);

/* The same with root before /proc and /sys, for tests. */
uint64_t host_memory_available_in(const char *root);

/* What its limit leaves the process of address space (ulimit -v), which libraries take more of than
 * they ever use; UINT64_MAX where there is no limit. */
uint64_t host_memory_address_space(void);

/* What is resident of this process: code, libraries, heap. */
uint64_t host_memory_resident(void);

#endif
