#!/usr/bin/env python3
"""Writes small legacy checkpoints of layouts that no release at hand writes any more.

    legacy.py OUT          (needs torch and safetensors)

OUT/NAME/checkpoint/iter_0000007/mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt, and OUT/NAME/expected/
with config.json and model.safetensors: the same model under Hugging Face names. What they mimic:

  gpt2-v0, gpt2-v1, llama-v2, llama-v3
      Megatron-LM before Megatron-Core (megatron/model/language_model.py of core_v0.4.0 and older):
      nested dicts language_model.{embedding,transformer or encoder,output_layer}, the copy of a tied
      head in word_embeddings_for_head. Rows of query_key_value after checkpoint_version, of each
      rank's np heads of hn (megatron/training/checkpointing.py:fix_query_key_value_ordering):
      absent or 0 is [3, np, hn], 1.0 is [np, hn, 3], 2.0 is [np, 3, hn], 3.0 is by groups of n
      queries, a key, a value. A gated dense_h_to_4h holds [gate of the rank; up of the rank].
  mixtral-grouped
      Megatron-Core's GroupedMLP (core/transformer/moe/experts.py up to 0.16): weight1 is seen as
      [experts, hidden, rows of fc1], weight2 as [experts, columns of fc2, hidden], each expert the
      transpose of a sequential one.

Everything is written element by element from these formulas, without Ferry.
"""
import argparse
import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

GPT2 = dict(model_type="gpt2", architectures=["GPT2LMHeadModel"], n_embd=12, n_head=4, n_layer=4,
            n_positions=10, vocab_size=21, n_inner=16, activation_function="gelu_new",
            layer_norm_epsilon=1e-5, tie_word_embeddings=True, torch_dtype="float32")
LLAMA = dict(model_type="llama", architectures=["LlamaForCausalLM"], hidden_size=12,
             intermediate_size=10, num_hidden_layers=4, num_attention_heads=4,
             num_key_value_heads=4, head_dim=4, vocab_size=21, max_position_embeddings=16,
             hidden_act="silu", rms_norm_eps=1e-6, rope_theta=10000.0, tie_word_embeddings=False,
             torch_dtype="float32")
MIXTRAL = dict(LLAMA, model_type="mixtral", architectures=["MixtralForCausalLM"],
               num_key_value_heads=2, num_hidden_layers=2, num_local_experts=4,
               num_experts_per_tok=2, sliding_window=None)
PADDED = 24  # rows of the embedding in Megatron; those past the vocabulary hold 0.25


class Model:
    """Random tensors under Hugging Face names, and the sizes that all families have."""

    def __init__(self, config, seed):
        self.config, self.tensors = config, {}
        self.random = torch.Generator().manual_seed(seed)
        gpt2 = config["model_type"] == "gpt2"
        self.gpt2, self.tied = gpt2, config["tie_word_embeddings"]
        self.hidden = config["n_embd" if gpt2 else "hidden_size"]
        self.layers = config["n_layer" if gpt2 else "num_hidden_layers"]
        self.heads = config["n_head" if gpt2 else "num_attention_heads"]
        self.groups = self.heads if gpt2 else config["num_key_value_heads"]
        self.d = self.hidden // self.heads if gpt2 else config["head_dim"]
        self.ffn = config["n_inner" if gpt2 else "intermediate_size"]
        self.vocab = config["vocab_size"]
        self.experts = config.get("num_local_experts", 0)

    def get(self, name, *shape):
        if name not in self.tensors:
            self.tensors[name] = torch.randn(shape, generator=self.random)
        return self.tensors[name]

    def conv1d(self, name, rows, columns):
        """[out, in] of a tensor that GPT-2 stores [in, out]."""
        return self.get(name, columns, rows).T

    def qkv(self, layer, bias):
        """q [heads, d, ...], k and v [groups, d, ...] of one layer."""
        h, d = self.hidden, self.d
        if self.gpt2:
            name = "transformer.h.%d.attn.c_attn." % layer
            whole = self.get(name + "bias", 3 * h) if bias else self.conv1d(name + "weight", 3 * h, h)
            parts = whole.split(h)
        else:
            name = "model.layers.%d.self_attn.%s_proj." % (layer, "%s")
            kind, end = ("bias", ()) if bias else ("weight", (h,))
            parts = [self.get(name % x + kind, n * d, *end)
                     for x, n in (("q", self.heads), ("k", self.groups), ("v", self.groups))]
        return [p.reshape(-1, d, *p.shape[1:]) for p in parts]

    def save(self, folder):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(self.config, indent=2) + "\n")
        save_file({k: v.contiguous() for k, v in self.tensors.items()},
                  folder / "model.safetensors", {"format": "pt"})


