#include "convert/hf_config.h"

#include "common/arena.h"
#include "common/file.h"
#include "common/json.h"
#include "convert/source_kind.h"

enum status hf_config_read(const char *folder, cJSON **tree, struct error *err)
{
    struct arena a;
    arena_init(&a);
    const char *path = path_join(&a, folder, "config.json");
    enum status st = path_exists(path) ? json_read_file(path, CONFIG_FILE_CAP, JSON_NAN, tree, err)
                                       : fail(err, ERR_IO, "%s: no config.json", folder);
    if (!st && !cJSON_IsObject(*tree)) {
        st = fail(err, ERR_CORRUPT, "%s: not a JSON object", path);
        cJSON_Delete(*tree);
    }
    arena_release(&a);
    return st;
}

void hf_config_set_dtype(cJSON *config, enum dtype dtype)
{
    const char *key = json_get(config, "dtype") ? "dtype" : "torch_dtype";
    json_put(config, key, cJSON_CreateString(dtype_infos[dtype].torch));
}

enum status hf_config_write_dtype(const char *from, const char *to, enum dtype dtype, bool durable,
                                  struct error *err)
{
    cJSON *config;
    TRY(hf_config_read(from, &config, err));
    hf_config_set_dtype(config, dtype);
    enum status st = json_write_file(to, config, durable, err);
    cJSON_Delete(config);
    return st;
}
