#!/usr/bin/env python3
"""encodings.py FERRY [--models N] [--only TEXT] [--keep FOLDER]

Random models of odd sizes are encoded by compressed-tensors, transformers, ModelOpt, torchao and bitsandbytes. Ferry must
decode them to the same bits as these programs do, directly and by way of Megatron's layout, and write the same files
again, or refuse to; and what Ferry encodes, transformers must load.
"""
import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile

import bitsandbytes.functional as bnb
import modelopt.torch.quantization as mtq
import torch
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
from compressed_tensors.compressors import BaseCompressor, ModelCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationConfig, preset_name_to_scheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.quantization.qtensor import FP8QTensor, INT8QTensor, MXFP4QTensor, MXFP8QTensor, NVFP4QTensor
from safetensors.torch import load_file, save_file
from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig
from transformers import (AutoModelForCausalLM, BitsAndBytesConfig, CompressedTensorsConfig, FineGrainedFP8Config, LlamaConfig,
                          Qwen3MoeConfig, TorchAoConfig)
from transformers.integrations.finegrained_fp8 import _dequantize_fp8_weight

from encode_anew import BLOCKS, KINDS, encode, is_linear

# preset, group: what compressed-tensors makes of it
PRESETS = {
    "FP8": "float-quantized", "FP8_DYNAMIC": "float-quantized", "FP8_BLOCK": "float-quantized",
    "W8A8": "int-quantized", "W4A16": "pack-quantized", "W8A16": "pack-quantized", "W4A16_ASYM": "pack-quantized",
    "NVFP4": "nvfp4-pack-quantized", "MXFP4A16": "mxfp4-pack-quantized", "MXFP8": "mxfp8-quantized",
}
GROUPED = {"W4A16", "W8A16", "W4A16_ASYM", "NVFP4", "MXFP4A16", "MXFP8"}  # columns are whole groups


# ModelOpt's config: the columns of a group
MODELOPT = {"FP8_DEFAULT_CFG": 1, "FP8_PER_CHANNEL_PER_TOKEN_CFG": 1, "MXFP8_DEFAULT_CFG": 32, "MXFP4_DEFAULT_CFG": 32,
            "NVFP4_DEFAULT_CFG": 16, "W4A16_NVFP4_CFG": 16, "INT8_WEIGHT_ONLY_CFG": 1}
TORCHAO = {"int8 by row": Int8WeightOnlyConfig, "fp8 by row": Float8WeightOnlyConfig}
BNB = {"nf4": dict(load_in_4bit=True, bnb_4bit_quant_type="nf4"),
       "nf4 twice": dict(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True),
       "fp4": dict(load_in_4bit=True), "int8": dict(load_in_8bit=True)}


def make_model(folder, rng, step, dense=False):
    """Sizes of any kind, but for whole groups of `step` columns where the encoding has them."""
    heads = rng.choice([1, 2, 4])
    size = step * rng.choice([1, 3]) if step > 1 else 2 * rng.randint(3, 40)
    hidden = step * rng.randint(1, 5) if step > 1 else heads * rng.randint(3, 40)
    inner = step * rng.randint(1, 5) if step > 1 else rng.randint(5, 150)
    shape = dict(hidden_size=hidden, intermediate_size=inner, num_hidden_layers=2, num_attention_heads=heads,
                 num_key_value_heads=rng.choice([1, heads]), head_dim=size, vocab_size=rng.randint(20, 60),
                 tie_word_embeddings=rng.random() < .5)
    if dense or rng.random() < .5:
        config = LlamaConfig(**shape)
    else:
        config = Qwen3MoeConfig(**shape, moe_intermediate_size=inner, num_experts=2, num_experts_per_tok=1)
    model = AutoModelForCausalLM.from_config(config).bfloat16()
    model.save_pretrained(folder)
    weights = load_file(f"{folder}/model.safetensors")
    for name, weight in weights.items():
        if is_linear(name):
            weight.mul_(torch.exp(torch.randn(weight.shape[0], 1)).to(weight.dtype))
    return weights


