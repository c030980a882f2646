/* Attention through cuDNN's backend API, as cuDNN's C++ frontend lowers it for
 * every cuDNN 9:
 *
 *     S = Q K^T, times scale; where causal, S = row >= column ? S : -infinity
 *     P = exp(S - max) / sum;  stats = max + log(sum);  O = P V
 *
 * 1. cuDNN recognises attention by its pattern: operations, order, types and
 *    virtual tensors are the frontend's. All but inputs and outputs is virtual,
 *    so nothing of S's size is stored. Stats are made even if unwanted: without
 *    them no engine knows the pattern.
 * 2. Keys are [head_dim, length]: transposed by strides.
 * 3. The number of query heads is a multiple of that of key and value heads,
 *    which cuDNN repeats. */
#include "common/count.h"
#include "kernels/cuda/cudnn_plan.h"

#if __has_include(<cudnn_version.h>)
#include <cudnn_version.h>
#endif

/* Headers that support absent devices; older libraries do without. */
#if defined(CUDNN_VERSION) && CUDNN_VERSION >= 90800

#include <cudnn_graph.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <algorithm>

/* ---- the library ---- */

#define FUNCTIONS(X)                                                                               \
    X(cudnnGetVersion)                                                                             \
    X(cudnnGetCudartVersion)                                                                       \
    X(cudnnGetErrorString)                                                                         \
    X(cudnnGetLastErrorString)                                                                     \
    X(cudnnCreate)                                                                                 \
    X(cudnnDestroy)                                                                                \
    X(cudnnSetStream)                                                                              \
    X(cudnnBackendCreateDescriptor)                                                                \
    X(cudnnBackendDestroyDescriptor)                                                               \
    X(cudnnBackendSetAttribute)                                                                    \
    X(cudnnBackendGetAttribute)                                                                    \
    X(cudnnBackendFinalize)                                                                        \
    X(cudnnBackendExecute)

/* Never unloaded: CUDA's exit handlers may still call into it. */
static struct {
    void *file;
#define MEMBER(name) decltype(&::name) name;
    FUNCTIONS(MEMBER)
} lib;

static cudnnHandle_t handle;

