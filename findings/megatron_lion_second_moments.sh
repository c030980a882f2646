#!/bin/sh
# megatron_lion_second_moments.sh - a checkpoint without half of the states of Adam beside Lion.
#
# package:  megatron-core 0.19.2 with emerging-optimizers 0.3.0 and torch 2.13.0; one gloo rank on a CPU, where tensors
#           say that they are on a GPU
# expected: Megatron's "muon" and "lion" update hidden matrices; AdamW, in a distributed optimizer of its own, does the
#           rest: embeddings, output layer, norms and biases. A checkpoint has the states of both: of each parameter
#           of AdamW exp_avg and exp_avg_sq.
# instead:  So it is with "muon". With "lion" exp_avg_sq of AdamW's parameters is not in the checkpoint, without a
#           warning, though AdamW has it after each step; so no resume can load it.
# why:      DistributedOptimizer.optimizer_state_keys asks config.optimizer, which after the build is the whole
#           run's: "lion" has exp_avg alone. For "muon" it asks config.muon_scalar_optimizer.
# seen:
#   muon: LayerWiseDistributedOptimizer of TensorParallelMuon, DistributedOptimizer of AdamW
#   muon: of 12 parameters AdamW has 12 exp_avg, 12 exp_avg_sq; the checkpoint 12 exp_avg, 12 exp_avg_sq
#   lion: LayerWiseDistributedOptimizer of Lion, DistributedOptimizer of AdamW
#   lion: of 12 parameters AdamW has 12 exp_avg, 12 exp_avg_sq; the checkpoint 12 exp_avg, 0 exp_avg_sq
#   as stated: with lion a checkpoint has no second moments of AdamW
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

changed() {
    tail -n 20 "$folder/log"
    echo "changed: $1"
    exit 1
}

install() { # the wheel is of Python 3.12, its Python code runs in 3.11 too
    python3 -m venv "$folder/venv" &&
        "$folder/venv/bin/pip" install torch==2.13.0 && # first and alone, else pip brings CUDA
        "$folder/venv/bin/pip" install torch==2.13.0 numpy==2.1.3 packaging==26.3 absl-py==2.5.1 \
            triton==3.7.1 &&
        "$folder/venv/bin/pip" install --no-deps --target "$folder/packages" --python-version 3.12 \
            --ignore-requires-python --only-binary :all: megatron-core==0.19.2 emerging-optimizers==0.3.0
}
install >"$folder/log" 2>&1 || changed "the packages cannot be installed"

cat >"$folder/show.py" <<'END'
import sys
import typing

import torch
import torch.distributed as dist
import typing_extensions
from torch.overrides import TorchFunctionMode

typing.override = typing_extensions.override  # Python 3.11 has none


class Pretended(TorchFunctionMode):
    """Tensors for a GPU are made on the CPU, and say that they are on a GPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        if function is torch.Tensor.cuda:
            return args[0]
        result = function(*args, **kwargs)
        if function is torch.Tensor.type and isinstance(result, str):
            return result.replace("torch.", "torch.cuda.")
        return result


torch.cuda.current_device = lambda: "cpu"
torch.cuda.FloatTensor = torch.FloatTensor
Pretended().__enter__()
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], 1), rank=0, world_size=1)

from megatron.core import parallel_state
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedBase
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.layer_wise_optimizer import LayerWiseDistributedOptimizer, tag_params_for_buffer_routing
from megatron.core.transformer import TransformerConfig

MOMENTS = ("exp_avg", "exp_avg_sq")


def make_run(name):
    """A model and its optimizer, as Megatron-LM's training makes them with --use-distributed-optimizer."""
    sizes = dict(num_layers=1, hidden_size=16, num_attention_heads=2)
    config = TransformerConfig(use_cpu_initialization=True, bf16=True, params_dtype=torch.bfloat16, **sizes)
    model = GPTModel(config, get_gpt_layer_local_spec(), vocab_size=32, max_sequence_length=8).bfloat16()
    tag_params_for_buffer_routing([model])
    parallel = DistributedDataParallelConfig(use_distributed_optimizer=True)
    layout = LayerWiseDistributedOptimizer.compute_full_param_layout(list(model.parameters()), None, 1, parallel)
    wrapped = DistributedDataParallel(config, parallel, model, full_param_layout=layout)
    more = dict(lr=0.001, clip_grad=0.0, bf16=True, use_layer_wise_distributed_optimizer=True)
    return wrapped, get_megatron_optimizer(OptimizerConfig(optimizer=name, **more), [wrapped])


def show(name):
    model, optimizer = make_run(name)
    for p in model.parameters():
        p.main_grad.copy_(torch.randn(p.shape))
    optimizer.step()
    layer_wise, distributed = optimizer.chained_optimizers
    first = layer_wise.chained_optimizers[0].optimizer
    print(f"{name}: {type(layer_wise).__name__} of {type(first).__name__},", end=" ", file=seen)
    print(f"{type(distributed).__name__} of {type(distributed.optimizer).__name__}", file=seen)
    states = distributed.optimizer.state.values()
    has = [sum(moment in state for state in states) for moment in MOMENTS]
    how = {"distrib_optim_sharding_type": "fully_reshardable", "distrib_optim_fully_reshardable_mem_efficient": False}
    saved = optimizer.sharded_state_dict(model.module.sharded_state_dict(), metadata=how)
    keys = {v.key for v in nested_values(saved) if isinstance(v, ShardedBase)}
    saves = [sum(k.startswith(f"chained_1.optimizer.state.{moment}.") for k in keys) for moment in MOMENTS]
    texts = [", ".join(f"{n} {moment}" for n, moment in zip(of, MOMENTS)) for of in (has, saves)]
    print(f"{name}: of {len(states)} parameters AdamW has {texts[0]}; the checkpoint {texts[1]}", file=seen)
    return len(states), has, saves


parallel_state.initialize_model_parallel()
with open(sys.argv[2], "w") as seen:
    found = [show("muon"), show("lion")]
    if found == [(12, [12, 12], [12, 12]), (12, [12, 12], [12, 0])]:
        print("as stated: with lion a checkpoint has no second moments of AdamW", file=seen)
    else:
        print(f"changed: {found}", file=seen)
        sys.exit(1)
END
export PYTHONPATH="$folder/packages" GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=1 HOME="$folder"
touch "$folder/seen"
"$folder/venv/bin/python" -W ignore "$folder/show.py" "$folder/meet" "$folder/seen" >"$folder/log" 2>&1 || true
cat "$folder/seen"
case $(tail -n 1 "$folder/seen") in
"as stated: "*) ;;
"changed: "*) exit 1 ;;
*) changed "the program fails" ;;
esac
