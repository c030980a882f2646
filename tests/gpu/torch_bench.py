"""torch_bench.py [--rehearsal] [SECTION...] - PyTorch at the shapes of gpu_ops_bench: a line is name,
milliseconds. Medians, after a warm-up, of batches timed between events of the GPU, bf16, random
operands. Attention is that of FlashAttention and that of cuDNN, and the faster one stands for PyTorch,
also in a whole model of Llama-3.1-8B's shape with random weights and torch.compile. model_prefill is a
forward pass with the logits of every token. model_decode, _4 and _16 are a token of so many sequences
behind SHORT others, model_decode_long one behind CONTEXT, as CUDA graphs.

A section that fails says so, and the exit code is 1 at the end. What follows gets a process of its
own: the GPU may refuse everything to one in which a kernel or the recording of a graph failed.

--rehearsal: small shapes on the CPU, to see that the program runs. Its times say nothing.
--failed, --attention=KIND, --plain: for those processes. A section failed before; the fastest kind of
attention; the first section goes without graphs."""

import itertools
import math
import os
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

OPTIONS = sys.argv[1:]
REHEARSAL = "--rehearsal" in OPTIONS
if REHEARSAL:
    DEVICE, COMPILER, BUDGET_MS = "cpu", "eager", 1
    HIDDEN, FFN, VOCAB, LAYERS = 64, 96, 500, 12
    HEADS, KV_HEADS, HEAD_DIM = 4, 2, 16
    PREFILL, CONTEXT, SHORT, BATCH = 32, 32, 16, 4
    ATTENTIONS = {"flash": SDPBackend.FLASH_ATTENTION, "math": SDPBackend.MATH}
else:
    DEVICE, COMPILER, BUDGET_MS = "cuda", "inductor", 30
    HIDDEN, FFN, VOCAB, LAYERS = 4096, 14336, 128256, 32
    HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
    PREFILL, CONTEXT, SHORT, BATCH = 8192, 8192, 1024, 64
    ATTENTIONS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM
plain = False  # without graphs
fastest = next((o.partition("=")[2] for o in OPTIONS if o.startswith("--attention=")), None)


def random(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device=DEVICE, dtype=torch.float32).to(dtype)


def rotating(bytes_of_set, make):
    """As many sets of operands as no cache holds, in turn; gpu_ops_bench does the same."""
    sets = [make() for _ in range(max(1, min(16, math.ceil(256e6 / bytes_of_set))))]
    return itertools.cycle(sets).__next__


def time_ms(run):
    """By the GPU's own clock: starting and waiting on the host is not what is to be timed."""
    if REHEARSAL:
        start = time.perf_counter()
        run()
        return (time.perf_counter() - start) * 1e3
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def repeated(run, count):
    for _ in range(count):
        run()


class NoGraph(Exception):
    """A graph was begun and not finished: the process cannot be measured with any more."""


def as_graph(run, count):
    """Python takes longer to start a short op than the GPU takes to run it."""
    if REHEARSAL:
        return lambda: repeated(run, count)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            repeated(run, count)
    except RuntimeError as refused:
        raise NoGraph(first_line(refused)) from refused
    return graph.replay


