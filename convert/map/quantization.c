#include "convert/map/quantization.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <regex.h>
#include <string.h>

#include "common/count.h"
#include "common/file.h"
#include "common/json.h"
#include "convert/map/embedded.h"
#include "convert/map/model_map_internal.h"

const char quantization_file[] = "hf_quant_config.json";

/* ---- templates ---- */

static const char name_word[] = "{name}", module_word[] = "{module}", weight_end[] = ".weight";

const char *quant_fill(struct arena *a, const char *template, const char *name)
{
    const char *dot = strrchr(name, '.');
    const int module = dot ? (int)(dot - name) : 0;
    if (strncmp(template, name_word, strlen(name_word)) == 0)
        return arena_printf(a, "%s%s", name, template + strlen(name_word));
    return arena_printf(a, "%.*s%s", module, name, template + strlen(module_word));
}

const char *quant_unfill(struct arena *a, const char *template, const char *text)
{
    const bool of_name = strncmp(template, name_word, strlen(name_word)) == 0;
    const char *end = template + strlen(of_name ? name_word : module_word);
    const size_t n = strlen(text), m = strlen(end);
    if (n <= m || strcmp(text + n - m, end)) return NULL;
    return arena_printf(a, "%.*s%s", (int)(n - m), text, of_name ? "" : weight_end);
}

bool quantization_is_activation(const struct quantization *q, const char *name)
{
    for (size_t i = 0; q->activations[i]; i++)
        if (fnmatch(q->activations[i], name, 0) == 0) return true;
    return false;
}

static bool is_excluded_by(const char *pattern, const char *module)
{
    const size_t n = strlen(pattern), m = strlen(module);
    regex_t r;
    if (strncmp(pattern, "re:", 3) == 0) {
        if (regcomp(&r, pattern + 3, REG_EXTENDED | REG_NOSUB)) return false;
        const bool matches = regexec(&r, module, 0, NULL, 0) == 0;
        regfree(&r);
        return matches;
    }
    if (fnmatch(pattern, module, 0) == 0) return true;
    if (!n || m <= n) return false;
    return (strncmp(module, pattern, n) == 0 && module[n] == '.') ||
           (strcmp(module + m - n, pattern) == 0 && module[m - n - 1] == '.');
}

bool quantization_excludes(const struct quantization *q, const char *module)
{
    for (size_t i = 0; q->excluded[i]; i++)
        if (is_excluded_by(q->excluded[i], module)) return true;
    return false;
}

const char *quant_label(struct arena *a, const struct quant_row *row)
{
    return arena_printf(a, "%s[%" PRIu64 ",%" PRIu64 "]", row->name, row->block[0], row->block[1]);
}

bool quant_row_can_write(const struct quant_row *row, bool as_stored)
{
    return !row->only_read && (as_stored || !(row->words.rows || row->factor != 0));
}

/* ---- schemes ---- */

struct scheme {
    const cJSON *members;
    struct arena *a;
};

/* Every name is known: a member that is not there is nothing. */
static bool scheme_value(const void *context, const char *name, size_t length, int64_t index,
                         struct term *out)
{
    const struct scheme *s = context;
    *out = (struct term){.kind = TERM_NONE};
    for (const cJSON *i = s->members->child; i; i = i->next)
        if (strlen(i->string) == length && memcmp(i->string, name, length) == 0)
            *out = json_term(i, s->a);
    return index == -1;
}

/* Adds the scalars and lists of an object to a scheme, in place of those that
 * it has; null replaces nothing. */
static void add_members(cJSON *scheme, const cJSON *from)
{
    for (const cJSON *i = from ? from->child : NULL; i; i = i->next)
        if (!cJSON_IsObject(i) && !(cJSON_IsNull(i) && json_get(scheme, i->string)))
            json_put(scheme, i->string, cJSON_Duplicate(i, true));
}

struct reading {
    struct arena *a;
    struct quantization *q;
    const cJSON *rows; /* of quantization.json */
    size_t capacity;
};

