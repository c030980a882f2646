#!/bin/sh
# transformers_norm_topk_prob.sh - two DeepSeeks have the same option for the router, and one ignores it.
#
# package:  transformers 5.24.0 with torch 2.13.0 on a CPU; V2 of 4.57.6 does the same
# expected: norm_topk_prob is a field of both DeepseekV2Config and DeepseekV3Config. If it is true, the weights of the
#           chosen experts are divided by their sum, so a model whose experts answer computes other logits.
# instead:  DeepseekV3ForCausalLM does so. DeepseekV2ForCausalLM takes and saves the option, and computes the same with
#           either value, without a warning. What converts a model and honours the field computes another model.
# why:      DeepseekV2TopkRouter never reads the field: weights are the softmax over all experts, times
#           routed_scaling_factor.
# seen:
#   deepseek_v2: logits change by 0; saved config: True
#   deepseek_v3: logits change, saved config: True
#   as stated: deepseek_v2 ignores norm_topk_prob, deepseek_v3 heeds it
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
        "$folder/venv/bin/pip" install torch==2.13.0 numpy==2.1.3 safetensors==0.8.0 tokenizers==0.23.3 \
            huggingface_hub==2.4.0 transformers==5.24.0
}
install >"$folder/log" 2>&1 || changed "the packages cannot be installed"

cat >"$folder/show.py" <<'END'
import torch
from transformers import DeepseekV2Config, DeepseekV2ForCausalLM, DeepseekV3Config, DeepseekV3ForCausalLM

TOKENS = torch.arange(12)[None]
SIZES = dict(vocab_size=64, hidden_size=48, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=4, n_routed_experts=8, n_shared_experts=1,
             num_experts_per_tok=3, kv_lora_rank=32, q_lora_rank=None, qk_rope_head_dim=8, qk_nope_head_dim=16,
             v_head_dim=16, first_k_dense_replace=0, n_group=1, topk_group=1, initializer_range=0.5,
             pad_token_id=2, bos_token_id=0, eos_token_id=1)


def logits_of(config_class, model_class, normalized):
    """Logits of the same weights with norm_topk_prob; and its value in the config that is saved."""
    torch.manual_seed(0)
    model = model_class(config_class(norm_topk_prob=normalized, **SIZES)).eval()
    with torch.no_grad():
        return model(TOKENS).logits, model.config.to_dict()["norm_topk_prob"]


changes = {}
for family, *classes in (("deepseek_v2", DeepseekV2Config, DeepseekV2ForCausalLM),
                         ("deepseek_v3", DeepseekV3Config, DeepseekV3ForCausalLM)):
    (plain, _), (normalized, saved) = (logits_of(*classes, value) for value in (False, True))
    changes[family] = (plain - normalized).abs().max().item()
    change = "logits change by 0;" if changes[family] == 0 else "logits change,"
    print(f"{family}: {change} saved config: {saved}")
if changes["deepseek_v2"] == 0 and changes["deepseek_v3"] > 0.01:
    print("as stated: deepseek_v2 ignores norm_topk_prob, deepseek_v3 heeds it")
else:
    print(f"changed: stated are no change and one, not {changes}")
END
touch "$folder/seen"
HOME=$folder "$folder/venv/bin/python" -W ignore "$folder/show.py" >"$folder/seen" 2>"$folder/log" ||
    true
cat "$folder/seen"
case $(tail -n 1 "$folder/seen") in
"as stated: "*) ;;
"changed: "*) exit 1 ;;
*) changed "the program fails" ;;
esac
