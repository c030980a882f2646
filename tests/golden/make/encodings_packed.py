#!/usr/bin/env python3
"""encodings_packed.py OUT [NAME]... - a small random Llama, its linear layers packed by GPTQModel and bitsandbytes

OUT/NAME has config.json and model.safetensors; OUT/NAME/expected what they decode to: in F32, as the program's own
module does with scales in F32, rounded once to BF16. Of bitsandbytes it is the portable implementation: that for CPUs
takes the wrong scales where rows are not whole blocks. Needs transformers 5.24, GPTQModel 7.7, bitsandbytes 0.50.2.
"""
import json
import os
import sys

import bitsandbytes.functional as bnb
import torch
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
from gptqmodel.nn_modules.qlinear.torch import TorchLinear
from gptqmodel.nn_modules.qlinear.torch_awq import AwqTorchLinear
from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm
from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig

PT = {"format": "pt"}


def make_model(folder):
    torch.manual_seed(7)
    config = LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
                         num_key_value_heads=2, head_dim=16, vocab_size=16, tie_word_embeddings=False)
    AutoModelForCausalLM.from_config(config).bfloat16().save_pretrained(folder)
    os.remove(f"{folder}/generation_config.json")
    return load_file(f"{folder}/model.safetensors")


def linear_of(weight):
    linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight.data = weight.float()
    return linear


def scales_and_zeros(weight, groups, bits):
    """By the least and the largest of a group's columns; [out, groups] each."""
    count = int(groups.max()) + 1
    low, high = (torch.stack([f(weight[:, groups == g].float(), 1) for g in range(count)], 1).clamp(*at)
                 for f, at in ((torch.amin, (None, 0)), (torch.amax, (0, None))))
    scales = ((high - low) / (2**bits - 1)).half().float()
    return scales, torch.round(-low / scales).clamp(1, 2**bits - 1)


def gptq(weight, bits, group, version=1, act_order=False):
    out, cols = weight.shape
    groups = torch.arange(cols) // (group if group > 0 else cols)
    if act_order:
        groups = groups[torch.randperm(cols)]
    module = TorchLinear(bits=bits, group_size=group, sym=False, desc_act=act_order, in_features=cols,
                         out_features=out, bias=False)
    scales, zeros = scales_and_zeros(weight, groups, bits)
    module.pack_original(linear_of(weight), scales, zeros, groups.to(torch.int32))
    module.post_init()
    wide = {n: getattr(module, n) for n in ("qweight", "qzeros", "scales", "g_idx")}
    module.scales = module.scales.float()
    decoded = module.dequantize_weight().T
    if version == 1:
        convert_gptq_v2_to_v1_format_module(module, module)  # bits and pack_dtype of both
    return {**wide, "qzeros": module.qzeros}, decoded


def awq(weight, bits, group):
    out, cols = weight.shape
    size = group if group > 0 else cols
    module = AwqTorchLinear(bits=bits, group_size=group, sym=False, desc_act=False, in_features=cols,
                            out_features=out, bias=False)
    scales, zeros = scales_and_zeros(weight, torch.arange(cols) // size, bits)
    module.pack(linear_of(weight), scales, zeros)
    packed = {n: getattr(module, n) for n in ("qweight", "qzeros", "scales")}
    return packed, dequantize_gemm(packed["qweight"], packed["qzeros"], packed["scales"].float(), bits, size).T


def bnb_4bit(weight, kind, double):
    codes, state = bnb.quantize_4bit(weight, blocksize=64, compress_statistics=double, quant_type=kind)
    stored = {"weight": codes, **{f"weight.{n}": t for n, t in state.as_dict(packed=True).items()}}
    scales = state.absmax
    if double:
        scales = bnb.dequantize_blockwise(scales, state.state2) + state.offset
    return stored, _dequantize_4bit_compute(codes.reshape(-1), scales, state.code, 64, weight.shape, torch.float32)


def bnb_int8(weight):
    codes, scales, _ = bnb.int8_vectorwise_quant(weight.half())
    stored = {"weight": codes, "SCB": scales, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return stored, bnb.int8_vectorwise_dequant(codes, scales)


def bnb_config(kind=None, double=False):
    return {"quant_method": "bitsandbytes", "load_in_4bit": bool(kind), "load_in_8bit": not kind,
            "bnb_4bit_quant_type": kind or "fp4", "bnb_4bit_use_double_quant": double,
            "bnb_4bit_quant_storage": "uint8", "llm_int8_skip_modules": None, "llm_int8_threshold": 6.0}


def gptq_config(bits, group, version=1, act_order=False):
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": act_order, "sym": False,
            "checkpoint_format": "gptq" if version == 1 else "gptq_v2"}


def awq_config(bits, group):
    return {"quant_method": "awq", "bits": bits, "group_size": group, "zero_point": True, "version": "gemm"}


# name: how, its config, arguments of both
CASES = {
    "gptq-int4-llama": (gptq, gptq_config, dict(bits=4, group=16)),
    "gptq-int4-v2-llama": (gptq, gptq_config, dict(bits=4, group=-1, version=2)),
    "gptq-int4-act-order-llama": (gptq, gptq_config, dict(bits=4, group=16, act_order=True)),
    "gptq-int8-llama": (gptq, gptq_config, dict(bits=8, group=32)),
    "awq-int4-llama": (awq, awq_config, dict(bits=4, group=16)),
    "bnb-nf4-llama": (bnb_4bit, bnb_config, dict(kind="nf4", double=False)),
    "bnb-nf4-double-llama": (bnb_4bit, bnb_config, dict(kind="nf4", double=True)),
    "bnb-fp4-llama": (bnb_4bit, bnb_config, dict(kind="fp4", double=False)),
    "bnb-int8-llama": (bnb_int8, bnb_config, {}),
}


def write_config(folder, config):
    with open(f"{folder}/config.json", "w") as file:
        file.write(json.dumps(config, indent=2, sort_keys=True) + "\n")


def make(folder, how, config_of, arguments):
    weights, stored, expected = make_model(folder), {}, {}
    for name, weight in weights.items():
        expected[name] = stored[name] = weight
        if "_proj" not in name:
            continue
        del stored[name]
        packed, decoded = how(weight, **arguments)
        expected[name] = decoded.float().bfloat16().contiguous()
        stored.update({name.removesuffix("weight") + n: t.contiguous() for n, t in packed.items()})
    save_file(stored, f"{folder}/model.safetensors", metadata=PT)
    config = json.load(open(f"{folder}/config.json"))
    os.makedirs(f"{folder}/expected", exist_ok=True)
    write_config(f"{folder}/expected", config)
    save_file(expected, f"{folder}/expected/model.safetensors", metadata=PT)
    write_config(folder, {**config, "quantization_config": config_of(**arguments)})


def main(out, *names):
    for name in names or CASES:
        make(f"{out}/{name}", *CASES[name])


main(*sys.argv[1:])
