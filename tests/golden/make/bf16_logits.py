#!/usr/bin/env python3
"""Writes logits_bf16.safetensors into each folder of ../hf: what transformers computes in bf16 for the
input_ids of logits.safetensors, eager attention, stored as BF16.

    bf16_logits.py          (needs torch, transformers and safetensors)
"""
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

for folder in sorted((Path(__file__).parent.parent / "hf").iterdir()):
    ids = load_file(folder / "logits.safetensors")["input_ids"]
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, attn_implementation="eager"
    ).eval()
    with torch.inference_mode():
        logits = model(ids.long()).logits
    assert logits.dtype == torch.bfloat16
    save_file({"input_ids": ids, "logits": logits.contiguous()}, folder / "logits_bf16.safetensors")
    print(folder.name, list(logits.shape))