def fused_qkv(model, layer, bias, version, tp, rank):
    """The rows of one rank, in the order of the version."""
    q, k, v = model.qkv(layer, bias)
    heads, groups = model.heads // tp, model.groups // tp
    n = model.heads // model.groups
    q, k, v = q[rank * heads:][:heads], k[rank * groups:][:groups], v[rank * groups:][:groups]
    rows = []
    if version == 0:  # [3, np, hn]
        for third in (q, k, v):
            for head in third:
                rows += list(head)
    elif version == 1:  # [np, hn, 3]
        for i in range(heads):
            for x in range(model.d):
                rows += [q[i][x], k[i][x], v[i][x]]
    else:  # [np, 3, hn], or by groups
        for g in range(groups):
            for j in range(n):
                rows += list(q[g * n + j])
            rows += list(k[g]) + list(v[g])
    return torch.stack(rows)


def columns(t, tp, rank):
    size = t.shape[1] // tp
    return t[:, rank * size:(rank + 1) * size].contiguous()


def rows(t, tp, rank):
    size = t.shape[0] // tp
    return t[rank * size:(rank + 1) * size].contiguous()


def vocabulary(model, name, tp, rank):
    padded = torch.full((PADDED, model.hidden), 0.25)
    padded[:model.vocab] = model.get(name, model.vocab, model.hidden)
    return rows(padded, tp, rank)


def norm(model, name, out, theirs):
    for kind in ("weight", "bias") if model.gpt2 else ("weight",):
        out[theirs + "." + kind] = model.get(name + "." + kind, model.hidden)


def old_layer(model, layer, names, version, tp, rank):
    """One layer under the names of before Megatron-Core, without its number."""
    h, f, out = model.hidden, model.ffn, {}
    at = ("transformer.h.%d." if model.gpt2 else "model.layers.%d.") % layer
    attention, norms = names
    norm(model, at + ("ln_1" if model.gpt2 else "input_layernorm"), out, norms[0])
    out[attention + ".query_key_value.weight"] = fused_qkv(model, layer, False, version, tp, rank)
    norm(model, at + ("ln_2" if model.gpt2 else "post_attention_layernorm"), out, norms[1])
    if model.gpt2:
        out[attention + ".query_key_value.bias"] = fused_qkv(model, layer, True, version, tp, rank)
        out[attention + ".dense.weight"] = columns(model.conv1d(at + "attn.c_proj.weight", h, h), tp, rank)
        out[attention + ".dense.bias"] = model.get(at + "attn.c_proj.bias", h)
        out["mlp.dense_h_to_4h.weight"] = rows(model.conv1d(at + "mlp.c_fc.weight", f, h), tp, rank)
        out["mlp.dense_h_to_4h.bias"] = rows(model.get(at + "mlp.c_fc.bias", f), tp, rank)
        out["mlp.dense_4h_to_h.weight"] = columns(model.conv1d(at + "mlp.c_proj.weight", h, f), tp, rank)
        out["mlp.dense_4h_to_h.bias"] = model.get(at + "mlp.c_proj.bias", h)
        return out
    width = model.heads * model.d
    out[attention + ".dense.weight"] = columns(model.get(at + "self_attn.o_proj.weight", h, width), tp, rank)
    out["mlp.dense_h_to_4h.weight"] = torch.cat(
        [rows(model.get(at + "mlp.%s_proj.weight" % x, f, h), tp, rank) for x in ("gate", "up")])
    out["mlp.dense_4h_to_h.weight"] = columns(model.get(at + "mlp.down_proj.weight", h, f), tp, rank)
    return out


