"""fsdp_dtensor.py MODEL_OPTIM_RNG_PT ROOT: a checkpoint in the layout of Megatron-LM's --ckpt-format
fsdp_dtensor (megatron/training/checkpointing.py:preprocess_fsdp_dtensor_state_dict, d98e8a64), of the
weights in a legacy file of one rank. exp_avg is 2 w, exp_avg_sq w * w. By torch alone, since
Megatron-FSDP needs GPUs."""
import sys

import torch
import torch.distributed.checkpoint as dcp


def halves(tensors):
    out = {}
    for name, t in tensors.items():
        if name.endswith("linear_fc1.weight"):
            w, v = t.chunk(2)
            out[name + "_w"], out[name + "_v"] = w.clone(), v.clone()
        else:
            out[name] = t.clone()
    return out


legacy = torch.load(sys.argv[1], weights_only=False)
model = halves({k: t.float() for k, t in legacy["model"].items() if not k.endswith("_extra_state")})
states = {"module.module." + k: {"exp_avg": 2 * t, "exp_avg_sq": t * t} for k, t in model.items()}
meta = {k: {"lr": 0.01, "step": 3, "betas": (0.9, 0.95)} for k in states}
dcp.save({"args": legacy["args"], "checkpoint_version": 3.0, "iteration": 3, "model": model,
          "optimizer": {"state": states, "param_to_group_meta": meta}},
         checkpoint_id=sys.argv[2] + "/iter_0000003", no_dist=True)
with open(sys.argv[2] + "/latest_checkpointed_iteration.txt", "w") as f:
    f.write("3")
