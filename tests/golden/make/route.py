"""route.py MEGATRON OUT - what TopKRouter of the Megatron-LM tree makes of random logits, in f64: weights,
losses and the gradient of logits.

A row of a case is a sequence's token; Megatron-LM's own order is all sequences of a position. dweights is
the gradient of the weights, dense as they are. Gradients of the losses are multiplied by `scale`.
"""
import json
import os
import sys

import torch

sys.path.insert(0, sys.argv[1])
torch.float32 = torch.float64  # its routers cast to float32 by these two
torch.Tensor.float = torch.Tensor.double
torch.cuda.current_device = lambda: "cpu"

from megatron.core import parallel_state
from megatron.core.transformer.moe.moe_logging import get_moe_metrics_tracker
from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler, get_default_pg_collection
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.transformer_config import TransformerConfig

SEQUENCES, LENGTH, EXPERTS, SCALE = 3, 5, 6, 2.0
CASES = {
    "aux_loss": dict(moe_aux_loss_coeff=0.3),
    "aux_loss, softmax first": dict(moe_aux_loss_coeff=0.3, moe_router_pre_softmax=True),
    "seq_aux_loss": dict(moe_router_load_balancing_type="seq_aux_loss", moe_aux_loss_coeff=0.3),
    "z-loss": dict(moe_router_load_balancing_type="none", moe_z_loss_coeff=0.2),
    "seq_aux_loss and z-loss, softmax first, scaled": dict(
        moe_router_load_balancing_type="seq_aux_loss", moe_aux_loss_coeff=0.3, moe_z_loss_coeff=0.2,
        moe_router_pre_softmax=True, moe_router_topk_scaling_factor=2.5),
    "sigmoid, all": dict(
        moe_router_load_balancing_type="seq_aux_loss", moe_aux_loss_coeff=0.3, moe_z_loss_coeff=0.2,
        moe_router_score_function="sigmoid", moe_router_topk_scaling_factor=2.5),
    "sigmoid, one expert": dict(
        moe_aux_loss_coeff=0.3, moe_router_score_function="sigmoid", moe_router_topk=1,
        moe_router_topk_scaling_factor=2.5),
    "sigmoid with expert bias": dict(
        moe_aux_loss_coeff=0.3, moe_router_score_function="sigmoid", moe_router_enable_expert_bias=True),
}


def flat(x):
    return x.detach().reshape(-1).tolist()


def make(name, options):
    options = dict(dict(moe_router_topk=2), **options)
    config = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=2, num_moe_experts=EXPERTS,
                               params_dtype=torch.float64, **options)
    router = TopKRouter(config, pg_collection=get_default_pg_collection())
    router.set_layer_number(1)
    logits = torch.randn(SEQUENCES, LENGTH, EXPERTS, requires_grad=True)
    dweights = torch.randn(SEQUENCES, LENGTH, EXPERTS)
    if router.expert_bias is not None:
        router.expert_bias.copy_(torch.randn(EXPERTS))
    router.gating = lambda x: x.transpose(0, 1).contiguous()
    MoEAuxLossAutoScaler.set_loss_scale(torch.tensor(SCALE))
    weights, chosen = router(logits)
    back = lambda x: x.reshape(LENGTH, SEQUENCES, EXPERTS).transpose(0, 1)
    (back(weights) * dweights).sum().backward()
    metrics = {k: v.values.sum().item() for k, v in get_moe_metrics_tracker().metrics.items()}
    get_moe_metrics_tracker().clear()
    return dict(
        name=name, options={k: v for k, v in options.items()}, losses={k: v for k, v in metrics.items() if v},
        expert_bias=None if router.expert_bias is None else flat(router.expert_bias), logits=flat(logits),
        dweights=flat(dweights), weights=flat(back(weights)), chosen=flat(back(chosen).int()),
        dlogits=flat(logits.grad))


def main():
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29543", RANK="0", WORLD_SIZE="1")
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(1)
    torch.distributed.init_process_group("gloo")
    parallel_state.initialize_model_parallel()
    cases = [make(name, options) for name, options in CASES.items()]
    with open(sys.argv[2], "w") as f:
        head = dict(sequences=SEQUENCES, length=LENGTH, experts=EXPERTS, scale=SCALE)
        f.write(json.dumps(head)[:-1] + ', "cases": [\n')
        f.write(",\n".join(json.dumps(c) for c in cases) + "\n]}\n")
    torch.distributed.destroy_process_group()


main()
