"""async_save.py FERRY FOLDER [--rounds 3] [--seq 64] [--threads N] [--options=TEXT] - what a save costs a training run:
steps without saves, with --save, and with --save --async-save, as runs in turns. TEXT: more options of ferry train.

    step ms    median of the steps that ran while nothing was written
    writing    median of the steps that ran while a checkpoint was written: from the end of a step to the moment
               when the tracker names it
    blocked    seconds between two steps in which a checkpoint was saved, or its state copied: median and longest
    written    seconds from the end of a step until its checkpoint is complete

A save at the end of a run does not count, nor do the first two steps. The times are those of --log-jsonl, of the lines
of training when they come, and of the tracker's file."""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time

STEPS, INTERVAL, WARM_UP = 25, 10, 2  # a save waits for the one before it
MODES = {"no save": [], "--save": ["--save", "out"], "--async-save": ["--save", "out", "--async-save"]}


class Run:
    def __init__(self, args, options, folder):
        shape = f"--seq-length {args.seq} --micro-batch-size 4 --global-batch-size 4 --threads {args.threads}"
        rest = f"--mock-data --train-iters {STEPS + 1} --log-interval 1 --lr 1e-4 --distributed-backend gloo -q"
        saves = f"--save-interval {INTERVAL} --keep-last 1 --log-jsonl log.jsonl"
        line = [args.ferry, "train", "--load", os.path.abspath(args.folder), *f"{shape} {rest} {saves}".split()]
        self.command = line + options + args.options.split()
        self.folder = folder
        self.ends = {}  # iteration: when its line came
        self.complete = {}  # iteration: when its checkpoint was complete

    def look(self):
        tracker = os.path.join(self.folder, "out", "latest_checkpointed_iteration.txt")
        try:
            with open(tracker) as f:
                self.complete.setdefault(int(f.read()), os.fstat(f.fileno()).st_mtime)
        except (FileNotFoundError, ValueError):
            pass

    def run(self):
        process = subprocess.Popen(self.command, cwd=self.folder, stdout=subprocess.PIPE)
        for line in process.stdout:
            if b"] iteration " in line:
                self.ends[len(self.ends) + 1] = time.time()
                self.look()
        if process.wait():
            raise SystemExit(f"exit code {process.returncode}")
        with open(os.path.join(self.folder, "log.jsonl")) as f:
            self.seconds = {o["iteration"]: o["elapsed_ms"] / 1e3 for o in map(json.loads, f)}
        return self

    def results(self):
        """Steps alone, steps beside a save, blocked seconds, seconds until complete."""
        alone, beside, blocked, written = [], [], [], []
        for i in range(WARM_UP + 1, STEPS + 1):
            saved = max((k for k in self.complete if k < i), default=None)
            begun = self.ends[i] - self.seconds[i]
            (alone if saved is None or begun > self.complete[saved] else beside).append(self.seconds[i])
        for k, when in self.complete.items():
            if k < STEPS:
                blocked.append(self.ends[k + 1] - self.seconds[k + 1] - self.ends[k])
                written.append(when - self.ends[k])
        return alone, beside, blocked, written


def measure(args, mode, work):
    folder = tempfile.mkdtemp(dir=work)
    os.sync()  # what earlier runs have left to write
    found = Run(args, MODES[mode], folder).run().results()
    shutil.rmtree(folder)
    return found


def columns(alone, beside, blocked, written):
    middle = [1e3 * statistics.median(x) if x else None for x in (alone, beside)]
    rest = [f(x) if x else None for x in (blocked, written) for f in (statistics.median, max)]
    return "".join(f" {x:10.3f}" if x is not None else f" {'-':>10s}" for x in middle + rest)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("ferry")
    p.add_argument("folder")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seq", type=int, default=64)
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--options", default="", help="more of ferry train, in one word")
    args = p.parse_args()
    sums = {mode: ([], [], [], []) for mode in MODES}
    with tempfile.TemporaryDirectory() as work:
        for _ in range(args.rounds):
            for mode in MODES:
                for total, part in zip(sums[mode], measure(args, mode, work)):
                    total += part
    heads = "step ms", "writing", "blocked s", "longest", "written s", "longest"
    title = f"saves, 4 x {args.seq}, load {os.getloadavg()[0]:.1f}"
    print(f"{title:30s}" + "".join(f" {x:>10s}" for x in heads))
    for mode, found in sums.items():
        print(f"{mode:30s}" + columns(*found), flush=True)


main()
