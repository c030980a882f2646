/* train_layer_pattern.c - lists of layers as on Megatron-LM's command line:
 * Python's lists with + and *, without the rest of Python. */
#include <string.h>

#include "common/json.h"
#include "common/numbers.h"
#include "convert/map/expr.h"
#include "train/cli/train_finish.h"

static bool no_name(const void *context, const char *name, size_t length, int64_t index,
                    struct term *out)
{
    (void)context, (void)name, (void)length, (void)index, (void)out;
    return false;
}

cJSON *train_layer_pattern(const char *text)
{
    uint64_t every;
    if (parse_u64(text, &every)) return every && every <= MAX_LAYERS ? json_new_u64(every) : NULL;
    struct arena a;
    arena_init(&a);
    const struct expr_names names = {no_name, NULL, &a};
    struct term value;
    struct error ignored;
    cJSON *list = NULL;
    if (!text[strspn(text, "0123456789[](),+* ")] &&
        !expr_value(text, strlen(text), &names, &value, &ignored) && value.kind == TERM_LIST &&
        value.length <= MAX_LAYERS)
        list = cJSON_CreateArray();
    for (size_t i = 0; list && i < value.length; i++) {
        const struct term *n = &value.items[i];
        if (n->kind == TERM_WHOLE && n->whole <= 1) {
            cJSON_AddItemToArray(list, json_new_u64((uint64_t)n->whole));
        } else {
            cJSON_Delete(list);
            list = NULL;
        }
    }
    arena_release(&a);
    return list;
}
