"""packed_experts.py OUT - Mixtral and Qwen3-MoE as transformers 5 has them in memory: the experts of a layer are two
3-D parameters. Two steps of AdamW, then

    OUT/mixtral/ckpt      torch.distributed.checkpoint of {"model", "optim"}
    OUT/qwen3-moe/ckpt    torch.save of both: model.pt, optim.pt
    OUT/CASE/hf           save_pretrained(save_original_format=False): packed
    OUT/CASE/expected     save_pretrained(), as published, with the moments by these names

Needs transformers 5.24, torch 2.13."""

import os
import sys

os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + os.getpid() % 9000))
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import transformers as T
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.state_dict import get_state_dict

COMMON = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=43,
              max_position_embeddings=64, num_experts_per_tok=2)
CASES = {
    "mixtral": (T.MixtralForCausalLM, T.MixtralConfig(intermediate_size=12, num_local_experts=3, **COMMON),
                "block_sparse_moe.experts", ("w1", "w3", "w2")),
    "qwen3-moe": (T.Qwen3MoeForCausalLM, T.Qwen3MoeConfig(intermediate_size=20, moe_intermediate_size=12, head_dim=6,
                                                          num_experts=3, **COMMON),
                  "mlp.experts", ("gate_proj", "up_proj", "down_proj")),
}


def published(name, tensor, experts, words):
    """Names and elements of a parameter as published."""
    layer, _, what = name.partition(".mlp.experts.")
    if not what:
        yield name.replace(".mlp.gate.", f".{experts.split('.')[0]}.gate."), tensor
        return
    for e in range(tensor.shape[0]):
        if what == "gate_up_proj":
            gate, up = tensor[e].chunk(2, 0)
            yield f"{layer}.{experts}.{e}.{words[0]}.weight", gate
            yield f"{layer}.{experts}.{e}.{words[1]}.weight", up
        else:
            yield f"{layer}.{experts}.{e}.{words[2]}.weight", tensor[e]


def make(out, name, kind, config, experts, words):
    torch.manual_seed(5)
    model = kind(config)
    for p in model.parameters():
        torch.nn.init.normal_(p)
    named = list(model.named_parameters())
    groups = [{"params": [p for _, p in named if p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for _, p in named if p.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    for _ in range(2):
        ids = torch.randint(43, (2, 12))
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(f"{out}/hf", save_original_format=False)
    model.save_pretrained(f"{out}/expected")
    weights, states = get_state_dict(model, optimizer)
    moments = {"step": torch.tensor(2)}
    for key, of in states["state"].items():
        for state in ("exp_avg", "exp_avg_sq"):
            for to, part in published(key, of[state], experts, words):
                moments[f"{state}.{to}"] = part.clone()
    save_file(moments, f"{out}/expected/optimizer.safetensors")
    file = load_file(f"{out}/expected/model.safetensors")
    for key, tensor in weights.items():  # published() does with weights what transformers' own save does
        for to, part in published(key, tensor, experts, words):
            assert torch.equal(file[to], part), to
    if name == "mixtral":
        dcp.save({"model": weights, "optim": states}, checkpoint_id=f"{out}/ckpt")
    else:
        os.makedirs(f"{out}/ckpt")
        torch.save(weights, f"{out}/ckpt/model.pt")
        torch.save(states, f"{out}/ckpt/optim.pt")


dist.init_process_group("gloo")
for name, case in CASES.items():
    make(f"{sys.argv[1]}/{name}", name, *case)
