"""What a Hugging Face model is in Megatron: every tensor, under Megatron's names, and the part of it
that each rank holds. Written from what the two forward passes need, and not after ferry's tables."""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

GLU = "glu"  # gate rows, then up rows; a rank holds its part of either


class Model:
    """config.json and the tensors of a folder; what the families call differently has one name here."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.config = c = json.loads((self.folder / "config.json").read_text())
        self.tensors = {}
        for file in sorted(self.folder.glob("model*.safetensors")):
            self.tensors.update(load_file(file))
        self.family = c["model_type"]
        self.gpt2 = self.family == "gpt2"
        self.layers = c.get("num_hidden_layers") or c["n_layer"]
        self.hidden = c.get("hidden_size") or c["n_embd"]
        self.heads = c.get("num_attention_heads") or c["n_head"]
        self.groups = c.get("num_key_value_heads") or self.heads
        self.head_dim = c.get("head_dim") or self.hidden // self.heads
        self.ffn = c.get("intermediate_size") or 4 * self.hidden
        self.experts = c.get("num_local_experts") or c.get("num_experts")
        self.vocab = c["vocab_size"]
        self.tied = c.get("tie_word_embeddings", self.gpt2)
        self.attention_bias = c.get("attention_bias", False)
        self.qkv_bias = self.family == "qwen2" or self.attention_bias
        self.mlp_bias = c.get("mlp_bias", False)


def qkv(m, *parts):
    """Group by group: the query heads, the key head, the value head."""
    split = [p.reshape(m.groups, -1, m.head_dim, *p.shape[1:]) for p in parts]
    return torch.cat(split, 1).flatten(0, 2)


def gpt2_layer(m, get):
    for megatron, name in (("self_attention.linear_qkv", "ln_1"), ("mlp.linear_fc1", "ln_2")):
        for kind in ("weight", "bias"):
            yield f"{megatron}.layer_norm_{kind}", get(f"{name}.{kind}"), None
    for megatron, name, split in (
        ("self_attention.linear_qkv", "attn.c_attn", 0),
        ("self_attention.linear_proj", "attn.c_proj", 1),
        ("mlp.linear_fc1", "mlp.c_fc", 0),
        ("mlp.linear_fc2", "mlp.c_proj", 1),
    ):
        weight, bias = get(name + ".weight").T, get(name + ".bias")
        if split == 0 and "qkv" in megatron:
            weight, bias = qkv(m, *weight.chunk(3)), qkv(m, *bias.chunk(3))
        yield megatron + ".weight", weight, split
        yield megatron + ".bias", bias, 0 if split == 0 else None


def llama_layer(m, get):
    attention = [f"self_attn.{x}_proj" for x in "qkv"]
    norm = "pre_mlp_layernorm.weight" if m.experts else "mlp.linear_fc1.layer_norm_weight"
    yield "self_attention.linear_qkv.layer_norm_weight", get("input_layernorm.weight"), None
    yield norm, get("post_attention_layernorm.weight"), None
    yield "self_attention.linear_qkv.weight", qkv(m, *(get(x + ".weight") for x in attention)), 0
    yield "self_attention.linear_proj.weight", get("self_attn.o_proj.weight"), 1
    if m.attention_bias:
        yield "self_attention.linear_proj.bias", get("self_attn.o_proj.bias"), None
    if m.qkv_bias:
        yield "self_attention.linear_qkv.bias", qkv(m, *(get(x + ".bias") for x in attention)), 0
    if m.family.startswith("qwen3"):
        for x in "qk":
            yield f"self_attention.{x}_layernorm.weight", get(f"self_attn.{x}_norm.weight"), None
    if not m.experts:
        gate, up, down = (get(f"mlp.{x}_proj.weight") for x in ("gate", "up", "down"))
        yield "mlp.linear_fc1.weight", torch.cat([gate, up]), GLU
        yield "mlp.linear_fc2.weight", down, 1
        if m.mlp_bias:
            gate, up, down = (get(f"mlp.{x}_proj.bias") for x in ("gate", "up", "down"))
            yield "mlp.linear_fc1.bias", torch.cat([gate, up]), GLU
            yield "mlp.linear_fc2.bias", down, None
        return
    mixtral = m.family == "mixtral"
    where, names = ("block_sparse_moe", "w1 w3 w2") if mixtral else ("mlp", "gate_proj up_proj down_proj")
    yield "mlp.router.weight", get(where + ".gate.weight"), None
    for e in range(m.experts):
        gate, up, down = (get(f"{where}.experts.{e}.{x}.weight") for x in names.split())
        yield f"mlp.experts.local_experts.{e}.linear_fc1.weight", torch.cat([gate, up]), GLU
        yield f"mlp.experts.local_experts.{e}.linear_fc2.weight", down, 1


def layer(m, i):
    """(Megatron's name in the layer, tensor, how it is split) of every tensor of layer i."""
    rows, prefix = (gpt2_layer, f"transformer.h.{i}.") if m.gpt2 else (llama_layer, f"model.layers.{i}.")
    return rows(m, lambda name: m.tensors[prefix + name])


def padded(m, tensor, rows, fill):
    return F.pad(tensor, (0, 0, 0, rows - m.vocab), value=fill)


def before_layers(m, rows, fill):
    if not m.gpt2:
        yield (
            "embedding.word_embeddings.weight",
            padded(m, m.tensors["model.embed_tokens.weight"], rows, fill),
            0,
        )
        return
    yield "embedding.word_embeddings.weight", padded(m, m.tensors["transformer.wte.weight"], rows, fill), 0
    yield "embedding.position_embeddings.weight", m.tensors["transformer.wpe.weight"], None


def after_layers(m, rows, fill):
    for kind in ("weight", "bias") if m.gpt2 else ("weight",):
        norm = "transformer.ln_f." if m.gpt2 else "model.norm."
        yield "decoder.final_layernorm." + kind, m.tensors[norm + kind], None
    if not m.tied:
        yield "output_layer.weight", padded(m, m.tensors["lm_head.weight"], rows, fill), 0


def vocab_rows(m, layout):
    unit = layout.divisor * layout.tp
    return -(-m.vocab // unit) * unit


def part(tensor, split, rank, size):
    """What one of `size` tensor parallel ranks holds."""
    if split is None or size == 1:
        return tensor
    if split == GLU:
        return torch.cat([half.chunk(size)[rank] for half in tensor.chunk(2)])
    return tensor.chunk(size, dim=split)[rank]


# ---- torch_dist: layers and experts stacked ----


def stacked(m, rows, fill=0.0):
    """{key: (whole tensor, split dimension of it or GLU, leading axes)} as on disk."""
    out = {
        name: (t, split, 0)
        for name, t, split in (*before_layers(m, rows, fill), *after_layers(m, rows, fill))
    }
    layers = [list(layer(m, i)) for i in range(m.layers)]
    by_name = {}
    for one in layers:
        for name, tensor, split in one:
            words = name.split(".")
            if "local_experts" in words:
                name = ".".join(["mlp.experts.experts", *words[4:]])
            by_name.setdefault(name, (split, []))[1].append(tensor)
    for name, (split, tensors) in by_name.items():
        axes = 2 if ".experts." in name else 1
        lead = (m.layers, m.experts)[:axes]
        out["decoder.layers." + name] = (torch.stack(tensors).reshape(*lead, *tensors[0].shape), split, axes)
    return out


# ---- legacy torch: a state dict a rank ----


def layers_of_stages(m, layout):
    """The layers of every model chunk, in the order of the pipeline."""
    if layout.stages:
        counts = [stage.count("t") for stage in layout.stages.split("|")]
    elif layout.first or layout.last:
        ends = [layout.first] if layout.first else [], [layout.last] if layout.last else []
        middle = layout.pp - len(ends[0]) - len(ends[1])
        rest = m.layers - sum(ends[0]) - sum(ends[1])
        counts = ends[0] + [rest // middle] * middle + ends[1]
    else:
        chunks = layout.pp * layout.vpp
        counts = [m.layers // chunks] * chunks
    assert sum(counts) == m.layers, (layout, counts)
    starts = [sum(counts[:i]) for i in range(len(counts))]
    return [range(s, s + n) for s, n in zip(starts, counts)]


def local_name(m, name):
    """The spelling of Megatron's own modules: norms stand before the linear layer, not in it."""
    name = name.replace("self_attention.linear_qkv.layer_norm_", "input_layernorm.")
    return name.replace("mlp.linear_fc1.layer_norm_", "pre_mlp_layernorm.")


def legacy_chunk(m, layout, stage, stages, tp_rank, ep_rank, rows, fill):
    """The state dict of one model chunk on one rank."""
    out, first, last = {}, stage == 0, stage == len(stages) - 1
    outer = list(before_layers(m, rows, fill)) if first else []
    if last:
        outer += after_layers(m, rows, fill)
        if m.tied and not first:  # a copy of the embedding, for the last stage has none
            outer += [("output_layer.weight", next(before_layers(m, rows, fill))[1], 0)]
    for name, tensor, split in outer:
        out[name] = part(tensor, split, tp_rank, layout.tp)
    mine = range(0)
    if m.experts:
        each = m.experts // layout.ep
        mine = range(ep_rank * each, (ep_rank + 1) * each)
    for i, global_layer in enumerate(stages[stage]):
        for name, tensor, split in layer(m, global_layer):
            words = name.split(".")
            if "local_experts" in words:
                if int(words[3]) not in mine:
                    continue
                words[3] = str(int(words[3]) - mine.start)
                name = ".".join(words)
                if layout.grouped:
                    name = f"mlp.experts.{words[4]}.weight{words[3]}"
            if layout.names == "local":
                name = local_name(m, name)
            out[f"decoder.layers.{i}.{name}"] = part(tensor, split, tp_rank, layout.tp)
    return out


def legacy(m, layout, fill=0.0):
    """{folder of a rank: {"model" or "model0"...: state dict}}"""
    stages, rows = layers_of_stages(m, layout), vocab_rows(m, layout)
    chunks = len(stages) // layout.pp
    out = {}
    for pp in range(layout.pp):
        for tp in range(layout.tp):
            for ep in range(layout.ep):
                folder = f"mp_rank_{tp:02d}"
                folder += f"_{pp:03d}" if layout.pp > 1 else ""
                folder += f"_{ep:03d}" if layout.ep > 1 else ""
                out[folder] = {
                    "model" if chunks == 1 else f"model{c}": legacy_chunk(
                        m, layout, c * layout.pp + pp, stages, tp, ep, rows, fill
                    )
                    for c in range(chunks)
                }
    return out
