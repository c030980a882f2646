"""fsdp_dtensor.py FROM TO - writes what --ckpt-format fsdp_dtensor of Megatron-FSDP would have written of a torch_dist
iteration: the same weights and states, by torch.distributed.checkpoint itself, as
megatron/training/checkpointing.py:generate_state_dict and preprocess_fsdp_dtensor_state_dict name them. Megatron-FSDP
needs GPUs, so the names come from its source."""

import re
import sys
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader


def load(folder):
    metadata = FileSystemReader(folder).read_metadata()
    tensors = {k: torch.empty(v.size, dtype=v.properties.dtype) for k, v in metadata.state_dict_metadata.items()
               if hasattr(v, "properties")}
    dcp.load(tensors, checkpoint_id=folder, no_dist=True)
    return tensors


def in_memory(key, tensor, gated):
    """(name, tensor) of each layer and expert in `tensor`, halves of a gated fc1 apart."""
    if key.startswith("decoder.layers.") and not re.match(r"decoder\.layers\.\d+\.", key):
        rest = key.removeprefix("decoder.layers.")
        for layer, one in enumerate(tensor):
            yield from in_memory(f"decoder.layers.{layer}.{rest}", one, gated)
    elif ".mlp.experts.experts.linear" in key:
        for expert, one in enumerate(tensor):
            yield from in_memory(key.replace("experts.experts.linear", "experts.linear") + str(expert), one, gated)
    elif gated and re.search(r"\.linear_fc1\.(weight|bias)\d*$", key):
        w, v = torch.chunk(tensor, 2)
        yield f"{key}_w", w.clone()
        yield f"{key}_v", v.clone()
    else:
        yield key, tensor.clone()


def state_dict_of(folder):
    common = torch.load(folder / "common.pt", weights_only=False)
    gated = getattr(common["args"], "swiglu", False)
    out = {"args": common["args"], "iteration": common["iteration"], "checkpoint_version": 3.0, "model": {}}
    out["opt_param_scheduler"] = common["opt_param_scheduler"]
    states, names = {}, set()
    for key, tensor in load(folder).items():
        of_state = re.match(r"optimizer\.state\.(\w+)\.(.*)", key)
        if of_state and of_state[1] == "fp32_param":
            continue  # the weights of Megatron-FSDP are its masters
        for name, one in in_memory(of_state[2] if of_state else key, tensor, gated):
            if of_state:
                states.setdefault("module." + name, {})[of_state[1]] = one
            elif "_extra_state" not in name:
                out["model"][name] = one
                names.add(name)
    optimizer = common["optimizer"].get("optimizer", common["optimizer"])
    groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer["param_groups"]]
    by_decay = {g.get("wd_mult", 1.0): g for g in groups}
    metas = {"module." + n: by_decay[0.0 if out["model"][n].dim() == 1 and 0.0 in by_decay else 1.0] for n in names}
    out["optimizer"] = {"state": states, "param_to_group_meta": metas}
    return out


def save(folder, to):
    dcp.save(state_dict_of(folder), checkpoint_id=to, no_dist=True)


if __name__ == "__main__":
    save(Path(sys.argv[1]), sys.argv[2])
