#!/bin/sh
# deepspeed_write_test.sh - checkpoints of DeepSpeed that are written: their files, trackers, and
# what is refused.
here=$(cd "$(dirname "$0")" && pwd)
golden=$here/../golden/deepspeed
megatron=$here/../golden/megatron/llama-HEAD-fully-reshardable-dp2/checkpoint
tied=$golden/zero2-fp32-dp4-tied/expected
half=$golden/zero3-bf16-dp4-groups-frozen/expected
. "$(dirname "$0")/lib.sh"

# holds FOLDER NAME...: these files below it, and no others
holds() {
    folder=$1
    shift
    printf '%s\n' "$@" | sort >"$scratch/wanted"
    (cd "$folder" && find . ! -type d | sed 's|^\./||' | sort) >"$scratch/there"
    cmp -s "$scratch/wanted" "$scratch/there" || is_wrong "$folder holds $(tr '\n' ' ' <"$scratch/there")"
}

# reads FILE TEXT
reads() {
    [ "$(cat "$1")" = "$2" ] || is_wrong "$1 is $(cat "$1"), not $2"
}

it "writes a file for each data parallel rank, and latest without a newline"
run convert "$tied" out --to deepspeed --zero 2 --dp 3
exits 0
holds out latest ferry.json global_step3/mp_rank_00_model_states.pt \
    global_step3/zero_pp_rank_0_mp_rank_00_optim_states.pt \
    global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt \
    global_step3/zero_pp_rank_2_mp_rank_00_optim_states.pt \
    global_step3/config.json global_step3/ferry.json
reads out/latest global_step3
[ "$(wc -c <out/latest)" -eq 12 ] || is_wrong "latest has a newline"

it "writes stage 1 of one rank unless told otherwise, bf16_ before its optimizer"
run convert -q "$half" out1 --to deepspeed
exits 0
holds out1 latest ferry.json global_step3/mp_rank_00_model_states.pt \
    global_step3/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt \
    global_step3/config.json global_step3/ferry.json

it "gives each rank of stage 3 a file of the model"
run convert -q "$half" out3 --to deepspeed --zero 3 --dp 2 --iteration 70 --verify full
exits 0
holds out3 latest ferry.json global_step70/config.json global_step70/ferry.json \
    global_step70/zero_pp_rank_0_mp_rank_00_model_states.pt \
    global_step70/zero_pp_rank_1_mp_rank_00_model_states.pt \
    global_step70/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt \
    global_step70/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt
reads out3/latest global_step70

it "keeps the optimizer in the model's file without ZeRO"
run convert -q "$tied" out0 --to deepspeed --zero 0
exits 0
holds out0 latest ferry.json global_step3/mp_rank_00_model_states.pt global_step3/config.json \
    global_step3/ferry.json

it "refuses half-precision weights with masters without ZeRO"
run convert "$half" there --to deepspeed --zero 0
exits 3
says "--zero 0: the weights are BF16 with masters"
is_not_there there

it "writes weights alone, and says how they are loaded"
run convert "$half" weights --to deepspeed --no-optim
exits 0
says "load_module_only=True"
holds weights latest ferry.json global_step0/mp_rank_00_model_states.pt \
    global_step0/config.json global_step0/ferry.json

it "refuses weights alone in stage 3 and in a universal checkpoint"
run convert "$half" there --to deepspeed --no-optim --zero 3
exits 3
says "the weights belong to the optimizer's files"
run convert "$half" there --to deepspeed-universal --no-optim
exits 3
says "consists of the optimizer's tensors"
is_not_there there

it "writes a universal checkpoint that both kinds of stages load"
run convert -q "$tied" universal --to deepspeed-universal
exits 0
reads universal/latest_universal global_step3_universal
for name in mp_rank_00_model_states.pt zero_pp_rank_0_mp_rank_00_model_states.pt \
    zero/optimizer_state.pt zero/model.norm.weight/fp32.pt zero/model.norm.weight/exp_avg.pt \
    zero/model.norm.weight/exp_avg_sq.pt zero/model.norm.weight/step.pt; do
    [ -f "universal/global_step3_universal/$name" ] || is_wrong "no $name"
done
is_not_there universal/global_step3_universal/zero/lm_head.weight

it "replaces a universal checkpoint, with a folder for each parameter"
run convert -q "$tied" universal --to deepspeed_universal --zero 2 --overwrite
exits 0
is_not_there universal/global_step3_universal/zero_pp_rank_0_mp_rank_00_model_states.pt

it "does not replace a folder with files of the user's in it"
touch universal/global_step3_universal/zero/model.norm.weight/notes
run convert -q "$tied" universal --to deepspeed-universal --overwrite
exits 7
says "zero/model.norm.weight/notes"

it "refuses what a universal checkpoint has none of"
run convert "$tied" there --to deepspeed-universal --dp 2
exits 2
run convert "$tied" there --to deepspeed-universal --zero 0
exits 2
says "for runs of stages 1 to 3"
is_not_there there

it "says that stage 3 loads one group's settings from a universal checkpoint"
run convert "$tied" two --to deepspeed-universal --split-decay
exits 0
says "the settings of the first"

it "says what becomes of a schedule of Megatron's"
run convert "$megatron" trained --to deepspeed --true-vocab-size 43 --split-decay --dp 2
exits 0
reads trained/latest global_step10
says "dropped: schedule"
