#!/bin/sh
# options_test.sh - help, version, spellings of options, and what is said of wrong ones.
. "$(dirname "$0")/lib.sh"
synth_model m

it "help, asked for, goes to stdout and is no failure"
for way in help --help -h; do
    run "$way"
    exits 0
    prints "usage: ferry COMMAND"
    prints "130 interrupted"
    [ "$(grep -n '^Commands' "$stdout" | cut -d: -f1)" -lt "$(grep -n '^Exit codes' "$stdout" | cut -d: -f1)" ] ||
        is_wrong "exit codes come before the commands"
    says_nothing
done

it "no command at all is a mistake, and help goes to stderr"
run
exits 2
says "usage: ferry COMMAND"
prints_nothing

it "every command that help lists has a help of its own"
run help
commands=$(sed -n '/^Commands$/,/^$/s/^  \([a-z]*\) .*/\1/p' "$stdout")
[ -n "$commands" ] || is_wrong "help lists no commands"
for name in $commands; do
    run "$name" --help
    exits 0
    prints "usage: ferry $name"
    run help "$name"
    exits 0
    prints "usage: ferry $name"
done

it "an unknown command is named, with the nearest one"
run convret m out
exits 2
says "unknown command convret (did you mean convert?)"
prints_nothing

it "an unknown option is named, with the nearest one"
run convert m out --tensor-model-paralel-size 2
exits 2
says "--tensor-model-paralel-size"
says "did you mean --tensor-model-parallel-size"
run convert m out --dryrun
exits 2
says "did you mean --dry-run"
is_not_there out

it "words that other tools have taught are answered with those of this one"
run ls m
exits 2
says "unknown command ls: ferry inspect PATH"
run verify m m --use_distributed_optimizer
exits 2
says "unknown option --use_distributed_optimizer: it does not change how weights are stored"
run inspect --load m
exits 2
says "unknown option --load: give folders without an option before them"
run convert --hf-model m --megatron-path out
exits 2
says "unknown option --hf-model: ferry import and ferry export take these options"
run forward m --data-parallel-size 0 # an option of its own
says '--data-parallel-size: "0" is not a whole number'

it "more threads than a process should start are refused by commands that compute"
for command in "generate m --prompt-ids 1 --max-new-tokens 1" "bench m" "train --load m --mock-data --seq-length 8 \
    --micro-batch-size 1 --train-iters 1 --lr 1e-3"; do
    # shellcheck disable=SC2086 # words
    run $command --threads 100000
    exits 2
    says "--threads 100000 is out of range (1 to 1024)"
    prints_nothing
done

it "train names the option that it has for those of other tools"
run train --save-dir x
exits 2
says "--save-dir: use --save"
run train --load-dir=x
exits 2
says "--load-dir: use --load"
run train --load m --num_train_epochs 3 --per_device_train_batch_size 2 --gradient_accumulation_steps=4 --learning-rate 1e-5 \
    --warmup-steps 5 --max-steps 9 --logging-steps 1 --save-steps 3 --gradient-checkpointing --lora-rank 8
exits 2
says "--num_train_epochs: use --train-iters or --train-samples: epochs times the samples of the data"
says "--per_device_train_batch_size: use --micro-batch-size"
says "--gradient_accumulation_steps: use --global-batch-size: micro-batch size x data parallel ranks x accumulation steps"
says "--lora-rank: adapters (LoRA) are not implemented: all parameters are trained"
for pair in "--learning-rate --lr" "--warmup-steps --lr-warmup-iters" "--max-steps --train-iters" \
    "--logging-steps --log-interval" "--save-steps --save-interval" "--gradient-checkpointing --recompute-granularity"; do
    says "${pair% *}: use ${pair#* }"
done
run train --help
prints "context parallel ranks; training supports 1 only"
run convert m out --lora-rank 8
exits 2
says "unknown option --lora-rank: an adapter (LoRA) is merged into its model first"

it "commands have the names that other tools have taught"
run import m imported --tp 2
exits 0
run convert m converted --tp 2
same_files imported converted
run export imported exported
exits 0
is_there exported/config.json
run reshard imported resharded --pp 2
exits 0
run plan m out
exits 0
says "dry run: nothing written"
is_not_there out
for name in diff compare; do
    run $name imported exported
    exits 0
    prints "identical: "
done
for name in info show; do
    run $name imported
    exits 0
    prints "torch_dist"
