#include "kernels/ceilings.h"

#include <string.h>

#include "common/count.h"
#include "common/median.h"
#include "common/memory.h"
#include "kernels/cpu/cast.h"
#include "kernels/op_table.h"

enum { LEAST_SIDE = 256, MAX_SIDE = 8192 };
#define LEAST_COPY ((uint64_t)64 << 20) /* larger than any cache */
#define MAX_COPY ((uint64_t)1 << 30)

/* Sizes grow until one run takes this many seconds, or up to the largest. */
#define LONG_ENOUGH 0.02

struct trial {
    const struct device *device;
    const struct op_kernel *kernel; /* OP_MATMUL's */
    enum elem_type elem;
    unsigned repeats;
    uint64_t side, bytes;
    unsigned copies; /* in one run */
    char *memory;    /* two buffers of `bytes`; or two operands, product, workspace */
};

typedef enum status work(const struct trial *t, struct error *err);

/* ---- time ---- */

/* Mark i precedes run i; the last mark follows the last run. */
static enum status run_with_marks(work *run, const struct trial *t, void *timer, double *all,
                                  struct error *err)
{
    const struct device_timers *timers = t->device->timers;
    TRY(run(t, err)); /* warm up by two runs */
    TRY(run(t, err));
    for (unsigned i = 0; i < t->repeats; i++) {
        TRY(timers->mark(timer, i, err));
        TRY(run(t, err));
    }
    TRY(timers->mark(timer, t->repeats, err));
    TRY(t->device->synchronize(err));
    for (unsigned i = 0; i < t->repeats; i++)
        TRY(timers->seconds(timer, i, i + 1, &all[i], err));
    return OK;
}

static enum status median_of(work *run, const struct trial *t, double *seconds, struct error *err)
{
    double all[CEILING_MAX_REPEATS];
    void *timer;
    TRY(t->device->timers->create(&timer, t->repeats + 1, err));
    enum status st = run_with_marks(run, t, timer, all, err);
    t->device->timers->free(timer);
    if (!st) *seconds = median(all, t->repeats);
    return st;
}

/* ---- products ---- */

static enum status multiply_once(const struct trial *t, struct error *err)
{
    struct operand in[MAX_INPUTS] = {0}, out[MAX_OUTPUTS] = {0};
    union op_params params = {.matmul = {.transpose_b = true, .alpha = 1}};
    for (unsigned i = 0; i < 2; i++)
        in[i] = (struct operand){.data = t->memory + i * t->bytes,
                                 .type = OPERAND_ELEM,
                                 .num_dims = 2,
                                 .shape = {t->side, t->side}};
    out[0] = (struct operand){.data = t->memory + 2 * t->bytes,
                              .type = OPERAND_ELEM,
                              .num_dims = 2,
                              .shape = {t->side, t->side}};
    return t->kernel->run(&params, in, out, t->memory + 3 * t->bytes, err);
}

/* Numbers of both signs: a GPU multiplies zeros faster than a
 * model's weights. */
static enum status fill_operands(const struct trial *t, struct error *err)
{
    const uint64_t count = t->side * t->side;
    float *numbers = must_malloc(count * sizeof *numbers);
    void *elements = must_malloc(t->bytes);
    for (uint64_t i = 0; i < count; i++)
        numbers[i] = (float)(i * 2654435761u % 2001) / 1000 - 1;
    (void)cast_elements(elements, elem_dtype(t->elem), numbers, DT_F32, count);
    enum status st = t->device->upload(t->memory, elements, t->bytes, err);
    if (!st) st = t->device->upload(t->memory + t->bytes, elements, t->bytes, err);
    free(elements);
    free(numbers);
    return st;
}

static uint64_t product_workspace(const struct trial *t)
{
    const union op_params params = {.matmul = {.transpose_b = true, .alpha = 1}};
    const struct operand x = {
        .data = NULL, .type = OPERAND_ELEM, .num_dims = 2, .shape = {t->side, t->side}};
    const struct operand in[MAX_INPUTS] = {x, x}, out[MAX_OUTPUTS] = {x};
    return t->kernel->workspace ? t->kernel->workspace(&params, in, out) : 0;
}

static enum status time_product(struct trial *t, double *seconds, struct error *err)
{
    void *memory;
    t->bytes = t->side * t->side * operand_bytes_of(OPERAND_ELEM, t->elem);
    TRY(t->device->allocate(&memory, 3 * t->bytes + product_workspace(t), "a large product", err));
    t->memory = memory;
    enum status st = fill_operands(t, err);
    if (!st) st = median_of(multiply_once, t, seconds, err);
    t->device->release(memory);
    return st;
}

