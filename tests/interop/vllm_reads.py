#!/usr/bin/env python3
"""vllm_reads.py FERRY [--only TEXT]

vLLM builds its own model from the folders that Ferry writes with encoded weights, and loads them: its config readers
choose the scheme of each layer, fused ones too, and its loaders must find a parameter for each tensor and a tensor for
each parameter, with the stored bits. Nothing is computed: kernels, which want a GPU, are stood in for.
"""
import argparse
import glob
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import unittest.mock

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3MoeConfig

import vllm.platforms
from vllm.platforms.cpu import CpuPlatform

vllm.platforms._current_platform = CpuPlatform()
logging.disable(logging.ERROR)

import vllm.distributed.parallel_state as parallel
from vllm.config import set_current_vllm_config
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.quantization import get_quantization_config
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.model_executor.model_loader.weight_utils import safetensors_weights_iterator
from vllm.model_executor.models import llama, qwen3_moe

from encode_anew import KINDS

FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
# vLLM takes experts whose weights have one scale only where activations have one, too
UNREAD = ("fp8-tensor",)
# the cache's scales, 1 by default; those of NVFP4's activations, made and not used for weights alone
OPTIONAL = (".attn.", ".w13_input_global_scale", ".w2_input_global_scale")


def config_of(title):
    shape = dict(hidden_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
                 vocab_size=64, tie_word_embeddings=title == "odd")
    if title == "experts":
        return Qwen3MoeConfig(**shape, intermediate_size=512, moe_intermediate_size=128, num_experts=4,
                              num_experts_per_tok=2, mlp_only_layers=[0])
    if title == "odd experts":  # no whole blocks of 128
        return Qwen3MoeConfig(**shape, intermediate_size=512, moe_intermediate_size=96, num_experts=2,
                              num_experts_per_tok=1)
    return LlamaConfig(**shape, intermediate_size=320 if title == "odd" else 512)


def stand_in_for_kernels():
    get_quantization_config("fp8")  # imports what chooses kernels
    for name, module in list(sys.modules.items()):
        for function in list(vars(module)) if name.startswith("vllm.") else ():
            if function.startswith("init_") and function.endswith("_linear_kernel"):
                setattr(module, function, unittest.mock.MagicMock())
            elif function.startswith("select_") and function.endswith("moe_backend") and "unquantized" not in function:
                setattr(module, function, lambda *_, **__: (unittest.mock.MagicMock(), unittest.mock.MagicMock()))


def load(folder):
    config = EngineArgs(model=folder, skip_tokenizer_init=True, enforce_eager=True, max_model_len=64,
                        dtype="bfloat16").create_engine_config()
    with set_current_vllm_config(config):
        parallel.destroy_model_parallel()
        if not torch.distributed.is_initialized():
            parallel.init_distributed_environment(1, 0, f"file://{tempfile.mktemp()}", 0, "gloo")
        parallel.initialize_model_parallel(1, 1)
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = initialize_model(config)
    finally:
        torch.set_default_dtype(torch.float32)
    loaded = model.load_weights(safetensors_weights_iterator(sorted(glob.glob(f"{folder}/*.safetensors")), False))
    return dict(model.named_parameters()), loaded


def part_of(params, name, stored):
    """The parameter's part that a stored tensor of a dense layer went to."""
    for whole, parts in FUSED.items():
        for part in parts:
            if f".{part}." not in name:
                continue
            param = params[name.replace(f".{part}.", f".{whole}.")]
            before = parts[:parts.index(part)]
            if stored[name].numel() == 1:
                return param.reshape(-1)[len(before):len(before) + 1]
            first = sum(len(stored[name.replace(f".{part}.", f".{other}.")]) for other in before)
            return param[first:first + len(stored[name])]
    return params[name]


def check(ferry, work, title, kind):
    source, out = f"{work}/source", f"{work}/out"
    AutoModelForCausalLM.from_config(config_of(title)).bfloat16().save_pretrained(source)
    subprocess.run([ferry, "convert", source, out, "--to", "hf", "--export-weight-dtype", kind], check=True,
                   stdout=subprocess.DEVNULL)
    params, loaded = load(out)
    empty = sorted(n for n in params if n not in loaded and not any(part in n for part in OPTIONAL))
    if empty:
        raise AssertionError(f"parameters without a tensor: {' '.join(empty[:3])}")
    stored = load_file(f"{out}/model.safetensors")
    scales = 0
    for name, tensor in stored.items():
        if ".experts." in name or name.endswith("weight_shape"):  # packed in memory; the same for each part
            continue
        got = part_of(params, name, stored)
        scales += "scale" in name
        both_numbers = tensor.dtype in (torch.bfloat16, torch.float32) and got.dtype in (torch.bfloat16, torch.float32)
        if tensor.dtype != got.dtype and not both_numbers:
            raise AssertionError(f"{name} is {tensor.dtype}, and {got.dtype} in vLLM")
        same = tensor.to(got.dtype).reshape(-1).view(torch.uint8), got.detach().contiguous().reshape(-1).view(torch.uint8)
        if not torch.equal(*same):
            raise AssertionError(f"{name} differs in vLLM")
    if not scales:
        raise AssertionError("no weight is encoded")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("ferry")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    stand_in_for_kernels()
    passed = failed = 0
    for title in ("dense", "odd", "experts", "odd experts"):
        for kind in KINDS:
            if options.only not in f"{title} {kind}" or ("experts" in title and kind in UNREAD):
                continue
            torch.manual_seed(1)
            work = tempfile.mkdtemp(prefix="ferry-vllm-")
            try:
                check(options.ferry, work, title, kind)
                passed += 1
                print(f"PASS {title}, {kind}", flush=True)
            except Exception as error:  # whatever vLLM raises is its refusal
                failed += 1
                print(f"FAIL {title}, {kind}: {type(error).__name__} {str(error)[:400]}", flush=True)
            shutil.rmtree(work)
    print(f"interop-vllm: {passed} passed, {failed} failed")
    return failed > 0


sys.exit(main())
