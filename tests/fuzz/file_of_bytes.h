/* file_of_bytes.h - a file in memory that holds what a fuzzer made up. */
#ifndef FERRY_TESTS_FUZZ_FILE_OF_BYTES_H
#define FERRY_TESTS_FUZZ_FILE_OF_BYTES_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* Its descriptor, to be closed, and the path by which it is opened. */
static inline int file_of_bytes(const void *bytes, size_t size, char path[64])
{
    int fd = memfd_create("fuzz", 0);
    if (fd < 0 || write(fd, bytes, size) != (ssize_t)size) abort();
    snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}

#endif
