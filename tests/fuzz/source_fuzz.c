/* source_fuzz.c - any bytes as the only file of a legacy checkpoint: opened, and planned as another
 * one. What the file says of the model and of its layout is believed as far as its tensors bear it
 * out; no mistake of a plan (ERR_OURS) may come of it. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/count.h"
#include "convert/format.h"
#include "convert/source.h"
#include "convert/target.h"
#include "tests/temporary.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[TEMPORARY_PATH];
static struct model_maps maps;

static void remove_folder(void)
{
    (void)!path_remove(folder, NULL);
}

/* FOLDER/mp_rank_00/model_optim_rng.pt */
static void make_folder(void)
{
    char ranks[300];
    struct error err;
    if (!temporary_folder(folder) || model_maps_load(&maps, NULL, &err)) abort();
    atexit(remove_folder);
    snprintf(ranks, sizeof ranks, "%s/mp_rank_00", folder);
    if (folder_create(ranks, &err)) abort();
}

static void write_file(const uint8_t *data, size_t size)
{
    char path[300];
    snprintf(path, sizeof path, "%s/mp_rank_00/model_optim_rng.pt", folder);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    close(fd);
}

static void plan_all(struct checkpoint *c)
{
    static const char *const formats[] = {"hf", "torch_dist", "torch"};
    for (size_t i = 0; i < COUNT(formats); i++) {
        const struct target_options o = {
            .format = format_find(formats[i]), .layout = {.tp = 1 + i}, .max_shard_bytes = 1000};
        struct target t;
        struct error err = {0};
        enum status st = target_plan(&t, &o, c, &maps, &err);
        if (st == ERR_OURS) {
            fprintf(stderr, "%s\n", err.text);
            abort();
        }
        target_release(&t);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct source_options o = {.true_vocab_size = size % 2 ? 3 : 0}; /* the seeds' */
    struct checkpoint c;
    struct error err = {0};
    if (!*folder) make_folder();
    write_file(data, size);
    enum status st = source_open(&c, folder, &o, &maps, &err);
    if (st == ERR_OURS) abort();
    if (!st && !c.gaps.num_missing && !c.gaps.num_unexpected) plan_all(&c);
    checkpoint_release(&c);
    return 0;
}
