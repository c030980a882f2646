"""peers.py WHAT MODEL - what other programs do with a Hugging Face folder, for tests/bench/bench.sh:

transformers    load the model, save_pretrained
safetensors     load every tensor, save_file
megatron-save   load every tensor, save them by megatron-core's dist_checkpointing (to ./megatron)
megatron-load   load them again
"""

import glob
import os
import shutil
import sys

import torch
from safetensors.torch import load_file, save_file


def tensors_of(folder):
    return {k: v for file in sorted(glob.glob(folder + "/*.safetensors")) for k, v in load_file(file).items()}


def transformers(folder):
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(folder, dtype="auto").save_pretrained("out")


def safetensors(folder):
    save_file(tensors_of(folder), "out", metadata={"format": "pt"})


def start_megatron():
    torch.cuda.synchronize = lambda: None  # asked for, though there is no GPU
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())


def megatron_save(folder):
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.mapping import ShardedTensor

    start_megatron()
    state = {k: ShardedTensor.from_rank_offsets(k, v) for k, v in tensors_of(folder).items()}
    shutil.rmtree("megatron", ignore_errors=True)
    os.mkdir("megatron")
    dist_checkpointing.save(state, "megatron")


def megatron_load(folder):
    from megatron.core import dist_checkpointing

    start_megatron()
    dist_checkpointing.load(dist_checkpointing.load_tensors_metadata("megatron"), "megatron")


if __name__ == "__main__":
    globals()[sys.argv[1].replace("-", "_")](sys.argv[2])
