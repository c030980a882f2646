#!/usr/bin/env python3
"""encodings_made.py OUT - a small random Qwen3-MoE in bf16, and what transformers' own quantizer makes of its layers

OUT/model is the model; OUT/fp8-block.safetensors and OUT/mxfp8.safetensors have the codes and scales of its linear
layers by Fp8Quantize, as FineGrainedFP8Config with blocks of 128 x 128, and with scales that are powers of two for
32 elements each. One expert's weight is 0, one has blocks of very different sizes. Needs transformers 5.24.
"""
import os
import sys
import types

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Qwen3MoeConfig
from transformers.integrations.finegrained_fp8 import Fp8Quantize

KINDS = {"fp8-block": ("float", (128, 128)), "mxfp8": ("ue8m0", (1, 32))}


def make_model(folder):
    torch.manual_seed(6)
    config = Qwen3MoeConfig(hidden_size=128, intermediate_size=256, moe_intermediate_size=128, num_experts=2,
                            num_experts_per_tok=1, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1,
                            head_dim=128, vocab_size=40, tie_word_embeddings=False)
    AutoModelForCausalLM.from_config(config).bfloat16().save_pretrained(folder)
    weights = load_file(f"{folder}/model.safetensors")
    for name, weight in weights.items():
        if "proj" in name:
            weight.mul_(torch.exp(2 * torch.randn(weight.shape[0], 1)).to(weight.dtype))
        if "experts.1.down_proj" in name:
            weight.zero_()
    save_file(weights, f"{folder}/model.safetensors", metadata={"format": "pt"})
    os.remove(f"{folder}/generation_config.json")
    return weights


def encode(weights, scale_fmt, block):
    config = types.SimpleNamespace(weight_block_size=block, scale_fmt=scale_fmt)
    quantize = Fp8Quantize(types.SimpleNamespace(quantization_config=config))
    out = {}
    for name, weight in weights.items():
        if "proj" in name:
            out.update(quantize._quantize_one(name, weight))
    return {n: (t.view(torch.uint8) if t.dtype == torch.float8_e8m0fnu else t).contiguous() for n, t in out.items()}


def main(out):
    weights = make_model(f"{out}/model")
    for kind, (scale_fmt, block) in KINDS.items():
        save_file(encode(weights, scale_fmt, block), f"{out}/{kind}.safetensors")


main(sys.argv[1])
