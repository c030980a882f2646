"""train_speed.py FERRY FOLDER [--seq 64 256] [--threads N] [--llmc TREE] - steps of training on this CPU, by ferry, by
PyTorch and by llm.c in turns, in f32: forward pass, loss, backward pass, clipping and AdamW for 4 sequences.

One step of ferry, one of PyTorch, and so on; while one is measured the others are stopped, and the first two of each do
not count. Seconds are the median of the steps, then the CPU time of a step: on a machine that is shared with others
it says more, with OMP_WAIT_POLICY=passive in the environment, so that threads which wait take none. A ratio is
the other's time by ferry's: how many times as fast ferry is. The losses must agree.

TREE is a checkout of llm.c (GPT-2 only): a copy of its train_gpt2.c is compiled by its own Makefile, with OpenMP. It
does not clip."""

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import tempfile
import time

import torch
from transformers import AutoModelForCausalLM

BATCH, WARM_UP = 4, 2
SCHEDULE = "--lr 1e-3 --min-lr 1e-4 --lr-decay-style cosine --lr-warmup-iters 2 --weight-decay 0.1 --adam-beta2 0.95"
# Relative errors of the losses of steps 1 and 3, which has two updates behind it; llm.c does not clip, and decays
# biases too.
CHECKED = {0: {"PyTorch": 1e-4, "llm.c": 1e-4}, 2: {"PyTorch": 1e-4, "llm.c": 1e-3}}


class Program:
    """A program that prints a line with a loss for each step, and is stopped whenever it has."""

    def __init__(self, command, threads):
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdout=pipe, stderr=pipe, env=environment)
        self.process.send_signal(signal.SIGSTOP)

    def cpu_seconds(self):
        with open(f"/proc/{self.process.pid}/stat") as f:
            user, system = f.read().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def step(self):
        """(seconds, CPU seconds, loss)"""
        start, cpu, loss = time.perf_counter(), self.cpu_seconds(), None
        self.process.send_signal(signal.SIGCONT)
        while not loss:
            line = self.process.stdout.readline()
            if not line:
                raise SystemExit(self.process.stderr.read().decode())
            loss = re.search(rb"(?:lm loss:|train loss) (\S+)", line)
        self.process.send_signal(signal.SIGSTOP)
        seconds = time.perf_counter() - start
        return seconds, self.cpu_seconds() - cpu, float(loss[1])

    def close(self):
        self.process.kill()
        self.process.wait()


def ferry(args, seq):
    shape = f"--seq-length {seq} --micro-batch-size {BATCH} --global-batch-size {BATCH}"
    run = f"--mock-data --train-iters {args.steps} --log-interval 1 --threads {args.threads} --distributed-backend gloo"
    return Program([args.ferry, "train", "--load", args.folder, *f"{shape} {run} {SCHEDULE}".split()], args.threads)


class Stream:
    """The tokens of --mock-data."""

    def __init__(self, vocab_size, seq):
        self.vocab_size, self.seq, self.word = vocab_size, seq, 1

    def batch(self):
        ids = []
        for _ in range(BATCH * (self.seq + 1)):
            self.word = (6364136223846793005 * self.word + 1442695040888963407) % 2**64
            ids.append((self.word >> 33) % self.vocab_size)
        return torch.tensor(ids, dtype=torch.int32).view(BATCH, -1)


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
        self.stream, self.count = Stream(self.model.config.vocab_size, seq), 0

    def step(self):
        tokens = self.stream.batch().long()
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

    def close(self):
        pass


