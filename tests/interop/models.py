"""Small random Hugging Face models, made by transformers: every family that ferry has a map for."""

import torch
import transformers

COMMON = dict(
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=8,
    num_attention_heads=8,
    num_key_value_heads=4,
    vocab_size=131,
    max_position_embeddings=64,
)
EXPERTS = dict(num_experts_per_tok=2)
LLAMA3 = dict(
    rope_type="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=32,
)

# name: (configuration class, its values, dtype, bytes a shard)
MODELS = {
    "llama": ("LlamaConfig", COMMON, "float32", "5GB"),
    "llama-tied": ("LlamaConfig", dict(COMMON, tie_word_embeddings=True), "bfloat16", "40KB"),
    "llama3": ("LlamaConfig", dict(COMMON, rope_theta=500000.0, rope_scaling=LLAMA3), "bfloat16", "5GB"),
    "mistral": ("MistralConfig", dict(COMMON, head_dim=16, sliding_window=32), "float16", "100KB"),
    "qwen2": ("Qwen2Config", dict(COMMON, tie_word_embeddings=True), "float32", "5GB"),
    "qwen3": ("Qwen3Config", dict(COMMON, head_dim=16), "bfloat16", "5GB"),
    "gpt2": (
        "GPT2Config",
        dict(n_embd=64, n_layer=8, n_head=8, n_positions=64, vocab_size=131),
        "float32",
        "100KB",
    ),
    "mixtral": ("MixtralConfig", dict(COMMON, num_local_experts=4, **EXPERTS), "bfloat16", "200KB"),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        dict(COMMON, head_dim=16, num_experts=4, moe_intermediate_size=24, norm_topk_prob=True, **EXPERTS),
        "float32",
        "5GB",
    ),
}

WINDOW = dict(use_sliding_window=True, sliding_window=8)
EVERY_OTHER = [("sliding_attention", "full_attention")[i % 2] for i in range(8)]
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=2048)


def llama_yarn(**numbers):
    rope = dict(max_position_embeddings=8192, head_dim=32, rope_scaling=dict(YARN, **numbers))
    return ("LlamaConfig", dict(COMMON, **rope), "float32", "5GB")


def gpt2_as(**values):
    return ("GPT2Config", dict(MODELS["gpt2"][1], **values), "float32", "5GB")


# Configs with values beside the sizes, whose digests and logits are compared. (GPT-2's scales
# are in transformers' eager attention alone, which is asked for below; its sdpa leaves them out.)
VARIANTS = {
    "gpt2-unscaled": gpt2_as(scale_attn_weights=False, scale_attn_by_inverse_layer_idx=True),
    "gpt2-by-layer": gpt2_as(scale_attn_by_inverse_layer_idx=True, activation_function="quick_gelu"),
    "gpt2-gelu": gpt2_as(activation_function="gelu"),
    "llama-attention-bias": ("LlamaConfig", dict(COMMON, attention_bias=True), "float32", "5GB"),
    "llama-mlp-bias": ("LlamaConfig", dict(COMMON, mlp_bias=True), "float32", "5GB"),
    "qwen2-window": ("Qwen2Config", dict(COMMON, layer_types=EVERY_OTHER, **WINDOW), "float32", "5GB"),
    "qwen3-window": (
        "Qwen3Config",
        dict(COMMON, head_dim=16, max_window_layers=5, attention_bias=True, **WINDOW),
        "float32",
        "5GB",
    ),
    "qwen3_moe-window": ("Qwen3MoeConfig", dict(MODELS["qwen3_moe"][1], **WINDOW), "float32", "5GB"),
    "yarn-attention-factor": llama_yarn(attention_factor=1.7, beta_fast=4),
    "yarn-mscale": llama_yarn(mscale=0.8, mscale_all_dim=1.3, beta_slow=0.25),
    "yarn-untruncated": llama_yarn(mscale=0, mscale_all_dim=1.3, truncate=False),
}
MODELS.update(VARIANTS)
# With biases that Megatron has no place for.
HF_ONLY = ("llama-attention-bias", "llama-mlp-bias", "qwen3-window")


def dtype_of(name):
    return MODELS[name.split("-v")[0]][2]


def make(name, folder):
    """A model of the table; NAME-vROWS has another vocabulary."""
    base, _, rows = name.partition("-v")
    kind, values, dtype, shard = MODELS[base]
    values = dict(values, vocab_size=int(rows)) if rows else values
    torch.manual_seed(len(name))
    config = getattr(transformers, kind)(**values)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            tensor.normal_(0, 0.08)
            if "norm" in key or ".ln_" in key:  # weights around one, no two alike: a swap shows
                tensor.add_(1.0)
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=shard)


def tokens():
    return torch.randint(131, (2, 48), generator=torch.Generator().manual_seed(5))


def logits(folder):
    """What transformers computes in float32 for fixed tokens, and how it got on with loading."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    with torch.no_grad():
        out = model.eval()(tokens()).logits
    return out, {kind: names for kind, names in info.items() if names}
