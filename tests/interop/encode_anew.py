"""What transformers and compressed-tensors make of the linear layers of a model, by their own functions."""
import re
import types

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from transformers.integrations.finegrained_fp8 import Fp8Quantize

BLOCKS = {"fp8-block": ("float", (128, 128))}
PRESETS = {  # preset, format
    "fp8-tensor": ("FP8", "float-quantized"), "fp8-channel": ("FP8_DYNAMIC", "float-quantized"),
    "mxfp8": ("MXFP8", "mxfp8-quantized"), "mxfp4": ("MXFP4A16", "mxfp4-pack-quantized"),
    "nvfp4": ("NVFP4A16", "nvfp4-pack-quantized"), "int4": ("W4A16", "pack-quantized"),
}
KINDS = [*BLOCKS, *PRESETS]
FUSED = [("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")]


def is_linear(name):
    return name.endswith("_proj.weight")


def fused_with(name, weights):
    """The weights that vLLM keeps as one with this one."""
    for names in FUSED:
        for one in names:
            if f".{one}." in name:
                return [weights[name.replace(f".{one}.", f".{other}.")] for other in names]
    return [weights[name]]


def by_transformers(name, weight, kind):
    scale_fmt, block = BLOCKS[kind]
    config = types.SimpleNamespace(weight_block_size=block, scale_fmt=scale_fmt)
    made = Fp8Quantize(types.SimpleNamespace(quantization_config=config))._quantize_one(name, weight)
    return {n: t.view(torch.uint8) if t.dtype == torch.float8_e8m0fnu else t for n, t in made.items()}


def by_compressed_tensors(name, weights, kind):
    preset, form = PRESETS[kind]
    scheme = preset_name_to_scheme(preset, ["Linear"])
    scheme.format = form
    args, weight = scheme.weights, weights[name]
    channel = weight.unsqueeze(1) if args.strategy == "channel" else weight.reshape(-1)
    groups = weight.unflatten(-1, (-1, args.group_size)) if args.group_size else channel
    state = {"weight": weight}
    if args.strategy == "tensor_group":
        shared = fused_with(name, weights)
        state["weight_global_scale"] = generate_gparam(min(w.min() for w in shared), max(w.max() for w in shared))
    state["weight_scale"], state["weight_zero_point"] = calculate_qparams(
        groups.amin(-1), groups.amax(-1), args, global_scale=state.get("weight_global_scale"))
    made = BaseCompressor.get_value_from_registry(form).compress(state, scheme)
    return {re.sub("weight$", key, name): t for key, t in made.items() if t is not None}


def encode(weights, kind):
    out = {}
    for name in filter(is_linear, weights):
        by = by_transformers(name, weights[name], kind) if kind in BLOCKS else by_compressed_tensors(name, weights, kind)
        out.update({n: t.contiguous() for n, t in by.items()})
    return out