def tiles(w, rows, cols):
    w = torch.nn.functional.pad(w, (0, -w.shape[1] % cols, 0, -w.shape[0] % rows))
    return w.reshape(w.shape[0] // rows, rows, -1, cols).transpose(1, 2)


# ---- compressed-tensors

def scheme_of(preset, group):
    scheme = preset_name_to_scheme(preset, ["Linear"])
    if preset.startswith(("W4", "W8A16")):
        scheme.weights.group_size = group
        scheme.weights.strategy = "group" if group else "channel"
    scheme.format = PRESETS[preset]
    return scheme


def compress(w, preset, group):
    scheme = scheme_of(preset, group)
    args, state = scheme.weights, {"weight": w}
    grouped = {"tensor": lambda: w.reshape(-1), "channel": lambda: w.unsqueeze(1),
               "group": lambda: w.unflatten(-1, (-1, args.group_size)),
               "tensor_group": lambda: w.unflatten(-1, (-1, args.group_size)),
               "block": lambda: tiles(w, *args.block_structure).flatten(-2)}[args.strategy]()
    if args.strategy == "tensor_group":
        state["weight_global_scale"] = generate_gparam(w.min(), w.max())
    scale, zero = calculate_qparams(grouped.amin(-1), grouped.amax(-1), args,
                                    global_scale=state.get("weight_global_scale"))
    state.update(weight_scale=scale, weight_zero_point=zero)
    return BaseCompressor.get_value_from_registry(PRESETS[preset]).compress(state, scheme)


def decompress(t, preset, group):
    """In float32: compressed-tensors computes in the dtype of scales."""
    scheme, compressor = scheme_of(preset, group), BaseCompressor.get_value_from_registry(PRESETS[preset])
    if t["weight_scale"].dtype == torch.bfloat16:
        t = {**t, "weight_scale": t["weight_scale"].float()}
    if "weight_packed" in t and t["weight_packed"].dtype == torch.uint8:
        rows, half = t["weight_packed"].shape
        return dequantize(unpack_fp4_from_uint8(t["weight_packed"], rows, 2 * half, torch.float32),
                          compressor._decompress_scale(t["weight_scale"], torch.float32), args=scheme.weights,
                          dtype=torch.float32, global_scale=t.get("weight_global_scale", torch.ones(1)))
    return compressor.decompress(t, scheme)["weight"].float()


def encode_by_compressed_tensors(folder, rng, preset):
    group = rng.choice([16, 32, None] if preset.startswith(("W4", "W8A16")) else [None])
    step = {"NVFP4": 16, "MXFP4A16": 32, "MXFP8": 32}.get(preset, group or 1)
    step = 8 * step if preset == "W4A16_ASYM" and step == 1 else step  # zero points of eight rows
    weights = make_model(folder, rng, step)
    out, expected = {}, {}
    for name, w in weights.items():
        expected[name] = w
        if not is_linear(name) or (preset == "W4A16_ASYM" and w.shape[0] % 8):
            out[name] = w
            continue
        t = {k: v for k, v in compress(w, preset, group).items() if v is not None}
        expected[name] = decompress(t, preset, group).bfloat16()
        out.update({name.removesuffix("weight") + k: v.contiguous() for k, v in t.items()})
    save_file({n: t.contiguous() for n, t in out.items()}, f"{folder}/model.safetensors", metadata={"format": "pt"})
    config = QuantizationConfig(config_groups={"group_0": scheme_of(preset, group)}, format=PRESETS[preset],
                                quantization_status="compressed", ignore=["lm_head"])
    ModelCompressor(quantization_config=config).update_config(folder)
    return expected


def encode_mixed(folder, rng, _):
    """Attention in 8 bits, the rest in 4, with scales of equal shapes: only the config tells them apart."""
    group = rng.choice([16, 32])
    weights = make_model(folder, rng, group)
    out, expected = {}, {}
    for name, w in weights.items():
        out[name] = expected[name] = w
        if not is_linear(name):
            continue
        preset = "W8A16" if "self_attn" in name else "W4A16"
        t = {k: v for k, v in compress(w, preset, group).items() if v is not None}
        expected[name] = decompress(t, preset, group).bfloat16()
        del out[name]
        out.update({name.removesuffix("weight") + k: v.contiguous() for k, v in t.items()})
    save_file(out, f"{folder}/model.safetensors", metadata={"format": "pt"})
    eight, four = scheme_of("W8A16", group), scheme_of("W4A16", group)
    eight.targets, four.targets = ["re:.*self_attn.*"], ["re:.*mlp.*"]
    config = QuantizationConfig(config_groups={"group_0": eight, "group_1": four}, format="pack-quantized",
                                quantization_status="compressed", ignore=["lm_head", "re:.*mlp.gate$"])
    ModelCompressor(quantization_config=config).update_config(folder)
    return expected


# ---- fine-grained FP8

def encode_in_blocks(folder, rng, _):
    """As DeepSeek V3: amax of a block / 448; blocks at the edges are smaller."""
    weights = make_model(folder, rng, 1)
    rows, cols = block = [rng.choice([16, 32, 128]), rng.choice([16, 32, 128])]
    out, expected = {}, {}
    for name, w in weights.items():
        expected[name] = out[name] = w
        if not is_linear(name):
            continue
        scale = tiles(w.float(), rows, cols).abs().amax((-1, -2)) / 448
        wide = scale.repeat_interleave(rows, 0).repeat_interleave(cols, 1)[:w.shape[0], :w.shape[1]]
        out[name] = (w.float() / wide).to(torch.float8_e4m3fn)
        out[f"{name}_scale_inv"] = scale
        expected[name] = _dequantize_fp8_weight(out[name], scale, block, torch.float32).bfloat16()
    save_file(out, f"{folder}/model.safetensors", metadata={"format": "pt"})
    config = json.load(open(f"{folder}/config.json"))
    config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                     "weight_block_size": block}
    json.dump(config, open(f"{folder}/config.json", "w"), indent=2)
    return expected


