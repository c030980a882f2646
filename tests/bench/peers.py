"""peers.py WHAT MODEL - what other programs do with a Hugging Face folder, for tests/bench/bench.sh:

transformers    load the model, save_pretrained
safetensors     load every tensor, save_file
megatron-save   load every tensor, save them by megatron-core's dist_checkpointing (to ./megatron)
megatron-load   load them again
zero-to-fp32, ds-to-universal   what DeepSpeed makes of a checkpoint of its own
"""

import glob
import os
import shutil
import sys

import torch


def tensors_of(folder):
    from safetensors.torch import load_file

    return {k: v for file in sorted(glob.glob(folder + "/*.safetensors")) for k, v in load_file(file).items()}


def transformers(folder):
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(folder, dtype="auto").save_pretrained("out")


def safetensors(folder):
    from safetensors.torch import save_file

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


def zero_to_fp32(folder):
    from deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_fp32_state_dict

    convert_zero_checkpoint_to_fp32_state_dict(folder, "out")


def ds_to_universal(folder):
    import argparse

    from deepspeed.checkpoint import ds_to_universal as program

    tag = open(folder + "/latest").read().strip()
    program.main(argparse.Namespace(input_folder=f"{folder}/{tag}", output_folder="out", num_extract_workers=2,
                                    num_merge_workers=2, keep_temp_folder=False, strict=True,
                                    inject_missing_state=False))


if __name__ == "__main__":
    globals()[sys.argv[1].replace("-", "_")](sys.argv[2])
