#include "convert/dcp/dcp_folder.h"

#include <fnmatch.h>
#include <string.h>

#include "formats/bytes.h"
#include "formats/dcp.h"
#include "formats/hf_folder.h"

static bool has_name(const char *folder, const char *glob)
{
    struct arena a;
    struct name_list names;
    bool found = false;
    arena_init(&a);
    if (path_is_folder(folder) && !folder_list(folder, &a, &names, NULL))
        for (size_t i = 0; i < names.count && !found; i++)
            found = fnmatch(glob, names.names[i], 0) == 0;
    arena_release(&a);
    return found;
}

/* Whether it has whole safetensors files, as a model has. */
static bool has_whole_files(const char *folder)
{
    struct arena a;
    arena_init(&a);
    const bool has =
        !path_exists(path_join(&a, folder, ".metadata")) && hf_folder_has_weights(folder);
    arena_release(&a);
    return has;
}

bool dcp_folder_matches(const char *folder)
{
    return has_name(folder, ".metadata") || has_name(folder, ".metadata.tmp") ||
           has_name(folder, "__[0-9]*.metadata") ||
           (dcp_has_shards(folder) && !has_whole_files(folder));
}

/* Whether .metadata, which has names uncompressed, has the text. */
static bool metadata_has(const char *folder, const char *text)
{
    struct arena a;
    struct strbuf bytes = {0};
    arena_init(&a);
    const char *path = path_join(&a, folder, ".metadata");
    const bool found = path_is_file(path) && !file_read_all(path, UINT64_MAX, &bytes, NULL) &&
                       memmem(bytes.data, bytes.length, text, strlen(text));
    strbuf_release(&bytes);
    arena_release(&a);
    return found;
}

bool dcp_folder_is_titan(const char *folder)
{
    return metadata_has(folder, "tok_embeddings.weight");
}

bool dcp_folder_is_megatron(const char *folder)
{
    return metadata_has(folder, "embedding.word_embeddings.weight");
}

enum status dcp_folder_open(struct stored *s, const char *folder, struct error *err)
{
    if (has_whole_files(folder)) return hf_folder_open(s, folder, NULL, err);
    if (!has_name(folder, ".metadata") && dcp_has_shards(folder))
        return dcp_open_shards(s, folder, err);
    return dcp_open(s, folder, true, err);
}
