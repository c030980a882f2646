/* fsdp_fuzz.c - any bytes as the files of FSDP: opened, with the config of the seeds' model or
 * without one, and planned as other formats. No mistake of a plan (ERR_OURS) may come of it.
 *
 *   byte 0    the kind of folder; odd halves of the kinds have no config
 *   files     u16 length and bytes of each but the last, which has the rest */
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

enum { MAX_FILES = 4 };

static const struct kind {
    const char *folder, *files[MAX_FILES];
} kinds[] = {
    {"full", {"model.pt", "optim.pt"}},
    {"ranks", {"model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt"}},
    {"trained",
     {"model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt",
      "optim_world_size_2_rank_0.pt", "optim_world_size_2_rank_1.pt"}},
};

static const char config[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": 4,"
    " \"intermediate_size\": 3, \"num_hidden_layers\": 1, \"num_attention_heads\": 2,"
    " \"num_key_value_heads\": 1, \"head_dim\": 2, \"vocab_size\": 3, \"rms_norm_eps\": 1e-06,"
    " \"max_position_embeddings\": 64, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\","
    " \"tie_word_embeddings\": false}";

static char folder[TEMPORARY_PATH];
static struct model_maps maps;

static void remove_folder(void)
{
    (void)!path_remove(folder, NULL);
}

static void write_bytes(const char *path, const void *data, size_t size)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    close(fd);
}

static void make_folders(void)
{
    char path[400];
    struct error err;
    if (!temporary_folder(folder) || model_maps_load(&maps, NULL, &err)) abort();
    atexit(remove_folder);
    for (size_t i = 0; i < COUNT(kinds); i++) {
        snprintf(path, sizeof path, "%s/%s", folder, kinds[i].folder);
        if (folder_create(path, &err)) abort();
    }
    snprintf(path, sizeof path, "%s/config.json", folder);
    write_bytes(path, config, strlen(config));
}

static void write_files(const struct kind *k, const uint8_t *data, size_t size)
{
    for (size_t i = 0; i < MAX_FILES && k->files[i]; i++) {
        const bool last = i + 1 == MAX_FILES || !k->files[i + 1];
        size_t length = size;
        char path[400];
        if (!last && size >= 2) {
            length = data[0] | (size_t)data[1] << 8;
            data += 2;
            size -= 2;
            if (length > size) length = size;
        }
        snprintf(path, sizeof path, "%s/%s/%s", folder, k->folder, k->files[i]);
        write_bytes(path, data, length);
        data += length;
        size -= length;
    }
}

static void plan_all(struct checkpoint *c)
{
    static const char *const formats[] = {"hf", "torch_dist", "fsdp"};
    for (size_t i = 0; i < COUNT(formats); i++) {
        const struct target_options o = {
            .format = format_find(formats[i]),
            .layout = {.tp = 1},
            .max_shard_bytes = 1000,
            .optimizer = !c->training.optimizer.unread,
        };
        struct target t;
        struct error err = {0};
        if (target_plan(&t, &o, c, &maps, &err) == ERR_OURS) {
            fprintf(stderr, "%s\n", err.text);
            abort();
        }
        target_release(&t);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct checkpoint c;
    struct error err = {0};
    char path[400];
    if (!size) return 0;
    if (!*folder) make_folders();
    const struct kind *k = &kinds[data[0] % COUNT(kinds)];
    const struct source_options o = {.hf_config = data[0] / COUNT(kinds) % 2 ? NULL : folder};
    write_files(k, data + 1, size - 1);
    snprintf(path, sizeof path, "%s/%s", folder, k->folder);
    enum status st = source_open(&c, path, &o, &maps, &err);
    if (st == ERR_OURS) abort();
    if (!st && !c.gaps.num_missing && !c.gaps.num_unexpected) plan_all(&c);
    checkpoint_release(&c);
    return 0;
}
