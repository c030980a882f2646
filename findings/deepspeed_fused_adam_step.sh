#!/bin/sh
# deepspeed_fused_adam_step.sh - an optimizer whose states say that most parameters were never updated.
#
# package:  deepspeed 0.19.8 with torch 2.13.0. FusedAdam, which DeepSpeed takes for "Adam" and "AdamW" on GPUs, on a
#           CPU: its operator for CUDA alone is replaced, by the same arithmetic in torch.
# expected: After three updates each parameter's state has step 3, as in torch.optim.AdamW; so a program that moves
#           the optimizer elsewhere may take any parameter's step for the bias correction.
# instead:  In each group only the last parameter has step 3, the others 0, beside moments of three updates. Moved to
#           torch.optim.AdamW by load_state_dict(), which accepts it, the next update of the others is made with the
#           bias correction of the first.
# why:      FusedAdam.step() collects the tensors of a group in a loop, and behind it counts in `state`, which is then
#           the last parameter's; it gives this number to the operator for all of the group. Without ZeRO a group has
#           many parameters; in ZeRO one vector.
# seen:
#   torch.optim.AdamW: steps 3 3 3, group 2: 3 3; exp_avg not zero in 5 of 5
#   FusedAdam: steps 0 0 3, group 2: 0 3; exp_avg not zero in 5 of 5
#   weights as AdamW's after three updates: 5 of 5
#   weights as AdamW's after a fourth, with FusedAdam's states in torch.optim.AdamW: 2 of 5
#   weights as AdamW's after a fourth, with the last step in all of a group: 5 of 5
#   as stated: the step of all parameters but the last of a group is 0
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

changed() {
    tail -n 20 "$folder/log"
    echo "changed: $1"
    exit 1
}

install() {
    python3 -m venv "$folder/venv" &&
        "$folder/venv/bin/pip" install torch==2.13.0 && # first and alone, else pip brings CUDA
        "$folder/venv/bin/pip" install torch==2.13.0 numpy==2.1.3 setuptools==84.2.1 packaging==26.3 \
            py-cpuinfo==9.0.0 msgpack==1.2.4 hjson==3.1.0 einops==0.8.2 pydantic==2.14.3 psutil==7.2.2 tqdm==4.70.1 &&
        DS_BUILD_OPS=0 DS_ACCELERATOR=cpu \
            "$folder/venv/bin/pip" install --no-deps --no-build-isolation deepspeed==0.19.8
}
install >"$folder/log" 2>&1 || changed "the packages cannot be installed"

cat >"$folder/show.py" <<'END'
import copy
import sys

import deepspeed.ops.adam.fused_adam as fused_adam
import torch


class Operator:
    """Stands in for the builder of the operator and for the operator, csrc/adam/multi_tensor_adam.cu."""

    def load(self):
        return self

    @staticmethod
    def multi_tensor_adam(chunk, flag, lists, lr, beta1, beta2, eps, step, mode, correction, decay):
        for g, p, m, v in zip(*lists):
            m.lerp_(g, 1 - beta1)
            v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
            p.mul_(1 - lr * decay)
            p.addcdiv_(m, (v / (1 - beta2**step)).sqrt() + eps, value=-lr / (1 - beta1**step))


fused_adam.FusedAdamBuilder = Operator


def start(kind):
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(4, 3)) for _ in range(5)]
    groups = [{"params": params[:3]}, {"params": params[3:], "lr": 0.02}]
    return params, kind(groups, lr=0.01, betas=(0.9, 0.95), weight_decay=0.1)


def update(params, optimizer, number):
    for i, p in enumerate(params):
        p.grad = torch.randn(4, 3, generator=torch.Generator().manual_seed(10 * number + i))
    optimizer.step()


def moved(params, fused, last_step):
    """The weights of params in torch.optim.AdamW with the states of `fused`."""
    copies, optimizer = start(torch.optim.AdamW)
    with torch.no_grad():
        for to, p in zip(copies, params):
            to.copy_(p)
    state = copy.deepcopy(fused.state_dict())
    for i, of in state["state"].items():
        step = state["state"][2 if i < 3 else 4]["step"] if last_step else of["step"]
        of["step"] = torch.tensor(float(step))
    state["param_groups"] = [{**a, **{k: b[k] for k in ("lr", "betas", "eps", "weight_decay", "params")}}
                             for a, b in zip(optimizer.state_dict()["param_groups"], state["param_groups"])]
    optimizer.load_state_dict(state)
    return copies, optimizer


def same(a, b):
    return sum(torch.allclose(x, y, rtol=0, atol=1e-6) for x, y in zip(a, b))


seen = open(sys.argv[1], "w")
steps, (plain, adamw), (params, fused) = {}, start(torch.optim.AdamW), start(fused_adam.FusedAdam)
for name, of, optimizer in ("torch.optim.AdamW", plain, adamw), ("FusedAdam", params, fused):
    for number in range(3):
        update(of, optimizer, number)
    steps[name] = [int(optimizer.state[p]["step"]) for p in of]
    filled = sum(bool(optimizer.state[p]["exp_avg"].any()) for p in of)
    print(f"{name}: steps {steps[name][0]} {steps[name][1]} {steps[name][2]}, group 2: {steps[name][3]}",
          f"{steps[name][4]}; exp_avg not zero in {filled} of 5", file=seen)
counts = [same(plain, params)]
print(f"weights as AdamW's after three updates: {counts[0]} of 5", file=seen)
update(plain, adamw, 3)
for last_step, how in (
    (False, "with FusedAdam's states in torch.optim.AdamW"),
    (True, "with the last step in all of a group"),
):
    copies, optimizer = moved(params, fused, last_step)
    update(copies, optimizer, 3)
    counts.append(same(plain, copies))
    print(f"weights as AdamW's after a fourth, {how}: {counts[-1]} of 5", file=seen)
if steps == {"torch.optim.AdamW": [3] * 5, "FusedAdam": [0, 0, 3, 0, 3]} and counts == [5, 2, 5]:
    print("as stated: the step of all parameters but the last of a group is 0", file=seen)
else:
    print(f"changed: steps {steps}, weights alike {counts}", file=seen)
    sys.exit(1)
END
export DS_ACCELERATOR=cpu OMP_NUM_THREADS=1 HOME="$folder"
touch "$folder/seen"
"$folder/venv/bin/python" -W ignore "$folder/show.py" "$folder/seen" >"$folder/log" 2>&1 || true
cat "$folder/seen"
case $(tail -n 1 "$folder/seen") in
"as stated: "*) ;;
"changed: "*) exit 1 ;;
*) changed "the program fails" ;;
esac
