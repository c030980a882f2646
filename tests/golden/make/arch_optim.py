#!/usr/bin/env python3
"""Writes arch-optim/NAME: one run of Megatron-LM saved twice, on CPU ranks.

    arch_optim.py SHARED MEGATRON_LM OUT      (needs torch, transformers 4.57 and what Megatron-LM imports)

SHARED is the folder with fixtures/ and peers/, whose make_megatron_arch.py builds the models; MEGATRON_LM is a tree of
d98e8a64ddf3. Gradients are random numbers by key, equal on all ranks that hold a parameter, so that no forward pass is
needed: two steps of Adam, then `saved` and `same`."""

import shutil
import sys
import zlib
from pathlib import Path

shared, tree, out = (Path(x).resolve() for x in sys.argv[1:4]) if len(sys.argv) > 3 else (None, None, None)
sys.path[:0] = [str(shared / "peers"), str(shared / "fixtures/make")] if shared else []
import make_megatron_arch as arch  # noqa: E402
import torch  # noqa: E402

TORCH = {"ckpt-format": "torch"}
CASES = {
    "mamba-torch-optimizer-tp2pp2": ("mamba-small", "hybrid", {"tp": 2, "pp": 2}, "replicated", TORCH),
    "qwen3-next-mtp-torch-distributed-pp2": ("qwen3-next-mtp", "gpt", {"pp": 2}, "distributed", TORCH),
    "mla-dp-reshardable-dp2": ("deepseek-v3-small", "gpt", {"dp": 2}, "distributed", {}),
}


def set_gradients(model, step):
    items = [(*arch.whole_key(x), x.data) for x in arch.pieces(model)]
    every, shapes = [None] * torch.distributed.get_world_size(), {}
    torch.distributed.all_gather_object(every, [(k, [s.stop for s in where]) for k, where, _ in items])
    for key, stop in (x for rank in every for x in rank):
        shapes[key] = [max(a, b) for a, b in zip(shapes.get(key, stop), stop, strict=True)]
    for p in model.parameters():
        p.main_grad.zero_()
    for key, where, data in items:
        for p in model.parameters():
            at = data.data_ptr() - p.data.data_ptr()
            if 0 <= at < p.data.numel() * p.data.element_size():
                start = p.main_grad.storage_offset() + at // p.data.element_size()
                part = torch.as_strided(p.main_grad, data.shape, data.stride(), start)
                random = torch.Generator().manual_seed(zlib.crc32(key.encode()) + step)
                part.copy_(torch.randn(shapes[key], generator=random)[where] * 0.1)


def save(case, hf, args, model, folder):
    import megatron_save
    from megatron.training.checkpointing import save_checkpoint
    from megatron.training.training import get_optimizer_param_scheduler

    wrapped, optimizer = megatron_save.make_optimizer(
        [model], torch.bfloat16, case["optimizer"] == "distributed"
    )
    optimizer.reload_model_params()
    for step in range(2):
        set_gradients(model, step)
        optimizer.step()
    scheduler = get_optimizer_param_scheduler(optimizer)
    scheduler.step(10 * args.global_batch_size)
    args.iteration = 10
    save_checkpoint(10, wrapped, optimizer, scheduler, 0)
    args.ckpt_format, args.save = "torch_dist", folder.replace("saved", "same")
    args.use_dist_ckpt = args.dist_ckpt_optim_fully_reshardable = True
    save_checkpoint(10, wrapped, optimizer, scheduler, 0)


def norm_first(cls):
    """transformer_engine registers a fused norm before the weight."""
    init = cls.__init__

    def ordered(self, *args, **kwargs):
        init(self, *args, **kwargs)
        for name in [n for n in self._parameters if not n.startswith("layer_norm")]:
            self._parameters[name] = self._parameters.pop(name)

    cls.__init__ = ordered


def command_line(case, hf, dtype, plain=arch.command_line):
    words = plain(case, hf, dtype)
    left_out = "" if case["optimizer"] == "distributed" else "--use-distributed-optimizer"
    return [x for x in words if x != left_out] + ["--no-save-rng"]


def write_rank(*args):
    import gpu_packages

    norm_first(gpu_packages.LayerNormLinear)
    arch.save, arch.command_line = save, command_line
    arch.write_rank(*args)


def main():
    import megatron_cpu

    for name, (model, kind, layout, optimizer, options) in CASES.items():
        layout = {"tp": 1, "pp": 1, "ep": 1, "etp": 1, "dp": 1, **layout}
        case = {"model": kind, "layout": layout, "optimizer": optimizer, "options": options}
        shutil.rmtree(out / name, ignore_errors=True)
        hf = shared / "fixtures/megatron-arch/models" / model
        paths = [str(tree), str(shared / "fixtures/make"), str(Path(__file__).parent)]
        ranks = layout["tp"] * layout["pp"] * layout["dp"]
        megatron_cpu.run_ranks(ranks, write_rank, case, str(hf), str(out / name / "saved"), paths=paths)


if __name__ == "__main__":
    main()
