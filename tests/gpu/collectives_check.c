/* collectives_check - a GPU's own collectives in a group of one rank, whose
 * results are known, alone and in graphs. Prints a line for each, and fails if
 * one is wrong. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/count.h"
#include "kernels/device.h"

enum { COUNT = 1 << 16 };

static const struct device *device;
static const struct device_collectives *library;
static void *group, *in, *out;
static struct error err;

static void must(enum status st)
{
    if (!st) return;
    (void)fprintf(stderr, "collectives_check: %s\n", err.text);
    exit(1);
}

/* ---- each of them copies in to out ---- */

static enum status all_reduce_of(enum operand_type type, enum elem_type elem, size_t bytes,
                                 bool max)
{
    return library->all_reduce(group, in, out, COUNT * sizeof(float) / bytes,
                               (struct device_number){type, elem}, max, &err);
}

static enum status sum_of_f32(void)
{
    return all_reduce_of(OPERAND_REAL, ELEM_BF16, 4, false);
}

static enum status sum_of_bf16(void)
{
    return all_reduce_of(OPERAND_ELEM, ELEM_BF16, 2, false);
}

static enum status sum_of_f16(void)
{
    return all_reduce_of(OPERAND_ELEM, ELEM_F16, 2, false);
}

static enum status largest_of_f64(void)
{
    return all_reduce_of(OPERAND_REAL, ELEM_F64, 8, true);
}

static enum status sum_of_ints(void)
{
    return all_reduce_of(OPERAND_INT, ELEM_F32, 4, false);
}

static enum status all_gather(void)
{
    return library->all_gather(group, in, out, COUNT * sizeof(float), &err);
}

static enum status reduce_scatter(void)
{
    return library->reduce_scatter(group, in, out, COUNT,
                                   (struct device_number){OPERAND_REAL, ELEM_F32}, &err);
}

static enum status all_to_all(void)
{
    const size_t bytes = COUNT * sizeof(float);
    return library->all_to_all(group, 1, in, &bytes, out, &bytes, &err);
}

static enum status exchange(void)
{
    const struct device_message messages[] = {{true, 0, in, COUNT * sizeof(float)},
                                              {false, 0, out, COUNT * sizeof(float)}};
    return library->exchange(group, messages, 2, &err);
}

static const struct {
    const char *name;
    enum status (*run)(void);
} collectives[] = {
    {"sum of f32", sum_of_f32},         {"sum of bf16", sum_of_bf16},  {"sum of f16", sum_of_f16},
    {"largest of f64", largest_of_f64}, {"sum of int32", sum_of_ints}, {"all_gather", all_gather},
    {"reduce_scatter", reduce_scatter}, {"all_to_all", all_to_all},    {"exchange", exchange},
};

/* ---- running ---- */

static void wait_until_done(void)
{
    bool done = false;
    while (!done)
        must(library->done(&done, &err));
}

/* Whether out equals in, after it was overwritten. */
static bool gives_what_it_takes(enum status (*run)(void), void *graph, const float *numbers)
{
    static float got[COUNT];
    memset(got, 0xff, sizeof got);
    must(device->upload(out, got, sizeof got, &err));
    must(graph ? device->graphs->replay(graph, &err) : run());
    wait_until_done();
    must(device->download(got, out, sizeof got, &err));
    return memcmp(got, numbers, sizeof got) == 0;
}

static unsigned check(size_t i, const float *numbers)
{
    void *graph;
    const bool plain = gives_what_it_takes(collectives[i].run, NULL, numbers);
    must(device->graphs->begin(&err));
    must(collectives[i].run());
    must(device->graphs->end(&graph, &err));
    const bool again = gives_what_it_takes(collectives[i].run, graph, numbers);
    device->graphs->release(graph);
    printf("%s %s of one rank%s\n", plain && again ? "ok    " : "FAILED", collectives[i].name,
           plain && !again ? ", as a graph" : "");
    return !(plain && again);
}

static void open_all(const float *numbers)
{
    char id[DEVICE_GROUP_ID_BYTES];
    must(device->open(0, &err));
    library = device->collectives;
    if (!library) {
        puts("skipped: built without NCCL");
        exit(0);
    }
    must(library->available(&err));
    must(library->new_id(id, &err));
    must(library->open(&group, id, 1, 0, &err));
    must(device->allocate(&in, COUNT * sizeof(float), "numbers", &err));
    must(device->allocate(&out, COUNT * sizeof(float), "numbers", &err));
    must(device->upload(in, numbers, COUNT * sizeof(float), &err));
}

/* The numbers are finite as f32, as two bf16 or f16, as half an f64 and as
 * int32: they have 11 significant bits, so their lower halves have few
 * bits set. */
int main(void)
{
    static float numbers[COUNT];
    unsigned failed = 0;
    if (cuda_device_load(&device, &err)) {
        printf("skipped: %s\n", err.text);
        return 0;
    }
    for (size_t i = 0; i < COUNT; i++)
        numbers[i] = (float)(i * 2654435761u % 2048) / 1024 - 1;
    open_all(numbers);
    for (size_t i = 0; i < COUNT(collectives); i++)
        failed += check(i, numbers);
    device->release(in);
    device->release(out);
    library->close(&group, 1, false);
    device->close();
    return failed > 0;
}
