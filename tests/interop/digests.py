"""The digests of a Hugging Face model's tensors, from their definition (kernels/cpu/digest_sums.h,
ckpt/digest.h) and nothing of ferry's: what `ferry digest` must print for it, in any format,
before the two lines about the config."""

import hashlib

import expected
import torch

P = 2**61 - 1
ROOTS = (499170133717692731, 2276945000874400884)
NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def digest(tensor):
    bits = {2: torch.uint16, 4: torch.uint32}[tensor.element_size()]
    elements = tensor.contiguous().view(bits).flatten().tolist()
    sums = []
    for root in ROOTS:
        total, power = 0, 1
        for e in elements:
            total, power = total + e * power, power * root % P
        sums.append(total % P)
    return f"{NAMES[tensor.dtype]}[{','.join(map(str, tensor.shape))}]:{sums[0]:016x}{sums[1]:016x}"


def lines(folder):
    m = expected.Model(folder)
    tensors = {n: t for n, t, _ in (*expected.before_layers(m, m.vocab, 0), *expected.after_layers(m, m.vocab, 0))}
    for i in range(m.layers):
        for name, tensor, _ in expected.layer(m, i):
            tensors[f"decoder.layers.{i}.{name.replace('local_experts', 'experts')}"] = tensor
    text = "".join(f"{name}\t{digest(tensors[name])}\n" for name in sorted(tensors))
    return text + "*\t" + hashlib.sha256(text.encode()).hexdigest() + "\n"
