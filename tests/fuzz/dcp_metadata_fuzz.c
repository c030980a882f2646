/* dcp_metadata_fuzz.c - any bytes as the .metadata of a folder that has the data files which the
 * seeds name, each of 64 KiB. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "formats/dcp.h"
#include "tests/temporary.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[TEMPORARY_PATH];

static void remove_folder(void)
{
    (void)!path_remove(folder, NULL);
}

static int create(const char *name)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0) abort();
    return fd;
}

static void make_folder(void)
{
    if (!temporary_folder(folder)) abort();
    atexit(remove_folder);
    for (const char *const *name = (const char *const[]){"__0_0.distcp", "__1_0.distcp", NULL};
         *name; name++) {
        int fd = create(*name);
        if (ftruncate(fd, 64 << 10)) abort();
        close(fd);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct stored s;
    struct error err;
    static bool made;
    if (!made) make_folder();
    made = true;
    int fd = create(".metadata");
    if (write(fd, data, size) != (ssize_t)size) abort();
    close(fd);
    stored_init(&s);
    (void)!dcp_open(&s, folder, size % 2, &err);
    stored_release(&s);
    return 0;
}
