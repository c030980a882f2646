/* deepspeed_fuzz.c - any bytes as the files of a small checkpoint of DeepSpeed: opened, with and
 * without a config, and planned as a Hugging Face folder. What is read of it must not be a mistake
 * of ours (ERR_OURS). tests/golden/make/deepspeed_seeds.py makes the seeds.
 *
 * 1. a byte: the kind of the checkpoint, an index into kinds[] modulo their number
 * 2. for each file of the kind but the last: its length as 3 bytes, low ones first, and its bytes
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

enum { MAX_FILES = 5 };

static const char config_json[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"torch_dtype\": "
    "\"bfloat16\", \"hidden_act\": \"silu\", \"hidden_size\": 2, \"intermediate_size\": 2, "
    "\"num_hidden_layers\": 1, \"num_attention_heads\": 1, \"num_key_value_heads\": 1, "
    "\"head_dim\": 2, \"vocab_size\": 3, \"max_position_embeddings\": 2048, \"rms_norm_eps\": "
    "1e-05, \"rope_theta\": 10000.0, \"tie_word_embeddings\": false, \"attention_bias\": false, "
    "\"mlp_bias\": false}";

#define OPTIM(rank) "zero_pp_rank_" #rank "_mp_rank_00_optim_states.pt"
#define RANK_MODEL(rank) "zero_pp_rank_" #rank "_mp_rank_00_model_states.pt"
#define UNIVERSAL(file) "zero/lm_head.weight/" file

static const struct kind {
    const char *folder, *sub_folder;
    const char *files[MAX_FILES];
} kinds[] = {
    {"flat", NULL, {"mp_rank_00_model_states.pt", OPTIM(0), OPTIM(1)}},
    {"parts", NULL, {RANK_MODEL(0), RANK_MODEL(1), OPTIM(0), OPTIM(1)}},
    {"universal",
     "zero/lm_head.weight",
     {"mp_rank_00_model_states.pt", "zero/optimizer_state.pt", UNIVERSAL("fp32.pt"),
      UNIVERSAL("exp_avg.pt"), UNIVERSAL("step.pt")}},
    {"pipeline",
     NULL,
     {"layer_01-model_00-model_states.pt", "layer_02-model_00-model_states.pt",
      "mp_rank_00_model_states.pt", OPTIM(0), OPTIM(1)}},
};

static char folder[TEMPORARY_PATH], config_folder[300];
static struct model_maps maps;

static void remove_folder(void)
{
    (void)!path_remove(folder, NULL);
}

static void write_file(const char *in, const char *name, const void *bytes, size_t size)
{
    char path[400];
    snprintf(path, sizeof path, "%s/%s/%s", folder, in, name);
    unlink(path);
    if (!size) return;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, bytes, size) != (ssize_t)size) abort();
    close(fd);
}

static void make_folder(const char *name, const char *sub_folder)
{
    char path[400];
    struct error err;
    snprintf(path, sizeof path, "%s/%s%s%s", folder, name, sub_folder ? "/" : "",
             sub_folder ? sub_folder : "");
    if (folder_create(path, &err)) abort();
}

static void make_folders(void)
{
    struct error err;
    if (!temporary_folder(folder) || model_maps_load(&maps, NULL, &err)) abort();
    atexit(remove_folder);
    for (size_t i = 0; i < COUNT(kinds); i++)
        make_folder(kinds[i].folder, kinds[i].sub_folder);
    make_folder("config", NULL);
    write_file("config", "config.json", config_json, strlen(config_json));
    snprintf(config_folder, sizeof config_folder, "%s/config", folder);
}

/* Writes the files that the input has. */
static void write_files(const struct kind *k, const uint8_t *data, size_t size)
{
    for (size_t i = 0; i < MAX_FILES && k->files[i]; i++) {
        const bool last = i + 1 == MAX_FILES || !k->files[i + 1];
        size_t length = size;
        if (!last && size >= 3) {
            length = data[0] | (size_t)data[1] << 8 | (size_t)data[2] << 16;
            data += 3;
            size -= 3;
            if (length > size) length = size;
        }
        write_file(k->folder, k->files[i], data, length);
        data += length;
        size -= length;
    }
}

static void plan(struct checkpoint *c)
{
    const struct target_options o = {.format = format_find("hf"),
                                     .max_shard_bytes = 1000,
                                     .optimizer = !c->training.optimizer.unread};
    struct target t;
    struct error err = {0};
    if (target_plan(&t, &o, c, &maps, &err) == ERR_OURS) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    target_release(&t);
}

static void open_and_plan(const struct kind *k, const char *hf_config)
{
    const struct source_options o = {.hf_config = hf_config};
    struct checkpoint c;
    struct error err = {0};
    char path[400];
    snprintf(path, sizeof path, "%s/%s", folder, k->folder);
    enum status st = source_open(&c, path, &o, &maps, &err);
    if (st == ERR_OURS) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    if (!st && !c.gaps.num_missing && !c.gaps.num_unexpected) plan(&c);
    checkpoint_release(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size) return 0;
    if (!*folder) make_folders();
    const struct kind *k = &kinds[data[0] % COUNT(kinds)];
    write_files(k, data + 1, size - 1);
    open_and_plan(k, NULL);
    open_and_plan(k, config_folder);
    return 0;
}
