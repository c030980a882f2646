#include "convert/format.h"

#include "common/count.h"

#include <string.h>

#define FORMAT_ROW(name) &format_##name,
#define FORMAT_WORD(word, name)
static const struct format *const formats[] = {
    FORMATS(FORMAT_ROW, FORMAT_ROW, FORMAT_ROW, FORMAT_WORD)};
#undef FORMAT_ROW
#undef FORMAT_WORD

#define FORMAT_ROW(name)
#define FORMAT_WORD(word, name) {#word, &format_##name},
static const struct {
    const char *word;
    const struct format *format;
} words[] = {FORMATS(FORMAT_ROW, FORMAT_ROW, FORMAT_ROW, FORMAT_WORD)};
#undef FORMAT_ROW
#undef FORMAT_WORD

const struct format *format_find(const char *name)
{
    for (size_t i = 0; i < COUNT(formats); i++)
        if (strcmp(formats[i]->name, name) == 0) return formats[i];
    for (size_t i = 0; i < COUNT(words); i++)
        if (strcmp(words[i].word, name) == 0) return words[i].format;
    return NULL;
}

const struct format *format_of_path(const char *path, const struct source_options *o,
                                    const struct format **also)
{
    const struct format *found = NULL, *other = NULL;
    if (o && o->format) {
        if (also) *also = NULL;
        return o->format;
    }
    for (size_t i = COUNT(formats); i-- > 0;) {
        if (!formats[i]->source->matches(path, o)) continue;
        if (found && !other) other = formats[i];
        if (!found) found = formats[i];
        if (!also) break;
    }
    if (also) *also = other;
    return found;
}

void format_tell_publishing(const struct format *f, struct publish_options *o)
{
    o->root_title = f->title;
    o->root_signs = f->root_signs;
    o->last_entry = f->last_entry;
}
