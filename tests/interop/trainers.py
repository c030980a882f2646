"""trainers.py FERRY --venv PREFIX --peers FOLDER --fixtures FOLDER [--only TEXT] [--keep FOLDER] - checks ferry against
PyTorch's FSDP, torchtitan and DeepSpeed.

A case is a checkpoint that the real program wrote, the conversions that follow each other, and the real
program that loads the last one: every weight and moment must be as the run had them, bit for bit, and with `step` the next
training step there equals the one from the checkpoint as it was. FERRY_TEST_SHARE takes a share of the cases. The last
line has the sums."""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from share import of_share

# checkpoint | conversions, separated by > | venv | loader and its options | step
CASES = """
dcp/fsdp2-dp2                | --to dcp --dp 4                                               | dcp       | fsdp_load.py --world 1                                       | -
dcp/fsdp2-dp2                | --to torch_dist --tp 2 > --to dcp --dp 2                       | dcp       | fsdp_load.py --world 2                                       | step
dcp/fsdp2-dp4-flat           | --to torch_dist --tp 3 > --to dcp --dp 3 --flatten-optim --split-decay | dcp | fsdp_load.py --world 4 --flatten --split-decay --freeze embed_tokens | -
dcp/hsdp-2x2                 | --to hf --optim > --to dcp --dp 4                              | dcp       | fsdp_load.py --world 4 --wrap hsdp                           | -
dcp/fsdp-tp-2x2              | --to dcp --dp 2                                               | dcp       | fsdp_load.py --world 2 --wrap fsdp1                          | -
dcp/fsdp1-full-dp2           | --to dcp --dp 2                                               | dcp       | fsdp_load.py --world 2                                       | -
dcp/fsdp2-ranks-dp4          | --to dcp --dp 2                                               | dcp       | fsdp_load.py --world 3                                       | -
dcp/torchtitan-fused-dp2     | --to torchtitan --dp 2                                        | dcp       | torchtitan_load.py --world 2                                 | step
dcp/torchtitan-split-dp4     | --to torch_dist --tp 2 > --to torchtitan --dp 2 --split-qkv   | dcp       | torchtitan_load.py --world 1 --split-qkv                     | -
dcp/torchtitan-fused-dp2     | --to dcp --dp 2                                               | dcp       | fsdp_load.py --world 2                                       | -
deepspeed/zero1-fp32-dp2     | --to torch_dist --pp 2 > --to deepspeed --zero 1 --dp 2 --split-decay | deepspeed | deepspeed_load.py --stage 1 --world 2 --split-decay   | step
deepspeed/zero2-bf16-dp2     | --to hf --optim > --to deepspeed --zero 2 --dp 2               | deepspeed | deepspeed_load.py --stage 2 --world 2 --dtype bf16           | -
deepspeed/zero1-bf16-dp4     | --to deepspeed --zero 3 --dp 2                                | deepspeed | deepspeed_load.py --stage 3 --world 2 --dtype bf16           | -
deepspeed/zero3-bf16-dp2     | --to torch --tp 2 > --to deepspeed --zero 3 --dp 2      | deepspeed | deepspeed_load.py --stage 3 --world 2 --dtype bf16           | step
deepspeed/zero3-fp32-dp4-subgroups | --to deepspeed-universal --zero 1                       | deepspeed | deepspeed_load.py --stage 2 --world 2 --universal            | -
deepspeed/zero2-fp32-dp4-tied | --to deepspeed --zero 2 --dp 3                               | deepspeed | deepspeed_load.py --stage 2 --world 3                        | -
dcp/fsdp2-dp2                | --to deepspeed --zero 2 --dp 2                                | deepspeed | deepspeed_load.py --stage 2 --world 2                        | -
deepspeed/zero3-bf16-dp4-groups-frozen | --to deepspeed --zero 2 --dp 2                     | deepspeed | deepspeed_load.py --stage 2 --world 2 --dtype bf16 --split-decay --freeze embed_tokens --freeze layers.0.mlp | -
deepspeed/zero2-roundrobin-dp4 | --to hf --optim > --to deepspeed-universal --split-decay    | deepspeed | deepspeed_load.py --stage 3 --world 2 --dtype bf16 --universal --split-decay | -
deepspeed/ddp-fp32-dp2       | --to deepspeed --zero 0                                       | deepspeed | deepspeed_load.py --stage 0 --world 1                        | -
"""


class Wrong(Exception):
    pass


class Case:
    def __init__(self, line):
        columns = [c.strip() for c in line.split("|")]
        self.name = f"{columns[0]} {columns[1]}"
        self.source = columns[0]
        self.conversions = [shlex.split(c) for c in columns[1].split(">")]
        self.venv = columns[2]
        self.loader = shlex.split(columns[3])
        self.steps = columns[4] == "step"


def run(words, where):
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stdout + done.stderr).strip().splitlines()[-12:]
        raise Wrong(f"{where}: exit code {done.returncode}\n" + "\n".join(last))
    return done.stdout.strip().splitlines()


def convert_all(case, args, scratch):
    at = args.fixtures / case.source / "ckpt"
    expected = args.fixtures / case.source / "expected"
    for i, options in enumerate(case.conversions):
        to = scratch / str(i)
        run([args.ferry, "convert", at, to, *options, "--hf-config", expected, "-q"], " ".join(options))
        at = to
    return at


def check_step(case, args, found):
    """The next step from both, by the same program."""
    python = f"{args.venv}-{case.venv}/bin/python"
    script = Path(__file__).parent / "trainer_step.py"
    command = [python, "-W", "ignore", script, "--peers", args.peers, case.loader[0].split("_")[0],
               args.fixtures / case.source / "ckpt", found,
               "--expected", args.fixtures / case.source / "expected", *case.loader[1:]]
    return run(command, "the next step")[-1]


def check(case, args):
    scratch = Path(args.keep or tempfile.mkdtemp())
    try:
        found = convert_all(case, args, scratch)
        python = f"{args.venv}-{case.venv}/bin/python"
        command = [python, "-W", "ignore", args.peers / case.loader[0], found,
                   "--expected", args.fixtures / case.source / "expected", *case.loader[1:]]
        said = run(command, case.loader[0])[-1]
        if case.steps:
            said += "; " + check_step(case, args, found)
        return said
    finally:
        if not args.keep:
            shutil.rmtree(scratch)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ferry")
    parser.add_argument("--venv", required=True)
    parser.add_argument("--peers", type=Path, required=True)
    parser.add_argument("--fixtures", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--keep")
    args = parser.parse_args()
    os.environ["PATH"] = f"{args.venv}-deepspeed/bin:{os.environ['PATH']}"  # ninja, for what DeepSpeed compiles
    passed = failed = 0
    for case in of_share([case for case in map(Case, CASES.strip().splitlines()) if args.only in case.name]):
        try:
            print(f"PASS    {case.name}: {check(case, args)}", flush=True)
            passed += 1
        except Wrong as wrong:
            print(f"FAIL    {case.name}: {wrong}", flush=True)
            failed += 1
    print(f"trainers: {passed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