# ---- programs that encode a model

def saved_model(folder, rng, step):
    """Only attention and MLPs: packed experts have other names in memory."""
    save_file(make_model(folder, rng, step, dense=True), f"{folder}/model.safetensors", metadata={"format": "pt"})
    os.remove(f"{folder}/generation_config.json")


def encode_by_modelopt(folder, rng, kind):
    saved_model(folder, rng, MODELOPT[kind])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    mtq.quantize(model, getattr(mtq, kind), lambda m: m(torch.arange(16)[None]))
    shutil.rmtree(folder)
    export_hf_checkpoint(model, export_dir=folder)
    if os.path.exists(f"{folder}/generation_config.json"):
        os.remove(f"{folder}/generation_config.json")
    stored = load_file(f"{folder}/model.safetensors")
    return {n: decode_by_modelopt(n, stored) if is_linear(n) else t for n, t in stored.items() if "_scale" not in n}


def decode_by_modelopt(name, stored):
    """In float32: asked for bfloat16, it rounds the scale to that first."""
    w, scale, wide = stored[name], stored[f"{name}_scale"], torch.float32
    halves = torch.Size([w.shape[0], 2 * w.shape[1]])
    if f"{name}_scale_2" in stored:
        out = NVFP4QTensor(halves, wide, w).dequantize(wide, scale=scale, double_scale=stored[f"{name}_scale_2"],
                                                       block_sizes={-1: 16})
        negative = torch.stack([w & 8, w >> 4 & 8], -1).reshape(halves) > 0
        out = torch.where(negative, -out.abs(), out)  # its table has +0 for code 8, which its encoder writes for -0
    elif scale.dtype == torch.uint8 and w.dtype == torch.uint8:
        out = MXFP4QTensor(halves, wide, w).dequantize(wide, scale=scale, block_sizes={-1: 32})
    elif scale.dtype == torch.uint8:
        out = MXFP8QTensor(w.shape, wide, w).dequantize(scale=scale)
    else:
        kind = INT8QTensor if w.dtype == torch.int8 else FP8QTensor
        out = kind(w.shape, wide, w).dequantize(wide, scale=scale[:, None] if scale.dim() == 1 else scale)
    return out.bfloat16()


