"""zero_runs.py FERRY [--peers FOLDER] [--only TEXT] - checks checkpoints that ferry writes for DeepSpeed against DeepSpeed itself,
on CPU ranks.

Run it with a Python that has DeepSpeed (peers/setup-deepspeed.sh makes one). Each case converts the Hugging Face
folder of a golden run; then load_checkpoint must give every weight, master and moment, bit for bit, and zero_to_fp32 every
master. Where the run itself is there, one more training step from ferry's files must end where one from its own files ends.
Each line is PASS or FAIL and the case; the exit code is 0 only if all pass."""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("DS_ACCELERATOR", "cpu")
HERE = Path(__file__).resolve().parent
GOLDEN = HERE.parent / "golden" / "deepspeed"
RUN = "--lr 0.01 --adam-beta1 0.9 --adam-beta2 0.95 --adam-eps 1e-8"
FROZEN = "--freeze embed_tokens --freeze layers.0.mlp"

# golden run / ferry's options / options of the run that loads, as peers/deepspeed_load.py has them; step: one more step is compared
CASES = f"""
zero1-fp32-dp2               / --to deepspeed --zero 1 --dp 2 --split-decay {RUN} --weight-decay 0.1 / --stage 1 --world 2 --split-decay --step
zero1-fp32-dp2               / --to deepspeed --zero 2 --dp 4                  / --stage 2 --world 4
zero1-fp32-dp2               / --to deepspeed --zero 0                         / --stage 0 --world 2
zero2-fp32-dp4-tied          / --to deepspeed --zero 2 --dp 4 {RUN} --weight-decay 0.01 / --stage 2 --world 4 --step
zero2-fp32-dp4-tied          / --to deepspeed --zero 3 --dp 2                  / --stage 3 --world 2
zero3-bf16-dp4-groups-frozen / --to deepspeed --zero 3 --dp 4 --split-decay    / --stage 3 --world 4 --dtype bf16 --split-decay {FROZEN}
zero3-bf16-dp4-groups-frozen / --to deepspeed --zero 2 --dp 2 --split-decay    / --stage 2 --world 2 --dtype bf16 --split-decay {FROZEN}
zero2-fp32-dp4-tied          / --to deepspeed-universal --split-decay          / --stage 1 --world 3 --split-decay --universal
zero2-fp32-dp4-tied          / --to deepspeed-universal --split-decay          / --stage 3 --world 2 --split-decay --universal
"""


def options(text):
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", default="fp32")
    parser.add_argument("--step", action="store_true")
    ds_engine.add_engine_arguments(parser)
    return parser.parse_args(text.split())


def loaded(args, folder, config, seed):
    """An engine around other random weights, which has loaded the folder."""
    engine = ds_engine.start_engine(tiny_llama.llama(config, seed).to(tiny_llama.DTYPES[args.dtype]), args)
    if engine.load_checkpoint(folder)[0] is None:
        raise RuntimeError(f"DeepSpeed finds no checkpoint in {folder}")
    return engine


def state_after_step(engine, config, rank):
    ids = tiny_llama.batch(config.vocab_size, 5, 99, rank)
    engine.backward(engine(input_ids=ids, labels=ids).loss)
    engine.step()
    return ds_engine.full_state(engine)


def compare(rank, world, args):
    config = transformers.LlamaConfig.from_pretrained(args.golden / "expected", attn_implementation="eager")
    engine = loaded(args, args.made, config, 987654)
    weights, optimizer = ds_engine.full_state(engine)
    code = tiny_llama.compare_with_expected(args.golden / "expected", weights, optimizer) if rank == 0 else 0
    if not args.step:
        return code
    found = state_after_step(engine, config, rank)
    wanted = state_after_step(loaded(args, args.golden / "ckpt", config, 5), config, rank)
    lines = [line for w, f in zip(wanted, found) for line in tiny_llama.differences(w, f)]
    print("\n".join(lines[:3]), end="\n" if lines else "")
    return 1 if lines else code


def masters_agree(args):
    """What zero_to_fp32 makes of the files, against the masters of the golden run."""
    wanted = safetensors.torch.load_file(args.golden / "expected" / "optimizer.safetensors")
    wanted = {name[5:]: t for name, t in wanted.items() if name.startswith("fp32.")}
    return not tiny_llama.differences(wanted, zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(args.made))


def passes(ferry, case, folder):
    golden, convert, run = (part.strip() for part in case.split(" / "))
    args = options(run)
    args.golden, args.made = GOLDEN / golden, os.path.join(folder, "made")
    subprocess.run(["rm", "-rf", args.made], check=True)
    subprocess.run([ferry, "convert", "-q", args.golden / "expected", args.made, *convert.split()], check=True)
    if tiny_llama.run_ranks(compare, args.world, args):
        return False
    return args.universal or args.stage == 0 or masters_agree(args)


def attempt(ferry, case, folder):
    try:
        return passes(ferry, case, folder)
    except Exception as failure:  # a rank's exception has its traceback as text
        print(str(failure)[-1000:])
        return False


def main():
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for case in filter(lambda c: c and given.only in c, CASES.splitlines()):
            good = attempt(str(Path(given.ferry).resolve()), case, folder)
            print("PASS" if good else "FAIL", case, flush=True)
            failed += not good
    sys.exit(1 if failed else 0)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("ferry")
parser.add_argument("--peers", default=HERE.parents[2] / "shared" / "peers")
parser.add_argument("--only", default="")
given = parser.parse_args()
sys.path.insert(0, str(given.peers))

import ds_engine  # noqa: E402
import safetensors.torch  # noqa: E402
import tiny_llama  # noqa: E402
import transformers  # noqa: E402
from deepspeed.utils import zero_to_fp32  # noqa: E402

main()
