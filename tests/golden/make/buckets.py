#!/usr/bin/env python3
"""Writes where the real Megatron-Core puts each parameter in the flat buffers of its distributed optimizer.

    buckets.py OUT [CASE]...       (needs torch and megatron-core)

0.16.1 wrote what is there. HEAD of 2026 (d98e8a64ddf3) wrote HEAD-moe-ep1-etp1-tp2.json; it agrees in all other cases.
HEAD-torch and HEAD-dp-reshardable are not from here, but read off checkpoints of llama models, as their `from` says.

OUT/CASE.json has the model (`config`, under the names of ckpt/model_config.h), `layout`, the rules of the run, and
`cells`: the buffers of one rank for each set of ranks that have the same ones, as DistributedDataParallel made them:
of each bucket start, end and unpadded elements; of each parameter its logical name, start, end and bucket. Of tensor
parallel ranks only the last is there, for all have the same places.

Each rank is a process with a process group that does nothing, and builds a real GPTModel on the CPU. Where the spec is
Transformer Engine's, which needs a GPU, its linears are stood in for by Megatron's own, with the parameters in the order
in which transformer_engine/pytorch/module/*.py registers them; all modules around them are the real ones.
"""
import functools
import json
import os
import re
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from packaging.version import Version
from torch.testing._internal.distributed.fake_pg import FakeStore

torch.cuda.current_device = lambda: torch.device("cpu")
torch.Tensor.cuda = lambda self, *args, **kwargs: self
torch.cuda.Stream = type("Stream", (), {"__init__": lambda self, *args, **kwargs: None})
os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"

import megatron.core
from megatron.core import parallel_state as mpu
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel.layers import ColumnParallelLinear
from megatron.core.transformer import ModuleSpec, TransformerConfig
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.moe.experts import TEGroupedMLP
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.torch_norm import WrappedTorchNorm

vars(moe_utils).setdefault("te_general_gemm", None)  # 0.16 forgets it without TE

MODEL = dict(num_layers=2, hidden_size=24, num_attention_heads=4, num_query_groups=2, kv_channels=6,
             ffn_hidden_size=20, vocab_size=40, max_position_embeddings=10, gated_linear_unit=True,
             untie_embeddings_and_output_weights=True, normalization="RMSNorm", add_bias_linear=False)
GPT2 = dict(gated_linear_unit=False, untie_embeddings_and_output_weights=False, normalization="LayerNorm",
            add_bias_linear=True, num_query_groups=4, position_embedding_type="learned_absolute")
TIED = dict(untie_embeddings_and_output_weights=False)
QWEN = dict(TIED, add_qkv_bias=True, qk_layernorm=True)
MOE = dict(num_experts=4, moe_ffn_hidden_size=12, moe_router_topk=2)
BIASED_MOE = dict(MOE, add_bias_linear=True, normalization="LayerNorm", gated_linear_unit=False)
SHARED = dict(MOE, moe_shared_expert_intermediate_size=10, moe_shared_expert_gate=True,
              moe_router_enable_expert_bias=True, moe_router_score_function="sigmoid")
TE = dict(transformer_engine=True)
GROUPED = dict(TE, grouped_gemm=True)

