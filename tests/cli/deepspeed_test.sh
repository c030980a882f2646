#!/bin/sh
# deepspeed_test.sh - checkpoints of DeepSpeed: read in every stage of ZeRO and in the universal form,
# and refused by name. More of them, with $FERRY_FIXTURES (default ../shared/fixtures beside the checkout).
here=$(cd "$(dirname "$0")" && pwd)
golden=$here/../golden/deepspeed
fixtures=${FERRY_FIXTURES:-$here/../../../shared/fixtures}/deepspeed
. "$(dirname "$0")/lib.sh"

cat >"$scratch/edit.py" <<'PYTHON'
# edit.py FILE PATTERN NEW - replaces what the regular expression has first, by as many bytes, in a
# torch.save file, whose entries are not packed; both are of bytes, with escapes.
import re, sys
path, pattern, new = sys.argv[1:]
data = open(path, "rb").read()
pattern, new = (x.encode("latin-1").decode("unicode_escape").encode("latin-1") for x in (pattern, new))
found = re.search(pattern, data, re.S)
assert found, "nothing has the pattern"
first, end = found.span(1)
assert end - first == len(new), found.group(1)
open(path, "wb").write(data[:first] + new + data[end:])
PYTHON

# copy_of CASE: ds, its folder ds/ckpt/global_step3 is $tag.
copy_of() {
    rm -rf ds
    cp -r "$golden/$1" ds
    chmod -R u+w ds
    tag=ds/ckpt/global_step3
}

edit() { # FILE PATTERN NEW
    python3 "$scratch/edit.py" "$@" || is_wrong "edit.py $* fails"
}

refuses() { # CODE TEXT
    run inspect ds/ckpt
    exits "$1"
    says "$2"
}

# The model and its optimizer, bit for bit, directly and after a detour.
is_the_run_of() { # CHECKPOINT EXPECTED
    run verify "$1" "$2" --hf-config "$2"
    exits 0
    prints "identical: "
    rm -rf out dist back
    run convert -q "$1" out --to hf --optim --hf-config "$2"
    exits 0
    run verify out "$2"
    exits 0
    cmp -s out/model.safetensors "$2/model.safetensors" || is_wrong "other weights of $1"
    run convert -q "$1" dist --to torch_dist --hf-config "$2"
    exits 0
    run convert -q dist back --to hf --optim --hf-config "$2"
    exits 0
    run verify back "$2"
    exits 0
    prints "identical: "
}

for case in "$golden"/*; do
    it "$(basename "$case") is the run that it holds, with the optimizer"
    is_the_run_of "$case/ckpt" "$case/expected"
done

for case in "$golden-muon"/* "$fixtures"-more/muon-zero1-dp2 "$fixtures"-more/lion-* "$fixtures"-more/sgd-*; do
    [ -d "$case/ckpt" ] || continue
    it "$(basename "$case"): each optimizer has its states"
    run verify "$case/ckpt" "$case/expected" --hf-config "$case/expected"
    exits 0
    prints "identical: "
    rm -rf out
    run convert -q "$case/ckpt" out --to hf --optim --hf-config "$case/expected"
    exits 0
    run verify out "$case/expected"
    exits 0
    prints "identical: "
done

it "Muon's states are not written where they would lie elsewhere"
case=$golden-muon/muon-zero2-dp2
run inspect "$case/ckpt" --hf-config "$case/expected"
prints "hidden_matrices (muon, lr 0.01, weight decay 0.01, momentum 0.9), all (adam, lr 0.001, weight decay 0.01)"
for to in deepspeed deepspeed-universal; do
    rm -rf out
    run convert "$case/ckpt" out --hf-config "$case/expected" --to $to
    exits 3
    says "DeepSpeed, which keeps Muon's momentum by whole parameters"
    [ ! -e out ] || is_wrong "out was written"
done

it "Muon's momentum of other lengths is unread"
rm -rf ds out
cp -r "$case" ds
python3 - ds/ckpt/global_step3 <<'PYTHON'
import glob, sys, zipfile
[path] = glob.glob(sys.argv[1] + "/*pp_rank_0_mp_rank_00_optim_states.pt")
old = zipfile.ZipFile(path)
entries = [(i, old.read(i)) for i in old.infolist()]
with zipfile.ZipFile(path, "w") as new:
    for info, data in entries:
        if info.filename.endswith("data.pkl"):
            assert data.count(b"M\x80\x07\x85") == 1, "1920 elements stand elsewhere"
            data = data.replace(b"M\x80\x07\x85", b"M\x7f\x07\x85")
        new.writestr(info, data)
PYTHON
run inspect ds/ckpt --hf-config ds/expected
exits 0
prints "momentum_buffer of rank 0, group 0, has 1919 elements, but the parameters that the rank has a part of need 1920"

for case in zero2-bf16-dp2-aligned autotp-zero1-tp2; do
    it "the universal folder of $case is the same run"
    is_the_run_of "$golden/$case/ckpt/global_step3_universal" "$golden/$case/expected"
done

it "parts of tensor parallel ranks join by patterns where older files have no affine_map"
copy_of autotp-zero1-tp2
for file in ds/ckpt/*/mp_rank*; do
    edit "$file" '(affine_map)' 'other_keys'
