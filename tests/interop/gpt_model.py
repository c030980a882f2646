"""A Hugging Face model as megatron-core's GPTModel on the ranks of a layout, and its training.

What a rank holds of a tensor is never computed here: Megatron's own sharded_state_dict() says it."""

from functools import partial

import expected
import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import parallel_state as mpu
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory, apply_factories
from megatron_files import PAD

SEQUENCE, BATCH = 16, 12  # of a step, over all data parallel ranks
ADAM = dict(lr=1e-2, min_lr=1e-3, weight_decay=0.1, adam_beta1=0.9, adam_beta2=0.95, adam_eps=1e-8)


def world_of(layout):
    return layout.tp * layout.pp * layout.dp


def transformer_config(m, layout, dtype):
    from megatron.core.transformer import TransformerConfig

    more = {}
    if m.experts:
        more = dict(
            num_moe_experts=m.experts,
            moe_ffn_hidden_size=m.config.get("moe_intermediate_size") or m.ffn,
            moe_router_topk=m.config["num_experts_per_tok"],
            moe_router_load_balancing_type="none",
            moe_token_dispatcher_type="allgather",
            expert_tensor_parallel_size=layout.etp or layout.tp,
            sequence_parallel=layout.tp > 1,  # Megatron insists on it
        )
    return TransformerConfig(
        num_layers=m.layers,
        hidden_size=m.hidden,
        ffn_hidden_size=m.ffn,
        num_attention_heads=m.heads,
        num_query_groups=m.groups,
        kv_channels=m.head_dim,
        normalization="LayerNorm" if m.gpt2 else "RMSNorm",
        gated_linear_unit=not m.gpt2,
        activation_func=partial(F.gelu, approximate="tanh") if m.gpt2 else F.silu,
        add_bias_linear=m.gpt2,
        add_qkv_bias=m.qkv_bias,
        qk_layernorm=m.family.startswith("qwen3"),
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        fp16=dtype == torch.float16,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        virtual_pipeline_model_parallel_size=layout.vpp if layout.vpp > 1 else None,
        expert_model_parallel_size=layout.ep,
        batch_p2p_comm=False,  # as Megatron-LM has it: two stages mix up messages otherwise
        overlap_p2p_comm=layout.vpp > 1,
        num_layers_in_first_pipeline_stage=layout.first,
        num_layers_in_last_pipeline_stage=layout.last,
        **more,
    )


def start_parallel(layout):
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

    if mpu.model_parallel_is_initialized():
        return
    mpu.initialize_model_parallel(
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        virtual_pipeline_model_parallel_size=layout.vpp if layout.vpp > 1 else None,
        expert_model_parallel_size=layout.ep,
        expert_tensor_parallel_size=layout.etp,
        num_distributed_optimizer_instances=layout.instances,
    )
    model_parallel_cuda_manual_seed(1)


def norm(config, hidden_size, eps=1e-5, **_):
    """In place of WrappedTorchNorm, which refuses sequence parallelism. Gradients of its parameters are
    summed over tensor parallel ranks, then."""
    kind = torch.nn.LayerNorm if config.normalization == "LayerNorm" else torch.nn.RMSNorm
    made = kind(hidden_size, eps=eps)
    for parameter in made.parameters():
        parameter.sequence_parallel = config.sequence_parallel
    return made


def layer_spec(m):
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.moe import moe_utils
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    vars(moe_utils).setdefault("te_general_gemm", None)  # 0.16.1 forgets it without Transformer Engine
    WrappedTorchNorm.__new__ = lambda cls, *args, **kwargs: norm(*args, **kwargs)
    return get_gpt_layer_local_spec(
        num_experts=m.experts,
        qk_layernorm=m.family.startswith("qwen3"),
        normalization="LayerNorm" if m.gpt2 else "RMSNorm",
    )


def chunk_names(chunks):
    return ["model"] if len(chunks) == 1 else [f"model{i}" for i in range(len(chunks))]


def build_chunks(m, layout, dtype):
    """This rank's GPTModels, one for each virtual stage, with the weights of m."""
    from megatron.core.models.gpt import GPTModel

    stage, rows, chunks = mpu.get_pipeline_model_parallel_rank(), expected.vocab_rows(m, layout), []
    torch.set_default_dtype(dtype)
    for i in range(layout.vpp):
        if layout.vpp > 1:
            mpu.set_virtual_pipeline_model_parallel_rank(i)
        model = GPTModel(
            config=transformer_config(m, layout, dtype),
            transformer_layer_spec=layer_spec(m),
            vocab_size=rows,
            max_sequence_length=SEQUENCE if not m.gpt2 else m.config["n_positions"],
            pre_process=stage == 0 and i == 0,
            post_process=stage == layout.pp - 1 and i == layout.vpp - 1,
            share_embeddings_and_output_weights=m.tied,
            position_embedding_type="learned_absolute" if m.gpt2 else "rope",
            vp_stage=i if layout.vpp > 1 else None,
        ).to(dtype)
        chunks.append(model)
    torch.set_default_dtype(torch.float32)
    fill(chunks, {k: tensor for k, (tensor, _, _) in expected.stacked(m, rows, PAD).items()})
    return chunks