def old_model(model, style, version, tp, pp, tp_rank, pp_rank):
    stack, names, final = style
    per_stage = model.layers // pp
    language, encoder = {}, {}
    embedding = "transformer.wte.weight" if model.gpt2 else "model.embed_tokens.weight"
    if pp_rank == 0:
        language["embedding"] = {
            "word_embeddings": {"weight": vocabulary(model, embedding, tp, tp_rank)}}
        if model.gpt2:
            language["embedding"]["position_embeddings"] = {
                "weight": model.get("transformer.wpe.weight", model.config["n_positions"], model.hidden)}
    for i in range(per_stage):
        layer = old_layer(model, pp_rank * per_stage + i, names, version, tp, tp_rank)
        encoder.update({"layers.%d.%s" % (i, k): v for k, v in layer.items()})
    if pp_rank == pp - 1:
        norm(model, "transformer.ln_f" if model.gpt2 else "model.norm", encoder, final)
        if not model.tied:
            language["output_layer"] = {"weight": vocabulary(model, "lm_head.weight", tp, tp_rank)}
    language[stack] = encoder
    whole = {"language_model": language}
    if model.tied and pp > 1 and pp_rank == pp - 1:
        whole["word_embeddings_for_head"] = {"weight": vocabulary(model, embedding, tp, tp_rank)}
    return whole


def old_args(model, version, tp, pp):
    args = argparse.Namespace(
        num_layers=model.layers, hidden_size=model.hidden, num_attention_heads=model.heads,
        max_position_embeddings=model.config.get("n_positions", 16), padded_vocab_size=PADDED,
        make_vocab_size_divisible_by=4, layernorm_epsilon=1e-5)
    if version < 3:
        args.model_parallel_size = tp
    if version > 0:
        args.tensor_model_parallel_size, args.pipeline_model_parallel_size = tp, pp
    if version >= 2:
        args.ffn_hidden_size, args.kv_channels = model.ffn, model.d
    if not model.gpt2:
        args.swiglu, args.normalization, args.layernorm_epsilon = True, "RMSNorm", 1e-6
        args.use_rotary_position_embeddings, args.add_bias_linear = True, False
        args.untie_embeddings_and_output_weights = not model.tied
        args.rotary_base = 10000
    if version == 3:
        args.num_query_groups, args.group_query_attention = model.groups, True
    return args


def save_rank(folder, state):
    folder.mkdir(parents=True)
    torch.save(state, folder / "model_optim_rng.pt")


def write_old(out, config, style, version, tp, pp, seed):
    model = Model(config, seed)
    for tp_rank in range(tp):
        for pp_rank in range(pp):
            state = {"iteration": 7, "args": old_args(model, version, tp, pp),
                     "model": old_model(model, style, version, tp, pp, tp_rank, pp_rank)}
            if version:
                state["checkpoint_version"] = float(version)
            name = "mp_rank_%02d" % tp_rank + ("_%03d" % pp_rank if pp > 1 else "")
            save_rank(out / "checkpoint/iter_0000007" / name, state)
    finish(out, model)


def finish(out, model):
    (out / "checkpoint/latest_checkpointed_iteration.txt").write_text("7")
    model.save(out / "expected")


