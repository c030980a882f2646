"""megatron_lm.py PEERS ROOT HF_FOLDER --mcore TREE --tp 2 --pp 2 [--format torch] - loads ROOT with
Megatron-LM's own load_checkpoint() on CPU ranks, weights alone and without further flags, and compares
every parameter with those that HF_FOLDER implies. TREE is a checkout of Megatron-LM; PEERS the folder of
the peers' programs, whose modules start the ranks."""

import argparse
import os
import sys

sys.path.insert(0, sys.argv.pop(1))
import megatron_cpu
import megatron_gpt
import megatron_layout
import megatron_save
import torch


def rank_main(root, folder, layout, options):
    hf = megatron_gpt.HfModel(folder)
    line = megatron_save.lm_arguments(hf, layout, options, "/nonexistent")
    at = line.index("--save")
    line = [*line[:at], *line[at + 2 :], "--load", root]
    megatron_save.lm_arguments = lambda *_: line
    args = megatron_save.start_megatron_lm(hf, layout, options, None)
    args.padded_vocab_size = megatron_gpt.padded_vocab(hf, layout["tp"], options.vocab_divisor)
    megatron_gpt.init_parallel(layout)
    dtype = getattr(torch, options.dtype)
    chunks = megatron_gpt.build_chunks(hf, layout, dtype, args.padded_vocab_size, options.spec)
    for chunk in chunks:
        for p in chunk.parameters():
            p.data.fill_(float("nan"))
    from megatron.training.checkpointing import load_checkpoint

    iteration, _ = load_checkpoint(chunks, None, None)
    want = megatron_gpt.mcore_tensors(hf, args.padded_vocab_size)
    return iteration, megatron_gpt.compare(chunks, want, hf)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=os.path.abspath)
    parser.add_argument("hf_folder", type=os.path.abspath)
    parser.add_argument("--format", default="torch_dist")
    parser.add_argument("--dtype", default="float32")
    megatron_layout.add_options(parser)
    options = parser.parse_args()
    options.optimizer = "none"
    layout = megatron_layout.layout_of(options)
    got = megatron_cpu.run_ranks(
        megatron_layout.world_of(layout),
        rank_main,
        options.root,
        options.hf_folder,
        layout,
        options,
        paths=megatron_layout.paths_of(options),
    )
    worst = max(got[1].values())
    print(f"{'FAIL' if worst else 'PASS'} {options.root}: weights differ by {worst:g}")
    sys.exit(1 if worst else 0)


if __name__ == "__main__":
    main()
