"""train_bench.py FERRY LIBRARIES [--models MODEL...] [--kernels] [--rehearsal] - steps of training on a GPU, by ferry and by
PyTorch, in bf16 with float32 master weights, AdamW and clipping. A line is a model, a program, the median of
milliseconds a step, tokens a second, TFLOP/s of the model (6 x weights + attention), and GiB of GPU memory at most.

PyTorch has transformers' model: weights of float32 under autocast, FlashAttention, fused AdamW; eager, and compiled by
torch.compile. Both read the same weights and the same tokens, and the losses of the first steps must agree: within
1 %. ferry-tuned is ferry with FERRY_CUDA_TUNE=1. LIBRARIES is the LD_LIBRARY_PATH of ferry alone. --rehearsal: small
models, on the CPU.

--kernels: in place of that, what the second step spends in each kernel, by ncu: launches, milliseconds, share, name."""

import argparse
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

WARM_UP, STEPS = 4, 14
RATE, BETAS, EPS, DECAY, CLIP = 1e-4, (0.9, 0.95), 1e-8, 0.1, 1.0
MODELS = {
    # options of ferry synth, micro-batch size, tokens
    "gpt2-124M": ("--model gpt2 --layers 12 --hidden 768 --heads 12 --ffn-hidden-size 3072 --vocab-size 50257 "
                  "--max-position-embeddings 1024", 16, 1024),
    "gpt2-774M": ("--model gpt2 --layers 36 --hidden 1280 --heads 20 --ffn-hidden-size 5120 --vocab-size 50257 "
                  "--max-position-embeddings 1024", 32, 1024),
    "llama3.2-1B": ("--model llama --layers 16 --hidden 2048 --heads 32 --kv-heads 8 --ffn-hidden-size 8192 "
                    "--vocab-size 128256 --max-position-embeddings 4096 --tied", 2, 4096),
}
SMALL = {
    "gpt2-124M": ("--model gpt2 --layers 2 --hidden 64 --heads 2 --ffn-hidden-size 128 --vocab-size 500 "
                  "--max-position-embeddings 64", 2, 64),
    "gpt2-774M": ("--model gpt2 --layers 3 --hidden 80 --heads 4 --ffn-hidden-size 160 --vocab-size 500 "
                  "--max-position-embeddings 64", 2, 64),
    "llama3.2-1B": ("--model llama --layers 2 --hidden 64 --heads 4 --kv-heads 2 --ffn-hidden-size 128 --vocab-size 500 "
                    "--max-position-embeddings 64 --tied", 2, 32),
}


def tokens_of(vocab_size, count):
    """The stream of --mock-data, one sample after another."""
    word, ids = 1, []
    for _ in range(count):
        word = (6364136223846793005 * word + 1442695040888963407) % 2**64
        ids.append((word >> 33) % vocab_size)
    return ids


def flops_of_step(config, batch, seq):
    """Products of the forward pass and twice as many of the backward pass; causal attention is half a square."""
    get = lambda *names: next(config[n] for n in names if n in config)
    layers, hidden = get("num_hidden_layers", "n_layer"), get("hidden_size", "n_embd")
    heads = get("num_attention_heads", "n_head")
    kv = config.get("num_key_value_heads", heads)
    if "n_layer" in config:
        ffn = 2 * (config.get("n_inner") or 4 * hidden)
    else:
        ffn = 3 * config["intermediate_size"]
    weights = layers * hidden * (2 * hidden + 2 * hidden * kv // heads + ffn) + hidden * config["vocab_size"]
    return 3 * batch * seq * (2 * weights + layers * 2 * seq * hidden)


def report(model, program, times, peak, flops, tokens):
    median = statistics.median(times[WARM_UP:])
    memory = f"{peak / 2**30:.1f}" if peak else "-"
    print(f"{model} {program} {median * 1e3:.2f} {tokens / median:.0f} {flops / median / 1e12:.1f} {memory}", flush=True)


def memory_in_use():
    query = "nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"
    try:
        return int(subprocess.run(query, capture_output=True, text=True).stdout.split()[0]) * 2**20
    except (OSError, IndexError, ValueError):
        return 0


def ferry_command(args, folder, batch, seq, steps, log):
    line = (f"train --load {folder} --mock-data --seq-length {seq} --micro-batch-size {batch} --global-batch-size {batch} "
            f"--train-iters {steps} --lr {RATE} --lr-decay-style constant --weight-decay {DECAY} --clip-grad {CLIP} "
            f"--adam-beta2 {BETAS[1]} --bf16 --log-interval 1 --log-jsonl {log} --device {args.device}")
    return [args.ferry, *line.split()]


def environment_of(args, **more):
    return {**os.environ, "LD_LIBRARY_PATH": args.libraries, **more}


def train_by_ferry(args, folder, batch, seq, work, **variables):
    log, said = os.path.join(work, "log.jsonl"), os.path.join(work, "said")
    if os.path.exists(log):
        os.remove(log)
    before, peak = memory_in_use(), 0
    with open(said, "w") as out:
        command = ferry_command(args, folder, batch, seq, args.steps, log)
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment_of(args, **variables))
        while process.poll() is None:
            peak = max(peak, memory_in_use() - before)
            time.sleep(0.2)
    if process.returncode:
        with open(said) as f:
            raise RuntimeError(f"ferry train: exit code {process.returncode}\n" + "".join(f.readlines()[-15:]))
    with open(log) as lines:
        steps = [json.loads(x) for x in lines]
    return [s["elapsed_ms"] / 1e3 for s in steps], [s["loss"] for s in steps], peak