done
run version
exits 0
prints "ferry "
run help
for name in import export reshard plan diff compare info show; do prints "$name"; done

it "folders are taken by option, as Megatron-LM and its Bridge spell them"
run import --hf-model m --megatron-path bridge --tp 2
exits 0
same_files bridge imported
run export --hf-model m --megatron-path bridge --hf-path bridge-hf
exits 0
same_files bridge-hf exported
for pair in "--load --save" "--load-dir --save-dir" "--source --dest" "--input --output"; do
    rm -rf named
    run convert "${pair% *}" m "${pair#* }" named --tp 2
    exits 0
    same_files named imported
done
run convert --load m --source m out
exits 2
says "SOURCE is given twice: --load m and --source m"
run convert --load m m out
exits 2
says '"out" is one argument too many: SOURCE is given by --load m'

it "formats have several names"
for name in huggingface hf safetensors; do
    rm -rf named
    run convert imported named --to $name
    exits 0
    is_there named/model.safetensors
done
for name in megatron mcore torch_dist; do
    rm -rf named
    run convert m named --to $name
    exits 0
    is_there named/iter_0000000/.metadata
done
for name in legacy megatron_legacy torch; do
    rm -rf named
    run convert m named --to $name
    exits 0
    is_there named/release/mp_rank_00
done
[ "$(find named -name model_optim_rng.pt | wc -l)" -eq 1 ] || is_wrong "no legacy checkpoint"

it "flags of a training script are taken: those that do not matter with a note"
run convert m out --dry-run --use-distributed-optimizer --context_parallel_size 2 --sequence-parallel \
    --recompute-granularity full --tokenizer-type HuggingFaceTokenizer --seq-length=4096 --attention-backend flash
exits 0
says "note: --use-distributed-optimizer, --context-parallel-size 2, --sequence-parallel, --recompute-granularity full,"
says "--seq-length 4096, --attention-backend flash: no effect on the weights"
run convert m quiet --cp 2 -q
exits 0
says_nothing

it "options of other converters are taken where they say what is so, and refused where they do not"
run convert m out --dry-run --model-type GPT --loader llama_mistral --saver core --checkpoint-type hf \
    --megatron-path /opt/Megatron-LM --not-strict --max-queue-size 50 --loader-transformer-impl local \
    --saver-transformer-impl local --model-size llama3
exits 0
says "note: --megatron-path /opt/Megatron-LM, --not-strict, --max-queue-size 50, --loader-transformer-impl local, --model-size llama3: no effect on the weights"
says "note: --model-type GPT, --loader llama_mistral, --saver core, --checkpoint-type hf: ignored, as it is so"
run convert named out --dry-run --to hf --loader mcore --saver llama2_hf --no-optim
exits 0
while read -r wanted message; do
    option=${message%%:*}
    # shellcheck disable=SC2086 # words
    run convert m out ${option%% is*}
    exits "$wanted"
    says "$message"
done <<'OPTIONS'
3 --model-type BERT is not supported (GPT)
3 --checkpoint-type meta is not supported (hf)
2 --loader mcore: the format of the source is hf
2 --saver llama2_hf: the format of the destination (--to) is torch_dist
2 --saver other: the format of the destination (--to) is torch_dist
OPTIONS
is_not_there out

it "flags of a training script that say what the model is are compared with it"
run convert m out --dry-run --num-layers 4 --hidden-size 64 --num-attention-heads 8 --group-query-attention \
    --num-query-groups 2 --ffn-hidden-size 128 --max-position-embeddings 2048 --swiglu --normalization RMSNorm \
    --disable-bias-linear --position-embedding-type rope --rotary-base 1e4 --norm-epsilon 0.000001 \
    --untie-embeddings-and-output-weights --vocab-size 1000
exits 0
says "--rotary-base 1e4, --norm-epsilon 0.000001, --untie-embeddings-and-output-weights, --vocab-size 1000: agrees with the model"
synth_model tied --tied
while read -r folder flag has; do
    run convert "$folder" out "$flag"
    exits 2
    says "$(echo "$flag" | tr '=' ' '): the model has $has, read from $folder"
done <<'FLAGS'
m --num-layers=5 num_layers 4
m --normalization=LayerNorm normalization RMSNorm
m --rotary-base=1000000 rotary_base 10000
m --qk-layernorm qk_layernorm false
m --use-rope-scaling use_rope_scaling false
tied --untie-embeddings-and-output-weights untie_embeddings_and_output_weights false
FLAGS
is_not_there out

