#!/bin/sh
# optimizer_models_test.sh FERRY - optimizer states of the newer modules (Mamba, delta nets, latent attention, layers of
# multi-token prediction) in formats that have no names for them: flat buffers, numbers. Megatron-LM saved each run twice.
golden=$(realpath "$(dirname "$0")/../golden/arch-optim")
. "$(dirname "$0")/lib.sh"

it "states without names are those that the same run saved under names"
for case in mamba-torch-optimizer-tp2pp2:60 qwen3-next-mtp-torch-distributed-pp2:252 mla-dp-reshardable-dp2:77; do
    name=${case%:*}
    run verify "$golden/$name/saved" "$golden/$name/same"
    exits 0
    prints "identical: ${case#*:} tensors"
done

# same_files REAL WRITTEN FILE... - files of torch.save with equal names and bytes; TE's norms have extra states, too.
same_files() {
    real=$1 written=$2
    shift 2
    for file; do
        run verify "$real/iter_0000010/$file" "$written/iter_0000010/$file" --ignore '*._extra_state'
        exits 0
        prints "identical: "
    done
}

it "they are written to legacy files under Megatron's numbers: HybridModel's"
name=mamba-torch-optimizer-tp2pp2
run convert "$golden/$name/same" mamba --to torch --optim --tp 2 --pp 2 --true-vocab-size 68 \
    --make-vocab-size-divisible-by 8
exits 0
same_files "$golden/$name/saved" mamba mp_rank_00_000/model_optim_rng.pt mp_rank_00_001/model_optim_rng.pt \
    mp_rank_01_000/model_optim_rng.pt mp_rank_01_001/model_optim_rng.pt

it "and to flat buffers at Megatron's places, with the last stage's copy of the embedding for multi-token prediction"
name=qwen3-next-mtp-torch-distributed-pp2
run convert "$golden/$name/same" mtp --to torch --optim --pp 2 --moe-grouped-gemm --true-vocab-size 140 \
    --make-vocab-size-divisible-by 8
exits 0
same_files "$golden/$name/saved" mtp mp_rank_00_000/model_optim_rng.pt mp_rank_00_001/model_optim_rng.pt \
    mp_rank_00_000/distrib_optim.pt mp_rank_00_001/distrib_optim.pt

it "a run that is not distributed keeps them so, in the rank files of both stages"
run convert "$golden/$name/same" plain --to torch --optim --optim-format not_distributed --pp 2 --moe-grouped-gemm \
    --true-vocab-size 140
exits 0
run verify plain "$golden/$name/same" --ignore-training '*'
exits 0

it "a state that lacks a section leaves the weights readable"
name=mamba-torch-optimizer-tp2pp2 section=optimizer.state.exp_avg.decoder.layers.0.mixer.in_proj.weight
cp -r "$golden/$name/same" cut
LC_ALL=C sed "s/$section\\.dt/$section.no/g" "$golden/$name/same/iter_0000010/.metadata" >cut/iter_0000010/.metadata
run verify cut "$golden/$name/same" --no-optim
exits 0
prints "identical: 15 tensors"
run convert cut none --to torch_dist --optim --true-vocab-size 68
exits 3
says "that cannot be read: $section"
[ ! -e none ] || is_wrong "there is a destination"
