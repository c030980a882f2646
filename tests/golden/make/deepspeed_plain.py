"""deepspeed_plain.py OUT CASE: DeepSpeed without ZeRO on CPU, a small random Llama after 3 steps.

    layers   bf16, FP16_UnfusedOptimizer; two groups by layer, the last layer first
    fused    bf16, FP16_Optimizer, one vector per group: matrices, and vectors without weight decay
    fused32  the same groups in fp32, FusedAdam alone, which counts updates in a group's last parameter
    autotp   bf16, FP16_UnfusedOptimizer, two tensor parallel ranks of tp_model_init

OUT/ckpt as saved; OUT/expected by the running engine. FusedAdam's operator for CUDA is written out in torch."""
import os
import sys

import deepspeed
import deepspeed.comm.torch
import deepspeed.ops.adam.fused_adam as fused_adam
import torch
import torch.distributed as dist
import torch.multiprocessing
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

MOMENTS = "exp_avg", "exp_avg_sq"
deepspeed.comm.torch.build_shm_op = lambda: None  # needs a C++ compiler; gloo does without


class Operator:
    def load(self):
        return self

    @staticmethod
    def multi_tensor_adam(chunk, flag, lists, lr, beta1, beta2, eps, step, mode, correction, decay):
        for g, p, m, v in zip(*lists):
            m.lerp_(g.to(m.dtype), 1 - beta1)
            v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
            p.mul_(1 - lr * decay)
            p.addcdiv_(m / (1 - beta1**step), (v / (1 - beta2**step)).sqrt() + eps, value=-lr)


fused_adam.FusedAdamBuilder = Operator


def groups_of(case, model):
    named = list(model.named_parameters())
    if case == "layers":
        last = [p for n, p in named if "layers.1." in n]
        return [{"params": last, "lr": 2e-2}, {"params": [p for n, p in named if "layers.1." not in n]}]
    if case == "autotp":
        return [{"params": [p for _, p in named]}]
    return [{"params": [p for _, p in named if p.dim() > 1], "weight_decay": 0.1},
            {"params": [p for _, p in named if p.dim() == 1], "weight_decay": 0.0}]


def states_of(engine):
    """{state: {name: tensor}} of this rank, and the number of updates."""
    outer, names = engine.optimizer, {p: n for n, p in engine.module.named_parameters()}
    inner, states = getattr(outer, "optimizer", outer), {k: {} for k in ("fp32", *MOMENTS)}
    flat = getattr(outer, "fp32_groups_flat", None)
    masters = flat or getattr(outer, "fp32_groups", [[p for p in names]])
    for params, of_group in zip(getattr(outer, "fp16_groups", [list(names)]), masters):
        at = 0
        for i, p in enumerate(params):
            master = of_group if flat else of_group[i]
            for k, t in [("fp32", master.detach())] + [(k, inner.state[master][k]) for k in MOMENTS]:
                states[k][names[p]] = (t[at:at + p.numel()].view(p.shape) if flat else t).float().clone()
            at += p.numel()
    return states, max(int(s["step"]) for s in inner.state.values())


def whole(parts, shape):
    if parts[0].shape == shape:
        return parts[0].contiguous()
    dim = next(d for d in range(len(shape)) if parts[0].shape[d] != shape[d])
    return torch.cat(parts, dim).contiguous()


def run(rank, case, out, port):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2" if case == "autotp" else "1",
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.chdir(out)
    dtype = torch.float32 if case == "fused32" else torch.bfloat16
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    torch.manual_seed(7)
    config = LlamaConfig(hidden_size=8, intermediate_size=12, num_hidden_layers=2 if case == "layers" else 1,
                         num_attention_heads=4, num_key_value_heads=2, vocab_size=29, max_position_embeddings=64,
                         torch_dtype=dtype, attn_implementation="eager")
    model = LlamaForCausalLM(config)
    for p in model.parameters():
        p.data.add_(0.1 * torch.randn_like(p) * (p.dim() == 1))
    shapes = {n: p.shape for n, p in model.named_parameters()}
    model = model.to(dtype)
    if case == "autotp":
        model = deepspeed.tp_model_init(model, tp_size=2, dtype=dtype)
    kind = fused_adam.FusedAdam if "fused" in case else torch.optim.AdamW
    settings = {"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": dtype == torch.bfloat16}}
    if case == "autotp":
        settings["tensor_parallel"] = {"autotp_size": 2}
    engine = deepspeed.initialize(model=model, config=settings,
                                  optimizer=kind(groups_of(case, model), lr=1e-2, betas=(0.9, 0.95)))[0]
    for step in range(3):
        tokens = torch.randint(29, (2, 12), generator=torch.Generator().manual_seed(step))
        engine.backward(engine(input_ids=tokens, labels=tokens).loss)
        engine.step()
    states, updates = states_of(engine)
    states["weight"] = {n: p.detach().clone() for n, p in engine.module.named_parameters()}
    ranks = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, states)
    all_states = {k: {n: whole([r[k][n] for r in ranks], shapes[n]) for n in shapes} for k in states}
    if rank == 0:
        config.save_pretrained("expected")
        save_file(all_states.pop("weight"), "expected/model.safetensors", {"format": "pt"})
        save_file({f"{k}.{n}": t for k, named in all_states.items() for n, t in named.items()}
                  | {"step": torch.tensor(updates)}, "expected/optimizer.safetensors")
    engine.save_checkpoint("ckpt")
    dist.destroy_process_group()


if __name__ == "__main__":
    os.makedirs(sys.argv[1] + "/expected", exist_ok=True)
    torch.multiprocessing.spawn(run, (sys.argv[2], os.path.abspath(sys.argv[1]), 29511),
                                2 if sys.argv[2] == "autotp" else 1)
