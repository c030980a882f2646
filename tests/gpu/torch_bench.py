"""torch_bench.py - PyTorch at the shapes of ops_bench: a line is name, milliseconds. Medians, after a
warm-up, of batches timed together, bf16, random operands. Then the forward pass of a whole model of
Llama-3.1-8B's shape with random weights: torch.compile, its fused attention, logits of every token."""

import itertools
import math
import time

import torch
import torch.nn.functional as F

HIDDEN, FFN, VOCAB, LAYERS = 4096, 14336, 128256, 32
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM
PREFILL, CONTEXT, BATCH = 8192, 8192, 64


def random(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device="cuda", dtype=torch.float32).to(dtype)


def rotating(bytes_of_set, make):
    """As many sets of operands as no cache holds, in turn; ops_bench does the same."""
    sets = [make() for _ in range(max(1, min(16, math.ceil(256e6 / bytes_of_set))))]
    return itertools.cycle(sets).__next__


def time_ms(run):
    torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


def repeated(run, count):
    for _ in range(count):
        run()


def as_graph(run, count):
    """What Python takes to start a short op is not what is to be timed."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        repeated(run, count)
    return graph.replay


def median_ms(run, budget_ms=30, batches=7):
    repeated(run, 3)
    once = time_ms(lambda: repeated(run, 3)) / 3
    count = max(1, int(budget_ms / once))
    try:
        batch = as_graph(run, count) if once < 1 else lambda: repeated(run, count)
        batch()
    except RuntimeError:  # some ops wait for the host
        batch = lambda: repeated(run, count)
    return sorted(time_ms(batch) for _ in range(batches))[batches // 2] / count


def report(name, run):
    print(f"{name:26s} {median_ms(run):10.4f}", flush=True)


def product_f32(x, w):
    try:
        return torch.mm(x, w.T, out_dtype=torch.float32)
    except (TypeError, RuntimeError):
        return F.linear(x, w).float()


def matmul(name, m, n, k, dtype=torch.bfloat16):
    operands = rotating(2 * (m * k + n * k + m * n), lambda: (random(m, k), random(n, k)))
    product = product_f32 if dtype == torch.float32 else F.linear
    report(name, lambda: product(*operands()))


def rms_norm(x, weight):
    return F.rms_norm(x, (HIDDEN,), weight, 1e-5)


def add_norm(x, y, weight):
    total = x + y
    return total, rms_norm(total, weight)


def swiglu(gate_up):
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def elementwise():
    x, y, weight = random(PREFILL, HIDDEN), random(PREFILL, HIDDEN), random(HIDDEN)
    table, ids = random(VOCAB, HIDDEN), torch.randint(0, VOCAB, (PREFILL,), device="cuda")
    norm, fused, act = (torch.compile(f) for f in (rms_norm, add_norm, swiglu))
    report("embedding", lambda: F.embedding(ids, table))
    report("norm", lambda: norm(x, weight))
    report("add_norm", lambda: fused(x, y, weight))
    gate_up = random(PREFILL, 2 * FFN)
    report("silu", lambda: act(gate_up))
    heads = random(PREFILL, HEADS + KV_HEADS, HEAD_DIM)
    cos, sin = (random(PREFILL, 1, HEAD_DIM // 2, dtype=torch.float32) for _ in range(2))
    rope = torch.compile(rotate)
    report("rotary", lambda: rope(heads, cos, sin))


def attention(name, sequences, q_count, k_count):
    def make():
        q = random(sequences, HEADS, q_count, HEAD_DIM)
        return q, *(random(sequences, KV_HEADS, k_count, HEAD_DIM) for _ in range(2))

    bytes_of_set = 4 * sequences * HEAD_DIM * (q_count * HEADS + k_count * KV_HEADS)
    operands, causal = rotating(bytes_of_set, make), q_count > 1
    report(
        name,
        lambda: F.scaled_dot_product_attention(*operands(), is_causal=causal, enable_gqa=True),
    )


def sampling():
    logits = rotating(4 * BATCH * VOCAB, lambda: random(BATCH, VOCAB, dtype=torch.float32))
    report("decode_64_greedy", lambda: logits().argmax(-1))

    def top_p():
        values, ids = (logits() / 0.8).softmax(-1).sort(-1, descending=True)
        values = values.masked_fill(values.cumsum(-1) - values > 0.9, 0)
        return ids.gather(-1, values.multinomial(1))

    report("decode_64_top_p", top_p)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = (torch.nn.RMSNorm(HIDDEN, 1e-5) for _ in range(2))
        self.qkv = torch.nn.Linear(HIDDEN, QKV, bias=False)
        self.projection = torch.nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)
        self.gate_up = torch.nn.Linear(HIDDEN, 2 * FFN, bias=False)
        self.down = torch.nn.Linear(FFN, HIDDEN, bias=False)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        qkv = self.qkv(self.norm_1(x)).view(b, t, HEADS + 2 * KV_HEADS, HEAD_DIM).transpose(1, 2)
        q, k, v = qkv.split([HEADS, KV_HEADS, KV_HEADS], 1)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.projection(o.transpose(1, 2).reshape(b, t, -1))
        return x + self.down(swiglu(self.gate_up(self.norm_2(x))))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCAB, HIDDEN)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = torch.nn.RMSNorm(HIDDEN, 1e-5)
        self.head = torch.nn.Linear(HIDDEN, VOCAB, bias=False)

    def forward(self, ids, cos, sin):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


def whole_model():
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Model().eval()
    frequencies = 500000.0 ** (-torch.arange(0, HEAD_DIM, 2, device="cuda").float() / HEAD_DIM)
    angles = torch.arange(PREFILL, device="cuda").float()[:, None] * frequencies
    ids = torch.randint(0, VOCAB, (1, PREFILL), device="cuda")
    for block in model.blocks:
        block.compile()
    cos, sin = angles.cos(), angles.sin()
    ms = median_ms(lambda: model(ids, cos, sin), budget_ms=1)
    print(f"{'model_prefill':26s} {ms:10.4f}")
    print(f"# {PREFILL / ms * 1e3:.0f} tokens/s of Llama-3.1-8B's shape")


def main():
    if not torch.cuda.is_available():
        print("skipped: no GPU")
        return
    print(f"# PyTorch {torch.__version__}, {torch.cuda.get_device_name()}: name, ms")
    elementwise()
    attention("attention", 1, PREFILL, PREFILL)
    matmul("matmul_qkv", PREFILL, QKV, HIDDEN)
    matmul("matmul_projection", PREFILL, HIDDEN, HIDDEN)
    matmul("matmul_gate_up", PREFILL, 2 * FFN, HIDDEN)
    matmul("matmul_down", PREFILL, HIDDEN, FFN)
    matmul("matmul_head", PREFILL, VOCAB, HIDDEN, torch.float32)
    for count in (1, BATCH):
        if count == 1:
            matmul("decode_1_matmul_qkv", 1, QKV, HIDDEN)
            matmul("decode_1_matmul_head", 1, VOCAB, HIDDEN, torch.float32)
        matmul(f"decode_{count}_matmul_gate_up", count, 2 * FFN, HIDDEN)
        matmul(f"decode_{count}_matmul_down", count, HIDDEN, FFN)
        attention(f"decode_{count}_attention", count, 1, CONTEXT)
    sampling()
    whole_model()


with torch.inference_mode():
    main()
