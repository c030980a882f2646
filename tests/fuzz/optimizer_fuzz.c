/* optimizer_fuzz.c - any bytes as the files of a small checkpoint with an optimizer, in any format:
 * opened, and planned as every other format with the optimizer. What is read of it must not be a
 * mistake of ours (ERR_OURS).
 *
 * 1. a byte: the kind of the checkpoint, an index into kinds[] modulo their number
 * 2. for each file of the kind but the last: its length as 2 bytes, low one first, and its bytes
 * 3. the rest is the last file
 *
 * A file of no bytes is not there. */
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

/* The config of the seeds, which is not in their bytes. */
static const char config_json[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"torch_dtype\": "
    "\"bfloat16\", \"hidden_act\": \"silu\", \"hidden_size\": 2, \"intermediate_size\": 2, "
    "\"num_hidden_layers\": 1, \"num_attention_heads\": 1, \"num_key_value_heads\": 1, "
    "\"head_dim\": 2, \"vocab_size\": 3, \"max_position_embeddings\": 2048, \"rms_norm_eps\": "
    "1e-05, \"rope_theta\": 10000.0, \"tie_word_embeddings\": false, \"attention_bias\": false, "
    "\"mlp_bias\": false}";

static const struct kind {
    const char *folder, *sub_folder;
    const char *constant, *contents; /* a file whose bytes are always the same */
    const char *files[MAX_FILES];
} kinds[] = {
    {"hf",
     NULL,
     "config.json",
     config_json,
     {"training.json", "optimizer.safetensors", "model.safetensors"}},
    {"torch",
     "mp_rank_00",
     NULL,
     NULL,
     {"mp_rank_00/model_optim_rng.pt", "mp_rank_00/distrib_optim.pt"}},
    {"dist",
     NULL,
     "metadata.json",
     "{\"sharded_backend\": \"torch_dist\", \"sharded_backend_version\": 1}",
     {"common.pt", ".metadata", "__0_0.distcp"}},
    {"dcp", NULL, "config.json", config_json, {"__0_0.distcp", ".metadata"}},
    {"step-1", NULL, "config.json", config_json, {"__0_0.distcp", ".metadata"}}, /* torchtitan */
    {"shards",
     NULL,
     "config.json",
     config_json,
     {"shard-00001-model-00001-of-00001.safetensors",
      "shard-00002-model-00001-of-00001.safetensors"}},
};

static char folder[TEMPORARY_PATH];
static struct model_maps maps;

static void remove_folder(void)
{
    (void)!path_remove(folder, NULL);
}

static void write_file(const struct kind *k, const char *name, const void *bytes, size_t size)
{
    char path[400];
    snprintf(path, sizeof path, "%s/%s/%s", folder, k->folder, name);
    unlink(path);
    if (!size) return;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, bytes, size) != (ssize_t)size) abort();
    close(fd);
}

static void make_folders(void)
{
    struct error err;
    if (!temporary_folder(folder) || model_maps_load(&maps, NULL, &err)) abort();
    atexit(remove_folder);
    for (size_t i = 0; i < COUNT(kinds); i++) {
        const struct kind *k = &kinds[i];
        char path[400];
        snprintf(path, sizeof path, "%s/%s", folder, k->folder);
        if (folder_create(path, &err)) abort();
        if (k->constant) write_file(k, k->constant, k->contents, strlen(k->contents));
        if (!k->sub_folder) continue;
        snprintf(path, sizeof path, "%s/%s/%s", folder, k->folder, k->sub_folder);
        if (folder_create(path, &err)) abort();
    }
}

/* Writes the files that the input has. */
static void write_files(const struct kind *k, const uint8_t *data, size_t size)
{
    for (size_t i = 0; i < MAX_FILES && k->files[i]; i++) {
        const bool last = i + 1 == MAX_FILES || !k->files[i + 1];
        size_t length = size;
        if (!last && size >= 2) {
            length = data[0] | (size_t)data[1] << 8;
            data += 2;
            size -= 2;
            if (length > size) length = size;
        }
        write_file(k, k->files[i], data, length);
        data += length;
        size -= length;
    }
}

static void plan(struct checkpoint *c, const char *format, unsigned optim_format, uint64_t tp)
{
    const struct target_options o = {.format = format_find(format),
                                     .layout = {.tp = tp},
                                     .max_shard_bytes = 1000,
                                     .optimizer = true,
                                     .dp = 1 + tp,
                                     .flatten_optim = optim_format % 2,
                                     .split_qkv = optim_format % 2,
                                     .optim_format = (enum optim_format)optim_format};
    struct target t;
    struct error err = {0};
    if (target_plan(&t, &o, c, &maps, &err) == ERR_OURS) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    target_release(&t);
}

static void plan_all(struct checkpoint *c)
{
    static const char *const flat_formats[] = {"hf", "dcp", "torchtitan"};
    for (size_t i = 0; i < COUNT(flat_formats); i++)
        for (unsigned k = 0; k < 2; k++)
            plan(c, flat_formats[i], OPTIM_DEFAULT + k, 1);
    for (unsigned i = 0; i < NUM_OPTIM_FORMATS; i++) {
        const bool dist = i == OPTIM_fully_reshardable || i == OPTIM_fully_sharded_model_space;
        plan(c, dist ? "torch_dist" : "torch", i, 1 + i % 2);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct source_options o = {.true_vocab_size = 3}; /* the seeds' */
    struct checkpoint c;
    struct error err = {0};
    char path[400];
    if (!size) return 0;
    if (!*folder) make_folders();
    const struct kind *k = &kinds[data[0] % COUNT(kinds)];
    write_files(k, data + 1, size - 1);
    snprintf(path, sizeof path, "%s/%s", folder, k->folder);
    enum status st = source_open(&c, path, &o, &maps, &err);
    if (st == ERR_OURS) abort();
    if (!st && !c.gaps.num_missing && !c.gaps.num_unexpected && !c.training.optimizer.unread)
        plan_all(&c);
    checkpoint_release(&c);
    return 0;
}
