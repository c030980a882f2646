/* nccl.cu - collectives of GPUs by NCCL, loaded on first use. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <thread>
#include <vector>

#include "kernels/cuda/cuda.h"
#include "kernels/device.h"

/* Loaded on demand: one GPU needs none, and libferry_cuda.so must load
 * without it. */
#if __has_include(<nccl.h>)
#include <nccl.h>

#define FUNCTIONS(X)                                                                               \
    X(ncclGetVersion)                                                                              \
    X(ncclGetUniqueId)                                                                             \
    X(ncclCommInitRank)                                                                            \
    X(ncclCommDestroy)                                                                             \
    X(ncclCommAbort)                                                                               \
    X(ncclCommGetAsyncError)                                                                       \
    X(ncclGetErrorString)                                                                          \
    X(ncclAllReduce)                                                                               \
    X(ncclAllGather)                                                                               \
    X(ncclReduceScatter)                                                                           \
    X(ncclSend)                                                                                    \
    X(ncclRecv)                                                                                    \
    X(ncclGroupStart)                                                                              \
    X(ncclGroupEnd)

static struct {
#define MEMBER(name) decltype(&::name) name;
    FUNCTIONS(MEMBER)
} nccl;

static_assert((int)DEVICE_GROUP_ID_BYTES == (int)NCCL_UNIQUE_ID_BYTES, "device.h");

enum { MAX_GROUPS = 64 };
static ncclComm_t open_groups[MAX_GROUPS]; /* checked for errors by poll_queue() */

static enum status nccl_status(const char *what, ncclResult_t code, struct error *err)
{
    if (code == ncclSuccess || code == ncclInProgress) return OK;
    return fail(err, ERR_DEVICE, "NCCL: %s: %s", what, nccl.ncclGetErrorString(code));
}

/* ---- the library ---- */

static enum status find_symbol(void *library, const char *name, void **function, struct error *err)
{
    *function = dlsym(library, name);
    return *function ? OK : fail(err, ERR_UNSUPPORTED, "NCCL: %s", dlerror());
}

static enum status load_nccl(struct error *err)
{
    static void *library;
    if (library) return OK;
    void *found = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!found) return fail(err, ERR_UNSUPPORTED, "NCCL: %s", dlerror());
#define FIND(name) TRY(find_symbol(found, #name, reinterpret_cast<void **>(&nccl.name), err));
    FUNCTIONS(FIND)
    library = found;
    return OK;
}

/* ---- groups ---- */

static enum status new_group_id(char id[DEVICE_GROUP_ID_BYTES], struct error *err)
{
    ncclUniqueId unique;
    TRY(nccl_status("an id", nccl.ncclGetUniqueId(&unique), err));
    memcpy(id, unique.internal, DEVICE_GROUP_ID_BYTES);
    return OK;
}

static enum status open_group(void **group, const char *id, unsigned size, unsigned index,
                              struct error *err)
{
    ncclUniqueId unique;
    ncclComm_t comm;
    unsigned slot = 0;
    while (slot < MAX_GROUPS && open_groups[slot])
        slot++;
    if (slot == MAX_GROUPS) return fail(err, ERR_OURS, "NCCL: too many groups");
    memcpy(unique.internal, id, DEVICE_GROUP_ID_BYTES);
    TRY(nccl_status("a group", nccl.ncclCommInitRank(&comm, (int)size, unique, (int)index), err));
    *group = open_groups[slot] = comm;
    return OK;
}

static void forget_group(void *group)
{
    for (unsigned i = 0; i < MAX_GROUPS; i++)
        if (open_groups[i] == group) open_groups[i] = NULL;
}

/* An abort waits for the group's kernels, and these for other groups': so each
 * abort has a thread. */
static void close_groups(void *const *groups, unsigned count, bool give_up)
{
    std::vector<std::thread> aborting;
    for (unsigned i = 0; i < count; i++) {
        const ncclComm_t comm = static_cast<ncclComm_t>(groups[i]);
        forget_group(comm);
        if (give_up)
            aborting.emplace_back([comm] { (void)nccl.ncclCommAbort(comm); });
        else
            (void)nccl.ncclCommDestroy(comm);
    }
    for (std::thread &t : aborting)
        t.join();
}

static enum status poll_queue(bool *is_done, struct error *err)
{
    const cudaError_t code = cudaStreamQuery(cuda_stream);
    *is_done = code == cudaSuccess;
    for (unsigned i = 0; i < MAX_GROUPS; i++) {
        ncclResult_t result = ncclSuccess;
        if (!open_groups[i]) continue;
        TRY(nccl_status("a group", nccl.ncclCommGetAsyncError(open_groups[i], &result), err));
        TRY(nccl_status("another rank", result, err));
    }
    return code == cudaErrorNotReady ? OK : cuda_status("the GPU", code, err);
}