static const char *scheme_text(struct arena *a, const cJSON *scheme)
{
    static const char *const members[] = {"quant_method",      "quant_algo",    "format", "type",
                                          "num_bits",          "strategy",      "bits",   "version",
                                          "checkpoint_format", "packing_format"};
    struct strbuf text = {0};
    if (!json_as_text(json_get(scheme, "quant_method"))) strbuf_add_text(&text, "no quant_method");
    for (size_t i = 0; i < COUNT(members); i++) {
        const cJSON *item = json_get(scheme, members[i]);
        if (!item || cJSON_IsNull(item)) continue;
        strbuf_printf(&text, "%s%s ", text.length ? ", " : "", members[i]);
        json_print(&text, item, -1);
    }
    const char *out = arena_copy_text(a, text.data ? text.data : "");
    strbuf_release(&text);
    return out;
}

static enum status bad_row(const cJSON *row, const char *why, struct error *err)
{
    const char *name = json_as_text(json_get(row, "name"));
    return fail(err, ERR_OURS, "quantization.json: %s: %s", name ? name : "a row", why);
}

static enum status read_block(const cJSON *row, const struct expr_names *names, uint64_t block[2],
                              struct error *err)
{
    const char *text = json_as_text(json_get(row, "block"));
    struct term t = {.kind = TERM_NONE};
    bool fits = text != NULL;
    if (fits) TRY(expr_value(text, strlen(text), names, &t, err));
    fits &= t.kind == TERM_LIST && t.length == 2;
    for (int k = 0; k < 2 && fits; k++) {
        int64_t n;
        fits = term_as_whole(&t.items[k], &n) && n >= 0;
        block[k] = fits ? (uint64_t)n : 0;
    }
    if (fits) return OK;
    return fail(err, ERR_UNSUPPORTED, "the block of encoding %s, %s, is not two whole numbers",
                json_as_text(json_get(row, "name")), text ? text : "null");
}

/* A text of a row, in the arena; NULL: none. */
static const char *row_text(struct arena *a, const cJSON *row, const char *member)
{
    const char *text = json_as_text(json_get(row, member));
    return text ? arena_copy_text(a, text) : NULL;
}

/* Sets words of `per` codes, by what they are packed along and their order. */
static bool read_words(const cJSON *row, const char *packed, unsigned per, struct quant_words *out)
{
    const char *along = json_as_text(json_get(row, packed));
    const cJSON *order = json_get(row, "order");
    const bool by_rows = along && strcmp(along, "rows") == 0;
    unsigned char slot = 0;
    if (!along) return true;
    if (per > QUANT_SLOTS || (order && cJSON_GetArraySize(order) != (int)per)) return false;
    *out = (struct quant_words){.rows = by_rows ? per : 1, .cols = by_rows ? 1 : per};
    for (const cJSON *i = order ? order->child : NULL; i; i = i->next) {
        uint64_t element;
        if (json_as_u64(i, &element) && element < per) out->slots[element] = slot++;
    }
    for (; !order && slot < per; slot++)
        out->slots[slot] = slot;
    return slot == per;
}

/* Sets numbers and factor. */
static bool read_numbers(struct arena *a, const cJSON *row, struct quant_row *out)
{
    const cJSON *list = json_get(row, "numbers"), *factor = json_get(row, "factor");
    double number;
    int n = 0;
    if (factor && !json_as_double(factor, &number)) return false;
    out->factor = factor ? (float)number : 0;
    if (!list) return true;
    out->numbers = arena_array(a, QUANT_NUMBERS, sizeof *out->numbers);
    for (const cJSON *i = list->child; i && n < QUANT_NUMBERS; i = i->next) {
        if (!json_as_double(i, &number)) return false;
        out->numbers[n++] = (float)number;
    }
    return n == QUANT_NUMBERS;
}