def median_ms(run, budget_ms=BUDGET_MS, batches=7, long_graph=False):
    repeated(run, 3)
    once = time_ms(lambda: repeated(run, 3)) / 3
    count = max(1, int(budget_ms / once))
    graph = (once < 1 or long_graph) and not plain
    batch = as_graph(run, count) if graph else lambda: repeated(run, count)
    batch()
    return sorted(time_ms(batch) for _ in range(batches))[batches // 2] / count


def first_line(error):
    return str(error).strip().split("\n")[0]


def tell(name, ms):
    print(f"{name:26s} {ms:10.4f}", flush=True)


def report(name, run):
    tell(name, median_ms(run))


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
    table, ids = random(VOCAB, HIDDEN), torch.randint(0, VOCAB, (PREFILL,), device=DEVICE)
    norm, fused, act = (torch.compile(f, backend=COMPILER) for f in (rms_norm, add_norm, swiglu))
    report("embedding", lambda: F.embedding(ids, table))
    report("norm", lambda: norm(x, weight))
    report("add_norm", lambda: fused(x, y, weight))
    gate_up = random(PREFILL, 2 * FFN)
    report("silu", lambda: act(gate_up))
    for count in (1, 16):
        x, y, gate_up = random(count, HIDDEN), random(count, HIDDEN), random(count, 2 * FFN)
        report(f"decode_{count}_add_norm", lambda: fused(x, y, weight))
        report(f"decode_{count}_silu", lambda: act(gate_up))
    heads = random(PREFILL, HEADS + KV_HEADS, HEAD_DIM)
    cos, sin = (random(PREFILL, 1, HEAD_DIM // 2, dtype=torch.float32) for _ in range(2))
    rope = torch.compile(rotate, backend=COMPILER)
    report("rotary", lambda: rope(heads, cos, sin))


def time_attention(kind, operands, causal):
    """None where this kind does not take these shapes."""

    def run():
        with sdpa_kernel(ATTENTIONS[kind]):
            F.scaled_dot_product_attention(*operands(), is_causal=causal, enable_gqa=True)

    try:
        return median_ms(run)
    except RuntimeError as refused:
        print(f"# attention by {kind}: {first_line(refused)}")
        return None


def attention(name, sequences, q_count, k_count):
    """Which kind is the fastest."""

    def make():
        q = random(sequences, HEADS, q_count, HEAD_DIM)
        return q, *(random(sequences, KV_HEADS, k_count, HEAD_DIM) for _ in range(2))

    bytes_of_set = 4 * sequences * HEAD_DIM * (q_count * HEADS + k_count * KV_HEADS)
    operands = rotating(bytes_of_set, make)
    times = {kind: time_attention(kind, operands, q_count > 1) for kind in ATTENTIONS}
    times = {kind: ms for kind, ms in times.items() if ms is not None}
    for kind, ms in times.items():
        tell(f"{name}_{kind}", ms)
    if not times:
        raise RuntimeError(f"{name}: no kind of attention takes it")
    best = min(times, key=times.get)
    tell(name, times[best])
    return best


def sampling():
    logits = rotating(4 * BATCH * VOCAB, lambda: random(BATCH, VOCAB, dtype=torch.float32))
    report("decode_64_greedy", lambda: logits().argmax(-1))

    def top_p():
        values, ids = (logits() / 0.8).softmax(-1).sort(-1, descending=True)
        values = values.masked_fill(values.cumsum(-1) - values > 0.9, 0)
        return ids.gather(-1, values.multinomial(1))

    report("decode_64_top_p", top_p)
    logits = rotating(4 * VOCAB, lambda: random(1, VOCAB, dtype=torch.float32))
    report("decode_1_greedy", lambda: logits().argmax(-1))
    report("decode_1_top_p", top_p)


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


def make_model():
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(DEVICE):
        return Model().eval()


def angles(count):
    frequencies = 500000.0 ** (-torch.arange(0, HEAD_DIM, 2, device=DEVICE).float() / HEAD_DIM)
    return torch.arange(count, device=DEVICE).float()[:, None] * frequencies


def whole_model():
    kind = fastest or "flash"
    model = make_model()
    ids = torch.randint(0, VOCAB, (1, PREFILL), device=DEVICE)
    for block in model.blocks:
        block.compile(backend=COMPILER)
    cos, sin = angles(PREFILL).cos(), angles(PREFILL).sin()
    with sdpa_kernel(ATTENTIONS[kind]):  # also while it is compiled, which decides
        ms = median_ms(lambda: model(ids, cos, sin), budget_ms=1)
    tell("model_prefill", ms)
    print(f"# {PREFILL / ms * 1e3:.0f} tokens/s of Llama-3.1-8B's shape, attention by {kind}")


def decode_block(x, cos, sin, keys, values, norm_1, norm_2, qkv, projection, gate_up, down):
    """Keys and values have a place for this token at their end."""
    b = x.shape[0]
    heads = F.linear(rms_norm(x, norm_1), qkv).view(b, 1, HEADS + 2 * KV_HEADS, HEAD_DIM)
    q, k, v = heads.transpose(1, 2).split([HEADS, KV_HEADS, KV_HEADS], 1)
    keys[:, :, -1:] = rotate(k, cos, sin)
    values[:, :, -1:] = v
    o = F.scaled_dot_product_attention(rotate(q, cos, sin), keys, values, enable_gqa=True)
    x = x + F.linear(o.transpose(1, 2).reshape(b, 1, -1), projection)
    return x + F.linear(swiglu(F.linear(rms_norm(x, norm_2), gate_up)), down)


def time_decoding(model, kind, count, context):
    """Milliseconds of a step of `count` sequences behind `context` tokens. It is compiled anew: sizes
    that change would become variables."""
    torch._dynamo.reset()
    block_step = torch.compile(decode_block, backend=COMPILER)
    ids = torch.randint(0, VOCAB, (count, 1), device=DEVICE)
    cos, sin = angles(context + 1)[-1:].cos(), angles(context + 1)[-1:].sin()
    caches = [[random(count, KV_HEADS, context + 1, HEAD_DIM) for _ in range(2)] for _ in range(LAYERS)]

    def step():
        x = model.embedding(ids)
        for block, cache in zip(model.blocks, caches):
            x = block_step(x, cos, sin, *cache, *block.parameters())
        return model.head(model.norm(x)).argmax(-1)

    with sdpa_kernel(ATTENTIONS[kind]):
        return median_ms(step, long_graph=True)


def whole_decoding():
    """The kind that is the faster one for one sequence is that of all."""
    model = make_model()
    times = {}
    for kind in ATTENTIONS:
        try:
            times[kind] = time_decoding(model, kind, 1, SHORT)
        except RuntimeError as refused:
            print(f"# decoding, attention by {kind}: {first_line(refused)}")
    kind = min(times, key=times.get)
    tell("model_decode", times[kind])
    for count in (4, 16):
        tell(f"model_decode_{count}", time_decoding(model, kind, count, SHORT))
    tell("model_decode_long", time_decoding(model, kind, 1, CONTEXT - 2))
    print(f"# {1e3 / times[kind]:.0f} tokens/s of one sequence, attention by {kind}")


def prefill_attention():
    global fastest
    fastest = attention("attention", 1, PREFILL, PREFILL)


def products():
    matmul("matmul_qkv", PREFILL, QKV, HIDDEN)
    matmul("matmul_projection", PREFILL, HIDDEN, HIDDEN)
    matmul("matmul_gate_up", PREFILL, 2 * FFN, HIDDEN)
    matmul("matmul_down", PREFILL, HIDDEN, FFN)
    matmul("matmul_head", PREFILL, VOCAB, HIDDEN, torch.float32)


def decoding():
    for count in (1, BATCH):
        if count == 1:
            matmul("decode_1_matmul_qkv", 1, QKV, HIDDEN)
            matmul("decode_1_matmul_head", 1, VOCAB, HIDDEN, torch.float32)
        matmul(f"decode_{count}_matmul_gate_up", count, 2 * FFN, HIDDEN)
        matmul(f"decode_{count}_matmul_down", count, HIDDEN, FFN)


def decoding_attention():
    for count in (1, BATCH):
        attention(f"decode_{count}_attention", count, 1, CONTEXT)


SECTIONS = {
    section.__name__: section
    for section in (prefill_attention, products, decoding, decoding_attention, sampling,
                    elementwise, whole_model, whole_decoding)
}


def go_on(sections, *options):
    """In a new process, which takes the place of this one. No file of the GPU's stays open."""
    if REHEARSAL:
        options += ("--rehearsal",)
    if fastest:
        options += (f"--attention={fastest}",)
    sys.stdout.flush()
    os.closerange(3, 4096)
    os.execv(sys.executable, [sys.executable, __file__, *options, *sections])


def main():
    global plain
    if not REHEARSAL and not torch.cuda.is_available():
        print("skipped: no GPU")
        return 0
    names = [argument for argument in OPTIONS if not argument.startswith("--")]
    failed = ["--failed"] if "--failed" in OPTIONS else []
    if not names and not failed:
        device = "a rehearsal" if REHEARSAL else torch.cuda.get_device_name()
        print(f"# PyTorch {torch.__version__}, {device}: name, ms")
        names = list(SECTIONS)
    for i, name in enumerate(names):
        plain = i == 0 and "--plain" in OPTIONS
        try:
            SECTIONS[name]()
        except NoGraph as refused:
            print(f"# {name}: without graphs: {refused}")
            go_on(names[i:], "--plain", *failed)
        except Exception as error:
            print(f"# {name}: failed: {type(error).__name__}: {first_line(error)}")
            go_on(names[i + 1 :], "--failed")
    return 1 if failed else 0


with torch.inference_mode():
    code = main()
sys.exit(code)
