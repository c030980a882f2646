"""megatron_lm_train.py PEERS FOLDER STEPS.jsonl --mcore TREE [--ranks 4] [--first HF_FOLDER] -- OPTION... - trains with
Megatron-LM's own pretrain() on CPU ranks, in FOLDER, by a command line of pretrain_gpt.py.

A run starts with the weights of HF_FOLDER, or with what --load of the command line says. It saves once, at the
iteration of --save-interval. STEPS.jsonl gets a line per iteration, with the names of ferry's --log-jsonl. TREE is a
checkout of Megatron-LM; PEERS the folder of the peers' programs, whose modules start the ranks."""

import argparse
import json
import os
import queue
import sys
import sysconfig
from pathlib import Path

sys.path.insert(0, sys.argv.pop(1))
import megatron_cpu
import megatron_gpt
import megatron_save
import torch


def use_installed_helpers():
    """The checkout has the C++ helpers of the datasets as source alone; the installed package has them built."""
    import megatron.core.datasets as datasets
    from megatron.core.datasets import utils

    datasets.__path__.append(sysconfig.get_paths()["purelib"] + "/megatron/core/datasets")
    utils.compile_helpers = lambda: None


def save_in_this_process():
    """The queue of a save is one of another process, which takes seconds to start."""
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    filesystem_async._results_queue = queue.Queue()


def keep_a_step_per_parameter():
    """PyTorch's AdamW, unlike those of Apex and Transformer Engine, keeps a tensor `step` per parameter, which
    Megatron does not expect where it sets the states of a parameter."""
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    DistributedOptimizer.set_states = DistributedOptimizer._set_main_param_and_optimizer_states
    DistributedOptimizer._set_main_param_and_optimizer_states = megatron_save.set_all_but_step


class Listener:
    """What this rank's run of pretrain() does, step by step. It wraps functions of megatron.training.training."""

    def __init__(self, training, first):
        self.training, self.first = training, first
        self.steps, self.used = [], {}
        for name in ("get_megatron_optimizer", "load_checkpoint", "save_checkpoint", "training_log"):
            setattr(self, "plain_" + name, getattr(training, name))
            setattr(training, name, getattr(self, name))

    def get_megatron_optimizer(self, config, model, **more):
        args = self.training.get_args()
        if self.first:  # before the optimizer copies its weights from the model's
            hf = megatron_gpt.HfModel(self.first)
            whole = megatron_gpt.mcore_tensors(hf, args.padded_vocab_size)
            megatron_gpt.fill(self.training.unwrap_model(model), whole)
        optimizer = self.optimizer = self.plain_get_megatron_optimizer(config, model, **more)
        if args.load and config.use_distributed_optimizer:
            for one in self.each_optimizer():
                one._init_optimizer_states_with_dummy_values()  # PyTorch's AdamW has none before a step
        self.plain_step, optimizer.step = optimizer.step, self.step
        return optimizer

    def each_optimizer(self):
        return getattr(self.optimizer, "chained_optimizers", [self.optimizer])

    def step(self):
        groups = self.optimizer.param_groups
        self.used = {"lr": groups[0]["lr"], "weight_decay": max(g["weight_decay"] for g in groups)}
        return self.plain_step()

    def load_checkpoint(self, *args, **named):
        """All parameters get the same tensor `step`, to which PyTorch's AdamW would add once for each of them. And
        Megatron-LM copies rank files in float32 into what requires a gradient, which PyTorch refuses."""
        with torch.no_grad():
            result = self.plain_load_checkpoint(*args, **named)
        for one in self.each_optimizer():
            for state in one.optimizer.state.values():
                state["step"] = state["step"].clone()
        return result

    def save_checkpoint(self, iteration, *args, **named):
        if iteration == self.training.get_args().save_interval:  # not at the end, which takes seconds
            self.plain_save_checkpoint(iteration, *args, **named)

    def training_log(
        self, losses, total, rate, iteration, loss_scale, flag, skipped, grad_norm, params_norm, *more, **named
    ):
        step = {
            "iteration": iteration,
            "consumed_samples": self.training.get_args().consumed_train_samples,
            **self.used,
            "logged_lr": rate,
            "loss": losses["lm loss"].item() if losses else None,  # the last pipeline stage has it
            "grad_norm": grad_norm,
            "params_norm": params_norm,
            "loss_scale": loss_scale,
            "skipped": bool(skipped),
        }
        self.steps.append(step)
        plain = self.plain_training_log
        return plain(
            losses, total, rate, iteration, loss_scale, flag, skipped, grad_norm, params_norm, *more, **named
        )


def rank_main(folder, first, line):
    from megatron.training import training

    use_installed_helpers()
    save_in_this_process()
    keep_a_step_per_parameter()
    os.chdir(folder)
    torch.cuda.is_available = lambda: True
    listener = Listener(training, first)
    training.print_rank_last = lambda text: None
    sys.argv = ["pretrain_gpt.py", *line]
    import pretrain_gpt as program

    program.train_valid_test_datasets_provider.is_distributed = True
    args = program.parse_and_validate_args()
    training.pretrain(
        program.pretrain_cfg_container_from_args(args, program.gpt_config_from_args(args)),
        program.train_valid_test_datasets_provider,
        program.ModelType.encoder_or_decoder,
        program.forward_step,
        get_embedding_ranks=program.get_embedding_ranks,
    )
    every = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(every, listener.steps)
    return every[-1]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=os.path.abspath)
    parser.add_argument("steps", type=Path)
    parser.add_argument("--mcore", required=True, metavar="TREE", type=os.path.abspath)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--first", metavar="HF_FOLDER", type=os.path.abspath)
    at = sys.argv.index("--")
    options, line = parser.parse_args(sys.argv[1:at]), sys.argv[at + 1 :]
    steps = megatron_cpu.run_ranks(
        options.ranks, rank_main, options.folder, options.first, line, paths=[options.mcore]
    )
    options.steps.write_text("".join(json.dumps(step) + "\n" for step in steps))
    print(f"{options.steps}: {len(steps)} iterations")


if __name__ == "__main__":
    main()
