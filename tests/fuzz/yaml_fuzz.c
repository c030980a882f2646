/* yaml_fuzz.c - any bytes as YAML: read, and what was read as the run_config.yaml of a model. What
 * is printed of it is read again, and printed the same. */
#include <stdlib.h>
#include <string.h>

#include "common/file.h"
#include "common/json.h"
#include "common/yaml.h"
#include "convert/megatron/megatron_args.h"
#include "tests/fuzz/file_of_bytes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_BYTES = 1 << 16 /* of a text that is read again: aliases make much of little */ };

static void ignore(void *context, const char *name, const char *value)
{
    (void)context, (void)name, (void)value;
}

static void use(const cJSON *tree)
{
    const cJSON *model = json_get(tree, "model");
    struct model_config config = {0};
    struct megatron_facts facts = {0};
    struct arena a;
    arena_init(&a);
    model_config_from_megatron(MEGATRON_RUN_CONFIG, model, &a, &config);
    facts_from_megatron(MEGATRON_RUN_CONFIG, model, &a, &facts);
    megatron_unknown(MEGATRON_RUN_CONFIG, model, &config, &facts, ignore, NULL);
    arena_release(&a);
}

static void print_and_read_again(const cJSON *tree)
{
    struct strbuf text = {0}, same = {0};
    struct error err;
    char path[64];
    cJSON *again;
    yaml_print(&text, tree);
    if (text.length <= MAX_BYTES) {
        int fd = file_of_bytes(text.data, text.length, path);
        if (yaml_read_file(path, text.length, &again, &err)) abort();
        yaml_print(&same, again);
        if (text.length != same.length || memcmp(text.data, same.data, text.length)) abort();
        cJSON_Delete(again);
        close(fd);
    }
    strbuf_release(&text);
    strbuf_release(&same);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct error err;
    char path[64];
    cJSON *tree;
    int fd = file_of_bytes(data, size, path);
    if (!yaml_read_file(path, size, &tree, &err)) {
        use(tree);
        print_and_read_again(tree);
        cJSON_Delete(tree);
    }
    close(fd);
    return 0;
}
