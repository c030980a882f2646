/* nccl.cpp - messages between processes of one host through a file in shared
 * memory: a box for each pair and direction. Longer messages go in turns.
 * Collectives are made of messages. */
#include <nccl.h>

#include <atomic>
#include <cuda_bf16.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <vector>

#include "common/half.h"

enum { MAX_RANKS = 8, BOX_BYTES = 64 << 10, PATIENCE = 120 };

struct box {
    std::atomic<uint32_t> bytes; /* 0: empty */
    char data[BOX_BYTES];
};

struct shared {
    std::atomic<int> here;
    struct box boxes[MAX_RANKS][MAX_RANKS]; /* from, to */
};

struct emulated_comm {
    struct shared *shared;
    int size, rank;
    ncclResult_t error;
};

struct message {
    ncclComm_t comm;
    bool is_send;
    int peer;
    char *data;
    size_t bytes;
};

static int group_depth;
static std::vector<struct message> group_messages;

static size_t bytes_of(ncclDataType_t type)
{
    return type == ncclInt8                              ? 1
           : type == ncclBfloat16 || type == ncclFloat16 ? 2
           : type == ncclFloat64                         ? 8
                                                         : 4;
}

/* ---- groups ---- */

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    static int count;
    memset(id, 0, sizeof *id);
    (void)snprintf(id->internal, sizeof id->internal, "/emulated-nccl-%d-%d", (int)getpid(),
                   count++);
    return ncclSuccess;
}

static bool wait_for_all(struct emulated_comm *c)
{
    const time_t until = time(NULL) + PATIENCE;
    c->shared->here++;
    while (c->shared->here < c->size && time(NULL) < until)
        (void)sched_yield();
    return c->shared->here == c->size;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int size, ncclUniqueId id, int rank)
{
    if (size > MAX_RANKS) return ncclInvalidArgument;
    const int fd = shm_open(id.internal, O_CREAT | O_RDWR, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(struct shared))) return ncclSystemError;
    void *memory = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    (void)close(fd);
    if (memory == MAP_FAILED) return ncclSystemError;
    *comm = new emulated_comm{static_cast<struct shared *>(memory), size, rank, ncclSuccess};
    const bool all = wait_for_all(*comm);
    (void)shm_unlink(id.internal); /* fails for all but one */
    return all ? ncclSuccess : ncclRemoteError;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    (void)munmap(comm->shared, sizeof *comm->shared);
    delete comm;
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    return ncclCommDestroy(comm);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    *error = comm->error;
    return ncclSuccess;
}

ncclResult_t ncclGetVersion(int *version)
{
    *version = 22809;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t)
{
    return "an emulated error";
}

/* ---- messages ---- */

static bool same_way(const struct message &a, const struct message &b)
{
    return a.comm == b.comm && a.is_send == b.is_send && a.peer == b.peer;
}

/* Moves as much as the box takes or has; whether that was anything. */
static bool move_some(struct message *m)
{
    struct box(*boxes)[MAX_RANKS] = m->comm->shared->boxes;
    struct box *b = m->is_send ? &boxes[m->comm->rank][m->peer] : &boxes[m->peer][m->comm->rank];
    const size_t there = b->bytes, n = m->is_send ? std::min<size_t>(m->bytes, BOX_BYTES) : there;
    if ((there > 0) == m->is_send) return false;
    memcpy(m->is_send ? b->data : m->data, m->is_send ? m->data : b->data, n);
    m->data += n;
    m->bytes -= n;
    b->bytes = m->is_send ? (uint32_t)n : 0;
    return true;
}

/* Messages of one direction keep their order. */
static void move_all(std::vector<struct message> messages)
{
    time_t until = time(NULL) + PATIENCE;
    for (bool more = true; more;) {
        bool moved = false;
        more = false;
        for (size_t i = 0; i < messages.size(); i++) {
            bool first = messages[i].bytes > 0;
            for (size_t k = 0; k < i && first; k++)
                first = messages[k].bytes == 0 || !same_way(messages[k], messages[i]);
            if (first) moved |= move_some(&messages[i]);
            more |= messages[i].bytes > 0;
        }
        if (moved) until = time(NULL) + PATIENCE;
        if (more && time(NULL) > until) messages[0].comm->error = ncclRemoteError, more = false;
        if (more && !moved) (void)usleep(50);
    }
}