/* ---- collectives ---- */

static ncclDataType_t type_of(struct device_number n)
{
    if (n.type == OPERAND_INT) return ncclInt32;
    if (n.elem == ELEM_F64) return ncclFloat64;
    if (n.type == OPERAND_REAL || n.elem == ELEM_F32) return ncclFloat32;
    return n.elem == ELEM_BF16 ? ncclBfloat16 : ncclFloat16;
}

static enum status all_reduce(void *group, const void *in, void *out, uint64_t count,
                              struct device_number number, bool max, struct error *err)
{
    return nccl_status("all_reduce",
                       nccl.ncclAllReduce(in, out, count, type_of(number), max ? ncclMax : ncclSum,
                                          static_cast<ncclComm_t>(group), cuda_stream),
                       err);
}

static enum status all_gather(void *group, const void *in, void *out, uint64_t bytes,
                              struct error *err)
{
    return nccl_status(
        "all_gather",
        nccl.ncclAllGather(in, out, bytes, ncclInt8, static_cast<ncclComm_t>(group), cuda_stream),
        err);
}

static enum status reduce_scatter(void *group, const void *in, void *out, uint64_t count,
                                  struct device_number number, struct error *err)
{
    return nccl_status("reduce_scatter",
                       nccl.ncclReduceScatter(in, out, count, type_of(number), ncclSum,
                                              static_cast<ncclComm_t>(group), cuda_stream),
                       err);
}

static enum status send_bytes(void *group, unsigned to, const void *data, uint64_t bytes,
                              struct error *err)
{
    if (bytes == 0) return OK;
    return nccl_status(
        "send",
        nccl.ncclSend(data, bytes, ncclInt8, (int)to, static_cast<ncclComm_t>(group), cuda_stream),
        err);
}

static enum status receive_bytes(void *group, unsigned from, void *data, uint64_t bytes,
                                 struct error *err)
{
    if (bytes == 0) return OK;
    return nccl_status("receive",
                       nccl.ncclRecv(data, bytes, ncclInt8, (int)from,
                                     static_cast<ncclComm_t>(group), cuda_stream),
                       err);
}

/* Messages between these two run at once, in any order: no member waits for
 * another's turn. */
static enum status group_start(struct error *err)
{
    return nccl_status("a group of messages", nccl.ncclGroupStart(), err);
}

static enum status group_end(enum status st, struct error *err)
{
    const ncclResult_t code = nccl.ncclGroupEnd();
    return st ? st : nccl_status("a group of messages", code, err);
}

static enum status all_to_all(void *group, unsigned size, const void *in, const size_t *in_bytes,
                              void *out, const size_t *out_bytes, struct error *err)
{
    const char *from = static_cast<const char *>(in);
    char *to = static_cast<char *>(out);
    enum status st = OK;
    TRY(group_start(err));
    for (unsigned i = 0; i < size && !st; i++) {
        st = send_bytes(group, i, from, in_bytes[i], err);
        if (!st) st = receive_bytes(group, i, to, out_bytes[i], err);
        from += in_bytes[i];
        to += out_bytes[i];
    }
    return group_end(st, err);
}

static enum status exchange_messages(void *group, const struct device_message *messages,
                                     unsigned count, struct error *err)
{
    enum status st = OK;
    TRY(group_start(err));
    for (unsigned i = 0; i < count && !st; i++) {
        const struct device_message *m = &messages[i];
        st = m->sends ? send_bytes(group, m->peer, m->data, m->bytes, err)
                      : receive_bytes(group, m->peer, m->data, m->bytes, err);
    }
    return group_end(st, err);
}

static const struct device_collectives nccl_collectives = {
    "nccl",     load_nccl,      new_group_id, open_group,        close_groups, all_reduce,
    all_gather, reduce_scatter, all_to_all,   exchange_messages, poll_queue};

const struct device_collectives *const cuda_collectives = &nccl_collectives;

unsigned cuda_collectives_version(struct error *err)
{
    int version;
    if (load_nccl(err) || nccl_status("a version", nccl.ncclGetVersion(&version), err)) return 0;
    return (unsigned)version;
}

#else
const struct device_collectives *const cuda_collectives = NULL;

unsigned cuda_collectives_version(struct error *err)
{
    return fail(err, ERR_UNSUPPORTED, "built without NCCL") == OK;
}
#endif
