"""Training runs that the other program goes on with: Megatron-LM's own pretrain() continues what `ferry train` saved
half-way, and ferry what pretrain() saved. What is left of the run must be as in the whole run of the program that
saved it: learning rate, weight decay, loss scale and skipped steps exactly, losses and norms within LIMITS.

It takes a checkout of Megatron-LM, whose ranks run on the CPU (megatron_lm_train.py). Ferry runs on as many ranks, in
the same layout."""

import json
import shlex
import shutil
import struct
import sys
from pathlib import Path

from checks import layout_parser, run_program
from megatron_files import require

# a run of golden/train/commands.txt, format, and the layout in which Megatron-LM has it
CASES = """
fp32                  torch_dist  --tp 1
fp32                  torch_dist  --tp 2 --pp 2
fp32                  torch_dist  --pp 2 --vpp 2
fp32                  torch_dist  --dp 2
fp32                  torch_dist  --tp 2 --dp 2
fp32                  torch       --tp 2 --dp 2
fp32                  torch       --tp 2 --pp 2 --vpp 2
fp32                  torch       --tp 1
fp32-plain-optimizer  torch       --tp 1
bf16                  torch_dist  --tp 1
bf16-dp2              torch       --tp 1
fp16-overflow         torch_dist  --tp 1
moe                   torch_dist  --tp 1
moe-ep2               torch_dist  --dp 2 --ep 2
gpt2                  torch_dist  --tp 2
gpt2                  torch_dist  --pp 2 --dp 2
"""
# Relative errors of losses and norms of parameters, and of gradient norms.
LIMITS = {"fp32": (1e-5, 1e-5), "bf16": (1e-3, 1e-2), "fp16": (1e-3, 1e-2)}

MODELS = {"gpt2": "gpt2", "moe": "mixtral"}  # else llama
TESTS = Path(__file__).resolve().parents[1]


class Case:
    def __init__(self, line):
        self.run, self.format, options = line.split(None, 2)
        self.layout = layout_parser.parse_args(shlex.split(options))
        self.ranks = self.layout.tp * self.layout.pp * self.layout.dp
        self.name = "training " + " ".join(line.split())
        kind = self.run.partition("-")[0]
        self.limits = LIMITS.get(kind, LIMITS["fp32"])
        self.model = TESTS / "golden/train/models" / MODELS.get(kind, "llama")

    def command_line(self, layout, **changes):
        """The options of the run; those of changes have other values, and are left out where that is None."""
        commands = (TESTS / "golden/train/commands.txt").read_text().splitlines()
        line = next(x for x in commands if x.startswith(self.run + "\t"))
        options = {}
        for word in line.split()[2:]:
            if word.startswith("--"):
                values = options[word] = []
            else:
                values.append(word)
        changes["ckpt_format"] = self.format
        for name in ("tensor", "pipeline", "expert"):
            changes[f"{name}_model_parallel_size"] = getattr(layout, name[0] + "p")
        if layout.vpp > 1:
            changes["num_layers_per_virtual_pipeline_stage"] = int(options["--num-layers"][0]) // (
                layout.pp * layout.vpp
            )
        options.update({"--" + name.replace("_", "-"): [x] for name, x in changes.items()})
        return [x for name, values in options.items() if values != [None] for x in (name, *values)]

    def save_interval(self):
        line = self.command_line(self.layout)
        return int(line[line.index("--save-interval") + 1])


def largest_differences(want, got):
    """Of the loss and of the gradient norm, relative, as a text."""
    pairs = list(zip(want, got, strict=True))
    said = []
    for name in ("loss", "grad_norm"):
        values = [(w[name], g[name]) for w, g in pairs if w[name] is not None]
        said.append(f"{name} {max(abs(a - b) / abs(a) for a, b in values):.1e}")
    return f"{len(pairs)} steps differ by " + ", ".join(said)


def steps_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


class Training:
    def __init__(self, args, work):
        self.ferry, self.peers, self.megatron_lm, self.work = args.ferry, args.peers, args.megatron_lm, work

    def enter(self, case, what):
        """A folder with the data, where both programs run."""
        folder = self.work / case.name.replace(" ", "_") / what
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for file in (TESTS / "golden/megatron-data").glob("u16.*"):
            (folder / file.name).symlink_to(file)
        return folder

    def run_ferry(self, case, folder, log, load, **changes):
        changes["data_parallel_size"] = case.layout.dp
        line = case.command_line(case.layout, load=load, log_jsonl=log, **changes)
        run_program(self.ferry, "train", "--threads", 1, *line, cwd=folder)

    def run_megatron_lm(self, case, folder, log, *first, **changes):
        program = Path(__file__).with_name("megatron_lm_train.py")
        line = case.command_line(case.layout, **changes)
        options = ("--mcore", self.megatron_lm, "--ranks", case.ranks, *first)
        run_program(
            sys.executable, "-W", "ignore", program, self.peers, folder, folder / log, *options, "--", *line
        )

    def compare(self, case, folder):
        first = case.save_interval() + 1
        run_program(
            sys.executable,
            *(TESTS / "trainer/same_run.py", "steps", folder / "whole.jsonl", folder / "rest.jsonl"),
            *(*case.limits, first),
        )
        return largest_differences(
            steps_of(folder / "whole.jsonl")[first - 1 :], steps_of(folder / "rest.jsonl")
        )

    def continued_by_megatron_lm(self, case):
        folder = self.enter(case, "ours")
        self.run_ferry(case, folder, "whole.jsonl", case.model, save=None)
        self.run_ferry(case, folder, "half.jsonl", case.model, exit_interval=case.save_interval())
        self.run_megatron_lm(case, folder, "rest.jsonl", load="checkpoint")
        return self.compare(case, folder)

    def continued_by_ferry(self, case):
        folder = self.enter(case, "theirs")
        self.run_megatron_lm(case, folder, "whole.jsonl", "--first", case.model)
        self.run_ferry(case, folder, "rest.jsonl", "checkpoint", save=None)
        return self.compare(case, folder)


    def read_by_tensorboard(self, case):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        folder = self.enter(case, "events")
        self.run_ferry(case, folder, "log.jsonl", case.model, save=None, tensorboard_dir="events")
        events = EventAccumulator(str(folder / "events"))
        events.Reload()
        for tag, name in (("lm loss", "loss"), ("grad-norm", "grad_norm"), ("learning-rate", "logged_lr")):
            got = [(e.step, struct.pack("f", e.value)) for e in events.Scalars(tag)]
            want = [(s["iteration"], struct.pack("f", s[name])) for s in steps_of(folder / "log.jsonl")]
            require(got == want, f"{tag} is {got}, wanted {want}")


def tensorboard_checks(args, work):
    case = Case("fp32 torch_dist --tp 1")
    case.name = "training events"
    if args.only in case.name:
        yield case, "TensorBoard reads what ferry logs", Training(args, work).read_by_tensorboard


def checks(args, work):
    training = Training(args, work)
    for case in map(Case, CASES.strip().splitlines()):
        if args.only in case.name:
            yield case, "Megatron-LM's pretrain() continues what ferry saved", training.continued_by_megatron_lm
            yield case, "ferry continues what Megatron-LM's pretrain() saved", training.continued_by_ferry
