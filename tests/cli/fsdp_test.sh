#!/bin/sh
# fsdp_test.sh - files of torch.save as FSDP writes them: read, written, and refused.
golden=$(realpath "$(dirname "$0")/../golden/fsdp")
. "$(dirname "$0")/lib.sh"

for case in "$golden"/*; do
    name=$(basename "$case")
    it "$name is the model that it was saved of, with the optimizer where it has one"
    run verify "$case/ckpt" "$case/expected" --hf-config "$case/expected"
    exits 0
    prints "identical: "

    optim=--no-optim
    [ -e "$case/expected/optimizer.safetensors" ] && optim=--optim
    it "$name comes out as a Hugging Face folder, and as full states"
    run convert "$case/ckpt" "$name" --to hf $optim --hf-config "$case/expected"
    exits 0
    run verify "$name" "$case/expected"
    exits 0
    prints "identical: "
    run convert "$case/ckpt" "$name-full" --to fsdp --hf-config "$case/expected"
    exits 0
    is_there "$name-full/model.pt" "$name-full/config.json"
    run verify "$name-full" "$case/expected"
    exits 0
    prints "identical: "
done

it "moments, step and groups come back from Megatron's format"
for name in fsdp1-full-dp2 fsdp2-ranks-dp4; do
    expected=$golden/$name/expected
    run convert "$golden/$name/ckpt" dist --to torch_dist --pp 1 --overwrite --hf-config "$expected"
    exits 0
    run convert dist back --to fsdp --overwrite --hf-config "$expected"
    exits 0
    is_there back/optim.pt
    run verify back "$expected"
    exits 0
    prints "identical: "
    run inspect back
    exits 0
    prints "step 3"
done

it "a full state needs no config.json to be made of the files of ranks"
run convert "$golden/fsdp2-ranks-dp4/ckpt" plain --to fsdp
exits 0
is_not_there plain/config.json
run verify plain "$golden/fsdp2-ranks-dp4/expected" --hf-config "$golden/fsdp2-ranks-dp4/expected"
exits 0
prints "identical: "

it "groups and step are copied unchanged"
run convert "$golden/fsdp1-full-dp2/ckpt" again --to fsdp --hf-config "$golden/fsdp1-full-dp2/expected"
exits 0
says "copied: parameter groups"
says "all (lr 0.01, weight decay 0.01)"

it "the file of a full state can be given itself"
run convert "$golden/fsdp1-full-dp2/ckpt/model.pt" one --to hf --optim --hf-config "$golden/fsdp1-full-dp2/expected"
exits 0
run verify one "$golden/fsdp1-full-dp2/expected"
exits 0
run inspect "$golden/fsdp1-full-dp2/ckpt/model.pt"
exits 0
prints "torch.save file"

it "accelerate has other names for the same files"
mkdir accelerate accelerate-ranks
cp "$golden/fsdp1-full-dp2/ckpt/model.pt" accelerate/pytorch_model_fsdp.bin
cp "$golden/fsdp1-full-dp2/ckpt/optim.pt" accelerate/optimizer.bin
touch accelerate/scheduler.bin accelerate/random_states_0.pkl
run verify accelerate "$golden/fsdp1-full-dp2/expected" --hf-config "$golden/fsdp1-full-dp2/expected"
exits 0
prints "identical: 60 tensors"
says "are not read: random_states_0.pkl, scheduler.bin"
for rank in 0 1; do
    cp "$golden/fsdp1-ranks-dp2/ckpt/model_world_size_2_rank_$rank.pt" \
        accelerate-ranks/pytorch_model_fsdp_0_rank$rank.bin
done
run verify accelerate-ranks "$golden/fsdp1-ranks-dp2/expected" --hf-config "$golden/fsdp1-ranks-dp2/expected"
exits 0
prints "identical: "

it "groups are made by --split-decay"
run convert one split --to fsdp --optim --split-decay --lr 0.25
exits 0
run inspect split
prints "2 groups: matrices (lr 0.25, weight decay 0.01), vectors (lr 0.25, weight decay 0)"

it "masters in F32 are written as the weights"
megatron=$golden/../megatron/llama-HEAD-fully-reshardable-dp2
run convert "$megatron/checkpoint" masters --to fsdp --hf-config "$megatron/expected"
exits 0
says "the weights are written from their F32 masters"
says "9 weights are cast from their masters"
run inspect masters
prints "F32"

it "flattened parameters need the config of the model"
run convert "$golden/fsdp1-local-dp2/ckpt" no --to fsdp
exits 3
says "without their shapes: give the model's config.json, --hf-config DIR"
is_not_there no

it "a rank that is missing is named, and what it held"
cp -r "$golden/fsdp2-ranks-dp4/ckpt" ranks
chmod -R u+w ranks
rm ranks/model_world_size_4_rank_2.pt
run convert ranks no --to fsdp
exits 4
says "model_world_size_4_rank_2.pt is missing, of the files of 4 ranks"
says "model.embed_tokens.weight"

it "an optimizer with a rank missing leaves the weights"
cp "$golden/fsdp2-ranks-dp4/ckpt/model_world_size_4_rank_2.pt" ranks
rm ranks/optim_world_size_4_rank_1.pt
run convert ranks weights --to fsdp
exits 3
says "optim_world_size_4_rank_1.pt is missing"
run convert ranks weights --to fsdp --no-optim
exits 0
run verify weights "$golden/fsdp2-ranks-dp4/expected" --hf-config "$golden/fsdp2-ranks-dp4/expected" --no-optim
exits 0

it "a file that is cut short is corrupt"
head -c 9000 "$golden/fsdp2-ranks-dp4/ckpt/model_world_size_4_rank_2.pt" >ranks/model_world_size_4_rank_2.pt
run convert ranks no --to fsdp --overwrite
exits 5
says "model_world_size_4_rank_2.pt"

it "states of other things are named once"
cp -r "$golden/fsdp2-ranks-dp4/ckpt" verl
chmod -R u+w verl
for rank in 0 1 2 3; do echo >verl/extra_state_world_size_4_rank_$rank.pt; done
run convert verl verl-full --to fsdp
exits 0
says "are not read: extra_state_world_size_4_rank_0.pt, extra_state_world_size_4_rank_1.pt"

it "a full state is not cut for ranks"
run convert "$golden/fsdp1-full-dp2/ckpt" no --to fsdp --dp 2
exits 2
says "--dp"