static enum status take_row(struct reading *x, const cJSON *row, const struct expr_names *names,
                            struct error *err)
{
    const char *code = json_as_text(json_get(row, "code")),
               *dtype = json_as_text(json_get(row, "dtype"));
    struct quant_row r = {
        .name = row_text(x->a, row, "name"),
        .codes = row_text(x->a, row, "codes"),
        .global = row_text(x->a, row, "global"),
        .zeros = row_text(x->a, row, "zeros"),
        .zeros_dtype = DT_I32,
        .shape = row_text(x->a, row, "shape"),
        .groups = row_text(x->a, row, "groups"),
        .table = row_text(x->a, row, "table"),
        .state = row_text(x->a, row, "state"),
        .nested_scales = row_text(x->a, row, "nested_scales"),
        .nested_table = row_text(x->a, row, "nested_table"),
        .global_divides = cJSON_IsTrue(json_get(row, "global_divides")),
        .in_blocks = cJSON_IsTrue(json_get(row, "in_blocks")),
        .transposed = cJSON_IsTrue(json_get(row, "transposed")),
        .only_read = cJSON_IsTrue(json_get(row, "only_read")),
    };
    size_t n = 0;
    (void)json_as_u64(json_get(row, "zero_offset"), &r.zero_offset);
    if (!read_numbers(x->a, row, &r)) return bad_row(row, "numbers or factor", err);
    if (!r.name || !r.codes || !code || !quant_code_find(code, &r.code) || !dtype ||
        !dtype_from_safetensors(dtype, &r.dtype))
        return bad_row(row, "name, codes, code or dtype", err);
    if ((r.code == QUANT_TABLE) != (r.numbers != NULL)) return bad_row(row, "numbers", err);
    const char *zeros_dtype = json_as_text(json_get(row, "zeros_dtype"));
    if (zeros_dtype && !dtype_from_safetensors(zeros_dtype, &r.zeros_dtype))
        return bad_row(row, "zeros_dtype", err);
    const unsigned bits = quant_infos[r.code].bits, per = 8 * (unsigned)dtype_bytes(r.dtype) / bits;
    if (!read_words(row, "packed", per, &r.words) ||
        !read_words(row, "zeros_packed", 8 * (unsigned)dtype_bytes(r.zeros_dtype) / bits,
                    &r.zero_words) ||
        (r.zeros && !r.zero_words.rows))
        return bad_row(row, "packed, zeros_packed or order", err);
    const cJSON *scales = json_get(row, "scales"), *dtypes = json_get(row, "scale_dtypes");
    for (const cJSON *i = scales ? scales->child : NULL; i && n + 1 < MAX_SCALE_NAMES; i = i->next)
        r.scales[n++] = arena_copy_text(x->a, json_as_text(i));
    for (const cJSON *i = dtypes ? dtypes->child : NULL; i; i = i->next) {
        enum dtype d;
        if (!json_as_text(i) || !dtype_from_safetensors(json_as_text(i), &d))
            return bad_row(row, "scale_dtypes", err);
        if (!r.scale_dtypes) r.scale_dtype = d;
        r.scale_dtypes |= UINT64_C(1) << d;
    }
    TRY(read_block(row, names, r.block, err));
    for (size_t i = 0; i < x->q->num_rows; i++) { /* another scheme selects it, too */
        const struct quant_row *old = &x->q->rows[i];
        if (strcmp(old->codes, r.codes) == 0 && old->dtype == r.dtype &&
            strcmp(quant_label(x->a, old), quant_label(x->a, &r)) == 0)
            return OK;
    }
    *ARENA_PUSH(x->a, x->q->rows, x->q->num_rows, x->capacity) = r;
    return n ? OK : bad_row(row, "scales", err);
}

/* Adds the rows that a scheme selects. */
static enum status take_scheme(struct reading *x, const cJSON *scheme, struct error *err)
{
    const struct scheme members = {scheme, x->a};
    const struct expr_names names = {scheme_value, &members, x->a};
    bool any = false;
    for (const cJSON *row = x->rows->child; row; row = row->next) {
        const char *when = json_as_text(json_get(row, "when"));
        struct term t;
        if (!when) return bad_row(row, "when", err);
        TRY(expr_value(when, strlen(when), &names, &t, err));
        if (!term_is_true(&t)) continue;
        TRY(take_row(x, row, &names, err));
        any = true;
    }
    if (!x->q->method) x->q->method = scheme_text(x->a, scheme);
    if (any) return OK;
    return fail(err, ERR_UNSUPPORTED,
                "its weights are quantised in a way that Ferry does not know: %s; dequantise them "
                "first",
                scheme_text(x->a, scheme));
}

