"""Runs megatron-core, which wants CUDA, on CPU ranks: forked processes that talk through gloo.

Requests for a GPU's memory get the CPU's, CUDA's bookkeeping does nothing, and collectives that gloo
lacks are made of those that it has. Arithmetic is PyTorch's own. What stands for CUDA is set up in the
ranks alone: the process that starts them stays as it is."""

import contextlib
import ctypes
import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import tempfile
import traceback
import types

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

SECONDS = 240  # after which ranks that hang are ended


class Nothing:
    """A stream, an event, a handle: takes any call and does nothing."""

    def __init__(self, *args, **kwargs):
        pass

    def __getattr__(self, name):
        return lambda *args, **kwargs: None

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        return False


def on_cpu(value):
    text = str(value) if isinstance(value, (str, torch.device)) else ""
    return torch.device("cpu") if text.startswith("cuda") else value


class CudaOnCpu(TorchFunctionMode):
    def __torch_function__(self, func, kinds, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            return func(*args).replace("torch.", "torch.cuda.")  # optimizers insist on it
        if "device" in kwargs:
            kwargs["device"] = on_cpu(kwargs["device"])
        kwargs.pop("pin_memory", None)
        if func is torch.Tensor.to:
            args = tuple(map(on_cpu, args))
        return func(*args, **kwargs)


def stand_in_for_cuda():
    cuda, cpu = torch.cuda, torch.device("cpu")
    for name in ("synchronize", "empty_cache", "set_device", "_lazy_init"):
        setattr(cuda, name, lambda *args, **kwargs: None)
    cuda.nvtx.range_push = cuda.nvtx.range_pop = lambda *args, **kwargs: None
    cuda.current_device = lambda: cpu
    cuda.device_count = lambda: 1
    cuda.get_device_capability = lambda *args: (8, 0)
    cuda.get_device_properties = lambda *args: types.SimpleNamespace(
        major=8, minor=0, name="CPU", total_memory=1 << 34, multi_processor_count=1
    )
    cuda.Stream = cuda.Event = Nothing
    cuda.stream = lambda *args: contextlib.nullcontext()
    cuda.current_stream = cuda.default_stream = lambda *args: Nothing()
    cuda.is_current_stream_capturing = lambda: False
    for where in (cuda, cuda.random):
        where.get_rng_state = lambda *args, **kwargs: torch.get_rng_state()
        where.set_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)
    cuda.manual_seed = cuda.manual_seed_all = torch.default_generator.manual_seed
    cuda.default_generators = (torch.default_generator,)
    for kind in ("Float", "Double", "Half", "BFloat16", "Byte", "Int", "Long"):
        setattr(cuda, kind + "Tensor", getattr(torch, kind + "Tensor"))
    torch.Tensor.cuda = torch.Tensor.pin_memory = lambda self, *args, **kwargs: self
    torch.nn.Module.cuda = lambda self, *args: self


def add_collectives():
    plain = dist.all_reduce

    def all_reduce(tensor, op=dist.ReduceOp.SUM, group=None, async_op=False):
        average = op == dist.ReduceOp.AVG
        plain(tensor, op=dist.ReduceOp.SUM if average else op, group=group)
        if average:
            tensor.div_(dist.get_world_size(group))
        return Nothing() if async_op else None

    def reduce_scatter_tensor(output, input, op=dist.ReduceOp.SUM, group=None, async_op=False):
        whole = input.clone()
        all_reduce(whole, op, group)
        parts = whole.view(dist.get_world_size(group), -1)
        output.copy_(parts[dist.get_rank(group)].view_as(output))
        return Nothing() if async_op else None

    gather = dist.all_gather_into_tensor

    def all_gather_into_tensor(output, input, group=None, async_op=False):
        gather(output, input, group=group)
        return Nothing() if async_op else None

    dist.all_gather_into_tensor = dist._all_gather_base = all_gather_into_tensor
    dist.all_reduce = dist.distributed_c10d.all_reduce = all_reduce
    dist.reduce_scatter_tensor = dist._reduce_scatter_base = reduce_scatter_tensor
    dist._coalescing_manager = lambda *args, **kwargs: Nothing()
    dist.distributed_c10d._coalescing_manager = dist._coalescing_manager


def rank_main(rank, world, meeting, function, args, results):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK="0")
    os.environ.update(GLOO_SOCKET_IFNAME="lo", CUDA_DEVICE_MAX_CONNECTIONS="1", TORCHDYNAMO_DISABLE="1")
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no rank outlives the parent
    os.setpgid(0, 0)  # so that the helper processes of a save end with their rank
    logging.disable(logging.WARNING)
    said = None
    try:
        stand_in_for_cuda()
        dist.init_process_group("gloo", rank=rank, world_size=world, store=dist.FileStore(meeting, world))
        add_collectives()
        with CudaOnCpu():
            function(*args)
        dist.barrier()
    except BaseException:
        said = f"rank {rank}:\n{traceback.format_exc()}"
    results.send(said)
    os._exit(0)  # gloo's destructors may hang once a peer has gone


def end(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.join()


def run_ranks(world, function, *args):
    """function(*args) on `world` ranks; raises what the first one that failed says."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="ferry-ranks-") as folder:
        pipes = [context.Pipe(duplex=False) for _ in range(world)]
        ranks = [
            context.Process(target=rank_main, args=(r, world, folder + "/meet", function, args, pipes[r][1]))
            for r in range(world)
        ]
        for process, (_, write) in zip(ranks, pipes, strict=True):
            process.start()
            write.close()
        open_pipes, said = [read for read, _ in pipes], None
        while open_pipes and not said:
            ready = multiprocessing.connection.wait(open_pipes, SECONDS)
            said = None if ready else f"{len(open_pipes)} ranks hang"
            for read in ready:
                open_pipes.remove(read)
                try:
                    said = said or read.recv()
                except EOFError:
                    said = said or "a rank ended without a word"
        for process in ranks:
            end(process)
    if said:
        raise RuntimeError(said)