static enum status find_functions(struct error *err)
{
#define FIND(name)                                                                                 \
    lib.name = reinterpret_cast<decltype(&::name)>(dlsym(lib.file, #name));                        \
    if (!lib.name) return fail(err, ERR_UNSUPPORTED, "libcudnn.so.9 has no %s", #name);
    FUNCTIONS(FIND)
    return OK;
}

/* Refuses 9.10.0 and 9.10.1, which give wrong attention, as the frontend
 * does; and a library for another CUDA, which ends the process if its
 * cuBLASLt is missing. */
static enum status check_version(struct error *err)
{
    const unsigned version = (unsigned)lib.cudnnGetVersion();
    const unsigned cuda = (unsigned)lib.cudnnGetCudartVersion() / 1000;
    if (version < 90500 || version >= 100000 || version == 91000 || version == 91001)
        return fail(err, ERR_UNSUPPORTED, "cuDNN %u.%u.%u is not supported", version / 10000,
                    version / 100 % 100, version % 100);
    if (cuda == CUDART_VERSION / 1000) return OK;
    return fail(err, ERR_UNSUPPORTED, "cuDNN is built for CUDA %u, Ferry for CUDA %u", cuda,
                CUDART_VERSION / 1000);
}

/* cuDNN compiles by nvrtc, which finds this library only on the system's paths
 * or already loaded. Without it cuDNN has fewer plans, or none. */
static void load_nvrtc_builtins(void)
{
    char name[64];
    (void)snprintf(name, sizeof name, "libnvrtc-builtins.so.%d.%d", CUDART_VERSION / 1000,
                   CUDART_VERSION % 1000 / 10);
    (void)dlopen(name, RTLD_NOW | RTLD_GLOBAL);
}

enum status cudnn_load(struct error *err)
{
    static bool loaded;
    if (loaded) return OK;
    load_nvrtc_builtins();
    if (!lib.file) lib.file = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
    if (!lib.file) return fail(err, ERR_UNSUPPORTED, "%s", dlerror());
    TRY(find_functions(err));
    TRY(check_version(err));
    loaded = true;
    return OK;
}

unsigned cudnn_version(void)
{
    return lib.cudnnGetVersion ? (unsigned)lib.cudnnGetVersion() : 0;
}

static enum status cudnn_status(const char *what, cudnnStatus_t code, struct error *err)
{
    char text[256] = "";
    if (code == CUDNN_STATUS_SUCCESS) return OK;
    lib.cudnnGetLastErrorString(text, sizeof text);
    text[strcspn(text, "\n")] = '\0';
    return fail(err, code / 1000 == 3 ? ERR_UNSUPPORTED : ERR_DEVICE, "cuDNN: %s: %s %s", what,
                lib.cudnnGetErrorString(code), text);
}

enum status cudnn_open(cudaStream_t stream, struct error *err)
{
    TRY(cudnn_load(err));
    if (!handle) TRY(cudnn_status("a handle", lib.cudnnCreate(&handle), err));
    return cudnn_status("a stream", lib.cudnnSetStream(handle, stream), err);
}

void cudnn_close(void)
{
    if (handle) (void)lib.cudnnDestroy(handle);
    handle = NULL;
}

/* ---- descriptors ---- */

/* Makes a plan's descriptors. Keeps the first failure; later calls
 * do nothing. */
struct maker {
    struct cudnn_plan *plan;
    enum status st;
    struct error *err;
};

static void keep_failure(struct maker *m, const char *what, cudnnStatus_t code)
{
    if (!m->st) m->st = cudnn_status(what, code, m->err);
}

static cudnnBackendDescriptor_t add_descriptor(struct maker *m, cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t d = NULL;
    if (m->st) return NULL;
    if (m->plan->num_parts == CUDNN_MAX_PARTS) {
        m->st = fail(m->err, ERR_OURS, "cuDNN: more than %u descriptors", m->plan->num_parts);
        return NULL;
    }
    keep_failure(m, "a descriptor", lib.cudnnBackendCreateDescriptor(type, &d));
    if (!m->st) m->plan->parts[m->plan->num_parts++] = d;
    return d;
}

static void set_attribute(struct maker *m, cudnnBackendDescriptor_t d,
                          cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                          int64_t count, const void *values)
{
    if (!m->st)
        keep_failure(m, "an attribute", lib.cudnnBackendSetAttribute(d, name, type, count, values));
}

static void set_part(struct maker *m, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                     cudnnBackendDescriptor_t part)
{
    set_attribute(m, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &part);
}

static void finalize_descriptor(struct maker *m, const char *what, cudnnBackendDescriptor_t d)
{
    if (!m->st) keep_failure(m, what, lib.cudnnBackendFinalize(d));
}

/* ---- tensors ---- */

enum tensor_id {
    NONE,
    Q,
    K,
    V,
    O,
    STATS,
    SCALE,
    MINUS_INFINITY,
    SCORES,
    SCALED,
    ROW,
    COLUMN,
    KEPT,
    MASKED,
    MAX,
    SHIFTED,
    EXP,
    SUM,
    LOG_SUM,
    WEIGHTS,
    NUM_TENSORS
};

/* In the table: the shape's own type. */
#define ELEM_TYPE CUDNN_DATA_BFLOAT16

enum extent { QUERIES, KEYS, VALUES, OUTPUTS, PAIRS, ROWS, ONE };
enum storage { STORED, BY_VALUE, VIRTUAL };

static const struct tensor {
    enum tensor_id id;
    enum extent extent;
    cudnnDataType_t type;
    enum storage storage;
} tensors[] = {
    // clang-format off
    {Q,              QUERIES, ELEM_TYPE,           STORED},
    {K,              KEYS,    ELEM_TYPE,           STORED},
    {V,              VALUES,  ELEM_TYPE,           STORED},
    {O,              OUTPUTS, ELEM_TYPE,           STORED},
    {STATS,          ROWS,    CUDNN_DATA_FLOAT,    STORED},
    {SCALE,          ONE,     CUDNN_DATA_FLOAT,    BY_VALUE},
    {MINUS_INFINITY, ONE,     CUDNN_DATA_FLOAT,    BY_VALUE},
    {SCORES,         PAIRS,   CUDNN_DATA_FLOAT,    VIRTUAL},
    {SCALED,         PAIRS,   CUDNN_DATA_FLOAT,    VIRTUAL},
    {ROW,            PAIRS,   CUDNN_DATA_INT32,    VIRTUAL},
    {COLUMN,         PAIRS,   CUDNN_DATA_INT32,    VIRTUAL},
    {KEPT,           PAIRS,   CUDNN_DATA_BOOLEAN,  VIRTUAL},
    {MASKED,         PAIRS,   CUDNN_DATA_FLOAT,    VIRTUAL},
    {MAX,            ROWS,    CUDNN_DATA_FLOAT,    VIRTUAL},
    {SHIFTED,        PAIRS,   CUDNN_DATA_FLOAT,    VIRTUAL},
    {EXP,            PAIRS,   CUDNN_DATA_FLOAT,    VIRTUAL},
    {SUM,            ROWS,    CUDNN_DATA_FLOAT,    VIRTUAL},
    {LOG_SUM,        ROWS,    CUDNN_DATA_FLOAT,    VIRTUAL},
    {WEIGHTS,        PAIRS,   ELEM_TYPE,           VIRTUAL},
    // clang-format on
};

enum { DIMS = 4 };

struct layout {
    int64_t shape[DIMS], strides[DIMS];
};

static struct layout dense(int64_t a, int64_t b, int64_t c, int64_t d)
{
    const struct layout l = {{a, b, c, d}, {b * c * d, c * d, d, 1}};
    return l;
}

static struct layout strided(const struct cudnn_shape *s, int64_t heads, struct cudnn_strides by)
{
    const struct layout l = {{s->batch, heads, s->length, s->head_dim},
                             {by.batch, by.head, by.row, 1}};
    return l;
}

static struct layout transposed(struct layout l)
{
    std::swap(l.shape[2], l.shape[3]);
    std::swap(l.strides[2], l.strides[3]);
    return l;
}

static struct layout layout_of(const struct cudnn_shape *s, enum extent extent)
{
    switch (extent) {
    case QUERIES:
        return strided(s, s->heads, s->q);
    case KEYS:
        return transposed(strided(s, s->kv_heads, s->kv));
    case VALUES:
        return strided(s, s->kv_heads, s->kv);
    case OUTPUTS:
        return strided(s, s->heads, s->o);
    case PAIRS:
        return dense(s->batch, s->heads, s->length, s->length);
    case ROWS:
        return dense(s->batch, s->heads, s->length, 1);
    case ONE:
        break;
    }
    return dense(1, 1, 1, 1);
}

static cudnnBackendDescriptor_t add_tensor_descriptor(struct maker *m, const struct cudnn_shape *s,
                                                      const struct tensor *t)
{
    const cudnnBackendDescriptor_t d = add_descriptor(m, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    const struct layout l = layout_of(s, t->extent);
    const int64_t id = t->id, alignment = 16;
    const cudnnDataType_t type = t->type == ELEM_TYPE && s->f16 ? CUDNN_DATA_HALF : t->type;
    const bool is_virtual = t->storage == VIRTUAL || (t->id == STATS && !s->stats);
    const bool by_value = t->storage == BY_VALUE;
    set_attribute(m, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set_attribute(m, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, DIMS, l.shape);
    set_attribute(m, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, DIMS, l.strides);
    set_attribute(m, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    set_attribute(m, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    set_attribute(m, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    set_attribute(m, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    finalize_descriptor(m, "a tensor", d);
    return d;
}

/* ---- operations ---- */

enum kind { MATMUL, POINTWISE, INDEX, REDUCTION };
/* y = x * b; mode(x, b), or t ? x : b; the index of x along axis `mode`; x
 * reduced over its last axis. */
static const struct operation {
    enum kind kind;
    int mode;
    cudnnDataType_t compute;
    enum tensor_id x, b, t, y;
    bool causal; /* only in causal attention */
} operations[] = {
    // clang-format off
    {MATMUL,    0,                             CUDNN_DATA_FLOAT,   Q,       K,              NONE, SCORES,  false},
    {POINTWISE, CUDNN_POINTWISE_MUL,           CUDNN_DATA_FLOAT,   SCORES,  SCALE,          NONE, SCALED,  false},
    {INDEX,     2,                             CUDNN_DATA_FLOAT,   SCALED,  NONE,           NONE, ROW,     true},
    {INDEX,     3,                             CUDNN_DATA_FLOAT,   SCALED,  NONE,           NONE, COLUMN,  true},
    {POINTWISE, CUDNN_POINTWISE_CMP_GE,        CUDNN_DATA_BOOLEAN, ROW,     COLUMN,         NONE, KEPT,    true},
    {POINTWISE, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT,   SCALED,  MINUS_INFINITY, KEPT, MASKED,  true},
    {REDUCTION, CUDNN_REDUCE_TENSOR_MAX,       CUDNN_DATA_FLOAT,   MASKED,  NONE,           NONE, MAX,     false},
    {POINTWISE, CUDNN_POINTWISE_SUB,           CUDNN_DATA_FLOAT,   MASKED,  MAX,            NONE, SHIFTED, false},
    {POINTWISE, CUDNN_POINTWISE_EXP,           CUDNN_DATA_FLOAT,   SHIFTED, NONE,           NONE, EXP,     false},
    {REDUCTION, CUDNN_REDUCE_TENSOR_ADD,       CUDNN_DATA_FLOAT,   EXP,     NONE,           NONE, SUM,     false},
    {POINTWISE, CUDNN_POINTWISE_LOG,           CUDNN_DATA_FLOAT,   SUM,     NONE,           NONE, LOG_SUM, false},
    {POINTWISE, CUDNN_POINTWISE_ADD,           CUDNN_DATA_FLOAT,   MAX,     LOG_SUM,        NONE, STATS,   false},
    {POINTWISE, CUDNN_POINTWISE_DIV,           CUDNN_DATA_FLOAT,   EXP,     SUM,            NONE, WEIGHTS, false},
    {MATMUL,    0,                             CUDNN_DATA_FLOAT,   WEIGHTS, V,              NONE, O,       false},
    // clang-format on
};

enum { MAX_OPERATIONS = COUNT(operations) };

struct graph {
    cudnnBackendDescriptor_t tensors[NUM_TENSORS], operations[MAX_OPERATIONS];
    int64_t num_operations;
};

/* Makes a tensor's descriptor at its first use. */
static cudnnBackendDescriptor_t tensor_descriptor(struct maker *m, const struct cudnn_shape *s,
                                                  struct graph *g, enum tensor_id id)
{
    if (id == MASKED && !s->causal) id = SCALED;
    if (!g->tensors[id]) g->tensors[id] = add_tensor_descriptor(m, s, &tensors[id - 1]);
    return g->tensors[id];
}

static cudnnBackendDescriptor_t add_matmul(struct maker *m, const struct operation *o)
{
    const cudnnBackendDescriptor_t how = add_descriptor(m, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set_attribute(m, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &o->compute);
    finalize_descriptor(m, "a product", how);
    const cudnnBackendDescriptor_t d = add_descriptor(m, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_part(m, d, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    return d;
}

static cudnnBackendDescriptor_t add_pointwise(struct maker *m, const struct operation *o)
{
    const cudnnBackendDescriptor_t how = add_descriptor(m, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    const cudnnPointwiseMode_t mode =
        o->kind == INDEX ? CUDNN_POINTWISE_GEN_INDEX : (cudnnPointwiseMode_t)o->mode;
    const int64_t axis = o->mode;
    set_attribute(m, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set_attribute(m, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &o->compute);
    if (o->kind == INDEX)
        set_attribute(m, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    finalize_descriptor(m, "a pointwise mode", how);
    const cudnnBackendDescriptor_t d =
        add_descriptor(m, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_part(m, d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    return d;
}

static cudnnBackendDescriptor_t add_reduction(struct maker *m, const struct operation *o)
{
    const cudnnBackendDescriptor_t how = add_descriptor(m, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    const cudnnReduceTensorOp_t mode = (cudnnReduceTensorOp_t)o->mode;
    set_attribute(m, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &o->compute);
    set_attribute(m, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1,
                  &mode);
    finalize_descriptor(m, "a reduction", how);
    const cudnnBackendDescriptor_t d =
        add_descriptor(m, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_part(m, d, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    return d;
}

/* How to make each kind of operation, and its names of tensors. */
static const struct {
    cudnnBackendDescriptor_t (*add)(struct maker *m, const struct operation *o);
    cudnnBackendAttributeName_t x, b, t, y;
} kinds[] = {
    {add_matmul, CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC,
     CUDNN_ATTR_OPERATION_MATMUL_BDESC, CUDNN_ATTR_OPERATION_MATMUL_CDESC},
    {add_pointwise, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
     CUDNN_ATTR_OPERATION_POINTWISE_TDESC, CUDNN_ATTR_OPERATION_POINTWISE_YDESC},
    {add_pointwise, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
     CUDNN_ATTR_OPERATION_POINTWISE_TDESC, CUDNN_ATTR_OPERATION_POINTWISE_YDESC},
    {add_reduction, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, CUDNN_ATTR_OPERATION_REDUCTION_XDESC,
     CUDNN_ATTR_OPERATION_REDUCTION_XDESC, CUDNN_ATTR_OPERATION_REDUCTION_YDESC},
};

static void add_operation(struct maker *m, const struct cudnn_shape *s, struct graph *g,
                          const struct operation *o)
{
    const auto &k = kinds[o->kind];
    const cudnnBackendDescriptor_t d = k.add(m, o);
    set_part(m, d, k.x, tensor_descriptor(m, s, g, o->x));
    if (o->b) set_part(m, d, k.b, tensor_descriptor(m, s, g, o->b));
    if (o->t) set_part(m, d, k.t, tensor_descriptor(m, s, g, o->t));
    set_part(m, d, k.y, tensor_descriptor(m, s, g, o->y));
    finalize_descriptor(m, "an operation", d);
    g->operations[g->num_operations++] = d;
}

/* ---- plans ---- */

/* A GPU described by JSON; NULL for the open one. */
static cudnnBackendDescriptor_t add_device(struct maker *m, const char *json)
{
    if (!json) return NULL;
    const cudnnBackendDescriptor_t d = add_descriptor(m, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    set_attribute(m, d, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                  (int64_t)strlen(json), json);
    finalize_descriptor(m, "a device", d);
    return d;
}

static cudnnBackendDescriptor_t add_graph(struct maker *m, const struct cudnn_shape *s,
                                          bool with_device)
{
    struct graph g = {};
    for (const struct operation &o : operations)
        if (s->causal || !o.causal) add_operation(m, s, &g, &o);
    const cudnnBackendDescriptor_t d = add_descriptor(m, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set_attribute(m, d, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                  g.num_operations, g.operations);
    if (!with_device)
        set_attribute(m, d, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    finalize_descriptor(m, "the graph", d);
    return d;
}

/* Engines for the graph, the most promising first. Returns their number. */
enum { MAX_ENGINES = 8 };
static int64_t add_engines(struct maker *m, cudnnBackendDescriptor_t graph,
                           cudnnBackendDescriptor_t device, cudnnBackendHeurMode_t mode,
                           cudnnBackendDescriptor_t engines[MAX_ENGINES])
{
    const cudnnBackendDescriptor_t d = add_descriptor(m, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    int64_t count = 0;
    set_part(m, d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set_attribute(m, d, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (device) set_part(m, d, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device);
    finalize_descriptor(m, "engines", d);
    for (unsigned i = 0; i < MAX_ENGINES; i++)
        engines[i] = add_descriptor(m, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (!m->st)
        keep_failure(m, "engines",
                     lib.cudnnBackendGetAttribute(d, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                  CUDNN_TYPE_BACKEND_DESCRIPTOR, MAX_ENGINES,
                                                  &count, engines));
    return m->st ? 0 : std::min<int64_t>(count, MAX_ENGINES);
}

static enum status make_engine_plan(struct cudnn_plan *p, cudnnBackendDescriptor_t engine,
                                    cudnnBackendDescriptor_t device, struct error *err)
{
    struct maker m = {p, OK, err};
    int64_t bytes = 0, count = 0;
    const cudnnBackendDescriptor_t d = add_descriptor(&m, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set_part(&m, d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, engine);
    if (device)
        set_part(&m, d, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, device);
    else
        set_attribute(&m, d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    finalize_descriptor(&m, "a plan", d);
    if (!m.st)
        keep_failure(&m, "a workspace",
                     lib.cudnnBackendGetAttribute(d, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                                  CUDNN_TYPE_INT64, 1, &count, &bytes));
    p->plan = d;
    p->workspace_bytes = (size_t)bytes;
    return m.st;
}

/* Refuses engines that want more than a second output of floats: they store
 * virtual tensors. */
static enum status check_workspace(const struct cudnn_plan *p, const struct cudnn_shape *s,
                                   struct error *err)
{
    const size_t most = (size_t)(s->batch * s->heads * s->length * s->head_dim) * 4;
    if (p->workspace_bytes <= most + (1 << 20)) return OK;
    return fail(err, ERR_UNSUPPORTED, "cuDNN: a plan needs a workspace of %zu bytes",
                p->workspace_bytes);
}

/* Takes the first engine that can make a plan. */
static enum status choose_engine(struct maker *m, const struct cudnn_shape *s,
                                 cudnnBackendDescriptor_t graph, cudnnBackendDescriptor_t device,
                                 cudnnBackendHeurMode_t mode)
{
    cudnnBackendDescriptor_t engines[MAX_ENGINES] = {};
    const int64_t count = add_engines(m, graph, device, mode, engines);
    enum status st = m->st;
    if (!st && count == 0)
        st = fail(m->err, ERR_UNSUPPORTED, "cuDNN: no engine supports the graph");
    for (int64_t i = 0; i < count; i++) {
        st = make_engine_plan(m->plan, engines[i], device, m->err);
        if (!st) st = check_workspace(m->plan, s, m->err);
        if (!st) break;
    }
    return st;
}

enum status cudnn_plan_make(struct cudnn_plan *p, const struct cudnn_shape *s, const char *device,
                            struct error *err)
{
    struct maker m = {p, OK, err};
    *p = {};
    const cudnnBackendDescriptor_t gpu = add_device(&m, device);
    const cudnnBackendDescriptor_t graph = add_graph(&m, s, device != NULL);
    if (m.st) return m.st;
    if (!choose_engine(&m, s, graph, gpu, CUDNN_HEUR_MODE_A)) return OK;
    m.st = OK;
    return choose_engine(&m, s, graph, gpu, CUDNN_HEUR_MODE_FALLBACK);
}

void cudnn_plan_release(struct cudnn_plan *p)
{
    while (p->num_parts > 0)
        (void)lib.cudnnBackendDestroyDescriptor(p->parts[--p->num_parts]);
    p->plan = NULL;
}

/* ---- running ---- */

/* cuDNN before 9.10 turns infinities into NaN here. */
static float minus_infinity(void)
{
    return lib.cudnnGetVersion() < 91000 ? -3.402823466e38f : -INFINITY;
}

enum status cudnn_plan_run(const struct cudnn_plan *p, const struct cudnn_shape *s,
                           const struct cudnn_operands *o, void *workspace, struct error *err)
{
    struct cudnn_plan pack = {};
    struct maker m = {&pack, OK, err};
    float scale = o->scale, masked = minus_infinity();
    int64_t ids[] = {Q, K, V, O, SCALE, 0, 0}, count = 5;
    const void *places[] = {o->q, o->k, o->v, o->o, &scale, NULL, NULL};
    if (s->causal) ids[count] = MINUS_INFINITY, places[count++] = &masked;
    if (s->stats) ids[count] = STATS, places[count++] = o->stats;
    const cudnnBackendDescriptor_t d = add_descriptor(&m, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    set_attribute(&m, d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids);
    set_attribute(&m, d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, places);
    set_attribute(&m, d, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    finalize_descriptor(&m, "pointers", d);
    if (!m.st) keep_failure(&m, "attention", lib.cudnnBackendExecute(handle, p->plan, d));
    cudnn_plan_release(&pack);
    return m.st;
}

#else /* built without such headers */

enum status cudnn_load(struct error *err)
{
    return fail(err, ERR_UNSUPPORTED, "built without cuDNN");
}

enum status cudnn_open(cudaStream_t stream, struct error *err)
{
    (void)stream;
    return cudnn_load(err);
}

void cudnn_close(void)
{
}

unsigned cudnn_version(void)
{
    return 0;
}

enum status cudnn_plan_make(struct cudnn_plan *p, const struct cudnn_shape *s, const char *device,
                            struct error *err)
{
    (void)s, (void)device;
    *p = {};
    return cudnn_load(err);
}

void cudnn_plan_release(struct cudnn_plan *p)
{
    (void)p;
}

enum status cudnn_plan_run(const struct cudnn_plan *p, const struct cudnn_shape *s,
                           const struct cudnn_operands *o, void *workspace, struct error *err)
{
    (void)p, (void)s, (void)o, (void)workspace;
    return cudnn_load(err);
}

#endif
