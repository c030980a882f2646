#include "train/data/description.h"

#include <openssl/evp.h>

#include "common/json.h"

static cJSON *pair_of(cJSON *a, cJSON *b)
{
    cJSON *pair = cJSON_CreateArray();
    cJSON_AddItemToArray(pair, a);
    cJSON_AddItemToArray(pair, b);
    return pair;
}

/* The sum of no shares is an integer in Python. */
static cJSON *new_bound(const struct split_shares *s, unsigned k)
{
    return k == 0 ? json_new_u64(0) : json_new_double(s->bounds[k]);
}

static cJSON *split_matrix(const struct split_shares *s)
{
    if (!s) return cJSON_CreateNull();
    cJSON *matrix = cJSON_CreateArray();
    for (unsigned k = 0; k < NUM_SPLITS; k++)
        cJSON_AddItemToArray(matrix, split_has_share(s, (enum data_split)k)
                                         ? pair_of(new_bound(s, k), new_bound(s, k + 1))
                                         : cJSON_CreateNull());
    return matrix;
}

cJSON *describe_gpt(const struct gpt_request *q, const char *split_text,
                    const struct split_shares *shares, const cJSON *tokenizer)
{
    cJSON *o = cJSON_CreateObject();
    json_add_text(o, "class", "GPTDataset");
    json_add_text(o, "dataset_path", q->path);
    if (q->num_samples == ONE_EPOCH)
        cJSON_AddNullToObject(o, "num_samples");
    else
        json_add_u64(o, "num_samples", q->num_samples);
    json_add_text(o, "index_split", split_names[q->split]);
    json_add_u64(o, "random_seed", q->seed);
    json_add_u64(o, "sequence_length", q->seq_length);
    json_add_text(o, "split", split_text);
    cJSON_AddItemToObject(o, "split_matrix", split_matrix(shares));
    cJSON_AddItemToObject(o, "tokenizer", cJSON_Duplicate(tokenizer, true));
    return o;
}

cJSON *describe_blend(cJSON **datasets, size_t count, enum data_split split, const double *weights,
                      const uint64_t *lengths, uint64_t size)
{
    cJSON *o = cJSON_CreateObject();
    json_add_text(o, "class", "BlendedDataset");
    cJSON *list = cJSON_AddArrayToObject(o, "datasets");
    for (size_t k = 0; k < count; k++)
        cJSON_AddItemToArray(list, datasets[k]);
    json_add_text(o, "split", split_names[split]);
    list = cJSON_AddArrayToObject(o, "weights");
    for (size_t k = 0; k < count; k++)
        cJSON_AddItemToArray(list,
                             weights ? json_new_double(weights[k]) : json_new_u64(lengths[k]));
    if (weights)
        json_add_u64(o, "size", size);
    else
        cJSON_AddNullToObject(o, "size");
    return o;
}

/* ---- text ---- */

/* One character of UTF-8, which the JSON printer has checked. */
static uint32_t next_character(const unsigned char **at)
{
    static const unsigned char first_bits[] = {0x7F, 0, 0x1F, 0x0F, 0x07};
    unsigned length = **at < 0x80 ? 1 : **at < 0xE0 ? 2 : **at < 0xF0 ? 3 : 4;
    uint32_t c = *(*at)++ & first_bits[length == 1 ? 0 : length];
    while (--length)
        c = c << 6 | (*(*at)++ & 0x3F);
    return c;
}

/* Escapes all but printable ASCII and line ends; surrogate pairs above 0xFFFF.
 */
static void add_ascii(struct strbuf *out, const char *text)
{
    for (const unsigned char *at = (const unsigned char *)text; *at;) {
        const uint32_t c = next_character(&at);
        if (c < 0x7F)
            strbuf_add_char(out, (char)c);
        else if (c < 0x10000)
            strbuf_printf(out, "\\u%04x", c);
        else
            strbuf_printf(out, "\\u%04x\\u%04x", 0xD800 + ((c - 0x10000) >> 10),
                          0xDC00 + (c & 0x3FF));
    }
}

void description_print(struct strbuf *out, const cJSON *tree)
{
    struct strbuf text = {0};
    json_print(&text, tree, 4);
    add_ascii(out, text.data);
    strbuf_release(&text);
}

bool description_prefix(struct strbuf *out, const struct strbuf *text, const char *class,
                        enum data_split split)
{
    unsigned char sum[EVP_MAX_MD_SIZE];
    unsigned length = 0;
    if (!EVP_Digest(text->data, text->length, sum, &length, EVP_md5(), NULL)) return false;
    for (unsigned i = 0; i < length; i++)
        strbuf_printf(out, "%02x", sum[i]);
    strbuf_printf(out, "-%s-%s", class, split_names[split]);
    return true;
}