def encode_by_transformers(folder, rng, config):
    saved_model(folder, rng, 1)
    model = AutoModelForCausalLM.from_pretrained(folder, quantization_config=config, dtype=torch.bfloat16,
                                                 device_map="cpu")
    shutil.rmtree(folder)
    model.save_pretrained(folder)
    return model


def encode_by_torchao(folder, rng, kind):
    model = encode_by_transformers(folder, rng, TorchAoConfig(TORCHAO[kind]()))
    stored = {n: t for n, t in model.state_dict().items() if n != "lm_head.weight" or not model.config.tie_word_embeddings}
    return {n: (t.dequantize(torch.float32) if is_linear(n) else t).bfloat16() for n, t in stored.items()}


def encode_by_bitsandbytes(folder, rng, kind):
    encode_by_transformers(folder, rng, BitsAndBytesConfig(**BNB[kind]))
    stored = load_file(f"{folder}/model.safetensors")
    return {n: decode_by_bitsandbytes(n, stored) if is_linear(n) else t
            for n, t in stored.items() if n.endswith(".weight")}


def decode_by_bitsandbytes(name, stored):
    """By its portable implementation: that for CPUs takes the wrong scales where rows are not whole blocks."""
    w = stored[name]
    if w.dtype == torch.int8:
        return bnb.int8_vectorwise_dequant(w, stored[name.replace("weight", "SCB")]).bfloat16()
    state = bnb.QuantState.from_dict({n.removeprefix(f"{name}."): t for n, t in stored.items()
                                      if n.startswith(f"{name}.")}, device="cpu")
    scales = state.absmax
    if state.nested:
        scales = bnb.dequantize_blockwise(scales, state.state2) + state.offset
    return _dequantize_4bit_compute(w.reshape(-1), scales, state.code, state.blocksize, state.shape,
                                    torch.float32).bfloat16()


# ---- checks

def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(
        a.contiguous().reshape(-1).view(torch.uint8), b.contiguous().reshape(-1).view(torch.uint8))


def compare(folder, expected, what):
    got = load_file(f"{folder}/model.safetensors")
    wrong = [n for n in expected if n not in got or not same(got[n], expected[n])] + [n for n in got if n not in expected]
    if wrong:
        raise AssertionError(f"{what}: {len(wrong)} tensors differ, {' '.join(sorted(wrong)[:3])}")