/* A scheme of the members of up to three objects; the last counts first. */
static enum status take_merged(struct reading *x, const cJSON *all, const cJSON *group,
                               const cJSON *weights, struct error *err)
{
    cJSON *scheme = cJSON_CreateObject();
    add_members(scheme, all);
    add_members(scheme, group);
    add_members(scheme, weights);
    enum status st = take_scheme(x, scheme, err);
    cJSON_Delete(scheme);
    return st;
}

static bool is_compressed_tensors(const cJSON *all)
{
    const char *method = json_as_text(json_get(all, "quant_method"));
    return method && strcmp(method, "compressed-tensors") == 0;
}

/* null, an empty list or object. */
static bool says_nothing(const cJSON *member)
{
    const bool empty = (cJSON_IsObject(member) || cJSON_IsArray(member)) && !member->child;
    return cJSON_IsNull(member) || empty;
}

/* Refuses weights that were transformed before they were encoded. */
static enum status check_transforms(const cJSON *all, struct error *err)
{
    const cJSON *member = json_get(all, "transform_config");
    for (const cJSON *i = member ? member->child : NULL; i; i = i->next)
        if (!says_nothing(i))
            return fail(err, ERR_UNSUPPORTED,
                        "its weights are transformed (transform_config.%s), which is not supported",
                        i->string ? i->string : "0");
    return OK;
}

/* Whether layers of an override are not encoded: GPTQ's "-:LAYERS", AutoRound's
 * 16 bits. */
static bool is_left(const cJSON *layer)
{
    uint64_t bits;
    const bool wide = json_as_u64(json_get(layer, "bits"), &bits) && bits >= 16;
    return wide || (layer->string && strncmp(layer->string, "-:", 2) == 0);
}

/* Takes the scheme of each layer, once if several have the same. */
static enum status take_layers(struct reading *x, const cJSON *all, const cJSON *layers,
                               struct error *err)
{
    struct strbuf seen = {0}, text = {0};
    enum status st = OK;
    for (const cJSON *l = layers ? layers->child : NULL; l && !st; l = l->next) {
        strbuf_clear(&text);
        json_print(&text, l, -1);
        if (is_left(l) || (seen.data && strstr(seen.data, text.data))) continue;
        strbuf_printf(&seen, "%s\n", text.data);
        st = take_merged(x, all, l, NULL, err);
    }
    strbuf_release(&seen);
    strbuf_release(&text);
    return st;
}

static enum status take_schemes(struct reading *x, const cJSON *all, struct error *err)
{
    static const char *const overrides[] = {"dynamic", "extra_config"}; /* GPTQ's, AutoRound's */
    const cJSON *groups = json_get(all, "config_groups"),
                *layers = json_get(all, "quantized_layers");
    if (is_compressed_tensors(all) && groups && groups->child) {
        for (const cJSON *g = groups->child; g; g = g->next)
            TRY(take_merged(x, all, g, json_get(g, "weights"), err));
        return OK;
    }
    if (layers && layers->child) return take_layers(x, all, layers, err);
    TRY(take_merged(x, all, NULL, NULL, err));
    for (size_t i = 0; i < COUNT(overrides); i++)
        TRY(take_layers(x, all, json_get(all, overrides[i]), err));
    return OK;
}

/* ---- configs ---- */

/* The last is MLX's. */
static const char *const config_keys[] = {"quantization_config", "compression_config",
                                          "quantization"};

static const cJSON *named_quantization(const cJSON *config)
{
    for (size_t i = 0; i < COUNT(config_keys); i++) {
        const cJSON *q = json_get(config, config_keys[i]);
        if (cJSON_IsObject(q)) return q;
    }
    return NULL;
}

static const char *const rule_names[NUM_ENCODER_RULES] = {
    [ENCODER_TRANSFORMERS] = "transformers",
    [ENCODER_COMPRESSED_TENSORS] = "compressed-tensors",
};

