#include "train/model/fingerprint.h"

#include <string.h>

#include "convert/target.h"

/* With its end, to keep two texts distinct from a longer one. */
static void hash_text(struct sha256 *s, const char *text)
{
    sha256_add(s, text ? text : "", text ? strlen(text) + 1 : 1);
}

void fingerprint_field(struct sha256 *s, const void *of, const struct field *f)
{
    const struct scalar x = field_get(f, of);
    if (x.kind == FIELD_TEXT)
        hash_text(s, x.text);
    else
        sha256_add(s, &x.number, sizeof x.number);
}

static void add_config(struct sha256 *s, const struct model_config *c)
{
    for (size_t i = 0; i < num_model_fields; i++)
        if (!model_fields[i].declared) fingerprint_field(s, c, &model_fields[i].field);
    for (uint64_t l = 0; l < c->num_layers; l++) {
        const bool kinds[] = {model_layer_is_moe(c, l), model_layer_slides(c, l)};
        sha256_add(s, kinds, sizeof kinds);
    }
}

void fingerprint_model(const struct checkpoint *c, char text[SHA256_TEXT])
{
    struct sha256 *s = sha256_start();
    add_config(s, &c->config);
    for (size_t i = 0; i < c->catalog.num_tensors; i++) {
        const struct tensor *t = &c->catalog.tensors[i];
        if (!is_parameter(t)) continue;
        hash_text(s, t->name);
        sha256_add(s, t->shape, t->num_dims * sizeof *t->shape);
    }
    sha256_finish(s, text);
}