done
for from in ds/ckpt ds/ckpt/global_step3_universal; do
    run verify $from ds/expected --hf-config ds/expected
    exits 0
    prints "identical: "
done
edit "$tag/mp_rank_01_model_states.pt" '[(]?[?]?(parameter_with_row_parallelism)' 'other_with_row_parallelism____'
refuses 5 "parts of ranks 0 and 1 do not join: [8, 4] along dimension 1; [8, 4] along dimension 0"

it "parts that nothing says how to join, or that lie outside, are refused"
copy_of autotp-zero1-tp2
edit "$tag/mp_rank_01_model_states.pt" '(universal_checkpoint_info)' 'universal_checkpoint_data'
refuses 3 "not supported without universal_checkpoint_info, which says how to join them"
copy_of autotp-zero1-tp2
rm "$tag"/mp_rank_01_model_states.pt
refuses 5 "mp_rank_01_model_states.pt is missing"
rm "$tag"/*mp_rank_01*
refuses 5 "it is of 2 tensor parallel ranks, but 1 mp_rank_*_model_states.pt exist"
copy_of autotp-zero1-tp2
rm "$tag"/*mp_rank_01_optim*
refuses 5 "missing *mp_rank_01_optim_states.pt"

if [ -d "$fixtures" ]; then
    for case in "$fixtures"/*; do
        [ -d "$golden/$(basename "$case")" ] && continue
        it "$(basename "$case") is the run that it holds, with the optimizer"
        is_the_run_of "$case/ckpt" "$case/expected"
        [ -d "$case/ckpt/global_step3_universal" ] || continue
        it "$(basename "$case") in the universal form is the same run"
        is_the_run_of "$case/ckpt/global_step3_universal" "$case/expected"
    done
fi

it "numbered parameters that only their order could tell apart are refused, and the weights read"
for case in zero0-layers zero0-frozen; do
    numbered=$golden-numbered/$case
    for to in "hf --optim" torch_dist dcp; do
        # shellcheck disable=SC2086 # words
        run convert "$numbered/ckpt" out-numbered --hf-config "$numbered/expected" --to $to
        exits 3
        says "mp_rank_00_model_states.pt: parameters are numbered, not named: "
        [ ! -e out-numbered ] || is_wrong "out-numbered is there"
    done
    run convert "$numbered/ckpt" out-numbered --to hf --no-optim --hf-config "$numbered/expected"
    exits 0
    cmp out-numbered/model.safetensors "$numbered/expected/model.safetensors" || is_wrong "other weights of $case"
    rm -rf out-numbered
done

it "masters that are not their weights, of a run without ZeRO, are refused"
copy_of zero0-bf16
edit "$tag/mp_rank_00_model_states.pt" '/data/8FB..Z*(..)' '\x00\x40'
run convert ds/ckpt out-other --to hf --optim --hf-config ds/expected
exits 3
says "1 of 15 weights are not their master weights rounded"

it "masters that tell no parameters of one shape, or of one vector, apart are refused"
copy_of zero0-bf16-layers
edit "$tag/mp_rank_00_model_states.pt" '/data/4FB..Z*(..)' '\x00\x40'
run convert ds/ckpt out-other --to hf --optim --hf-config ds/expected
exits 3
says "parameters are numbered, not named: "
copy_of zero0-bf16-fused
edit "$tag/mp_rank_00_model_states.pt" '/data/6FB..Z*..(..)' '\x00\x40'
run convert ds/ckpt out-other --to hf --optim --hf-config ds/expected
exits 3
says "but weights are known for the first "
[ ! -e out-other ] || is_wrong "out-other was written"

it "FusedAdam's updates are a group's, though it counts them in one parameter"
run inspect "$golden/zero0-fp32-fused/ckpt" --hf-config "$golden/zero0-fp32-fused/expected"
exits 0
says "FusedAdam counts 3 updates in one of 9 parameters: it is the group's"
prints "training   step 3,"

it "weights alone are cast from their masters, as zero_to_fp32 makes them"
for case in "$golden"/zero3-bf16-dp4-groups-frozen "$golden"/zero2-bf16-dp2-aligned "$golden"/zero0-bf16; do
    rm -rf with alone
    run convert "$case/ckpt" with --to hf --optim --torch-dtype float32 --hf-config "$case/expected"
    exits 0
    run convert "$case/ckpt" alone --to hf --no-optim --torch-dtype float32 --hf-config "$case/expected"
    exits 0
    says "weights are cast from their masters"
    cmp -s with/model.safetensors alone/model.safetensors || is_wrong "other weights of $case"
done
for case in "$fixtures"/*/zero_to_fp32; do
    [ -d "$case" ] || continue
    rm -rf alone
    run convert "$case/../ckpt" alone --to hf --no-optim --torch-dtype float32 --hf-config "$case/../expected"
    exits 0
    run verify alone "$case" --hf-config "$case/../expected"
    exits 0
    prints "identical: "
