#!/bin/sh
# deepspeed_universal_round_robin.sh - a universal checkpoint with other weights than its source.
#
# package:  deepspeed 0.19.8 with torch 2.13.0, two gloo ranks on a CPU
# expected: ds_to_universal writes the fp32 weights that the ranks trained, whatever the options of ZeRO. If
#           round_robin_gradients, which only spreads gradients over ranks, is too much for it, it refuses.
# instead:  With round_robin_gradients it exits 0 and writes pieces of other parameters under a parameter's name,
#           with its shape. A run loads them like any others. zero_to_fp32, its other converter, is right.
# why:      The flat vector of a group has the shuffled order, which param_shapes lists and zero_to_fp32 follows.
#           param_slice_mappings, which ds_to_universal follows, has offsets in the order before the shuffle.
# seen:
#   round_robin_gradients false: zero_to_fp32 has 6 of 6 parameters as trained
#   round_robin_gradients false: ds_to_universal has 6 of 6 parameters as trained
#   round_robin_gradients false: a run on one rank loads 6 of 6 parameters as trained
#   round_robin_gradients true: zero_to_fp32 has 6 of 6 parameters as trained
#   round_robin_gradients true: ds_to_universal has 2 of 6 parameters as trained
#   round_robin_gradients true: a run on one rank loads 2 of 6 parameters as trained
#   as stated: the universal checkpoint has other weights, and both programs succeed
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
import os
import pathlib
import subprocess
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

STEPS = 3


def start(rank, world, meeting):
    """DeepSpeed on this rank. Its own kernel for shared memory would need a compiler; gloo does without."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    import deepspeed

    deepspeed.ops.__compatible_ops__.clear()
    dist.init_process_group("gloo", rank=rank, world_size=world, store=dist.FileStore(str(meeting), world))
    return deepspeed


def make_engine(deepspeed, **more):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(3)])
    adam = {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}}
    config = {"train_micro_batch_size_per_gpu": 1, "optimizer": adam, **more}
    return deepspeed.initialize(model=model, config=config)[0]


def weights_of(engine):
    return {name: p.detach().clone() for name, p in engine.module.named_parameters()}


def train(rank, world, folder, round_robin):
    deepspeed = start(rank, world, folder / "meet-train")
    engine = make_engine(deepspeed, zero_optimization={"stage": 2, "round_robin_gradients": round_robin})
    torch.manual_seed(1 + rank)
    for _ in range(STEPS):
        engine.backward(engine(torch.randn(1, 8)).square().mean())
        engine.step()
    engine.save_checkpoint(str(folder), tag="saved")
    if rank == 0:
        torch.save(weights_of(engine), folder / "trained.pt")
    dist.barrier()


def load(rank, world, folder):
    deepspeed = start(rank, world, folder / "meet-load")
    engine = make_engine(deepspeed, zero_optimization={"stage": 2}, checkpoint={"load_universal": True})
    engine.load_checkpoint(str(folder), tag="universal")
    torch.save(weights_of(engine), folder / "loaded.pt")


def convert(folder):
    """The weights in the universal checkpoint that ds_to_universal makes."""
    subprocess.run(
        [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state"]
        + ["--input_folder", folder / "saved", "--output_folder", folder / "universal"]
        + ["--num_extract_workers", "1", "--num_merge_workers", "1"],
        check=True,
        stdout=sys.stderr,
    )
    files = sorted(folder.glob("universal/zero/*/fp32.pt"))
    return {f.parent.name: torch.load(f, weights_only=False)["param"] for f in files}


def show(root, round_robin):
    """How many parameters are as trained: by zero_to_fp32, by ds_to_universal, in a run that loads the latter."""
    folder = root / f"round_robin_{round_robin}"
    folder.mkdir()
    multiprocessing.spawn(train, (2, folder, round_robin), nprocs=2)
    trained = torch.load(folder / "trained.pt")
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    found = {
        "zero_to_fp32 has": get_fp32_state_dict_from_zero_checkpoint(str(folder), tag="saved"),
        "ds_to_universal has": convert(folder),
    }
    multiprocessing.spawn(load, (1, folder), nprocs=1)
    found["a run on one rank loads"] = torch.load(folder / "loaded.pt")
    counts = []
    for who, weights in found.items():
        same = [n for n, w in trained.items() if torch.equal(weights[n].view_as(w), w)]
        counts.append(len(same))
        line = f"round_robin_gradients {str(round_robin).lower()}: {who} {len(same)} of {len(trained)} parameters"
        print(line, "as trained", file=seen)
    return counts


if __name__ == "__main__":
    seen = open(sys.argv[2], "w")
    plain, shuffled = (show(pathlib.Path(sys.argv[1]), x) for x in (False, True))
    if plain == [6, 6, 6] and shuffled == [6, 2, 2]:
        print("as stated: the universal checkpoint has other weights, and both programs succeed", file=seen)
    else:
        print(f"changed: {plain} and {shuffled} parameters, stated [6, 6, 6] and [6, 2, 2]", file=seen)
        sys.exit(1)
END
export DS_ACCELERATOR=cpu GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=1 HOME="$folder"
touch "$folder/seen"
"$folder/venv/bin/python" -W ignore "$folder/show.py" "$folder" "$folder/seen" >"$folder/log" 2>&1 || true
cat "$folder/seen"
case $(tail -n 1 "$folder/seen") in
"as stated: "*) ;;
"changed: "*) exit 1 ;;
*) changed "the program fails" ;;
esac