bool quantization_export(const char *name, struct quant_export *out)
{
    cJSON *tree = embedded_file_parse("quantization.json");
    *out = (struct quant_export){.config = NULL};
    const cJSON *found = json_get(json_get(tree, "exports"), name);
    const char *rule = json_as_text(json_get(found, "rule"));
    for (int i = 0; rule && i < NUM_ENCODER_RULES; i++)
        if (rule_names[i] && strcmp(rule, rule_names[i]) == 0) out->rule = (enum encoder_rule)i;
    if (found) out->config = cJSON_Duplicate(json_get(found, "config"), true);
    for (cJSON *x = found ? out->config->child : NULL; x && !out->excluded; x = x->next)
        if (cJSON_IsArray(x) && !x->child) out->excluded = x;
    cJSON_Delete(tree);
    return out->config != NULL;
}

bool quantization_drop(cJSON *config)
{
    bool any = false;
    for (size_t i = 0; i < COUNT(config_keys); i++) {
        any |= json_get(config, config_keys[i]) != NULL;
        cJSON_DeleteItemFromObjectCaseSensitive(config, config_keys[i]);
    }
    return any;
}

/* ModelOpt's file, as quantization_config would have it; NULL: there is none. */
static enum status read_file(const char *folder, struct arena *a, cJSON **out, struct error *err)
{
    enum { MAX_BYTES = 64 << 20 };
    const char *path = folder ? path_join(a, folder, quantization_file) : NULL;
    cJSON *tree;
    *out = NULL;
    if (!path || !path_exists(path)) return OK;
    TRY(json_read_file(path, MAX_BYTES, JSON_STRICT, &tree, err));
    const cJSON *q = json_get(tree, "quantization");
    if (cJSON_IsObject(q)) {
        *out = cJSON_Duplicate(q, true);
        json_put(*out, "quant_method", cJSON_CreateString("modelopt"));
    }
    cJSON_Delete(tree);
    return OK;
}

/* Whether config.json says no more than that ModelOpt's file has the schemes. */
static bool is_mixed(const cJSON *q)
{
    const char *algo = json_as_text(json_get(q, "quant_algo"));
    return algo && strcmp(algo, "MIXED_PRECISION") == 0 && !json_get(q, "quantized_layers");
}

static void read_excluded(struct reading *x, const cJSON *q)
{
    static const char *const keys[] = {"modules_to_not_convert", "ignore", "exclude_modules"};
    size_t count = 0, n = 0;
    for (size_t k = 0; k < COUNT(keys); k++)
        count += (size_t)cJSON_GetArraySize(json_get(q, keys[k]));
    x->q->excluded = arena_array(x->a, count + 1, sizeof *x->q->excluded);
    for (size_t k = 0; k < COUNT(keys); k++) {
        const cJSON *list = json_get(q, keys[k]);
        for (const cJSON *i = cJSON_IsArray(list) ? list->child : NULL; i; i = i->next)
            if (json_as_text(i)) x->q->excluded[n++] = arena_copy_text(x->a, json_as_text(i));
    }
}

static enum status read_rows(struct reading *x, const cJSON *q, struct error *err)
{
    cJSON *tree = embedded_file_parse("quantization.json");
    const cJSON *globs = json_get(tree, "activations");
    size_t n = 0;
    x->rows = json_get(tree, "encodings");
    x->q->activations = arena_array(x->a, (size_t)cJSON_GetArraySize(globs) + 1, sizeof(char *));
    for (const cJSON *i = globs ? globs->child : NULL; i; i = i->next)
        x->q->activations[n++] = arena_copy_text(x->a, json_as_text(i));
    read_excluded(x, q);
    enum status st = check_transforms(q, err);
    if (!st) st = take_schemes(x, q, err);
    cJSON_Delete(tree);
    return st;
}

enum status quantization_read(const cJSON *config, const char *folder, struct arena *a,
                              struct quantization **out, struct error *err)
{
    struct reading x = {.a = a, .q = arena_alloc(a, sizeof *x.q)};
    const cJSON *q = named_quantization(config);
    cJSON *file;
    *x.q = (struct quantization){0};
    *out = NULL;
    TRY(read_file(folder, a, &file, err));
    if (file && (!q || is_mixed(q))) q = file;
    enum status st = q ? read_rows(&x, q, err) : OK;
    if (!st && q) *out = x.q;
    cJSON_Delete(file);
    return st;
}
