"""check_parity.py OURS MODEL... - whether logits in bf16 are as near to the truth as those of
transformers in bf16, on the GPU where there is one. Prints |x - truth| / |truth| of both for each
model, and of all models together. Fails where ours of all is more than 1.1 times theirs.

1. One model does not decide by itself: both errors are roundings by chance, of 40 tokens. But twice
   theirs is no chance, and fails.
2. A rounding may send a token to another expert. Its error is then some 20 times as large, and it is
   by chance whose it is. So tokens of models with experts are left out where an error is more than
   three times the median of its side. More than a tenth of ours would be no chance, and fails.

OURS is a folder with NAME.f64 of each model, logits as doubles, as train/loop/forward_test writes them. A
model's folder has the truth, of f32, in logits.safetensors."""

import os
import sys

import numpy
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

MAX_OF_ALL, MAX_OF_ONE = 1.1, 2
OUTLIER, MAX_OUTLIERS = 3, 0.1


def theirs_of(folder, ids):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(device).eval()
    experts = [getattr(model.config, name, None) for name in ("num_local_experts", "num_experts")]
    with torch.inference_mode():
        return model(ids.long().to(device)).logits.double().cpu(), any(experts)


def squares(ours, folder, name):
    """Sums over the tokens of |ours - truth|^2, |theirs - truth|^2, |truth|^2; how many tokens of
    ours and of theirs are outliers, of how many."""
    golden = load_file(f"{folder}/logits.safetensors")
    truth = golden["logits"].double()
    theirs, has_experts = theirs_of(folder, golden["input_ids"])
    mine = torch.from_numpy(numpy.fromfile(f"{ours}/{name}.f64")).reshape(truth.shape)
    norms = truth.norm(dim=-1).flatten()
    errors = torch.stack([(x - truth).norm(dim=-1).flatten() for x in (mine, theirs)])
    shares = errors / norms
    outliers = (shares > OUTLIER * shares.median(dim=1, keepdim=True).values) & has_experts
    left = ~outliers.any(dim=0)
    sums = torch.cat([errors, norms[None]])[:, left].square().sum(dim=1).numpy()
    return sums, outliers.sum(dim=1).tolist(), norms.numel()


def judge(name, sums, most, note=""):
    mine, theirs = (sums[:2] / sums[2]) ** 0.5
    good = bool(mine <= most * theirs)
    print(f"{'ok' if good else 'FAILED':6s} parity {name:10s} off by {mine:.2e}, transformers by "
          f"{theirs:.2e}: {mine / theirs:.2f} times{note}")
    return good


good, total = True, numpy.zeros(3)
for folder in sys.argv[2:]:
    name = os.path.basename(folder.rstrip("/"))
    if not os.path.exists(f"{sys.argv[1]}/{name}.f64"):
        print(f"FAILED parity {name}: no logits")
        good = False
        continue
    sums, (mine, theirs), count = squares(sys.argv[1], folder, name)
    good &= judge(name, sums, MAX_OF_ONE, f"; without {mine} and {theirs} of {count} tokens"
                  if mine + theirs else "")
    if mine > MAX_OUTLIERS * count:
        print(f"FAILED parity {name}: {mine} tokens of ours are far off")
        good = False
    total += sums
if total[2] > 0:
    good &= judge("of all", total, MAX_OF_ALL)
sys.exit(not good)