it "norms of latent attention are Megatron-LM's --qk-layernorm"
run synth --model deepseek_v3 --kv-heads 8 --q-lora-rank 24 --kv-lora-rank 16 latent
exits 0
run convert latent out --dry-run --multi-latent-attention --qk-layernorm --q-lora-rank 24
exits 0
says "note: --multi-latent-attention, --qk-layernorm, --q-lora-rank 24: agrees with the model"
run convert latent out --dry-run --q-lora-rank 23
exits 2
says "--q-lora-rank 23: the model has q_lora_rank 24, read from latent"

it "flags that name a dtype are taken where weights have it"
run convert m out --dry-run --bf16
exits 0
says "note: --bf16: weights are written in that dtype"
run convert m out --dry-run --params-dtype torch.float16 --torch-dtype float16
exits 0
run convert m out --fp16
exits 2
says "--fp16: weights are BF16; --torch-dtype float16 casts them"
run convert m out --torch-dtype float16 --bf16
exits 2
says "--bf16: weights are F16"
run convert m out --params-dtype int8
exits 2
says "--params-dtype int8: not one of bfloat16, float16, float32, float64"

it "tokens have the same option names wherever they are asked for"
for command in "bench m --repeats 1" "verify m m --forward --threads 1" "perplexity m --data ids --data-dtype u16"; do
    printf '\1\0\2\0\3\0\4\0\5\0' >ids
    for names in "--seq 2 --batch 1" "--seq-length 2 --micro-batch-size 1"; do
        # shellcheck disable=SC2086 # words
        run $command $names
        exits 0
    done
done

it "help takes no value"
run convert --help=foo
exits 2
says "--help takes no value"

it "missing and surplus arguments are named"
run convert m
exits 2
says "DESTINATION"
run convert m out surplus
exits 2
says "surplus"
run print
exits 2

it "a 0 that means nothing is refused, not taken for the default"
for option in --tp --pp --ep --etp --vpp --num-layers-per-virtual-pipeline-stage --world-size \
    --decoder-first-pipeline-num-layers --decoder-last-pipeline-num-layers --threads \
    --make-vocab-size-divisible-by --true-vocab-size; do
    run convert m out "$option" 0
    exits 2
    says "$option: \"0\" is not a whole number from 1 to"
done
for option in --layers --experts --vocab-size; do
    run synth s "$option" 0
    exits 2
    says "$option: \"0\" is not a whole number from 1 to"
done
run bench m --repeats 0
exits 2
says '--repeats: "0" is not a whole number from 1 to'
is_not_there out s

it "experts' ranks of a model without experts are refused"
run convert m out --tp 2 --etp 1
exits 3
says "expert tensor parallel size 1: the model has no experts, and tensor parallel size is 2"
is_not_there out
run convert m out --tp 2 --etp 2 --dry-run
exits 0

it "a pipeline stage without layers is told"
run convert m out --pp 2 --decoder-first-pipeline-num-layers 4 --dry-run
exits 0
says "note: pipeline stage 1 of 0 to 1 has no layers"

it "a number that no counter of iterations holds is no iteration"
for count in 9223372036854775808 18446744073709551615 18446744073709551616; do
    for option in --iteration --ckpt-step --rank; do
        run convert m out "$option" $count
        exits 2
        says "$option: \"$count\" is not a whole number from 0 to 9223372036854775807"
    done
    run verify m m --max-ulp $count
    exits 2
done
is_not_there out
run convert m far --iteration 9223372036854775807
exits 0
is_there far/iter_9223372036854775807

it "values that are none are refused with what they should be"
run convert m out --tp two
exits 2
says '--tp: "two"'
run convert m out --tp
exits 2
says "--tp needs a value"
run convert m out --to tensorstore
exits 2
says "hf|torch_dist|torch"
run convert m out --max-memory 5furlongs
exits 2
says "5GB"
for size in --max-memory --max-shard-size --journal-every; do
    run convert m out "$size" 0
    exits 2
    says "$size: \"0\" is not a size of at least 1 byte"
done
run convert m out --torch-dtype int8
exits 2
says "bfloat16"
run convert m out --tp -1
exits 2
run convert m out --pipeline-model-parallel-layout nonsense
exits 2
is_not_there out