enum status ceiling_of_products(const struct device *device, enum elem_type elem, unsigned repeats,
                                double *rate, struct error *err)
{
    struct trial t = {.device = device,
                      .kernel = &device->ops(elem)[OP_MATMUL],
                      .elem = elem,
                      .repeats = repeats};
    double seconds = 0;
    *rate = 0;
    for (t.side = LEAST_SIDE; t.side <= MAX_SIDE && seconds < LONG_ENOUGH; t.side *= 2) {
        enum status st = time_product(&t, &seconds, err);
        if (st == ERR_MEMORY && *rate > 0) break;
        if (st) return st;
        *rate = 2 * (double)t.side * (double)t.side * (double)t.side / seconds;
    }
    return OK;
}

/* ---- copies ---- */

static enum status copy_some(const struct trial *t, struct error *err)
{
    for (unsigned i = 0; i < t->copies; i++)
        TRY(t->device->copy(t->memory, t->memory + t->bytes, t->bytes, err));
    return OK;
}

static enum status time_copy(struct trial *t, double *seconds, struct error *err)
{
    void *memory;
    TRY(t->device->allocate(&memory, 2 * t->bytes, "a large copy", err));
    t->memory = memory;
    enum status st = median_of(copy_some, t, seconds, err);
    t->device->release(memory);
    return st;
}

enum status ceiling_of_copies(const struct device *device, unsigned repeats, double *rate,
                              struct error *err)
{
    struct trial t = {.device = device, .repeats = repeats, .copies = 1};
    double seconds = 0;
    *rate = 0;
    for (t.bytes = LEAST_COPY; t.bytes <= MAX_COPY && seconds < LONG_ENOUGH; t.bytes *= 2) {
        /* On a fast device one copy spends 1 % of its time on its start
         * and end. */
        if (t.bytes == MAX_COPY) t.copies = 1 + (unsigned)(LONG_ENOUGH / (2 * seconds));
        enum status st = time_copy(&t, &seconds, err);
        if (st == ERR_MEMORY && *rate > 0) break;
        if (st) return st;
        *rate = 2 * (double)t.bytes * t.copies / seconds;
    }
    return OK;
}

/* ---- published ---- */

/* TFLOP/s from NVIDIA's data sheets, without sparsity; 0: not given. The first
 * match counts, so "H200 NVL" precedes "H200". */
static const struct {
    const char *name;
    double half, f32, f64;
} gpus[] = {
    // clang-format off
    {"A10",           125,   31.2, 0},
    {"A30",           165,   10.3, 10.3},
    {"A40",           149.7, 37.4, 0},
    {"A100",          312,   19.5, 19.5},
    {"A800",          312,   19.5, 19.5},
    {"L4",            121,   30.3, 0},
    {"L40",           181,   90.5, 0},
    {"L40S",          362,   91.6, 0},
    {"H20",           148,   44,   1},
    {"H100 80GB HBM3", 989,  67,   67}, /* SXM */
    {"H100 PCIe",     756,   51,   51},
    {"H100 NVL",      835,   60,   60},
    {"H200 NVL",      835,   60,   60},
    {"H200",          989,   67,   67},
    {"GH200",         990,   67,   67},
    {"B100",          1750,  60,   30},
    {"B200",          2250,  75,   37},
    {"GB200",         2500,  80,   40},
    {"B300",          2250,  75,   1.2},
    {"GB300",         2500,  80,   1.3},
    // clang-format on
};

/* Whether the text begins with the name as a whole word: "H200, 141 GB" is
 * not "H20". */
static bool is_named(const char *text, const char *name)
{
    const size_t length = strlen(name);
    return strncmp(text, name, length) == 0 && strchr(" -,", text[length]);
}

double ceiling_published(const char *description, enum elem_type elem)
{
    static const char maker[] = "NVIDIA ";
    if (strncmp(description, maker, sizeof maker - 1) == 0) description += sizeof maker - 1;
    if (strstr(description, " MIG ")) return 0;
    for (size_t i = 0; i < COUNT(gpus); i++)
        if (is_named(description, gpus[i].name))
            return 1e12 * (elem == ELEM_F32   ? gpus[i].f32
                           : elem == ELEM_F64 ? gpus[i].f64
                                              : gpus[i].half);
    return 0;
}