def box_of(piece):
    shape = (1,) * piece.prepend_axis_num + tuple(piece.local_shape)
    return tuple(slice(o, o + n) for o, n in zip(piece.global_offset, shape, strict=True))


def fill(chunks, whole):
    for chunk in chunks:
        state = chunk.sharded_state_dict()
        apply_factories(state)
        for piece in nested_values(state):
            if isinstance(piece, ShardedTensor):
                tensor = whole[piece.key] if piece.key in whole else whole[on_disk(piece.key)]
                piece.data.data.copy_(tensor[box_of(piece)].reshape(piece.local_shape))


def on_disk(key):
    return key.replace(".mlp.linear_fc1.layer_norm_weight", ".pre_mlp_layernorm.weight")


# ---- training ----


def set_states(self, model_param, tensors):
    """In place of DistributedOptimizer's, which wants torch's `step` among the tensors, too."""
    group, order = self.model_param_group_index_map[model_param]
    main = self.optimizer.param_groups[group]["params"][order]
    main.data.copy_(tensors["param"])
    for name, state in self.optimizer.state[main].items():
        if name != "step":
            state.copy_(tensors[name])


def make_optimizer(chunks, layout, dtype, distributed):
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.distributed import finalize_model_grads
    from megatron.core.optimizer import OptimizerConfig, distrib_optimizer, get_megatron_optimizer

    distrib_optimizer.DistributedOptimizer._set_main_param_and_optimizer_states = set_states
    ddp = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        use_distributed_optimizer=distributed,
        overlap_grad_reduce=bool(layout.bucket_size),
        overlap_param_gather=layout.step_first_chunk,
        bucket_size=layout.bucket_size,
        pad_buckets_for_high_nccl_busbw=layout.high_bandwidth,
        num_distributed_optimizer_instances=layout.instances if distributed else 1,
    )
    wrapped = [
        DistributedDataParallel(chunk.config, ddp, chunk, disable_bucketing=i > 0 or layout.step_first_chunk)
        for i, chunk in enumerate(chunks)
    ]
    config = OptimizerConfig(
        optimizer="adam",
        params_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        fp16=dtype == torch.float16,
        initial_loss_scale=1024.0,
        use_distributed_optimizer=distributed,
        clip_grad=0.0,
        overlap_param_gather_with_optimizer_step=layout.step_first_chunk,
        decoupled_lr=ADAM["lr"] / 3 if layout.decoupled_lr else None,
        apply_wd_to_qk_layernorm=layout.decay_qk_norms,
        **ADAM,
    )
    optimizer = get_megatron_optimizer(config, wrapped)
    optimizer.reload_model_params()
    for chunk in wrapped:
        chunk.config.finalize_model_grads_func = finalize_model_grads
        chunk.config.grad_scale_func = optimizer.scale_loss
        if layout.bucket_size:
            no_sync = [w.no_sync for w in wrapped]
            chunk.config.no_sync_func = no_sync if len(wrapped) > 1 else no_sync[0]
        chunk.train()
    return wrapped, optimizer


def make_scheduler(optimizer):
    """Changes lr and weight decay at every step: what a new optimizer has is not what is saved."""
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    return OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=ADAM["lr"],
        min_lr=ADAM["min_lr"],
        lr_warmup_steps=BATCH,
        lr_decay_steps=10 * BATCH,
        lr_decay_style="cosine",
        start_wd=0.1,
        end_wd=0.2,
        wd_incr_steps=10 * BATCH,
        wd_incr_style="linear",
        override_opt_param_scheduler=False,
    )


def train_step(m, layout, wrapped, optimizer, step):
    from megatron.core.pipeline_parallel import get_forward_backward_func

    seed = torch.Generator().manual_seed(1000 + step)
    tokens = torch.randint(m.vocab, (BATCH, SEQUENCE + 1), generator=seed)
    mine = tokens.chunk(layout.dp)[mpu.get_data_parallel_rank()]
    batches = mine.chunk(2 if layout.pp > 1 else 1)
    mask = torch.ones(1, 1, SEQUENCE, SEQUENCE).triu(1).bool()
    positions = torch.arange(SEQUENCE).expand(len(batches[0]), -1)

    def forward(batches, model):
        one = next(batches)
        loss = model(one[:, :-1].contiguous(), positions, mask, labels=one[:, 1:].contiguous())
        return loss, lambda out: (out.float().mean(), {})

    for chunk in wrapped:
        chunk.zero_grad_buffer()
    optimizer.zero_grad()
    get_forward_backward_func()(
        forward_step_func=forward,
        data_iterator=[iter(batches) for _ in wrapped],
        model=wrapped,
        num_microbatches=len(batches),
        seq_length=SEQUENCE,
        micro_batch_size=len(batches[0]),
        forward_only=False,
    )
    assert optimizer.step()[0], "the step was skipped"
    for chunk in wrapped if layout.step_first_chunk else ():  # the next forward pass would do it
        chunk.start_param_sync(force_sync=True)


