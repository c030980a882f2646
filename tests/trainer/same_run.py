"""same_run.py - compares a run of ferry train with another run, of Megatron-LM or its own.

    same_run.py steps WANT.jsonl LOG.jsonl LOSS GRAD_NORM [FIRST LAST]
        lr, weight decay, counters, loss scale and skips are equal; losses and norms are within
        these relative errors. FIRST LAST: only these iterations of WANT.
    same_run.py lines LOG.txt STDOUT ERROR
        the same lines to the letter, but for times and speeds, and those about checkpoints; numbers
        have the same form, and are within this relative error or a unit of their last digit. Learning rates are equal.
    same_run.py bits A.jsonl B.jsonl [FIRST]
        every member is equal but times and speeds; FIRST: iterations of A from it on.

Says each difference, and exits with 1 if there are some."""
import json
import re
import sys

ROUTER_LOSSES = ("load_balancing_loss", "seq_load_balancing_loss", "global_load_balancing_loss", "z_loss")
EXACT = ("iteration", "consumed_samples", "lr", "weight_decay", "logged_lr", "loss_scale", "skipped")
TIMES = ("elapsed_ms", "tokens_per_s", "tflops", "mfu", "peak_tflops")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:E[+-]\d+)?")
wrong = []


def objects(path):
    with open(path) as lines:
        return [json.loads(line) for line in lines]


def is_near(a, b, relative, absolute=0.0):
    if a is None or b is None:
        return a is b
    return abs(a - b) <= relative * abs(a) + absolute


def counted(want, got):
    if [w["iteration"] for w in want] == [g["iteration"] for g in got] and want:
        return True
    wrong.append("iterations %s, wanted %s" % ([g["iteration"] for g in got],
                                               [w["iteration"] for w in want]))
    return False


def steps(want, log, loss, norm, first=1, last=10**9):
    want = [w for w in objects(want) if int(first) <= w["iteration"] <= int(last)]
    got = objects(log)
    limits = {"loss": float(loss), "grad_norm": float(norm), "params_norm": float(loss)}
    for w, g in zip(want, got) if counted(want, got) else []:
        for name in EXACT:
            if w[name] != g[name]:
                wrong.append("iteration %d: %s %s, wanted %s" % (w["iteration"], name, g[name], w[name]))
        both = {name: float(loss) for name in ROUTER_LOSSES if name in w and name in g}
        for name, limit in {**limits, **both}.items():
            if not is_near(w.get(name), g[name], limit):
                wrong.append("iteration %d: %s %s, wanted %s" % (w["iteration"], name, g[name], w[name]))


def peer(want, log, error):
    want, got = objects(want), objects(log)
    want = [{"iteration": w["step"], **w} for w in want if "step" in w]
    for w, g in zip(want, got) if counted(want, got) else []:
        for name, limit in ("lr", 0), ("loss", float(error)), ("grad_norm", float(error)), \
                ("params_norm", float(error)):
            if not is_near(w[name], g[name], limit):
                wrong.append("iteration %d: %s %s, wanted %s" % (w["iteration"], name, g[name], w[name]))


def scales_after(skips, window, hysteresis, scale=2.0**32):
    """The loss scale after each iteration, by the rule of Megatron-LM's DynamicGradScaler."""
    good, left = 0, hysteresis
    for skipped in skips:
        good, left = (0, left - 1) if skipped else (good + 1, left)
        if skipped and left <= 0:
            scale = max(scale / 2, 1.0)
        if good == window:
            good, left, scale = 0, hysteresis, scale * 2
        yield scale


def scales(want, log, loss, skipped, window, hysteresis):
    want, got = objects(want), objects(log)
    rates = dict((w["logged_lr"], None) for w in want)  # each once, in order of updates
    rates = list(rates) + [None] * len(got)
    if not counted(want, got):
        return
    if not all(g["skipped"] for g in got[:int(skipped)]):
        wrong.append("one of the first %s iterations is not skipped" % skipped)
    updates = 0
    after = scales_after([g["skipped"] for g in got], int(window), int(hysteresis))
    for w, g, scale in zip(want, got, after):
        name = "iteration %d: " % g["iteration"]
        updates += not g["skipped"]
        if g["loss_scale"] != scale:
            wrong.append(name + "loss_scale %s, wanted %s" % (g["loss_scale"], scale))
        if rates[updates] is not None and g["logged_lr"] != rates[updates]:
            wrong.append(name + "logged_lr %s, wanted %s" % (g["logged_lr"], rates[updates]))
        if (g["grad_norm"] is None) != g["skipped"]:
            wrong.append(name + "grad_norm %s" % g["grad_norm"])
        if not g["skipped"] and not is_near(w["loss"], g["loss"], float(loss)):
            wrong.append(name + "loss %s, wanted %s" % (g["loss"], w["loss"]))


def without_times(line):
    line = re.sub(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}\]", "[time]", line)
    line = re.sub(r"(per iteration \(ms\): )\d+\.\d(?= \|)", r"\1time", line)
    return re.sub(r"(\(TFLOP/s/GPU\): )\d+\.\d(?= \|)", r"\1speed", line)


def unit(text):
    """What one more in the last digit is worth."""
    digits, _, exponent = text.partition("E")
    return 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))


def same_number(before, want, got, error):
    if want == got:
        return True
    if len(want) != len(got) and not before.endswith("num zeros: "):
        return False
    if re.search(r"(loss|load_balancing_loss|norm|PPL|value): $", before):
        return is_near(float(want), float(got), error, 1.01 * unit(want))
    # Whether a small gradient is zero is a matter of rounding.
    return before.endswith("num zeros: ") and is_near(float(want), float(got), 10 * error, 4)


def same_line(want, got, error):
    want, got = without_times(want), without_times(got)
    if NUMBER.split(want) != NUMBER.split(got):
        return False
    pairs = zip(NUMBER.finditer(want), NUMBER.findall(got))
    return all(same_number(want[:w.start()], w.group(), g, error) for w, g in pairs)


def log_lines(path):
    with open(path) as log:
        return [line for line in log.read().split("\n") if " checkpoint " not in line]


def lines(want, got, error):
    want, got = log_lines(want), log_lines(got)
    if len(want) != len(got) or len(want) < 2:
        wrong.append("%d lines, wanted %d" % (len(got), len(want)))
    for w, g in zip(want, got):
        if not same_line(w, g, float(error)):
            wrong.append("the line\n%s\nwanted\n%s" % (g, w))


def words(want, got, count):
    """The first lines, but for their numbers."""
    want, got = ([NUMBER.split(without_times(x)) for x in log_lines(p)[:int(count)]]
                 for p in (want, got))
    for w, g in zip(want, got):
        if w != g:
            wrong.append("the line\n%s\nwanted\n%s" % ("_".join(g), "_".join(w)))


def bits(a, b, first=1):
    want, got = [[{k: v for k, v in o.items() if k not in TIMES} for o in objects(p)] for p in (a, b)]
    want = [w for w in want if w["iteration"] >= int(first)]
    for w, g in zip(want, got) if counted(want, got) else []:
        if w != g:
            wrong.append("iteration %d: %s, wanted %s" % (w["iteration"], g, w))


if __name__ == "__main__":
    {"steps": steps, "peer": peer, "lines": lines, "scales": scales,
     "words": words, "bits": bits}[sys.argv[1]](*sys.argv[2:])
    print("\n".join(wrong[:5]), end="")
    sys.exit(1 if wrong else 0)
