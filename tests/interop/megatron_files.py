"""Checkpoints written and read by megatron-core itself (torch_dist), or by torch as Megatron-LM does it
(the legacy format); in one process, without a GPU."""

import argparse
import itertools
from pathlib import Path

import expected
import torch
import torch.distributed
from expected import GLU
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor
from megatron.core.dist_checkpointing.serialization import load_sharded_metadata
from megatron.core.dist_checkpointing.validation import StrictHandling

PAD = 0.25  # in the vocabulary rows that are no tokens: not zero, so that keeping them would show
ITERATION = 10


def start():
    # dist_checkpointing.save asks for a GPU in two places, though nothing lies on one.
    torch.cuda.synchronize = lambda: None
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())


class Wrong(Exception):
    """What a check found; any other exception is a failure of the check itself, or of the peer."""


def require(condition, message):
    if not condition:
        raise Wrong(message)


def iteration_folder(root):
    said = (Path(root) / "latest_checkpointed_iteration.txt").read_text()
    return Path(root) / (said if said == "release" else f"iter_{int(said):07d}")


def require_equal(name, got, want):
    require(got.shape == want.shape, f"{name} is {list(got.shape)}, wanted {list(want.shape)}")
    require(got.dtype == want.dtype, f"{name} is {got.dtype}, wanted {want.dtype}")
    require(torch.equal(got, want), f"{name}: {(got != want).sum()} of {want.numel()} elements differ")


def require_args(m, args, layout):
    """What Megatron-LM's --use-checkpoint-args takes from the file."""
    wanted = dict(
        num_layers=m.layers,
        hidden_size=m.hidden,
        num_attention_heads=m.heads,
        kv_channels=m.head_dim,
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        expert_model_parallel_size=layout.ep,
        num_experts=m.experts,
        padded_vocab_size=expected.vocab_rows(m, layout),
        untie_embeddings_and_output_weights=not m.tied,
    )
    if not m.gpt2:
        wanted["rotary_base"] = int(m.config.get("rope_theta", 10000))
    wrong = {k: getattr(args, k) for k, v in wanted.items() if getattr(args, k) != v}
    require(not wrong, f"args: {wrong}")


# ---- torch_dist ----


def key_on_disk(key, keys):
    """The norm before the MLP has two spellings; megatron-core's layer specs map one to the other."""
    other = key.replace(".pre_mlp_layernorm.weight", ".mlp.linear_fc1.layer_norm_weight")
    return key if key in keys else other


def read_torch_dist(root, m, layout):
    folder = iteration_folder(root)
    there = load_sharded_metadata(str(folder))
    want = {
        key_on_disk(k, there): tensor
        for k, (tensor, _, _) in expected.stacked(m, expected.vocab_rows(m, layout)).items()
    }
    state = {k: ShardedTensor.from_rank_offsets(k, torch.full_like(t, float("nan"))) for k, t in want.items()}
    state.update((k, x) for k, x in there.items() if isinstance(x, ShardedObject) and "_extra_state" in k)
    state = dist_checkpointing.load(state, str(folder), strict=StrictHandling.RAISE_ALL)
    for key, tensor in want.items():
        require_equal(key, state[key], tensor)
    require_args(m, dist_checkpointing.load_common_state_dict(str(folder))["args"], layout)
    return f"{len(want)} tensors"


def shards(key, tensor, split, axes, tp):
    """The tensor as `tp` ranks describe it: of every layer (and expert) a piece each."""
    size = {None: 1, GLU: 2 * tp}.get(split, tp)  # gate and up are cut each for itself
    axis = 1 if split == 1 else 0
    for index in itertools.product(*map(range, tensor.shape[:axes])):
        where = [(i, at, tensor.shape[i]) for i, at in enumerate(index)]
        for number, piece in enumerate(tensor[index].chunk(size, dim=axis)):
            cut = [(axes + axis, number, size)] if size > 1 else []
            yield (
                f"{key} {index} {number}",
                ShardedTensor.from_rank_offsets(key, piece.contiguous(), *where, *cut, prepend_axis_num=axes),
            )


