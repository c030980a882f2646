#!/usr/bin/env python3
"""encodings_made.py OUT - a small random Qwen3-MoE in bf16, and the codes that other programs make of its layers

OUT/model is the model; OUT/KIND.safetensors has the codes and scales of its linear layers by
tests/interop/encode_anew.py: transformers 5.24's Fp8Quantize, and compressed-tensors 0.20.0. One expert's weight is 0,
one has blocks of very different sizes.
"""
import os
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

sys.path.insert(0, f"{os.path.dirname(os.path.abspath(__file__))}/../../interop")
from encode_anew import KINDS, encode


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


def main(out):
    weights = make_model(f"{out}/model")
    for kind in KINDS:
        save_file(encode(weights, kind), f"{out}/{kind}.safetensors")


main(sys.argv[1])