it "spellings of Megatron-LM, of Bridge and with underscores are the same"
for spelling in "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2" "--tp 2 --pp 2" \
    "--tensor_model_parallel_size 2 --pipeline_model_parallel_size 2" "--tp=2 --pp=2" \
    "--target-tensor-parallel-size 2 --target-pipeline-parallel-size=2" "--tp 4 --pp 2 --tp 2"; do
    # shellcheck disable=SC2086 # words
    run convert m out --dry-run $spelling
    exits 0
    says "TP2"
    says "PP2"
done

it "options may stand anywhere, and end at --"
run --tp 2 convert m out
exits 2
run convert --dry-run m --tp 2 out
exits 0
run convert --dry-run -- m -out
exits 0
says "-> -out"

it "stdout that cannot be written is exit code 4"
if [ -w /dev/full ]; then
    "$ferry" help >/dev/full 2>"$stderr"
    code=$? ran="ferry help >/dev/full"
    exits 4
else
    skip "no /dev/full"
fi

it "a reader that closes the pipe ends it in silence"
# shellcheck disable=SC2016 # for bash
run_program bash -c '{ sleep 0.1; "$0" help convert; echo "$?" >&2; } | true' "$ferry"
says 141
[ "$(wc -l <"$stderr")" -eq 1 ] || is_wrong "more was said"

it "the man pages have all commands and options, and groff takes them"
run --man-page
exits 0
prints '.TH'
for section in "EXIT STATUS" ENVIRONMENT FILES EXAMPLES "SEE ALSO"; do prints ".SH \"$section\""; done
cp "$stdout" ferry.1
for name in $commands; do
    prints "ferry\\-$name\\fR(1)"
    "$ferry" --man-page "$name" >"ferry-$name.1" || is_wrong "no page of $name"
done
# shellcheck disable=SC2086 # words
[ "$("$ferry" --commands | sort)" = "$(printf '%s\n' $commands | sort)" ] || is_wrong "--commands lists others"
grep -q 'pipeline\\-model\\-parallel\\-layout' ferry-convert.1 || is_wrong "no option"
if command -v groff >/dev/null; then
    run_program groff -man -Tutf8 -ww ./*.1
    says_nothing
fi

# Words that bash offers for the last one: completed WORD...
completed() {
    # shellcheck disable=SC2016 # for bash
    bash -c '. "$0"
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        function=$(complete -p ferry)
        function=${function#*-F }
        "${function%% *}" ferry "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"
        echo "${COMPREPLY[@]}"' "$scratch/completion" ferry "$@"
}

it "bash completes commands, options and choices"
if command -v bash >/dev/null; then
    run --bash-completion
    exits 0
    cp "$stdout" "$scratch/completion"
    got="$(completed conv) $(completed convert --tensor) $(completed convert --to torch_)"
    [ "$got" = "convert --tensor-model-parallel-size torch_dist" ] || is_wrong "completed: $got"
    got="$(completed exp) $(completed export --model mis) $(completed diff --ato)"
    [ "$got" = "export mistral mistral3 mistral4 mistral_large4 --atol" ] || is_wrong "completed: $got"
else
    skip "no bash"
fi

it "zsh takes its completion"
run --zsh-completion
exits 0
prints "#compdef ferry"
prints "convert|import|export|reshard|plan)"
if command -v zsh >/dev/null; then
    run_program zsh -n "$stdout"
    exits 0
    says_nothing
else
    skip "no zsh"
fi

it "fish takes its completion"
run --fish-completion
exits 0
prints "complete -c ferry -n '__fish_seen_subcommand_from convert import export reshard plan' -l to -x -a 'hf "
if command -v fish >/dev/null; then
    run_program fish -n "$stdout"
    exits 0
    says_nothing
else
    skip "no fish"
fi

it "convert takes its options, source and destination from a file"
synth_model model
printf 'source: model\ndestination: from_file\ntp: 2\nallow-missing: ["*.bias"]\nno-optim: false\n' >job.yaml
run convert --config job.yaml
exits 0
says "TP2"
run convert --config job.yaml --destination from_line --tp 1
exits 0
says "TP1"
says "-> from_line"
echo 'tpp: 2' >>job.yaml
run convert --config job.yaml
exits 2
says "job.yaml: unknown option --tpp"