class Llmc:
    """llm.c, compiled in a folder of ours from a copy of what it needs."""

    # In the order of its checkpoint; a weight of HF's Conv1D is transposed.
    LAYER = [
        ("ln_1.weight", False),
        ("ln_1.bias", False),
        ("attn.c_attn.weight", True),
        ("attn.c_attn.bias", False),
        ("attn.c_proj.weight", True),
        ("attn.c_proj.bias", False),
        ("ln_2.weight", False),
        ("ln_2.bias", False),
        ("mlp.c_fc.weight", True),
        ("mlp.c_fc.bias", False),
        ("mlp.c_proj.weight", True),
        ("mlp.c_proj.bias", False),
    ]

    def __init__(self, tree, work):
        self.work = os.path.join(work, "llm.c")
        os.mkdir(self.work)
        for name in "Makefile", "train_gpt2.c", "llmc":
            source = os.path.join(tree, name)
            (shutil.copytree if os.path.isdir(source) else shutil.copy)(source, os.path.join(self.work, name))
        driver = os.path.join(os.path.dirname(os.path.abspath(__file__)), "llmc_steps.c")
        shutil.copy(driver, os.path.join(self.work, "test_gpt2.c"))
        make = subprocess.run(["make", "-C", self.work, "test_gpt2"], capture_output=True, text=True)
        if make.returncode:
            raise SystemExit(make.stdout + make.stderr)
        print("llm.c: " + next(line for line in make.stdout.splitlines() if "test_gpt2.c" in line), flush=True)

    def write_model(self, folder):
        """train_gpt2.py: write_model; version 3 is f32 with a padded vocabulary."""
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        c, values = model.config, model.transformer.state_dict()
        self.vocab_size, padded = c.vocab_size, -(-c.vocab_size // 128) * 128
        header = torch.zeros(256, dtype=torch.int32)
        sizes = 20240326, 3, c.n_positions, c.vocab_size, c.n_layer, c.n_head, c.n_embd, padded
        header[: len(sizes)] = torch.tensor(sizes)
        with open(os.path.join(self.work, "model.bin"), "wb") as f:
            f.write(header.numpy().tobytes())
            words = values["wte.weight"]
            f.write(torch.nn.functional.pad(words, (0, 0, 0, padded - c.vocab_size)).numpy().tobytes())
            f.write(values["wpe.weight"].numpy().tobytes())
            for name, transposed in self.LAYER:
                for layer in range(c.n_layer):
                    x = values[f"h.{layer}.{name}"]
                    f.write((x.t() if transposed else x).contiguous().numpy().tobytes())
            for name in "ln_f.weight", "ln_f.bias":
                f.write(values[name].numpy().tobytes())

    def start(self, args, seq):
        tokens, stream = os.path.join(self.work, "tokens.bin"), Stream(self.vocab_size, seq)
        with open(tokens, "wb") as f:
            for _ in range(args.steps):
                f.write(stream.batch().numpy().tobytes())
        program, model = (os.path.join(self.work, name) for name in ("test_gpt2", "model.bin"))
        return Program([program, model, tokens, *map(str, (BATCH, seq, args.steps))], args.threads)


def check(step, ours, name, theirs):
    limit = CHECKED.get(step, {}).get(name)  # the second line of ferry has the average of two
    if limit and abs(ours - theirs) > limit * theirs:
        raise SystemExit(f"step {step + 1}: the loss is {ours}, and {theirs} in {name}")


def compare(args, seq, llmc):
    peers = {"PyTorch": PyTorch(args.folder, seq)}
    if llmc:
        peers["llm.c"] = llmc.start(args, seq)
    ours = ferry(args, seq)
    results = {name: [] for name in peers}
    try:
        for step in range(args.steps):
            a = ours.step()
            for name, peer in peers.items():
                b = peer.step()
                check(step, a[2], name, b[2])
                results[name].append(a[:2] + b[:2])
    finally:
        for program in ours, *peers.values():
            program.close()
    for name, rows in results.items():
        wall, cpu, their_wall, their_cpu = map(statistics.median, zip(*rows[WARM_UP:]))
        columns = wall, their_wall, their_wall / wall, cpu, their_cpu, their_cpu / cpu
        title = f"{os.path.basename(args.folder)} f32, {BATCH} x {seq}: {name}"
        print(f"{title:34s}" + "".join(f" {x:9.3f}" for x in columns), flush=True)


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
    p.add_argument("--llmc", metavar="TREE")
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    print(f"PyTorch {torch.__version__}, threads: {args.threads}, load: {os.getloadavg()[0]:.1f}")
    if not args.llmc:
        print("llm.c: skipped (no --llmc TREE)")
    with tempfile.TemporaryDirectory() as work:
        llmc = Llmc(args.llmc, work) if args.llmc else None
        if llmc:
            llmc.write_model(args.folder)
        heads = "ferry s", "other's s", "ratio", "CPU s", "CPU s", "ratio"
        print(f"{'a step of training, beside':34s}" + "".join(f" {x:>9s}" for x in heads), flush=True)
        for seq in args.seq:
            compare(args, seq, llmc)
    print_rate(args.ferry, args.folder, args.threads)


main()