def grouped_model(model, tp, ep, tp_rank, ep_rank):
    """Experts are split by tensor parallel ranks too (expert tensor parallel size is tp)."""
    h, f, d, state = model.hidden, model.ffn, model.d, {}
    local = model.experts // ep
    state["embedding.word_embeddings.weight"] = vocabulary(model, "model.embed_tokens.weight", tp, tp_rank)
    for i in range(model.layers):
        at, to = "model.layers.%d." % i, "decoder.layers.%d." % i
        state[to + "input_layernorm.weight"] = model.get(at + "input_layernorm.weight", h)
        state[to + "self_attention.linear_qkv.weight"] = fused_qkv(model, i, False, 3, tp, tp_rank)
        state[to + "self_attention.linear_qkv._extra_state"] = None
        state[to + "self_attention.linear_proj.weight"] = columns(
            model.get(at + "self_attn.o_proj.weight", h, model.heads * d), tp, tp_rank)
        state[to + "pre_mlp_layernorm.weight"] = model.get(at + "post_attention_layernorm.weight", h)
        moe = at + "block_sparse_moe."
        state[to + "mlp.router.weight"] = model.get(moe + "gate.weight", model.experts, h)
        first, second = [], []
        for e in range(ep_rank * local, (ep_rank + 1) * local):
            expert = moe + "experts.%d." % e
            fc1 = torch.cat([rows(model.get(expert + w + ".weight", f, h), tp, tp_rank) for w in ("w1", "w3")])
            fc2 = columns(model.get(expert + "w2.weight", h, f), tp, tp_rank)
            first.append(fc1.T)    # [hidden, rows]
            second.append(fc2.T)   # [columns, hidden]
        # the parameters' own shapes are [hidden, experts * rows] and [experts * columns, hidden]
        state[to + "mlp.experts.weight1"] = torch.stack(first).contiguous().reshape(h, -1)
        state[to + "mlp.experts.weight2"] = torch.stack(second).contiguous().reshape(-1, h)
    state["decoder.final_layernorm.weight"] = model.get("model.norm.weight", h)
    state["output_layer.weight"] = vocabulary(model, "lm_head.weight", tp, tp_rank)
    return state


def write_grouped(out, config, tp, ep, seed):
    model = Model(config, seed)
    args = argparse.Namespace(
        num_layers=model.layers, hidden_size=model.hidden, ffn_hidden_size=model.ffn,
        num_attention_heads=model.heads, num_query_groups=model.groups, group_query_attention=True,
        kv_channels=model.d, max_position_embeddings=16, padded_vocab_size=PADDED,
        make_vocab_size_divisible_by=4, norm_epsilon=1e-6, normalization="RMSNorm", swiglu=True,
        position_embedding_type="rope", rotary_base=10000, add_bias_linear=False,
        untie_embeddings_and_output_weights=True, num_experts=model.experts, moe_router_topk=2,
        moe_ffn_hidden_size=model.ffn, moe_grouped_gemm=True, transformer_impl="local",
        tensor_model_parallel_size=tp, pipeline_model_parallel_size=1,
        expert_model_parallel_size=ep)
    for tp_rank in range(tp):
        for ep_rank in range(ep):
            save_rank(out / "checkpoint/iter_0000007" / ("mp_rank_%02d_%03d" % (tp_rank, ep_rank)),
                      {"iteration": 7, "checkpoint_version": 3.0, "args": args,
                       "model": grouped_model(model, tp, ep, tp_rank, ep_rank)})
    finish(out, model)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = Path(sys.argv[1])
    oldest = ("transformer", ("attention", ("input_layernorm", "post_attention_layernorm")),
              "final_layernorm")
    older = ("encoder", ("self_attention", ("input_layernorm", "post_attention_layernorm")),
             "final_layernorm")
    last = ("encoder", ("self_attention", ("input_norm", "post_attention_norm")), "final_norm")
    for name in ("gpt2-v0-tp2", "gpt2-v1-tp2pp2", "llama-v2-tp2pp2", "llama-v3-tp2pp2",
                 "mixtral-grouped-tp2ep2"):
        shutil.rmtree(out / name, ignore_errors=True)
    write_old(out / "gpt2-v0-tp2", GPT2, oldest, 0, 2, 1, 1)
    write_old(out / "gpt2-v1-tp2pp2", GPT2, older, 1, 2, 2, 2)
    write_old(out / "llama-v2-tp2pp2", LLAMA, older, 2, 2, 2, 3)
    write_old(out / "llama-v3-tp2pp2", dict(LLAMA, num_key_value_heads=2), last, 3, 2, 2, 4)
    write_grouped(out / "mixtral-grouped-tp2ep2", MIXTRAL, 2, 2, 5)


main()
