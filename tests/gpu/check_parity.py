"""check_parity.py OURS MODEL... - whether logits in bf16 are as near to the truth as those of
transformers in bf16 on the same GPU: of each model |x - truth| / |truth| of both; fails where ours is
more than 1.1 times theirs. A model's folder has logits.safetensors, of f32; OURS is a folder of what
`ferry forward` wrote, NAME.bf16.safetensors."""

import os
import sys

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM


def distances(ours, folder):
    golden = load_file(f"{folder}/logits.safetensors")
    truth = golden["logits"].double()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).cuda().eval()
    with torch.inference_mode():
        theirs = model(golden["input_ids"].long().cuda()).logits.double().cpu()
    name = os.path.basename(folder.rstrip("/"))
    mine = load_file(f"{ours}/{name}.bf16.safetensors")["logits"].double().reshape(truth.shape)
    return name, *(float((x - truth).norm() / truth.norm()) for x in (mine, theirs))


failed = 0
for model in sys.argv[2:]:
    name, mine, theirs = distances(sys.argv[1], model)
    good = mine <= 1.1 * theirs
    failed += not good
    print(f"{'ok' if good else 'FAILED'} parity {name}: off by {mine:.2e}, transformers by {theirs:.2e}")
sys.exit(failed > 0)
