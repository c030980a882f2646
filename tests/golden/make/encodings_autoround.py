#!/usr/bin/env python3
"""encodings_autoround.py OUT - a small random Llama, its linear layers packed by AutoRound

OUT/NAME: the model; OUT/NAME/expected: what AutoRound's layers multiply by, in F32, rounded once. down_proj has 8 bits,
by extra_config; v_proj stays. Needs transformers 5.24 and auto-round 0.16.1; what else that imports is stood in for.
"""
import json
import os
import sys
import unittest.mock

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig

while True:
    try:
        from auto_round_extension.torch.qlinear_torch import QuantLinear
        from auto_round_extension.torch.qlinear_torch_zp import QuantLinear as QuantLinearMinus1
        break
    except ModuleNotFoundError as error:
        sys.modules[error.name] = unittest.mock.MagicMock(__path__=[], __spec__=None)

PT = {"format": "pt"}
CASES = {"autoround-llama": ("auto_round", QuantLinear), "autoround-gptq-llama": ("auto_round:auto_gptq", QuantLinearMinus1)}


def pack(weight, kind, bits, group):
    linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight.data = weight.float()
    groups = weight.float().unflatten(-1, (-1, group))
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    scales = ((high - low) / (2**bits - 1)).half().float()
    zeros = torch.round(-low / scales).clamp(1, 2**bits - 1)
    module = kind(bits, group, weight.shape[1], weight.shape[0], False)
    module.device = "cpu"
    module.pack(linear, scales, zeros)
    stored = {n: getattr(module, n).clone() for n in ("qweight", "qzeros", "scales")}
    module.scales = module.scales.float()
    module.dequant_dtype = torch.int32
    return stored, module(torch.eye(weight.shape[1])).t()


def make(folder, packing, kind):
    torch.manual_seed(8)
    config = LlamaConfig(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
                         num_key_value_heads=2, head_dim=16, vocab_size=16, tie_word_embeddings=False)
    AutoModelForCausalLM.from_config(config).bfloat16().save_pretrained(f"{folder}/expected")
    os.remove(f"{folder}/expected/generation_config.json")
    expected = load_file(f"{folder}/expected/model.safetensors")
    stored = dict(expected)
    for name in expected:
        if "_proj" in name and "v_proj" not in name:
            packed, decoded = pack(stored.pop(name), kind, *((8, 32) if "down_proj" in name else (4, 16)))
            expected[name] = decoded.bfloat16().contiguous()
            stored.update({name.removesuffix("weight") + n: t.contiguous() for n, t in packed.items()})
    save_file(stored, f"{folder}/model.safetensors", metadata=PT)
    save_file(expected, f"{folder}/expected/model.safetensors", metadata=PT)
    plain = json.load(open(f"{folder}/expected/config.json"))
    how = {"quant_method": "auto-round", "packing_format": packing, "bits": 4, "group_size": 16, "sym": False,
           "data_type": "int", "extra_config": {"model.layers.0.mlp.down_proj": {"bits": 8, "group_size": 32},
                                                "model.layers.0.self_attn.v_proj": {"bits": 16, "data_type": "float"}}}
    for path, written in ((f"{folder}/expected", plain), (folder, {**plain, "quantization_config": how})):
        with open(f"{path}/config.json", "w") as file:
            file.write(json.dumps(written, indent=2, sort_keys=True) + "\n")


for title, case in CASES.items():
    make(f"{sys.argv[1]}/{title}", *case)
