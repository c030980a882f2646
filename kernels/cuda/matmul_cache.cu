/* A line of the file holds a key's words, then a choice's, in hexadecimal. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/matmul.h"

struct cached {
    struct plan_key key;
    struct choice choice;
    struct cached *next;
};

static struct cached *cache;

enum { KEY_WORDS = sizeof(struct plan_key) / 8, CHOICE_WORDS = sizeof(struct choice) / 8 };
enum { WORDS = KEY_WORDS + CHOICE_WORDS, LINE_BYTES = WORDS * 17 + 2, PATH_BYTES = 1024 };

static void cache_path(char path[PATH_BYTES])
{
    cudaDeviceProp properties;
    const char *given = getenv("FERRY_CUDA_CACHE"), *home = getenv("HOME");
    int device = 0;
    path[0] = '\0';
    if (given) {
        (void)snprintf(path, PATH_BYTES, "%s", given);
        return;
    }
    if (!home || cudaGetDevice(&device) || cudaGetDeviceProperties(&properties, device)) return;
    for (char *c = properties.name; *c; c++)
        if (*c == ' ' || *c == '/') *c = '-';
    (void)snprintf(path, PATH_BYTES, "%s/.cache/ferry/matmul-%s-%zu.txt", home, properties.name,
                   cublasLtGetVersion());
}

/* Whether a line consists of exactly these words. */
static bool read_words(const char *line, uint64_t words[WORDS])
{
    char *end;
    for (size_t i = 0; i < WORDS; i++, line = end) {
        words[i] = strtoull(line, &end, 16);
        if (end == line) return false;
    }
    return strcmp(line + strspn(line, " "), "\n") == 0;
}

void matmul_cache_read(void)
{
    char path[PATH_BYTES], line[LINE_BYTES];
    uint64_t words[WORDS];
    cache_path(path);
    FILE *f = path[0] ? fopen(path, "r") : NULL;
    while (f && fgets(line, sizeof line, f)) {
        if (!read_words(line, words)) continue;
        struct cached *c = static_cast<struct cached *>(malloc(sizeof *c));
        if (!c) break;
        memcpy(&c->key, words, sizeof c->key);
        memcpy(&c->choice, words + KEY_WORDS, sizeof c->choice);
        c->next = cache;
        cache = c;
    }
    if (f) (void)fclose(f);
}

static void make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(path, 0777);
        *slash = '/';
    }
}

static void write_words(FILE *f, const void *words, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t word;
        memcpy(&word, (const char *)words + i * 8, 8);
        (void)fprintf(f, "%llx ", (unsigned long long)word);
    }
}

void matmul_cache_add(const struct plan_key *key, const struct choice *choice)
{
    char path[PATH_BYTES];
    cache_path(path);
    if (!path[0]) return;
    make_folders(path);
    FILE *f = fopen(path, "a");
    if (!f) return;
    write_words(f, key, KEY_WORDS);
    write_words(f, choice, CHOICE_WORDS);
    (void)fprintf(f, "\n");
    (void)fclose(f);
}

const struct choice *matmul_cache_find(const struct plan_key *key)
{
    const struct cached *c = cache;
    while (c && memcmp(&c->key, key, sizeof *key) != 0)
        c = c->next;
    return c ? &c->choice : NULL;
}

void matmul_cache_free(void)
{
    for (struct cached *c = cache, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    cache = NULL;
}
