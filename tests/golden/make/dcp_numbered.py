"""dcp_numbered.py OUT CASE: torch.distributed.checkpoint of one process, with torch.optim's numbers for parameters:
dcp.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}) of a small random Llama after 3 steps.

    decay   two groups: matrices, and vectors without weight decay
    layers  two groups: the last layer, and the rest

OUT/ckpt as saved; OUT/expected by the running program."""
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

out, case = sys.argv[1:]
os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29512")
dist.init_process_group("gloo")
torch.manual_seed(5)
config = LlamaConfig(hidden_size=4, intermediate_size=6, num_hidden_layers=2, num_attention_heads=2,
                     num_key_value_heads=1, vocab_size=11, max_position_embeddings=16)
model = LlamaForCausalLM(config)
named = [(n, p.requires_grad_()) for n, p in model.named_parameters()]
first = [p for n, p in named if (p.dim() > 1 if case == "decay" else "layers.1." in n)]
rest = [p for _, p in named if all(p is not x for x in first)]
optimizer = torch.optim.AdamW([{"params": first, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=1e-2)
for step in range(3):
    tokens = torch.randint(11, (2, 8), generator=torch.Generator().manual_seed(step))
    optimizer.zero_grad()
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
config.save_pretrained(out + "/expected")
save_file({n: p.detach().clone() for n, p in named}, out + "/expected/model.safetensors", {"format": "pt"})
states = {f"{k}.{n}": optimizer.state[p][k].clone() for n, p in named for k in ("exp_avg", "exp_avg_sq")}
save_file(states | {"step": torch.tensor(3)}, out + "/expected/optimizer.safetensors")
dcp.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint_id=out + "/ckpt")
dist.destroy_process_group()