def train_by_torch(args, folder, batch, seq, compiled):
    import torch
    from transformers import AutoModelForCausalLM

    device = args.device
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").to(device)
    model.eval()  # no dropout, as ferry's from a folder
    parameters = list(model.parameters())
    groups = [{"params": [p for p in parameters if p.dim() > 1], "weight_decay": DECAY},
              {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=EPS, fused=True)
    vocabulary = model.config.vocab_size
    stream = torch.tensor(tokens_of(vocabulary, args.steps * batch * (seq + 1))).view(args.steps, batch, seq + 1).to(device)

    def loss_of(ids):
        with torch.autocast(device, torch.bfloat16):
            logits = model(input_ids=ids[:, :-1], use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())

    run = torch.compile(loss_of) if compiled else loss_of
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    times, losses = [], []
    for ids in stream:
        wait()
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = run(ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        losses.append(loss.item())
        wait()
        times.append(time.perf_counter() - start)
    return times, losses, torch.cuda.max_memory_allocated() if device == "cuda" else 0


def kernels_by_ferry(args, folder, batch, seq, work):
    """The launches of the second step: from after the optimizer's first to its second."""
    out = os.path.join(work, "kernels.csv")
    ncu = f"ncu --clock-control none --target-processes all --metrics gpu__time_duration.sum --csv --log-file {out}".split()
    command = ferry_command(args, folder, batch, seq, 2, os.path.join(work, "log.jsonl"))
    done = subprocess.run([*ncu, *command], capture_output=True, text=True, env=environment_of(args))
    if done.returncode:
        raise RuntimeError(f"ncu: exit code {done.returncode}\n{done.stdout[-1000:]}{done.stderr[-1000:]}")
    with open(out) as f:
        rows = list(csv.DictReader(line for line in f if line.startswith('"')))
    scale = {"ns": 1e-6, "us": 1e-3, "usecond": 1e-3, "nsecond": 1e-6, "ms": 1, "msecond": 1, "s": 1e3, "second": 1e3}
    launches = [(r["Kernel Name"], float(r["Metric Value"].replace(",", "")) * scale[r["Metric Unit"]]) for r in rows]
    updates = [i for i, (name, _) in enumerate(launches) if "adam" in name]
    ends = [i for i, after in zip(updates, updates[1:] + [10**9]) if after - i > 20]
    step = launches[ends[0] + 1 : ends[1] + 1]
    kernels = {}
    for name, ms in step:
        count, total = kernels.get(name, (0, 0))
        kernels[name] = count + 1, total + ms
    whole = sum(ms for _, ms in step)
    print(f"# {os.path.basename(folder)}, {batch} x {seq}: {len(step)} launches, {whole:.2f} ms")
    for name, (count, ms) in sorted(kernels.items(), key=lambda k: -k[1][1])[:25]:
        print(f"{count:5d} {ms:8.3f} {100 * ms / whole:5.1f} %  {name[:110]}", flush=True)


def first_line(error):
    return str(error).strip().split("\n")[0]


def has_torch():
    from importlib.util import find_spec

    return all(find_spec(name) for name in ("torch", "transformers"))


def measure(args, name, work):
    options, batch, seq = (SMALL if args.rehearsal else MODELS)[name]
    folder = os.path.join(work, name)
    synth = [args.ferry, "synth", "-q", "--no-fsync", "--dtype", "bf16", *options.split(), folder]
    subprocess.run(synth, check=True, env=environment_of(args))
    with open(os.path.join(folder, "config.json")) as f:
        flops = flops_of_step(json.load(f), batch, seq)
    if args.kernels:
        kernels_by_ferry(args, folder, batch, seq, work)
        shutil.rmtree(folder)
        return
    tuned = {"FERRY_CUDA_TUNE": "1", "FERRY_CUDA_CACHE": os.path.join(work, "tuned")}
    for program, variables in ("ferry", {}), ("ferry-tuned", tuned):
        times, losses, peak = train_by_ferry(args, folder, batch, seq, work, **variables)
        report(name, program, times, peak, flops, batch * seq)
    if has_torch():
        for compiled in (False,) if args.rehearsal else (False, True):
            theirs = "PyTorch-compiled" if compiled else "PyTorch-eager"
            try:
                times, expected, peak = train_by_torch(args, folder, batch, seq, compiled)
            except Exception as error:  # theirs, not ferry's
                print(f"# {name}, {theirs}: failed: {type(error).__name__}: {first_line(error)}", flush=True)
                continue
            report(name, theirs, times, peak, flops, batch * seq)
            ends = [f"{x[0]:.4f} ... {x[-1]:.4f}" for x in (losses, expected)]
            print(f"# {name}, losses: ferry {ends[0]}, {theirs} {ends[1]}", flush=True)
            if any(abs(a - b) > 0.01 * b for a, b in zip(losses[:3], expected[:3])):
                raise RuntimeError(f"the losses differ: {losses[:3]} and {expected[:3]}")
    else:
        print(f"# {name}: no PyTorch and transformers")
    shutil.rmtree(folder)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("ferry")
    p.add_argument("libraries")
    p.add_argument("--rehearsal", action="store_true")
    p.add_argument("--kernels", action="store_true")
    p.add_argument("--models", nargs="+", default=list(MODELS))
    args = p.parse_args()
    args.device, args.steps = ("cpu", 6) if args.rehearsal else ("cuda", STEPS)
    if not args.kernels:
        print("# a step of training in bf16: model, program, ms, tokens/s, TFLOP/s, GiB of GPU memory")
    failed = False
    shared = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=shared) as work:
        for name in args.models:
            try:
                measure(args, name, work)
            except Exception as error:  # the next model may do
                failed = True
                print(f"# {name}: failed: {type(error).__name__}: {error}", flush=True)
    return failed


sys.exit(main())