static ncclResult_t post(const struct message &m)
{
    if (m.peer < 0 || m.peer >= m.comm->size) return ncclInvalidArgument;
    if (group_depth > 0)
        group_messages.push_back(m);
    else
        emulated_enqueue([=] { move_all({m}); });
    return ncclSuccess;
}

ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t)
{
    return post({comm, true, peer, (char *)data, count * bytes_of(type)});
}

ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t)
{
    return post({comm, false, peer, (char *)data, count * bytes_of(type)});
}

ncclResult_t ncclGroupStart()
{
    group_depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd()
{
    if (--group_depth > 0) return ncclSuccess;
    const std::vector<struct message> messages = group_messages;
    group_messages.clear();
    emulated_enqueue([=] { move_all(messages); });
    return ncclSuccess;
}

/* ---- collectives ---- */

/* Sends part `to` of `from` to each member, itself included, and collects
 * [size] parts of theirs in `parts`. step: distance of parts in `from`, 0 if
 * all get the same. */
static void swap_parts(ncclComm_t comm, const char *from, size_t step, char *parts, size_t bytes)
{
    std::vector<struct message> messages;
    memmove(parts + comm->rank * bytes, from + comm->rank * step, bytes);
    for (int i = 0; i < comm->size; i++) {
        if (i == comm->rank) continue;
        messages.push_back({comm, true, i, (char *)from + i * step, bytes});
        messages.push_back({comm, false, i, parts + i * bytes, bytes});
    }
    move_all(messages);
}

static double load(const char *data, ncclDataType_t type, size_t i)
{
    if (type == ncclInt32) return ((const int32_t *)data)[i];
    if (type == ncclFloat64) return ((const double *)data)[i];
    if (type == ncclFloat32) return ((const float *)data)[i];
    if (type == ncclFloat16) return half_load(((const uint16_t *)data)[i]);
    return __bfloat162float(((const __nv_bfloat16 *)data)[i]);
}

static void store(char *data, ncclDataType_t type, size_t i, double x)
{
    if (type == ncclInt32)
        ((int32_t *)data)[i] = (int32_t)x;
    else if (type == ncclFloat64)
        ((double *)data)[i] = x;
    else if (type == ncclFloat32)
        ((float *)data)[i] = (float)x;
    else if (type == ncclFloat16)
        ((uint16_t *)data)[i] = half_store((float)x);
    else
        ((__nv_bfloat16 *)data)[i] = __float2bfloat16_rn((float)x);
}

static void reduce(const std::vector<char> &parts, int size, char *out, size_t count,
                   ncclDataType_t type, ncclRedOp_t op)
{
    for (size_t i = 0; i < count; i++) {
        double x = load(parts.data(), type, i);
        for (int k = 1; k < size; k++) {
            const double y = load(parts.data() + k * count * bytes_of(type), type, i);
            x = op == ncclSum ? x + y : std::max(x, y);
        }
        store(out, type, i, x);
    }
}

ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t)
{
    emulated_enqueue([=] {
        std::vector<char> parts(comm->size * count * bytes_of(type));
        swap_parts(comm, (const char *)in, 0, parts.data(), count * bytes_of(type));
        reduce(parts, comm->size, (char *)out, count, type, op);
    });
    return ncclSuccess;
}

ncclResult_t ncclAllGather(const void *in, void *out, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t)
{
    emulated_enqueue(
        [=] { swap_parts(comm, (const char *)in, 0, (char *)out, count * bytes_of(type)); });
    return ncclSuccess;
}

ncclResult_t ncclReduceScatter(const void *in, void *out, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t)
{
    emulated_enqueue([=] {
        const size_t bytes = count * bytes_of(type);
        std::vector<char> parts(comm->size * bytes);
        swap_parts(comm, (const char *)in, bytes, parts.data(), bytes);
        reduce(parts, comm->size, (char *)out, count, type, op);
    });
    return ncclSuccess;
}
