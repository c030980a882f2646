/* testing_values.h - Python values from a short notation, and files of them. */
#ifndef FERRY_CONVERT_MEGATRON_OPTIM_TESTING_VALUES_H
#define FERRY_CONVERT_MEGATRON_OPTIM_TESTING_VALUES_H

#include "common/text.h"
#include "convert/testing_convert.h"
#include "formats/torch.h"

/* Parses text like Python: numbers, 'str', True, False, None, [...], (...),
 * {...}. X is an instance of a class. T is a tensor of one element, all of one
 * storage; T[2,3] is one of a storage of its own. */
static inline struct value *parse(const char **p);

static inline struct value *parse_list(const char **p, enum value_kind kind, char end)
{
    struct value *items[32];
    size_t n = 0;
    for (++*p; **p != end;) {
        items[n++] = parse(p);
        if (**p == ',') ++*p;
    }
    ++*p;
    return value_list(&scratch, kind, n, items);
}

static inline struct value *parse_dict(const char **p)
{
    struct value *dict = value_dict(&scratch);
    for (++*p; **p != '}';) {
        struct value *key = parse(p);
        assert_int_equal(**p, ':');
        ++*p;
        value_dict_add(&scratch, dict, "", parse(p));
        dict->items[2 * (size_t)(dict->count - 1)] = key;
        if (**p == ',') ++*p;
        while (**p == ' ')
            ++*p;
    }
    ++*p;
    return dict;
}

static inline struct value *parse_number(const char **p)
{
    char *end;
    double number = strtod(*p, &end);
    const size_t n = (size_t)(end - *p);
    const char *text = arena_text(&scratch, *p, n);
    assert_int_not_equal(n, 0);
    *p = end;
    return strpbrk(text, ".en") ? value_float(&scratch, number)
                                : value_int(&scratch, (int64_t)number);
}

static inline struct value *parse_tensor(const char **p)
{
    static unsigned last;
    const struct value *shape;
    uint64_t dims[4];
    if (**p != '[') return value_tensor(&scratch, "0", DT_F32, 0, NULL);
    shape = parse_list(p, VALUE_LIST, ']');
    for (uint32_t d = 0; d < shape->count; d++)
        dims[d] = (uint64_t)shape->items[d]->integer;
    return value_tensor(&scratch, arena_printf(&scratch, "%u", ++last), DT_F32, shape->count, dims);
}

static inline struct value *parse_word(const char **p)
{
    if (text_skip_prefix(p, "None")) return value_none(&scratch);
    if (text_skip_prefix(p, "True")) return value_bool(&scratch, true);
    if (text_skip_prefix(p, "False")) return value_bool(&scratch, false);
    if (text_skip_prefix(p, "T")) return parse_tensor(p);
    if (text_skip_prefix(p, "X"))
        return value_instance(&scratch, "pkg.optim", "Wrapper", value_dict(&scratch));
    return parse_number(p);
}

static inline struct value *parse(const char **p)
{
    while (**p == ' ')
        ++*p;
    if (**p == '[') return parse_list(p, VALUE_LIST, ']');
    if (**p == '(') return parse_list(p, VALUE_TUPLE, ')');
    if (**p == '{') return parse_dict(p);
    if (**p != '\'') return parse_word(p);
    const char *begin = ++*p;
    *p = strchr(begin, '\'') + 1;
    return value_text(&scratch, arena_text(&scratch, begin, (size_t)(*p - 1 - begin)));
}

static inline struct value *python(const char *text)
{
    return parse(&text);
}

/* A file of the value; all elements of its tensors, of 64 at most, are 0.
 * Returns its path. */
static inline const char *write_value(const char *name, const struct value *v)
{
    static const char zeros[256];
    const void *data[256];
    struct strbuf bytes = {0};
    const char *path = in_scratch(name);
    for (size_t i = 0; i < sizeof data / sizeof *data; i++)
        data[i] = zeros;
    assert_ok(torch_to_bytes(&bytes, "archive", v, data, &err));
    assert_ok(path_remove(path, &err));
    assert_ok(file_write_all(path, bytes.data, bytes.length, false, &err));
    strbuf_release(&bytes);
    return path;
}

#endif
