/* graphs.cu - a run of ops, captured from the stream and launched as one
 * CUDA graph. */
#include "kernels/cuda/cuda.h"
#include "kernels/device.h"

static enum status begin_graph(struct error *err)
{
    return cuda_status("a graph",
                       cudaStreamBeginCapture(cuda_stream, cudaStreamCaptureModeThreadLocal), err);
}

static enum status end_graph(void **graph, struct error *err)
{
    cudaGraph_t recorded = NULL;
    cudaGraphExec_t instance = NULL;
    TRY(cuda_status("a graph", cudaStreamEndCapture(cuda_stream, &recorded), err));
    const enum status st =
        cuda_status("a graph", cudaGraphInstantiate(&instance, recorded, 0), err);
    (void)cudaGraphDestroy(recorded);
    *graph = instance;
    return st;
}

bool cuda_is_capturing(void)
{
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    (void)cudaStreamIsCapturing(cuda_stream, &capturing);
    return capturing != cudaStreamCaptureStatusNone;
}

/* Restores the stream's state before begin_graph(), whatever failed since. */
static void cancel_graph(void)
{
    cudaGraph_t recorded = NULL;
    if (cuda_is_capturing()) (void)cudaStreamEndCapture(cuda_stream, &recorded);
    if (recorded) (void)cudaGraphDestroy(recorded);
    (void)cudaGetLastError();
}

static enum status replay_graph(void *graph, struct error *err)
{
    return cuda_status("a graph", cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), cuda_stream),
                       err);
}

static void release_graph(void *graph)
{
    (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph));
}

const struct device_graphs cuda_graphs = {begin_graph, end_graph, cancel_graph, replay_graph,
                                          release_graph};
