"""deepspeed_seeds.py FOLDER - inputs of tests/fuzz/deepspeed_fuzz.c: small checkpoints in DeepSpeed's layout.

Each is a byte, its kind, then for each file of the kind 3 bytes of length, low ones first, and the file
(the last one without a length). Needs torch."""
import io, os, sys
from collections import OrderedDict
import torch

SHAPES = OrderedDict([("model.embed_tokens.weight", (3, 2)), ("model.norm.weight", (2,)), ("lm_head.weight", (3, 2))])
PIPELINE = OrderedDict([("1.word_embeddings.weight", (3, 2)), ("2.self_attention.dense.weight", (2, 2))])
RANKS = 2


def numel(shape):
    return torch.Size(shape).numel()


def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def model(module, shapes, **more):
    return dict(module=module, buffer_names=[], optimizer=None,
                param_shapes=[OrderedDict((k, torch.Size(v)) for k, v in shapes.items())], shared_params={},
                global_steps=3, global_samples=6, skipped_steps=1, dp_world_size=RANKS, ds_version="0.19.8",
                ds_config={"bf16": {"enabled": True}}, **more)


def group():
    return {"lr": 0.1, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, "params": [0]}


def torch_states(n):
    return {"state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.ones(n), "exp_avg_sq": torch.ones(n)}},
            "param_groups": [group()]}


def zero1(shapes, rank):
    total = sum(map(numel, shapes.values()))
    part = -(-total // (2 * RANKS)) * 2
    held = max(0, min(part, total - rank * part))
    return {"optimizer_state_dict": {
        "zero_stage": 1, "partition_count": [RANKS], "base_optimizer_state": torch_states(part),
        "single_partition_of_fp32_groups": [torch.ones(held)], "group_paddings": [part - held],
        "param_alignment_paddings": [[0] * len(shapes)], "dynamic_loss_scale": False}, "ds_version": "0.19.8"}


def zero3():
    n = sum(-(-numel(s) // RANKS) for k, s in SHAPES.items() if k != "lm_head.weight")
    return {"optimizer_state_dict": {"zero_stage": 3, "partition_count": RANKS, "optimizer_state_dict": torch_states(n),
                                     "fp32_flat_groups": [torch.ones(n)]}}


def weights(shapes):
    return OrderedDict((k, torch.ones(v, dtype=torch.bfloat16)) for k, v in shapes.items())


def stage3_model():
    trained = OrderedDict((k, v) for k, v in SHAPES.items() if k != "lm_head.weight")
    empty = OrderedDict((k, torch.empty(0, dtype=torch.bfloat16)) for k in SHAPES)
    return model(empty, trained, frozen_param_shapes=OrderedDict(**{"lm_head.weight": torch.Size((3, 2))}),
                 frozen_param_fragments=OrderedDict(**{"lm_head.weight": torch.ones(3, dtype=torch.bfloat16)}))


def plain():
    states = {i: {"step": torch.tensor(3.0), "exp_avg": torch.ones(s), "exp_avg_sq": torch.ones(s)}
              for i, s in enumerate(SHAPES.values())}
    it = model(weights(SHAPES), SHAPES)
    it.update(param_shapes=None, optimizer={"state": states, "param_groups": [dict(group(), params=[0, 1, 2])]})
    return it


def universal(flat):
    ones = torch.ones(6) if flat else {"param": torch.ones(3, 2), "cat_dim": 0}
    one = OrderedDict(**{"lm_head.weight": (3, 2)})
    states = {"param_groups": [group()], "ds_version": "0.19.8"}
    return [model(weights(SHAPES), one), states, ones, ones, torch.tensor(3.0)]


SEEDS = {
    "zero1": (0, [model(weights(SHAPES), SHAPES)] + [zero1(SHAPES, r) for r in range(RANKS)]),
    "plain": (0, [plain(), None, None]),
    "zero3": (1, [stage3_model(), stage3_model(), zero3(), zero3()]),
    "universal": (2, universal(False)),
    "universal-flat": (2, universal(True)),
    "pipeline": (3, [{"word_embeddings.weight": torch.ones(3, 2)}, {"self_attention.dense.weight": torch.ones(2, 2)},
                     model(None, PIPELINE)] + [zero1(PIPELINE, r) for r in range(RANKS)]),
}

for name, (kind, values) in SEEDS.items():
    files = [b"" if v is None else saved(v) for v in values]
    with open(os.path.join(sys.argv[1], name), "wb") as out:
        out.write(bytes([kind]))
        for file in files[:-1]:
            out.write(len(file).to_bytes(3, "little") + file)
        out.write(files[-1])
