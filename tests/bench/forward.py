"""forward.py FERRY MODEL... - a forward pass of 1 x 512 tokens on this CPU, by ferry and by transformers in
turns, in f32 and in bf16. Seconds: the best and the median of all rounds; the ratio is that of the best."""

import json
import os
import statistics
import subprocess
import sys
import time

import torch
from transformers import AutoModelForCausalLM

TOKENS, ROUNDS = 512, 5
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
THREADS = len(os.sched_getaffinity(0))


def time_ferry(ferry, folder, dtype):
    options = f"--dtype {dtype} --seq {TOKENS} --repeats 1 --threads {THREADS} --json -q".split()
    out = subprocess.run([ferry, "bench", folder, *options], check=True, capture_output=True).stdout
    return json.loads(out)["median_seconds"]


def time_transformers(model, ids):
    start = time.perf_counter()
    model(ids, use_cache=False)
    return time.perf_counter() - start


def compare(ferry, folder, dtype):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype]).eval()
    ids = torch.arange(TOKENS)[None] * 7919 % model.config.vocab_size
    time_transformers(model, ids)  # warms up, as ferry does by itself
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(time_ferry(ferry, folder, dtype))
        theirs.append(time_transformers(model, ids))
    columns = min(ours), statistics.median(ours), min(theirs), statistics.median(theirs), min(ours) / min(theirs)
    title = f"{os.path.basename(folder)} {model.num_parameters() / 1e9:.2f}B {dtype}"
    print(f"{title:38s}" + "".join(f" {x:8.3f}" for x in columns), flush=True)


torch.set_num_threads(THREADS)
with torch.inference_mode():
    for folder in sys.argv[2:]:
        for dtype in DTYPES:
            compare(sys.argv[1], folder, dtype)