done

it "the file latest, --ckpt-step or the only folder says which tag is read"
copy_of zero2-roundrobin-dp4
run inspect ds/ckpt
exits 0
prints "iteration  3"
prints "DeepSpeed ZeRO stage 2, 4 ranks"
run inspect "$tag"
exits 0
run inspect ds/ckpt --ckpt-step 3
exits 0
run inspect ds/ckpt --ckpt-step 4
exits 4
says "missing folder global_step4, named by --ckpt-step"
run inspect "$tag" --ckpt-step 4
exits 2
printf 'other' >ds/ckpt/latest
refuses 4 "missing folder other, named by the file latest"
printf '../x' >ds/ckpt/latest
refuses 5 "latest: its text is not a folder name"
rm ds/ckpt/latest
run inspect ds/ckpt
exits 0
cp -r "$tag" ds/ckpt/global_step4
refuses 3 "no file latest, and several folders to read: global_step3, global_step4"

it "round robin: mappings that disagree are named, and param_shapes used"
copy_of zero2-roundrobin-dp4
run inspect ds/ckpt
says "param_slice_mappings disagree with param_shapes, as after round_robin_gradients"

it "alignment that the file does not tell shifts states: they are found out by the weights"
copy_of zero2-bf16-dp2-aligned
rm -rf ds/ckpt/*universal
for file in "$tag"/*optim*; do
    edit "$file" '(param_alignment_paddings)' 'other_alignment_paddings'
done
refuses 5 "group 0: parameters need 3474 elements, files hold 3514"

it "without config.json names alone count, and conversions between formats of these names work"
copy_of zero3-bf16-dp4-groups-frozen
run inspect ds/ckpt
exits 0
run convert -q ds/ckpt out2 --to torch_dist
exits 3

it "a rank's file that is missing is named, with what it held"
copy_of zero3-bf16-dp4-groups-frozen
rm "$tag/bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt"
refuses 5 "optim_states.pt, expected one of each per rank"
copy_of zero2-roundrobin-dp4
rm "$tag/bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt"
refuses 5 "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt is missing (3 of 4 files exist): it held elements of"
copy_of zero2-roundrobin-dp4
rm "$tag/bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt"
refuses 5 "bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt is missing (3 of 4 files exist): it held elements of"
copy_of zero2-roundrobin-dp4
cp "$tag/bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt" "$tag/bf16_zero_pp_rank_4_mp_rank_00_optim_states.pt"
refuses 5 "5 files of optimizer states, but partition_count is 4"
copy_of zero3-bf16-dp4-groups-frozen
rm "$tag"/*_2_mp_rank_00_*
refuses 5 "zero_pp_rank_2_mp_rank_00_model_states.pt is missing"
copy_of zero3-bf16-dp4-groups-frozen
rm "$tag"/*optim_states.pt
refuses 5 "is of stage 3 and holds no weights; missing *_optim_states.pt files"
copy_of zero2-roundrobin-dp4
rm "$tag"/mp_rank_00_model_states.pt
refuses 5 "missing *model_states.pt with the parameters' names"

it "files of different saves are refused"
copy_of zero3-bf16-dp4-groups-frozen
edit "$tag/zero_pp_rank_1_mp_rank_00_model_states.pt" 'global_steps(?:q.|r....)K(.)' '\x04'
refuses 5 "global step 4, but zero_pp_rank_0_mp_rank_00_model_states.pt has 3: files of different saves"
copy_of zero2-roundrobin-dp4
edit "$tag/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt" '(\x00\x00\x40\x40)' '\x00\x00\x80\x40'
refuses 5 "rank 1 has made 4 steps in group 0, rank 0 3: files of different saves"

it "files of different versions are noted"
copy_of zero2-roundrobin-dp4
edit "$tag/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt" '(0[.]19[.]8)' '0.19.7'
run inspect ds/ckpt
exits 0
says "files of different DeepSpeed versions: bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt by 0.19.7"

it "what is not read is named"
copy_of zero2-roundrobin-dp4
mkdir "$tag/offloaded_tensors"
refuses 3 "an optimizer offloaded to NVMe swap files"
copy_of zero2-roundrobin-dp4
touch "$tag/layer_0_expert_1_mp_rank_00_model_states.pt"
refuses 3 "experts of DeepSpeed's MoE are not supported"
copy_of zero2-roundrobin-dp4
cp "$tag/mp_rank_00_model_states.pt" "$tag/mp_rank_01_model_states.pt"
refuses 5 "it is of 1 tensor parallel ranks, but 2 mp_rank_*_model_states.pt exist"
copy_of zero3-bf16-dp4-groups-frozen
for file in "$tag"/*optim*; do
    edit "$file" 'fp32_(flat_groups)' 'flat_lost__'
done
refuses 5 "missing fp32_flat_groups with the master weights"

it "files of a pipeline that are missing are named"
copy_of pipeline-tp2-pp2-dp2
run inspect ds/ckpt
exits 3
says "weights without a config.json that describes their model; --hf-config DIR gives one"
cp ds/expected/config.json ds/ckpt
run inspect ds/ckpt
exits 0
rm "$tag/layer_02-model_01-model_states.pt"
refuses 5 "some of 2 tensor parallel ranks lack layer files"
rm "$tag/layer_02-model_00-model_states.pt"
refuses 5 "1 layer with attention; config.json has 2"
copy_of pipeline-tp2-pp2-dp2
cp ds/expected/config.json ds/ckpt
rm "$tag/mp_rank_02_model_states.pt"
refuses 5 "3 mp_rank_*_model_states.pt for 2 tensor parallel ranks"
copy_of pipeline-tp2-pp2-dp2
cp ds/expected/config.json ds/ckpt
rm "$tag"/bf16_zero_pp_rank_1_mp_rank_02_optim_states.pt
refuses 5 "bf16_zero_pp_rank_1_mp_rank_02_optim_states.pt is missing (1 of 2 files exist): it held"
rm "$tag"/bf16_zero_pp_rank_0_mp_rank_02_optim_states.pt
refuses 5 "missing *mp_rank_02_optim_states.pt"

it "files that have changed places are told by the names that torch saved them under"
copy_of zero3-bf16-dp4-groups-frozen
mv "$tag/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt" first
mv "$tag/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt" "$tag/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"
mv first "$tag/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
refuses 5 "rank_0_mp_rank_00_optim_states.pt: torch saved it as bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"

it "weights alone are noted where the optimizer's files are gone"
copy_of zero1-fp32-dp2
rm "$tag"/*optim*
run inspect ds/ckpt
exits 0
says "no *_optim_states.pt: only the weights are read; the optimizer was not saved, or its files are missing"

it "files of a universal checkpoint that are missing are named"
copy_of zero2-bf16-dp2-aligned
rm ds/ckpt/global_step3_universal/zero/model.norm.weight/exp_avg.pt
run inspect ds/ckpt/global_step3_universal
exits 5
says "zero/model.norm.weight/exp_avg.pt is missing, but lm_head.weight has this file"
copy_of zero2-bf16-dp2-aligned
rm ds/ckpt/global_step3_universal/mp_rank_00_model_states.pt
run inspect ds/ckpt/global_step3_universal
exits 5
says "missing *_model_states.pt"

it "an empty folder of DeepSpeed's is no checkpoint"
rm -rf ds
mkdir -p ds/ckpt/global_step5
refuses 3 "this is a DeepSpeed folder without checkpoint files"
