"""deepspeed_tp.py FOLDER - makes FOLDER/ckpt, a pipeline as Megatron-DeepSpeed saves it with 2 tensor parallel ranks,
2 stages and 2 data parallel ranks of ZeRO 1, and FOLDER/expected, the model and optimizer of it under Hugging Face's
names. The layout is that of Megatron-DeepSpeed's ParallelTransformerLayer and DeepSpeed's stage_1_and_2.py: each rank
has whole query groups [q, k, v], [gate; up] of its own, columns of the second linears. Needs torch and safetensors."""
import json, os, sys
from collections import OrderedDict
import torch
from safetensors.torch import save_file

TP, PP, DP = 2, 2, 2
HIDDEN, HEADS, GROUPS, FFN, VOCAB, LAYERS = 8, 4, 2, 6, 10, 2
D = HIDDEN // HEADS
torch.manual_seed(5)
case = sys.argv[1]


def hf_shapes():
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        for name, rows, columns in (("self_attn.q_proj", HIDDEN, HIDDEN), ("self_attn.k_proj", GROUPS * D, HIDDEN),
                                    ("self_attn.v_proj", GROUPS * D, HIDDEN), ("self_attn.o_proj", HIDDEN, HIDDEN),
                                    ("mlp.gate_proj", FFN, HIDDEN), ("mlp.up_proj", FFN, HIDDEN),
                                    ("mlp.down_proj", HIDDEN, FFN)):
            yield p + name + ".weight", (rows, columns)
        yield p + "input_layernorm.weight", (HIDDEN,)
        yield p + "post_attention_layernorm.weight", (HIDDEN,)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCAB, HIDDEN)


def part(t, rank, dim=0):
    return t.chunk(TP, dim)[rank].contiguous()


def layer(of, i, rank):
    p = f"model.layers.{i}."
    q, k, v = (of[f"{p}self_attn.{x}_proj.weight"].view(GROUPS, -1, HIDDEN) for x in "qkv")
    qkv = torch.cat([q, k, v], 1)
    mine = part(qkv, rank).reshape(-1, HIDDEN)
    glu = torch.cat([part(of[p + "mlp.gate_proj.weight"], rank), part(of[p + "mlp.up_proj.weight"], rank)])
    return OrderedDict([
        ("input_layernorm.weight", of[p + "input_layernorm.weight"]),
        ("self_attention.query_key_value.weight", mine),
        ("self_attention.dense.weight", part(of[p + "self_attn.o_proj.weight"], rank, 1)),
        ("post_attention_layernorm.weight", of[p + "post_attention_layernorm.weight"]),
        ("mlp.dense_h_to_4h.weight", glu),
        ("mlp.dense_4h_to_h.weight", part(of[p + "mlp.down_proj.weight"], rank, 1))])


def layers(of, rank):
    """index -> state dict of the layer; 0 and 4 are lambdas without parameters"""
    return {1: OrderedDict([("word_embeddings.weight", part(of["model.embed_tokens.weight"], rank))]),
            2: layer(of, 0, rank), 3: layer(of, 1, rank),
            5: OrderedDict([("weight", of["model.norm.weight"])]),
            6: OrderedDict([("lm_head.weight", part(of["lm_head.weight"], rank))])}


STAGES = [(1, 2), (3, 5, 6)]
master = {k: torch.randn(s) for k, s in hf_shapes()}
first = {k: torch.randn(s) for k, s in hf_shapes()}
second = {k: torch.rand(s) for k, s in hf_shapes()}
weights = {k: v.bfloat16() for k, v in master.items()}


def flat(of, stage, rank):
    all_layers = layers(of, rank)
    return torch.cat([t.reshape(-1) for i in STAGES[stage] for t in all_layers[i].values()])


tag = os.path.join(case, "ckpt", "global_step3")
os.makedirs(tag, exist_ok=True)
os.makedirs(os.path.join(case, "expected"), exist_ok=True)
for rank in range(TP):
    for index, tensors in layers(weights, rank).items():
        torch.save(tensors, f"{tag}/layer_{index:02d}-model_{rank:02d}-model_states.pt")
    for stage in range(PP):
        mp = stage * TP + rank
        shapes = OrderedDict((f"{i}.{k}", t.shape) for i in STAGES[stage] for k, t in layers(weights, rank)[i].items())
        torch.save({"module": None, "param_shapes": [shapes], "global_steps": 3, "global_samples": 12,
                    "dp_world_size": DP, "mp_world_size": TP * PP, "ds_version": "0.19.8",
                    "ds_config": {"bf16": {"enabled": True}}}, f"{tag}/mp_rank_{mp:02d}_model_states.pt")
        vectors = [flat(of, stage, rank) for of in (master, first, second)]
        n = vectors[0].numel()
        size = -(-n // (2 * DP)) * 2
        padded = [torch.cat([v, torch.zeros(size * DP - n)]) for v in vectors]
        for dp in range(DP):
            cut = slice(dp * size, (dp + 1) * size)
            held = min(size, n - dp * size)
            state = {"step": torch.tensor(3.0), "exp_avg": padded[1][cut].clone(), "exp_avg_sq": padded[2][cut].clone()}
            group = {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, "params": [0]}
            torch.save({"optimizer_state_dict": {
                "zero_stage": 1, "partition_count": [DP], "group_paddings": [size - held],
                "base_optimizer_state": {"state": {0: state}, "param_groups": [group]},
                "single_partition_of_fp32_groups": [padded[0][cut][:held].clone()]}, "ds_version": "0.19.8"},
                f"{tag}/bf16_zero_pp_rank_{dp}_mp_rank_{mp:02d}_optim_states.pt")
with open(os.path.join(case, "ckpt", "latest"), "w") as out:
    out.write("global_step3")
save_file(weights, os.path.join(case, "expected", "model.safetensors"), metadata={"format": "pt"})
states = {f"{n}.{k}": v for n, of in (("fp32", master), ("exp_avg", first), ("exp_avg_sq", second)) for k, v in of.items()}
states["step"] = torch.tensor(3)
save_file(states, os.path.join(case, "expected", "optimizer.safetensors"), metadata={"format": "pt"})
config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "hidden_act": "silu",
          "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
          "num_key_value_heads": GROUPS, "head_dim": D, "vocab_size": VOCAB, "max_position_embeddings": 64,
          "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False, "attention_bias": False,
          "mlp_bias": False}
with open(os.path.join(case, "expected", "config.json"), "w") as out:
    json.dump(config, out, indent=1)
