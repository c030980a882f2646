#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "common/checked.h"
#include "common/count.h"
#include "common/text.h"
#include "convert/foreign.h"
#include "convert/format.h"
#include "convert/open.h"
#include "formats/dcp.h"
#include "formats/hf_folder.h"
#include "formats/safetensors.h"
#include "formats/sniff.h"
#include "formats/torch.h"

/* Pseudo formats: files and folders with tensors that are no model. */
static const struct format torch_file = {.name = "torch.save file"},
                           safetensors_file = {.name = "safetensors file"},
                           dcp_folder = {.name = "DCP folder"},
                           hf_folder = {.name = "Hugging Face folder"};

static enum status open_torch(struct checkpoint *c, struct error *err)
{
    struct torch_file t;
    c->format = &torch_file;
    TRY(torch_open(&t, &c->catalog.stored, c->path, 0, UINT64_MAX, err));
    enum status st = torch_add_tensors(&t, &c->catalog.stored, t.root, "", err);
    torch_close(&t);
    return st;
}

static enum status open_safetensors(struct checkpoint *c, struct error *err)
{
    struct safetensors_info info;
    c->format = &safetensors_file;
    TRY(safetensors_open(&c->catalog.stored, c->path, &info, err));
    if (info.dcp_shard)
        checkpoint_note(c, "one rank's shards of a distributed checkpoint: shapes are local");
    if (info.format) checkpoint_note(c, "written for \"%s\"", info.format);
    return OK;
}

/* A name of safetensors or torch.save is trusted: another kind of file is
 * refused with its kind. For other names the content decides. */
static enum status open_tensor_file(struct checkpoint *c, struct error *err)
{
    static const char *const torch_names[] = {".pt", ".pth", ".bin", ".ckpt"};
    uint8_t head[512];
    struct file_stamp stamp;
    int fd;
    const struct foreign *f = foreign_find(c->path);
    if (f && !f->has_tensors) return foreign_refuse(f, c->path, err);
    if (text_ends_with(c->path, ".safetensors")) return open_safetensors(c, err);
    for (size_t i = 0; i < COUNT(torch_names); i++)
        if (text_ends_with(c->path, torch_names[i])) return open_torch(c, err);
    TRY(file_open(c->path, &fd, &stamp, err));
    size_t n = min_u64(sizeof head, stamp.size_bytes);
    enum status st = file_read(fd, c->path, head, n, 0, err);
    close(fd);
    TRY(st);
    const char *kind = sniff_name(head, n);
    if (torch_matches(head, n)) return open_torch(c, err);
    if (!kind && safetensors_matches(head, n)) return open_safetensors(c, err);
    return fail(err, ERR_UNSUPPORTED, "%s: %s%s; safetensors and torch.save files can be read",
                c->path, kind ? "this is " : "not a file of tensors", kind ? kind : "");
}

static enum status open_stored_folder(struct checkpoint *c, const char *folder, struct error *err)
{
    if (path_exists(path_join(&c->arena, folder, ".metadata"))) {
        c->format = &dcp_folder;
        return dcp_open(&c->catalog.stored, folder, true, err);
    }
    c->format = &hf_folder;
    return hf_folder_open(&c->catalog.stored, folder, NULL, err);
}

static void note_warnings(struct checkpoint *c)
{
    for (size_t i = 0; i < c->catalog.stored.num_warnings; i++)
        checkpoint_note(c, "%s", c->catalog.stored.warnings[i]);
}

/* Opens a folder that is no model as stored tensors, or the chosen iteration of
 * a Megatron root. err: why it is no model; kept if there are no tensors
 * either. */
static enum status open_as_stored(struct checkpoint *c, const char *path, struct error *err)
{
    struct error none;
    struct arena a;
    arena_init(&a);
    const char *folder = arena_printf(&a, "%s", c->folder ? c->folder : path);
    checkpoint_release(c);
    checkpoint_init(c, path);
    source_find_in_hub_cache(c);
    c->folder = arena_printf(&c->arena, "%s", folder);
    enum status st = open_stored_folder(c, hf_folder_resolve(&c->arena, c->folder), &none);
    arena_release(&a);
    if (st) return err->code;
    note_warnings(c);
    checkpoint_note(c, "%s", err->text);
    return OK;
}

/* Why source_open() did not read it as a model. */
static enum reading why_stored(const struct checkpoint *c)
{
    if (c->contradicts) return AS_CONTRADICTS;
    const struct format *format = format_of_path(c->path, NULL, NULL);
    return c->family || (format && format->has & FORMAT_ARGS) ? AS_REFUSED : AS_UNKNOWN;
}

enum status inspect_open(struct checkpoint *c, const char *path, const struct source_options *o,
                         const struct model_maps *maps, enum reading *reading, struct error *err)
{
    *reading = AS_MODEL;
    if (!path_exists(path) || path_is_folder(path)) {
        enum status st = source_open(c, path, o, maps, err);
        if (st != ERR_UNSUPPORTED) return st;
        *reading = why_stored(c);
        return open_as_stored(c, path, err);
    }
    checkpoint_init(c, path);
    *reading = AS_FILE;
    TRY(open_tensor_file(c, err));
    note_warnings(c);
    return OK;
}

enum status opened_open(struct opened *o, const char *path, const struct source_options *source,
                        const char *model_map, bool stored_will_do, bool quiet, struct error *err)
{
    struct source_options options = *source;
    enum reading reading = AS_MODEL;
    *o = (struct opened){.stored_only = false};
    checkpoint_init(&o->checkpoint, path);
    options.widest = true;
    TRY(model_maps_load(&o->maps, model_map, err));
    checkpoint_release(&o->checkpoint);
    if (stored_will_do)
        TRY(inspect_open(&o->checkpoint, path, &options, &o->maps, &reading, err));
    else
        TRY(source_open(&o->checkpoint, path, &options, &o->maps, err));
    source_note_unused(&o->checkpoint, &options);
    o->reading = reading;
    o->stored_only = reading != AS_MODEL;
    if (!quiet) notes_print(&o->checkpoint.notes);
    return OK;
}

void opened_close(struct opened *o)
{
    checkpoint_release(&o->checkpoint);
    model_maps_release(&o->maps);
}