# name: what differs from MODEL, layout, rules
CASES = {
    "llama-tp2pp2": ({}, dict(tp=2, pp=2), {}),
    "llama-dp3": ({}, dict(dp=3), {}),
    "llama-buckets-dp3": (dict(num_layers=3), dict(dp=3), dict(bucket_size=1500)),
    "llama-buckets-exact": ({}, {}, dict(bucket_size=960)),  # the elements of the head
    "llama-busbw-dp3": ({}, dict(dp=3), dict(high_bandwidth=True, bucket_size=2500)),
    "llama-te-tp2": (dict(qk_layernorm=True), dict(tp=2, dp=2), TE),
    "llama-mixed": (dict(num_layers=3), dict(pp=1, dp=2), dict(float32=["layernorm", "layers.1.mlp"])),
    "gpt2-pp2-dp3": (GPT2, dict(pp=2, dp=3), {}),
    "gpt2-te-pp2-dp2": (dict(GPT2, softmax_type="learnable"), dict(tp=2, pp=2, dp=2), TE),
    "gpt2-offset-tp2": (dict(GPT2, softmax_type="learnable"), dict(tp=2), {}),
    "qwen-tied-pp1": (QWEN, dict(tp=2), {}),
    "qwen-tied-tp2pp2-dp2": (QWEN, dict(tp=2, pp=2, dp=2), {}),
    "qwen-tied-vpp2-buckets": (dict(QWEN, num_layers=4), dict(pp=2, virtual_stages=2, dp=2), dict(bucket_size=1000)),
    "llama-vpp2": (dict(num_layers=4), dict(pp=2, virtual_stages=2), {}),
    "llama-stages": (TIED, dict(pp=3, pipeline_layout="E|tt|L", dp=3), dict(bucket_size=1)),
    "moe-ep1-etp1-tp2": (MOE, dict(tp=2, etp=1, dp=2), {}),
    "moe-ep2-etp1-tp2": (MOE, dict(tp=2, ep=2, etp=1, dp=2), {}),
    "moe-ep3-dp3": (dict(MOE, num_layers=1, num_experts=3), dict(ep=3, dp=3), {}),
    "moe-ep2-etp2-pp2": (MOE, dict(tp=2, pp=2, ep=2, etp=2, dp=2), {}),
    "moe-biased-ep2-pp2": (BIASED_MOE, dict(pp=2, ep=2, dp=2), {}),
    "moe-ep4-buckets-dp8": (MOE, dict(ep=4, dp=8), dict(bucket_size=1200)),
    "moe-shared": (SHARED, dict(tp=2, ep=2, etp=1), {}),
    "moe-dense-first": (dict(MOE, moe_layer_freq=[0, 1]), dict(ep=2, dp=2), {}),
    "moe-te": (MOE, dict(ep=2, dp=2), TE),
    "moe-te-grouped-ep2": (BIASED_MOE, dict(ep=2, dp=2), GROUPED),
    "moe-te-grouped-vpp2": (dict(SHARED, num_layers=4), dict(pp=2, virtual_stages=2, ep=2, dp=2), GROUPED),
    "moe-te-grouped-ep1": (dict(MOE, moe_layer_freq=[0, 1]), dict(tp=2), GROUPED),
}


# ---- stand-ins for Transformer Engine ----

class NormColumnParallelLinear(ColumnParallelLinear):
    """te.pytorch.LayerNormLinear: layer_norm_weight, layer_norm_bias, weight, bias."""

    def __init__(self, input_size, output_size, *, config, **more):
        super().__init__(input_size, output_size, config=config, **more)
        own = dict(self._parameters)
        self._parameters.clear()
        self.layer_norm_weight = torch.nn.Parameter(torch.ones(input_size))
        if config.normalization == "LayerNorm":
            self.layer_norm_bias = torch.nn.Parameter(torch.zeros(input_size))
        self._parameters.update(own)


# Since 0.19 experts are in buffers of their own where etp differs from tp, too.
ETP_COUNTS = Version(megatron.core.__version__) >= Version("0.19")


def experts_apart(config):
    return config.expert_model_parallel_size > 1 or (
        ETP_COUNTS and config.expert_tensor_parallel_size != config.tensor_model_parallel_size)


