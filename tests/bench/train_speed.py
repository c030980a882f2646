"""train_speed.py FERRY FOLDER [--seq 64 256] [--threads N] - steps of training on this CPU, by ferry and by PyTorch in
turns, in f32: forward pass, loss, backward pass, clipping and AdamW for 4 sequences.

One step of ferry, one of PyTorch, and so on; while one is measured the other is stopped, and the first two of each do
not count. Seconds are the median of the steps, then the CPU time of a step: on a machine that is shared with others
it says more, with OMP_WAIT_POLICY=passive in the environment, so that threads which wait take none. A ratio is
PyTorch's time by ferry's: how many times as fast ferry is. The losses of both must agree."""

import argparse
import json
import os
import signal
import statistics
import subprocess
import time

import torch
from transformers import AutoModelForCausalLM

BATCH, WARM_UP = 4, 2
SCHEDULE = "--lr 1e-3 --min-lr 1e-4 --lr-decay-style cosine --lr-warmup-iters 2 --weight-decay 0.1 --adam-beta2 0.95"


class Ferry:
    """`ferry train`, which is stopped whenever it has printed the line of a step."""

    def __init__(self, ferry, folder, seq, steps, threads):
        shape = f"--seq-length {seq} --micro-batch-size {BATCH} --global-batch-size {BATCH}"
        run = f"--mock-data --train-iters {steps} --log-interval 1 --threads {threads} --distributed-backend gloo"
        command = [ferry, "train", "--load", folder, *f"{shape} {run} {SCHEDULE}".split()]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.process.send_signal(signal.SIGSTOP)

    def cpu_seconds(self):
        with open(f"/proc/{self.process.pid}/stat") as f:
            user, system = f.read().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def step(self):
        """(seconds, CPU seconds, loss)"""
        start, cpu = time.perf_counter(), self.cpu_seconds()
        self.process.send_signal(signal.SIGCONT)
        line = b""
        while b"lm loss: " not in line:
            line = self.process.stdout.readline()
            if not line:
                raise SystemExit(self.process.stderr.read().decode())
        self.process.send_signal(signal.SIGSTOP)
        seconds = time.perf_counter() - start
        return seconds, self.cpu_seconds() - cpu, float(line.split(b"lm loss: ")[1].split()[0])

    def close(self):
        self.process.kill()
        self.process.wait()


class PyTorch:
    """The loop of a plain PyTorch program, eager."""

    def __init__(self, folder, seq):
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        self.model.eval()  # no dropout
        parameters = list(self.model.parameters())
        groups = [
            {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
            {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
        self.seq, self.word, self.count = seq, 1, 0

    def tokens(self):
        """The stream of --mock-data."""
        ids = []
        for _ in range(BATCH * (self.seq + 1)):
            self.word = (6364136223846793005 * self.word + 1442695040888963407) % 2**64
            ids.append((self.word >> 33) % self.model.config.vocab_size)
        return torch.tensor(ids).view(BATCH, -1)

    def step(self):
        tokens = self.tokens()
        for group in self.optimizer.param_groups:
            group["lr"] = 1e-3 * min(self.count, 2) / 2  # the warm-up of SCHEDULE
        self.count += 1
        start, cpu = time.perf_counter(), time.process_time()
        self.optimizer.zero_grad()
        logits = self.model(input_ids=tokens[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0).item()
        self.optimizer.step()
        return time.perf_counter() - start, time.process_time() - cpu, loss.item()


def compare(ferry, folder, seq, steps, threads):
    ours, theirs = Ferry(ferry, folder, seq, steps, threads), PyTorch(folder, seq)
    results = []
    try:
        for step in range(steps):
            a, b = ours.step(), theirs.step()
            if step in (0, 2) and abs(a[2] - b[2]) > 1e-4 * b[2]:  # the second line has the average of two
                raise SystemExit(f"step {step + 1}: the loss is {a[2]}, and {b[2]} in PyTorch")
            results.append(a[:2] + b[:2])
    finally:
        ours.close()
    wall, cpu, their_wall, their_cpu = map(statistics.median, zip(*results[WARM_UP:]))
    columns = wall, their_wall, their_wall / wall, cpu, their_cpu, their_cpu / cpu
    title = f"{os.path.basename(folder)} f32, {BATCH} x {seq}"
    print(f"{title:30s}" + "".join(f" {x:9.3f}" for x in columns), flush=True)


def print_rate(ferry, folder, threads):
    options = f"--dtype f32 --seq 256 --repeats 3 --threads {threads} --json -q".split()
    out = subprocess.run([ferry, "bench", folder, *options], check=True, capture_output=True).stdout
    bench = json.loads(out)
    products = [op for op in bench["ops"] if op["op"] == "matmul"]
    rate = sum(op["flops"] for op in products) / sum(op["median_seconds"] for op in products)
    peak = bench["peak_flops_per_second"]
    print(f"products in ferry bench, 1 x 256: {rate / 1e9:.0f} GFLOP/s; the peak it measures: {peak / 1e9:.0f}")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("ferry")
    p.add_argument("folder")
    p.add_argument("--seq", type=int, nargs="+", default=[64, 256])
    p.add_argument("--steps", type=int, default=10)
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    print(f"PyTorch {torch.__version__}, threads: {args.threads}, load: {os.getloadavg()[0]:.1f}")
    heads = "ferry s", "PyTorch s", "ratio", "CPU s", "CPU s", "ratio"
    print(f"{'a step of training':30s}" + "".join(f" {x:>9s}" for x in heads), flush=True)
    for seq in args.seq:
        compare(args.ferry, args.folder, seq, args.steps, args.threads)
    print_rate(args.ferry, args.folder, args.threads)


main()