def write_torch_dist(root, m, layout):
    folder = Path(root) / f"iter_{ITERATION:07d}"
    folder.mkdir(parents=True)
    state = {"args": args_of(m, layout), "checkpoint_version": 3.0, "iteration": ITERATION}
    for key, (tensor, split, axes) in expected.stacked(m, expected.vocab_rows(m, layout), PAD).items():
        state.update(shards(key, tensor, split, axes, layout.tp))
    dist_checkpointing.save(state, str(folder))
    write_tracker(root)


# ---- legacy ----


def read_legacy(root, m, layout):
    folder, want = iteration_folder(root), expected.legacy(m, layout)
    ranks = {p.name for p in folder.glob("mp_rank_*")}
    require(ranks == set(want), f"folders {sorted(ranks)}, wanted {sorted(want)}")
    for rank, chunks in want.items():
        state = torch.load(folder / rank / "model_optim_rng.pt", weights_only=False)
        require(state["checkpoint_version"] == 3.0, f"checkpoint_version {state['checkpoint_version']}")
        require_args(m, state["args"], layout)
        found = {k for k in state if k.startswith("model")}
        require(found == set(chunks), f"{rank}: {sorted(found)}, wanted {sorted(chunks)}")
        for chunk, tensors in chunks.items():
            got = {k: v for k, v in state[chunk].items() if "_extra_state" not in k}
            require(
                got.keys() == tensors.keys(), f"{rank} {chunk}: {sorted(got.keys() ^ tensors.keys())[:4]}"
            )
            for name, tensor in tensors.items():
                require_equal(f"{rank} {chunk} {name}", got[name], tensor)
    return f"{len(want)} ranks"


def write_legacy(root, m, layout):
    for rank, chunks in expected.legacy(m, layout, PAD).items():
        folder = Path(root) / f"iter_{ITERATION:07d}" / rank
        folder.mkdir(parents=True)
        state = {"args": args_of(m, layout), "checkpoint_version": 3.0, "iteration": ITERATION}
        for chunk, tensors in chunks.items():
            state[chunk] = {k: v.contiguous() for k, v in tensors.items()}
        torch.save(state, folder / "model_optim_rng.pt")
    write_tracker(root)


def write_tracker(root):
    (Path(root) / "latest_checkpointed_iteration.txt").write_text(str(ITERATION))


def args_of(m, layout):
    """The part of Megatron-LM's arguments that describes the model and the layout."""
    c = m.config
    rope = c.get("rope_scaling") or {}
    return argparse.Namespace(
        num_layers=m.layers,
        hidden_size=m.hidden,
        ffn_hidden_size=m.ffn,
        num_attention_heads=m.heads,
        num_query_groups=m.groups,
        group_query_attention=m.groups != m.heads,
        kv_channels=m.head_dim,
        max_position_embeddings=c.get("max_position_embeddings") or c["n_positions"],
        padded_vocab_size=expected.vocab_rows(m, layout),
        make_vocab_size_divisible_by=layout.divisor,
        normalization="LayerNorm" if m.gpt2 else "RMSNorm",
        norm_epsilon=c["layer_norm_epsilon" if m.gpt2 else "rms_norm_eps"],
        swiglu=not m.gpt2,
        add_bias_linear=m.gpt2,
        add_qkv_bias=m.family == "qwen2",
        qk_layernorm=m.family.startswith("qwen3"),
        position_embedding_type="learned_absolute" if m.gpt2 else "rope",
        rotary_base=int(c.get("rope_theta", 10000)),
        rotary_percent=1.0,
        use_rope_scaling=bool(rope),
        rope_scaling_factor=rope.get("factor", 8.0),
        untie_embeddings_and_output_weights=not m.tied,
        num_experts=m.experts,
        moe_ffn_hidden_size=c.get("moe_intermediate_size") or (m.ffn if m.experts else None),
        moe_router_topk=c.get("num_experts_per_tok", 2),
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        virtual_pipeline_model_parallel_size=layout.vpp if layout.vpp > 1 else None,
        expert_model_parallel_size=layout.ep,
        expert_tensor_parallel_size=layout.etp or layout.tp,
        decoder_first_pipeline_num_layers=layout.first,
        decoder_last_pipeline_num_layers=layout.last,
        pipeline_model_parallel_layout=layout.stages,
        transformer_impl="local" if layout.names == "local" else "transformer_engine",
        moe_grouped_gemm=layout.grouped,
    )
