/* encodings_fuzz.c - any quantization_config, a NUL, and any bytes as the weights of a small Llama:
 * opened, read, and written decoded, as it came and as FP8. It is refused by a message, or
 * converts; no mistake of ours may come of it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/executor.h"
#include "common/count.h"
#include "common/file.h"
#include "convert/format.h"
#include "convert/source.h"
#include "convert/target.h"
#include "tests/temporary.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char model[] =
    "{\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":8,"
    "\"intermediate_size\":16,\"num_hidden_layers\":1,\"num_attention_heads\":1,"
    "\"num_key_value_heads\":1,\"vocab_size\":4,\"tie_word_embeddings\":true,"
    "\"quantization_config\":";

static char folder[TEMPORARY_PATH];
static struct model_maps maps;

static void remove_folder(void)
{
    struct error err;
    model_maps_release(&maps);
    (void)!path_remove(folder, &err);
}

static void make_folder(void)
{
    struct error err;
    if (!temporary_folder(folder) || model_maps_load(&maps, NULL, &err)) abort();
    atexit(remove_folder);
}

static void write_bytes(struct arena *a, const char *name, const void *bytes, size_t size)
{
    struct error err;
    const char *path = path_join(a, folder, name);
    (void)!path_remove(path, &err);
    if (file_write_all(path, bytes, size, false, &err)) abort();
}

static void write_model(struct arena *a, const uint8_t *data, size_t size)
{
    struct strbuf config = {0};
    const uint8_t *end = size ? memchr(data, 0, size) : NULL;
    const size_t length = end ? (size_t)(end - data) : size, rest = size - length - (end != NULL);
    strbuf_printf(&config, "%s%.*s}", model, (int)length, (const char *)data);
    write_bytes(a, "config.json", config.data, config.length);
    write_bytes(a, "model.safetensors", data + (size - rest), rest);
    strbuf_release(&config);
}

static void check(enum status st, const struct error *err)
{
    if (st != ERR_OURS) return;
    fprintf(stderr, "%s\n", err->text);
    abort();
}

static void convert(struct arena *a, const struct checkpoint *c, const char *format,
                    const char *encoding)
{
    const struct target_options o = {.format = format_find(format),
                                     .layout = {.tp = 1},
                                     .max_shard_bytes = 1000,
                                     .encoding = encoding};
    const struct executor_options how = {.threads = 1};
    struct executor_result result = {0};
    struct target t;
    struct error err = {0};
    const char *out = path_join(a, folder, "out");
    enum status st = target_plan(&t, &o, c, &maps, &err);
    check(st, &err);
    if (!st && t.plan.target_bytes < 1 << 20) {
        st = folder_create(out, &err);
        if (!st) st = executor_run(&t.plan, out, &how, &result, &err);
        check(st, &err);
        (void)!path_remove(out, &err);
    }
    target_release(&t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct source_options o = {0};
    struct checkpoint c;
    struct arena a;
    struct error err = {0};
    if (!*folder) make_folder();
    arena_init(&a);
    write_model(&a, data, size);
    enum status st = source_open(&c, folder, &o, &maps, &err);
    check(st, &err);
    if (!st && !c.gaps.num_missing && !c.gaps.num_unexpected) {
        convert(&a, &c, "hf", NULL);
        convert(&a, &c, "hf", "as-source");
        convert(&a, &c, "hf", "mxfp8");
        convert(&a, &c, "torch_dist", NULL);
    }
    checkpoint_release(&c);
    arena_release(&a);
    return 0;
}