def run(ferry, *arguments):
    done = subprocess.run([ferry, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(f"ferry {' '.join(arguments)}: exit code {done.returncode}: {done.stderr.strip()[-400:]}")


def check_decoding(ferry, work, encode, kind, rng):
    source, dist, out = (f"{work}/{n}" for n in ("source", "dist", "out"))
    expected = encode(source, rng, kind)
    if os.path.exists(f"{source}/generation_config.json"):
        os.remove(f"{source}/generation_config.json")
    run(ferry, "convert", source, out, "--to", "hf")
    compare(out, expected, "decoded")
    shutil.rmtree(out)
    run(ferry, "convert", source, dist, "--pp", "2")
    run(ferry, "convert", dist, out, "--to", "hf")
    compare(out, expected, "decoded, from Megatron's layout")
    shutil.rmtree(out)
    if encode in (encode_by_torchao, encode_by_bitsandbytes):
        done = subprocess.run([ferry, "convert", dist, out, "--to", "hf", "--export-weight-dtype", "as-source"],
                              capture_output=True, text=True)
        if "which Ferry reads and does not write" not in done.stderr:
            raise AssertionError(f"encoded again: exit code {done.returncode}: {done.stderr.strip()[-400:]}")
        return
    run(ferry, "convert", dist, out, "--to", "hf", "--export-weight-dtype", "as-source")
    compare(out, load_file(f"{source}/model.safetensors"), "encoded again")


def check_encoding(ferry, work, kind, rng):
    source, out, decoded = (f"{work}/{n}" for n in ("source", "out", "decoded"))
    weights = make_model(source, rng, 128, dense=kind == "mxfp8")  # transformers 5.24 loses the scales of such experts
    for name in [n for n in filter(is_linear, weights) if rng.random() < .2]:
        weights[name].view(-1)[:300] = torch.tensor([0., -0., 1e-30]).repeat(100).bfloat16()
    save_file(weights, f"{source}/model.safetensors", metadata={"format": "pt"})
    run(ferry, "convert", source, out, "--to", "hf", "--export-weight-dtype", kind)
    compare(out, {**{n: w for n, w in weights.items() if not is_linear(n)}, **encode(weights, kind)}, "encoded")
    run(ferry, "convert", out, decoded, "--to", "hf")
    given = json.load(open(f"{out}/config.json"))["quantization_config"]
    how = FineGrainedFP8Config(**{**given, "dequantize": True}) if kind in BLOCKS else CompressedTensorsConfig(
        **{**given, "dequantize": True})
    model, info = AutoModelForCausalLM.from_pretrained(out, dtype=torch.bfloat16, quantization_config=how,
                                                       output_loading_info=True)
    complaints = {k: v for k, v in info.items() if v}
    if complaints:
        raise AssertionError(f"transformers: {complaints}")
    want, got = load_file(f"{decoded}/model.safetensors"), model.state_dict()
    packed = [n for n in want if ".experts." in n]  # transformers packs experts in memory
    wrong = [n for n in want if n not in packed and not same(got[n].to(want[n].dtype), want[n])]
    if wrong:
        raise AssertionError(f"transformers decodes {len(wrong)} weights otherwise, {wrong[0]}")


def cases(models):
    for number in range(models):
        for preset in PRESETS:
            yield f"compressed-tensors {preset} {number}", number, encode_by_compressed_tensors, preset
        yield f"compressed-tensors W8A16 and W4A16 {number}", number, encode_mixed, None
        yield f"fp8 in blocks {number}", number, encode_in_blocks, None
        for kind in KINDS:
            yield f"ferry's {kind} in transformers {number}", number, None, kind
    for title, encode, kinds in (("ModelOpt", encode_by_modelopt, MODELOPT), ("torchao", encode_by_torchao, TORCHAO),
                                 ("bitsandbytes", encode_by_bitsandbytes, BNB)):
        for kind in kinds:
            yield f"{title} {kind}", 0, encode, kind


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("ferry")
    parser.add_argument("--models", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", help="folder for what failed")
    options = parser.parse_args()
    share, of = (int(n) for n in os.environ.get("FERRY_TEST_SHARE", "0/1").split("/"))
    seed = os.environ.get("FERRY_TEST_SEED", "1")
    passed = failed = 0
    taken = [c for c in cases(options.models) if options.only in c[0]]
    for at, (title, number, encode, kind) in enumerate(taken):
        if at % of != share:
            continue
        rng = random.Random(f"{seed} {title}")
        torch.manual_seed(rng.randrange(1 << 30))
        work = tempfile.mkdtemp(prefix="ferry-encodings-")
        try:
            if encode:
                check_decoding(options.ferry, work, encode, kind, rng)
            else:
                check_encoding(options.ferry, work, kind, rng)
            passed += 1
            print(f"PASS {title}", flush=True)
        except AssertionError as error:
            failed += 1
            print(f"FAIL {title}: {error}", flush=True)
            if options.keep:
                shutil.copytree(work, f"{options.keep}/{title.replace(' ', '-')}", dirs_exist_ok=True)
        shutil.rmtree(work)
    print(f"seed {seed}\ninterop-encodings: {passed} passed, {failed} failed")
    return failed > 0


sys.exit(main())
