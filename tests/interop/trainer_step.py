"""trainer_step.py KIND A B --expected DIR --peers FOLDER [options of the run]: loads checkpoint A with the real
program (fsdp, torchtitan, deepspeed), makes one training step on fixed tokens, does the same with B, and compares all weights
and states of the optimizer, bit for bit. Options are those of FOLDER/KIND_load.py; both load at the same world size, whatever
they were saved at."""

import argparse
import sys
import tempfile
from pathlib import Path


def fsdp_step(folder, rank, args):
    import fsdp_load
    from tiny_llama import DTYPES, llama
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
    from transformers import LlamaConfig

    config = LlamaConfig.from_pretrained(args.expected, attn_implementation="eager")
    model, optimizer = fsdp_load.start_run(llama(config, seed=987654).to(DTYPES[args.dtype]), args)
    options = StateDictOptions(flatten_optimizer_state_dict=args.flatten)
    weights, optim = get_state_dict(model, optimizer, options=options)
    args.checkpoint = folder
    fsdp_load.read_into(weights, optim, args)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=optim, options=options)
    tokens = tokens_of(config, rank)
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    return fsdp_load.full_state(model, optimizer)


def torchtitan_step(folder, rank, args):
    import torch
    from titan_model import Run
    from transformers import LlamaConfig

    config = LlamaConfig.from_pretrained(args.expected)
    run = Run(config, 987654, args)
    run.checkpoints.folder = folder
    assert run.checkpoints.load(-1), folder
    tokens = tokens_of(config, rank)
    logits = run.model(tokens)[:, :-1]
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    run.optimizers.step()
    run.schedulers.step()
    return run.full_state()


def deepspeed_step(folder, rank, args):
    import ds_engine
    from tiny_llama import DTYPES, llama
    from transformers import LlamaConfig

    config = LlamaConfig.from_pretrained(args.expected, attn_implementation="eager")
    engine = ds_engine.start_engine(llama(config, seed=987654).to(DTYPES[args.dtype]), args)
    path, _ = engine.load_checkpoint(folder)
    assert path is not None, folder
    tokens = tokens_of(config, rank)
    engine.backward(engine(input_ids=tokens, labels=tokens).loss)
    engine.step()
    return ds_engine.full_state(engine)


def tokens_of(config, rank):
    from tiny_llama import batch

    return batch(config.vocab_size, 77, 0, rank)


def step_and_save(rank, _world, args):
    from safetensors.torch import save_file

    step = {"fsdp": fsdp_step, "torchtitan": torchtitan_step, "deepspeed": deepspeed_step}[args.kind]
    weights, states = step(args.folder, rank, args)
    if rank == 0:
        for name, tensors in (("weights", weights), ("states", states)):
            save_file({n: t.detach().clone().contiguous() for n, t in tensors.items()}, f"{args.out}-{name}")
    return 0


def compare(a, b):
    """Lines on what differs."""
    from safetensors.torch import load_file
    from tiny_llama import differences

    lines, count = [], 0
    for name in ("weights", "states"):
        x, y = load_file(f"{a}-{name}"), load_file(f"{b}-{name}")
        lines += differences(x, y)
        count += len(x)
    return lines, count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("fsdp", "torchtitan", "deepspeed"))
    parser.add_argument("a")
    parser.add_argument("b")
    parser.add_argument("--expected", required=True)
    parser.add_argument("--peers", required=True)
    parser.add_argument("--dtype", default="fp32")
    early, _ = parser.parse_known_args()
    sys.path.insert(0, early.peers)
    if early.kind == "fsdp":
        import fsdp_model

        fsdp_model.add_fsdp_arguments(parser)
    elif early.kind == "torchtitan":
        import titan_model

        titan_model.add_titan_arguments(parser)
    else:
        import ds_engine

        ds_engine.add_engine_arguments(parser)
    args = parser.parse_args()
    args.hf = args.weights_only = False
    args.model_key, args.optim_key, args.optim_checkpoint = "model", "optim", None
    from tiny_llama import run_ranks

    with tempfile.TemporaryDirectory() as scratch:
        for name in ("a", "b"):
            args.folder, args.out = getattr(args, name), str(Path(scratch) / name)
            if run_ranks(step_and_save, args.world, args):
                sys.exit(f"FAIL: a step from {args.folder}")
        lines, count = compare(Path(scratch) / "a", Path(scratch) / "b")
    for line in lines[:10]:
        print(line)
    print(f"{'FAIL' if lines else 'the same step'}: {count} tensors compared, {len(lines)} differ")
    sys.exit(len(lines) > 0)


if __name__ == "__main__":
    main()