def each(optimizer):
    return getattr(optimizer, "chained_optimizers", [optimizer])


# ---- what a run holds ----


def states_of_distributed(one):
    """{model parameter: {state: its local tensor, NaN where other data parallel ranks hold it}}"""
    out = {}
    for buffer in one.gbuf_ranges:
        for buckets in buffer.values():
            for bucket in buckets:
                for parameter, ranges in bucket["param_map"].items():
                    group, order = one.model_param_group_index_map[parameter]
                    main = one.optimizer.param_groups[group]["params"][order]
                    where = slice(ranges["param"].start, ranges["param"].end)
                    for state, values in states_of_main(one, main).items():
                        whole = torch.full(parameter.shape, float("nan"))
                        whole.view(-1)[where] = values.view(-1)
                        out.setdefault(parameter, {})[state] = whole
    return out


def states_of_main(one, main):
    moments = {k: v for k, v in one.optimizer.state[main].items() if k != "step"}
    return {"param": main.detach().float(), **moments}


def states_of_plain(one):
    if hasattr(one, "float16_groups"):
        pairs = [
            pair
            for models, mains in zip(one.float16_groups, one.fp32_from_float16_groups, strict=True)
            for pair in zip(models, mains, strict=True)
        ]
        pairs += [(p, p) for group in one.fp32_from_fp32_groups for p in group]
    else:
        pairs = [(p, p) for group in one.optimizer.param_groups for p in group["params"]]
    return {parameter: states_of_main(one, main) for parameter, main in pairs}


def as_pieces(sharded, tensor, key):
    """The ShardedTensors of a tensor of the same shape as the parameter of `sharded`."""
    if not isinstance(sharded, ShardedTensorFactory):
        return [(key, tuple(sharded.global_shape), box_of(sharded), tensor)]
    built = nested_values(sharded.build_fn(key, tensor, sharded.replica_id, None))
    return [(key, tuple(p.global_shape), box_of(p), p.data) for p in built]


def pieces_of(chunks, optimizer):
    """Every tensor of this rank, (key, whole shape, its box there, values): weights under their own
    keys, states under optimizer.state.STATE.KEY."""
    states = {}
    for one in each(optimizer):
        states.update(states_of_distributed(one) if hasattr(one, "gbuf_ranges") else states_of_plain(one))
    for chunk in chunks:
        for sharded in nested_values(chunk.sharded_state_dict()):
            if not isinstance(sharded, (ShardedTensor, ShardedTensorFactory)):
                continue
            yield from as_pieces(sharded, sharded.data.detach().clone(), sharded.key)
            for state, tensor in states.get(sharded.data, {}).items():
                yield from as_pieces(sharded, tensor, f"optimizer.state.{state}.{sharded.key}")


def gather(chunks, optimizer):
    """{key: whole tensor} on rank 0. Ranks that hold the same elements must agree."""
    return gather_pieces(pieces_of(chunks, optimizer))


def gather_flattened(chunks, optimizer):
    """The states as fully_sharded_model_space has them: {key: tensor of shape P + [n]}; its leading
    coordinates select a part of the whole tensor, as a rank holds it, the last axis has its elements.
    Keys are those of Megatron-Core before 0.14, which names the optimizer where experts have their own."""
    experts_apart = any(group["is_expert_parallel"] for group in optimizer.param_groups)

    def flattened():
        for one in each(optimizer):
            number = int(one.param_groups[0]["is_expert_parallel"])
            chain = f"chained_{number}." if experts_apart else ""
            for key, shape, box, tensor in pieces_of(chunks, one):
                if not key.startswith("optimizer."):
                    continue
                sizes = [part.stop - part.start for part in box]
                parts = tuple(whole // size for whole, size in zip(shape, sizes, strict=True))
                at = tuple(slice(b.start // n, b.start // n + 1) for b, n in zip(box, sizes, strict=True))
                key = chain + key.replace("optimizer.state.param.", "optimizer.state.fp32_param.")
                yield key, (*parts, tensor.numel()), (*at, slice(None)), tensor.flatten()

    return gather_pieces(flattened())


def gather_pieces(pieces):
    every = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object([(k, s, b, t.clone()) for k, s, b, t in pieces], every)
    whole = {}
    for key, shape, box, tensor in (piece for rank in every or [] for piece in rank):
        if key not in whole:
            whole[key] = torch.full(shape, float("nan"), dtype=tensor.dtype)
        have = whole[key][box]
        tensor = tensor.reshape(have.shape)
        both = ~have.isnan() & ~tensor.isnan()
        assert torch.equal(have[both], tensor[both]), f"{key}: ranks differ"
        whole[key][box] = torch.where(tensor.isnan(), have, tensor)
    missing = [key for key, tensor in whole.items() if tensor.isnan().any()]
    assert not missing, f"no rank holds all of {missing[:3]}"
    return whole
