#include "common/result.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/json.h"
#include "common/progress.h"
#include "common/version.h"

static struct {
    const char *command; /* NULL: no result wanted */
    cJSON *fields;
    bool streams;
    double started;
} answer;

void result_begin(const char *command)
{
    answer.command = command;
    answer.started = seconds_now();
}

void result_silence(void)
{
    answer.command = NULL;
}

bool result_is_wanted(void)
{
    return answer.command != NULL;
}

void result_set(cJSON *fields)
{
    cJSON_Delete(answer.fields);
    answer.fields = fields;
    if (answer.command) return;
    cJSON_Delete(fields);
    answer.fields = NULL;
}

/* ---- first and last fields of every object ---- */

static cJSON *head_new(void)
{
    cJSON *o = cJSON_CreateObject();
    json_add_text(o, "ferry", ferry_version);
    json_add_u64(o, "schema", RESULT_SCHEMA);
    json_add_text(o, "command", answer.command);
    return o;
}

static cJSON *tail_new(enum status st, const struct error *err)
{
    cJSON *o = cJSON_CreateObject();
    json_add_number(o, "seconds", round(1e6 * (seconds_now() - answer.started)) / 1e6);
    json_add_u64(o, "exit_code", (uint64_t)st);
    json_add_text(o, "error", st > DIFFERENT && err->text[0] ? err->text : NULL);
    return o;
}

/* JSON has no infinity and no NaN: null. */
static void make_finite(cJSON *o)
{
    static const char *const words[] = {"NaN", "Infinity", "-Infinity"};
    for (cJSON *i = o ? o->child : NULL; i; i = i->next) {
        make_finite(i);
        for (size_t w = 0; cJSON_IsRaw(i) && w < 3; w++)
            if (strcmp(i->valuestring, words[w]) == 0) i->type = cJSON_NULL;
    }
}

/* Moves the items of one object to the end of another. */
static void move_items(cJSON *to, cJSON *from)
{
    while (from && from->child)
        cJSON_AddItemToArray(to, cJSON_DetachItemViaPointer(from, from->child));
    cJSON_Delete(from);
}

/* ---- printing ---- */

void result_stream_field(const char *name)
{
    struct strbuf text = {0};
    if (!answer.command) return;
    if (!answer.streams) {
        cJSON *head = head_new();
        json_print(&text, head, 2);
        cJSON_Delete(head);
        fwrite(text.data, 1, text.length - 2, stdout); /* without the line of the brace */
        answer.streams = true;
        strbuf_clear(&text);
    }
    json_print_text(&text, name);
    printf(",\n  %s: ", text.data);
    strbuf_release(&text);
}

static void print_tail(cJSON *tail)
{
    struct strbuf text = {0};
    json_print(&text, tail, 2);
    printf(",%s\n", text.data + 1); /* without the brace */
    strbuf_release(&text);
    cJSON_Delete(tail);
}

static void print_whole(cJSON *tail)
{
    struct strbuf text = {0};
    cJSON *o = head_new();
    make_finite(answer.fields);
    move_items(o, answer.fields);
    move_items(o, tail);
    answer.fields = NULL;
    json_print(&text, o, 2);
    puts(text.data);
    strbuf_release(&text);
    cJSON_Delete(o);
}

void result_end(enum status st, const struct error *err)
{
    if (answer.command) (answer.streams ? print_tail : print_whole)(tail_new(st, err));
    cJSON_Delete(answer.fields);
    answer.fields = NULL;
    answer.command = NULL;
    answer.streams = false;
}