class GroupedLinear(torch.nn.Module):
    """te.pytorch.GroupedLinear: weight0, bias0, weight1, bias1, ..."""

    def __init__(self, num_gemms, input_size, output_size, *, config, bias, pg_collection, **more):
        super().__init__()
        size = pg_collection.expt_tp.size()
        shape = ([output_size // size, input_size], [output_size // size])
        if more["tp_comm_buffer_name"] == "fc2":
            shape = ([output_size, input_size // size], [output_size])
        for i in range(num_gemms):
            for k, name in enumerate(["weight", "bias"][:1 + bias]):
                p = torch.nn.Parameter(torch.zeros(shape[k]))
                p.allreduce = not experts_apart(config)
                setattr(self, name + str(i), p)


def submodules_of(part):
    """Of a ModuleSpec or, after 0.18, of a partial."""
    return part.keywords["submodules"] if hasattr(part, "keywords") else part.submodules


def with_submodules(like, module, submodules):
    if hasattr(like, "keywords"):
        return functools.partial(module, submodules=submodules)
    return ModuleSpec(module=module, submodules=submodules)


def layer_spec(model, rules, moe):
    spec = get_gpt_layer_local_spec(num_experts=model["num_experts"] if moe else None,
                                    qk_layernorm=model.get("qk_layernorm", False),
                                    normalization=model["normalization"])
    layer = spec.submodules
    if rules.get("transformer_engine"):
        layer.input_layernorm = IdentityOp
        submodules_of(layer.self_attention).linear_qkv = NormColumnParallelLinear
        if not moe:
            layer.pre_mlp_layernorm = IdentityOp
            submodules_of(layer.mlp).linear_fc1 = NormColumnParallelLinear
    if moe and rules.get("grouped_gemm"):
        mlp = submodules_of(layer.mlp)
        mlp.experts = with_submodules(mlp.experts, TEGroupedMLP,
                                      MLPSubmodules(linear_fc1=GroupedLinear, linear_fc2=GroupedLinear))
    return spec


def block_spec(model, rules, stage_layers):
    moe = model.get("moe_layer_freq") or [bool(model.get("num_experts"))] * model["num_layers"]
    return TransformerBlockSubmodules(layer_specs=[layer_spec(model, rules, moe[i]) for i in stage_layers],
                                      layer_norm=WrappedTorchNorm)


# ---- one rank ----

def megatron_config(model, layout):
    ours = ("vocab_size", "max_position_embeddings", "untie_embeddings_and_output_weights",
            "position_embedding_type", "num_experts")
    more = {k: v for k, v in model.items() if k not in ours}
    if model.get("num_experts"):
        more.update(num_moe_experts=model["num_experts"], moe_router_load_balancing_type="none",
                    moe_token_dispatcher_type="alltoall")
    return TransformerConfig(
        use_cpu_initialization=True, perform_initialization=False, params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16, bf16=True, gradient_accumulation_fusion=False,
        bias_dropout_fusion=False, activation_func=F.silu,
        tensor_model_parallel_size=layout["tp"], pipeline_model_parallel_size=layout["pp"],
        virtual_pipeline_model_parallel_size=layout.get("virtual_stages"),
        pipeline_model_parallel_layout=layout.get("pipeline_layout"),
        expert_model_parallel_size=layout["ep"], expert_tensor_parallel_size=layout["etp"], **more)


def build_chunks(model, layout, rules):
    from megatron.core.transformer.transformer_block import get_num_layers_to_build
    from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
    config, chunks = megatron_config(model, layout), []
    num_chunks, pp_rank = layout.get("virtual_stages") or 1, mpu.get_pipeline_model_parallel_rank()
    for i in range(num_chunks):
        vp_stage = i if num_chunks > 1 else None
        first = get_transformer_layer_offset(config, vp_stage)
        layers = range(first, first + get_num_layers_to_build(config, vp_stage))
        chunk = GPTModel(
            config=config, transformer_layer_spec=block_spec(model, rules, layers),
            vocab_size=model["vocab_size"], max_sequence_length=model["max_position_embeddings"],
            pre_process=pp_rank == 0 and i == 0,
            post_process=pp_rank == layout["pp"] - 1 and i == num_chunks - 1,
            share_embeddings_and_output_weights=not model["untie_embeddings_and_output_weights"],
            position_embedding_type=model.get("position_embedding_type", "rope"), vp_stage=vp_stage).bfloat16()
        for name, p in chunk.named_parameters():
            if any(part in name for part in rules.get("float32", ())):
                p.data = p.data.float()
        chunks.append(chunk)
    return config, chunks


def logical_name(name, chunk):
    """The name on disk of the Transformer Engine spec, with numbers in the whole model."""
    m = re.match(r"decoder\.layers\.(\d+)\.(.*)", name)
    if not m:
        return name
    layer, rest = chunk.decoder.layers[int(m[1])], m[2]
    if isinstance(layer.mlp.__dict__.get("_modules", {}).get("experts"), torch.nn.Module):
        first = layer.mlp.local_expert_indices[0]
        rest = re.sub(r"experts\.local_experts\.(\d+)\.", lambda e: "experts.experts.%d." % (first + int(e[1])), rest)
        rest = re.sub(r"mlp\.experts\.(linear_fc\d)\.(weight|bias)(\d+)",
                      lambda e: "mlp.experts.experts.%d.%s.%s" % (first + int(e[3]), e[1], e[2]), rest)
    else:
        rest = rest.replace("pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_")
    rest = rest.replace("input_layernorm.", "self_attention.linear_qkv.layer_norm_")
    return "decoder.layers.%d.%s" % (layer.layer_number - 1, rest)


def describe(buffer, chunk_number, names):
    return {"chunk": chunk_number, "dtype": str(buffer.param_dtype).removeprefix("torch."),
            "numel": buffer.numel, "numel_unpadded": buffer.numel_unpadded,
            "buckets": [[b.offset, b.offset + b.grad_data.numel(), b.numel_unpadded] for b in buffer.buckets],
            "params": [[names[p], *at] for p, at in buffer.param_index_map.items()]}


def rank_result(model, layout, rules, rank, world):
    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    mpu.initialize_model_parallel(layout["tp"], layout["pp"], layout.get("virtual_stages"),
                                  expert_model_parallel_size=layout["ep"],
                                  expert_tensor_parallel_size=layout["etp"], create_gloo_process_groups=False)
    config, chunks = build_chunks(model, layout, rules)
    size = rules.get("bucket_size", 0)
    ddp = DistributedDataParallelConfig(
        use_distributed_optimizer=True, grad_reduce_in_fp32=True, overlap_grad_reduce=size > 0,
        bucket_size=size or None, pad_buckets_for_high_nccl_busbw=rules.get("high_bandwidth", False))
    names, dense, experts = {}, [], []
    for i, chunk in enumerate(chunks):
        wrapped = DistributedDataParallel(config, ddp, chunk, disable_bucketing=i > 0)
        names.update({p: logical_name(name, chunk) for name, p in chunk.named_parameters()})
        dense += [describe(b, i, names) for b in wrapped.buffers]
        experts += [describe(b, i, names) for b in wrapped.expert_parallel_buffers]
    cells, pp_rank = [], mpu.get_pipeline_model_parallel_rank()
    if mpu.get_tensor_model_parallel_rank() == layout["tp"] - 1:
        cells.append({"experts": False, "number": mpu.get_model_parallel_group().rank(), "pp_rank": pp_rank,
                      "tp_rank": layout["tp"] - 1, "ep_rank": 0, "buffers": dense})
    if experts and mpu.get_expert_tensor_parallel_rank() == layout["etp"] - 1:
        cells.append({"experts": True, "pp_rank": pp_rank, "tp_rank": layout["etp"] - 1,
                      "number": mpu.get_expert_tensor_model_pipeline_parallel_group().rank(),
                      "ep_rank": mpu.get_expert_model_parallel_rank(), "buffers": experts})
    sizes = {"dp": mpu.get_data_parallel_group(with_context_parallel=True).size(),
             "expert_dp": mpu.get_expert_data_parallel_group().size()}
    return cells, sizes


# ---- files ----

def in_child(fn, *args):
    """fn(*args) in a forked process, since Megatron's groups are global."""
    r, w = os.pipe()
    if os.fork() == 0:
        try:
            os.close(r)
            with os.fdopen(w, "w") as out:
                json.dump(fn(*args), out)
        except BaseException:
            traceback.print_exc()
        os._exit(0)
    os.close(w)
    with os.fdopen(r) as answer:
        text = answer.read()
    os.wait()
    return json.loads(text)


def cell_text(cell):
    """A line for each buffer."""
    head = json.dumps({k: v for k, v in cell.items() if k != "buffers"})[:-1]
    return '    %s, "buffers": [\n%s]}' % (head, ",\n".join("      " + json.dumps(b) for b in cell["buffers"]))


def write_case(out, name):
    differs, layout, rules = CASES[name]
    model = dict(MODEL, **differs)
    layout = dict({"tp": 1, "pp": 1, "ep": 1, "dp": 1}, **layout)
    layout.setdefault("etp", layout["tp"])
    cells = {}
    world = layout["tp"] * layout["pp"] * layout["dp"]
    for rank in range(world):
        ours, sizes = in_child(rank_result, model, layout, rules, rank, world)
        for cell in ours:
            old = cells.setdefault((cell["experts"], cell["number"]), cell)
            assert old == cell, "ranks of one cell differ"
    rules = dict({k: v for k, v in rules.items() if k != "float32"}, **sizes)
    if ETP_COUNTS:
        rules["experts_apart_by_etp"] = True
    members = ["  %s: %s" % (json.dumps(k), json.dumps(v))
               for k, v in (("config", model), ("layout", layout), ("rules", rules))]
    members.append('  "cells": [\n%s]' % ",\n".join(cell_text(cells[k]) for k in sorted(cells)))
    (out / (name + ".json")).write_text("{\n" + ",\n".join(members) + "\n}\n")
    print("%s: %d cells of %d ranks" % (name, len(cells), world))


def main():
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or CASES:
        write_case(out, name)


if __name__ == "__main__":
    main()
