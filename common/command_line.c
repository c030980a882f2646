#include "common/command_line.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "common/strbuf.h"

cJSON *command_line_words(void)
{
    cJSON *list = cJSON_CreateArray();
    char *word = NULL;
    size_t room = 0;
    FILE *f = fopen("/proc/self/cmdline", "re");
    while (f && getdelim(&word, &room, '\0', f) > 0)
        cJSON_AddItemToArray(list, cJSON_CreateString(word));
    if (f) fclose(f);
    free(word);
    return list;
}

/* Quotes the word for a shell if necessary. */
static void add_shell_word(struct strbuf *out, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_-./=:,+@%";
    if (*word && !word[strspn(word, plain)]) {
        strbuf_add_text(out, word);
        return;
    }
    strbuf_add_char(out, '\'');
    for (; *word; word++)
        if (*word == '\'')
            strbuf_add_text(out, "'\\''");
        else
            strbuf_add_char(out, *word);
    strbuf_add_char(out, '\'');
}

static bool is_left_out(const char *word, const char *const *without)
{
    while (without && *without && strcmp(*without, word))
        without++;
    return without && *without;
}

const char *command_line_text(struct arena *a, const char *const *without)
{
    struct strbuf text = {0};
    cJSON *words = command_line_words();
    for (const cJSON *c = words->child; c; c = c->next) {
        const char *word = json_as_text(c);
        if (!word || is_left_out(word, without)) continue;
        if (text.length) strbuf_add_char(&text, ' ');
        add_shell_word(&text, word);
    }
    const char *out = text.length ? arena_text(a, text.data, text.length) : NULL;
    cJSON_Delete(words);
    strbuf_release(&text);
    return out;
}
