"""Runs the peers' programs, each in a process of its own. Importing torch, transformers and megatron-core takes
such a program longer than its work, and each of its ranks once more: these processes are forked from one that has
imported them, and so are their ranks."""

import multiprocessing
import multiprocessing.connection
import os
import runpy
import shlex
import sys
import tempfile
import threading
import warnings
from pathlib import Path

from megatron_files import require

SECONDS = 600  # after which a program that hangs is ended
lock = threading.Lock()  # what multiprocessing notes of its processes is for one thread at a time

server = multiprocessing.get_context("forkserver")
server.set_forkserver_preload([
    "safetensors.torch",
    "torch.distributed.checkpoint",
    "transformers.models.auto.modeling_auto",
    "megatron.core.distributed",
    "megatron.core.dist_checkpointing.strategies.torch",
    "megatron.core.models.gpt.gpt_layer_specs",
    "megatron.core.optimizer",
    "megatron.core.pipeline_parallel",
])


def main_of_process(program, args, folder):
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(f"{folder}/{name}", os.O_WRONLY), number)
    warnings.simplefilter("ignore")
    import torch.multiprocessing

    torch.set_num_threads(1)
    forked = multiprocessing.get_context("fork")
    torch.multiprocessing.get_context = lambda method=None: forked  # of its ranks
    sys.argv = [program, *args]
    sys.path.insert(0, os.path.dirname(program))
    runpy.run_path(program, run_name="__main__")


def run_peer(program, *args):
    """The last line that the program prints."""
    args = [str(x) for x in args]
    with tempfile.TemporaryDirectory(prefix="ferry-peer-") as folder:
        said = [Path(folder) / name for name in ("stdout", "stderr")]
        for file in said:
            file.touch()
        process = server.Process(target=main_of_process, args=(str(program), args, folder))
        with lock:
            process.start()
        ended = multiprocessing.connection.wait([process.sentinel], SECONDS)
        with lock:
            if not ended:
                process.kill()
            process.join()
        stdout, stderr = (file.read_text() for file in said)
    text = (stdout + stderr).strip()
    require(
        process.exitcode == 0,
        f"{Path(program).name} {shlex.join(args)}: exit code {process.exitcode}\n{text[-1500:]}",
    )
    return stdout.strip().splitlines()[-1] if stdout.strip() else ""
