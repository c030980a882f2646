#include "formats/hub_cache.h"

#include <stdlib.h>
#include <string.h>

#include "common/count.h"
#include "common/file.h"

enum { REF_CAP = 4096 };

bool hub_name_parse(struct arena *a, const char *text, struct hub_name *out)
{
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    size_t first = strspn(text, letters);
    const char *rest = text[first] == '/' ? text + first + 1 : "";
    const char *end = *rest ? rest + strspn(rest, letters) : text + first;
    if (!first || text[0] == '.' || (text[first] == '/' && !*rest)) return false;
    if (*rest && end == rest) return false;
    if (*end && (*end != '@' || !path_is_safe(end + 1))) return false;
    out->model = arena_text(a, text, (size_t)(end - text));
    out->revision = *end ? arena_printf(a, "%s", end + 1) : "main";
    return true;
}

/* The folder in a variable, with "~" as the home; NULL: unset or empty. */
static const char *folder_of(struct arena *a, const char *variable)
{
    const char *value = getenv(variable), *home = getenv("HOME");
    if (!value || !*value) return NULL;
    if (value[0] == '~' && value[1] == '/' && home) return path_join(a, home, value + 2);
    return value;
}

const char *hub_cache_folder(struct arena *a)
{
    static const struct {
        const char *variable, *below;
    } places[] = {{"HF_HUB_CACHE", ""},
                  {"HUGGINGFACE_HUB_CACHE", ""},
                  {"HF_HOME", "hub"},
                  {"XDG_CACHE_HOME", "huggingface/hub"},
                  {"HOME", ".cache/huggingface/hub"}};
    for (size_t i = 0; i < COUNT(places); i++) {
        const char *folder = folder_of(a, places[i].variable);
        if (folder) return *places[i].below ? path_join(a, folder, places[i].below) : folder;
    }
    return NULL;
}

const char *hub_cache_model(struct arena *a, const struct hub_name *name)
{
    const char *cache = hub_cache_folder(a), *slash = strchr(name->model, '/');
    if (!cache) return NULL;
    const char *base = slash ? arena_printf(a, "models--%.*s--%s", (int)(slash - name->model),
                                            name->model, slash + 1)
                             : arena_printf(a, "models--%s", name->model);
    const char *folder = path_join(a, cache, base);
    return path_is_folder(folder) ? folder : NULL;
}

const char *hub_cache_snapshot(struct arena *a, const char *model_folder, const char *revision)
{
    struct strbuf text = {0};
    const char *commit = revision;
    const char *ref = path_join(a, path_join(a, model_folder, "refs"), revision);
    if (!file_read_all(ref, REF_CAP, &text, NULL) && text.length)
        commit = arena_text(a, text.data, strcspn(text.data, " \r\n"));
    strbuf_release(&text);
    if (!path_is_safe(commit)) return NULL;
    const char *snapshot = path_join(a, path_join(a, model_folder, "snapshots"), commit);
    return path_is_folder(snapshot) ? snapshot : NULL;
}

const char *hub_cache_find(struct arena *a, const struct hub_name *name)
{
    const char *model = hub_cache_model(a, name);
    return model ? hub_cache_snapshot(a, model, name->revision) : NULL;
}
