"""variations.py - how the models of families.py differ from the small models that golden files were made from.

A config is changed only where it has a field of that name, so that a new family is varied by itself. Model 0 takes the
first size of each row, model 1 the second; options go round by the field's name, so that two models see two values."""

import zlib

# field: size in model 0, in model 1, and so on by turns. Ranks split them in two.
SIZES = {
    "vocab_size": (151, 142),
    "num_hidden_layers n_layer num_layers n_layers": (6, 3),
    "num_attention_heads n_head n_heads": (6, 10),
    "num_key_value_heads": (2, 2),
    "head_dim": (24, 16),
    "hidden_size n_embd d_model": (60, 50),
    "intermediate_size": (70, 92),
    "n_inner": (66, 74),
    "dense_intermediate_size intermediate_size_mlp": (62, 84),
    "moe_intermediate_size": (18, 14),
    "moe_hidden_size moe_latent_size": (22, 26),
    "shared_expert_intermediate_size moe_shared_expert_intermediate_size": (30, 22),
    "shared_intermediate_size share_expert_dim": (30, 22),
    "num_experts n_routed_experts num_local_experts moe_num_experts": (12, 8),
    "num_experts_per_tok num_experts_per_token moe_topk moe_k top_k_experts": (3, 1),
    "q_lora_rank": (28, 22),
    "o_lora_rank": (8, 10),
    "kv_lora_rank": (20, 18),
    "qk_nope_head_dim": (14, 16),
    "qk_rope_head_dim": (12, 4),
    "v_head_dim": (18, 6),
    "swa_head_dim": (24, 16),
    "num_global_key_value_heads": (2, 1),
    "global_head_dim": (32, 24),
    "index_n_heads indexer_n_heads": (4, 2),
    "index_head_dim indexer_head_dim": (16, 20),
    "linear_num_key_heads": (4, 2),
    "linear_num_value_heads": (8, 6),
    "linear_num_heads": (6, 2),
    "linear_key_head_dim": (12, 6),
    "linear_value_head_dim": (14, 18),
    "linear_head_dim": (12, 14),
    "linear_conv_kernel_dim conv_L_cache mamba_d_conv conv_kernel short_conv_kernel_size": (3, 4),
    "mamba_n_heads mamba_num_heads num_heads": (8, 4),
    "mamba_d_state ssm_state_size state_size": (10, 6),
    "mamba_head_dim": (10, 14),
    "hidden_size_per_layer_input": (10, 14),
    "sliding_window attention_chunk_size": (5, 11),
    "hc_lowrank": (6, 12),
    "gated_norm_rank": (4, 10),
    "max_position_embeddings n_positions": (160, 192),
}


class Later:
    """A value that depends on the rest of the config."""

    def __init__(self, value):
        self.value = value


def dense_first(count):
    return Later(lambda t: ["dense"] * count + ["sparse"] * (layers_of(t) - count))


def rotated(t):
    kinds = t["layer_types"]
    return kinds if t.get("per_layer_config") or not kinds else kinds[1:] + kinds[:1]


BOTH = (True, False)
# field: the values that it takes by turns, where the class takes them
OPTIONS = {
    **dict.fromkeys(
        """tie_word_embeddings attention_bias qkv_bias mlp_bias use_bias lm_head_bias conv_bias use_conv_bias
        mamba_conv_bias mamba_proj_bias projectors_bias use_qk_norm qk_layernorm norm_topk_prob moe_renormalize
        use_sliding_window attn_output_gate use_attention_gate use_sandwich_norm kda_safe_gate attention_k_eq_v
        use_parallel_residual use_routing_bias rope_interleave scale_attn_weights scale_attn_by_inverse_layer_idx
        reorder_and_upcast_attn mamba_rms_norm mamba_norm_before_gate attn_temperature_tuning use_double_wide_mlp
        gating residual_in_fp32 rms_norm block_auto_adjust_ff_dim add_swa_attention_sink_bias
        add_full_attention_sink_bias use_bidirectional_attention moe_apply_router_weight_on_input enable_moe_block
        enable_moe_fp32_combine index_kpool_always_select_tail mtp_use_dedicated_embeddings""".split(),
        BOTH,
    ),
    "first_k_dense_replace": (2, 0, 3),
    "mlp_layer_types": (dense_first(2), dense_first(0)),
    "layer_types": (Later(rotated), Later(lambda t: t["layer_types"])),
    "n_shared_experts": (2, 1),
    "num_shared_experts": (2, 1),
    "moe_num_shared_experts": (1, 0),
    "shared_expert_intermediate_size": (26, 34),
    "n_group": (2, 1, 4),
    "num_expert_group": (2, 1),
    "topk_group": (1, Later(lambda t: min(t.get("n_group") or t.get("num_expert_group") or 1, 2))),
    "q_lora_rank": (None, 22),
    "max_window_layers": (1, 3),
    "decoder_sparse_step": (2, 1),
    "mlp_only_layers": ([0], [], [1, 2]),
    "moe_layer_interval": (1, 2),
    "moe_layer_start_index": (0, 2),
    "moe_layer_end_index": (4, 2),
    "mamba_n_groups n_groups": (1, 2),
    "mtp_num_hidden_layers": (0, 1),
    "kda_lower_bound linear_lower_bound": (-4.0, -2.5),
    "mlp_hidden_act": ("relu2", "silu"),
    "interleave_moe_layer_step": (1, 2),
    "num_kv_shared_layers": (0, 2),
    "num_nextn_predict_layers": (0, 1),
    "routed_scaling_factor router_scaling_factor moe_routed_scaling_factor moe_router_scaling_factor": (1.0, 1.75),
    "clip_qkv": (None, 0.75),
    "final_logit_softcapping": (None, 7.5),
    "attn_logit_softcapping": (None, 9.0),
    "moe_router_logit_softcapping": (3.0, 0.0),
    "attention_multiplier": (0.3, 0.125),
    "residual_multiplier": (0.5, 1.0),
    "embedding_multiplier": (3.0, 1.0),
    "logits_scaling": (2.0, 1.0),
    "logit_scale": (0.125, 1.0),
    "attention_in_multiplier attention_out_multiplier key_multiplier lm_head_multiplier": (0.75, 1.0),
    "ssm_in_multiplier ssm_out_multiplier": (0.75, 1.0),
    "attention_value_scale attn_scale qk_scale_factor residual_gate_temperature hc_magnitude": (0.5, 1.0),
    "query_pre_attn_scalar": (20, 36),
    "rms_norm_eps layer_norm_eps layer_norm_epsilon norm_eps norm_epsilon post_norm_eps hc_eps": (2e-6, 3e-5),
    "hidden_act": (Later(lambda t: t["hidden_act"]), "gelu", "gelu_pytorch_tanh"),
    "hidden_activation": (Later(lambda t: t["hidden_activation"]), "gelu"),
    "activation_function": ("gelu", "gelu_new", "relu"),
    "position_embedding_type": ("rope", "nope"),
    "swiglu_limit": (5.0, 2.5),
    "swiglu_alpha": (1.25, 1.702),
    "no_rope_layer_interval": (2, 3),
    "rope_theta": (25000.0, 640000.0),
    "partial_rotary_factor": (1.0, 0.5),
    "rotary_pct": (1.0, 0.25),
    "hc_mult hc_count": (3, 2),
}

# Members of rope_scaling and rope_parameters. The length before scaling is shorter than any max_position_embeddings.
LENGTH = "original_max_position_embeddings"
ROPE = (
    {"rope_type": "linear", "factor": 3.0},
    {"rope_type": "yarn", "factor": 4.0, LENGTH: 40, "beta_fast": 24.0, "beta_slow": 2.0},
    {"rope_type": "llama3", "factor": 8.0, LENGTH: 48, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "yarn", "factor": 2.0, LENGTH: 80, "attention_factor": 1.25, "truncate": False},
)

EXPERTS = "num_experts n_routed_experts num_local_experts moe_num_experts".split()
LAYERS = "num_layers num_hidden_layers n_layer n_layers layers_block_type".split()
LISTS_OF_LAYERS = ("mlp_only_layers", "moe_layers", "full_attn_idxs")  # numbers of layers, not a value for each


def turn(family, field, number, count):
    """Which of count values model number of the family takes: another one in the next model."""
    return (zlib.crc32(f"{family} {field}".encode()) + number) % count


def text_of(config):
    """The part of a config.json that describes the language model."""
    return next((config[k] for k in ("text_config", "llm_config") if isinstance(config.get(k), dict)), config)


def layers_of(text):
    layers = next(text[k] for k in LAYERS if text.get(k))
    return layers if isinstance(layers, int) else len(layers)


def experts_of(text):
    """The number of experts, 0 if no layer has any."""
    if False in (text.get("enable_moe_block"), text.get("is_moe")) or "moe" not in text.get("layers_block_type", ["moe"]):
        return 0
    return next((text[k] for k in EXPERTS if text.get(k)), 0)


def changes(config, family, number):
    """The changes that make model number of the family from a base: each a field and a function of a config."""
    text, made = text_of(config), [("sizes", lambda c: resize(c, number))]
    headless = (config.get("architectures") or [""])[0].endswith("Model")  # its head is that of a tied model
    for names, values in OPTIONS.items():
        value = values[turn(family, names, number, len(values))]
        for name in names.split():
            if name in text and (text[name] is not None or value is not None):
                if not (headless and name == "tie_word_embeddings"):
                    made.append((name, lambda c, name=name, value=value: set_option(c, name, value)))
    for name in "rope_scaling", "rope_parameters":
        if name in text:
            kind = ROPE[turn(family, "rope", number, len(ROPE))]
            made.append((name, lambda c, name=name, kind=kind: set_rope(c, name, kind)))
    return made


def set_option(config, name, value):
    text = text_of(config)
    value = value.value(text) if isinstance(value, Later) else value
    given_by_sizes = "qk_rope_head_dim" in text or "mrope_section" in (text.get("rope_scaling") or {})
    if name == "partial_rotary_factor" and given_by_sizes:
        return
    text[name] = value
    rope = text.get("rope_parameters") or {}
    if name in ("rope_theta", "partial_rotary_factor") and name in rope:
        rope[name] = value
    if name == "tie_word_embeddings" and name in config:
        config[name] = value
    if name == "first_k_dense_replace" and text.get("mlp_layer_types"):
        text["mlp_layer_types"] = dense_first(value).value(text)
    if name == "mlp_layer_types" and "first_k_dense_replace" in text:
        text["first_k_dense_replace"] = value.count("dense")


def set_rope(config, name, kind):
    rope = text_of(config)[name] or {}
    for part in [rope[k] for k in ("full_attention",) if rope.get(k)] or [rope]:
        if part.get("rope_type", part.get("type", "default")) == "default" and "mrope_section" not in part:
            part.update(kind)
            if name == "rope_parameters" and "rope_theta" in part:
                part["rope_theta"] = text_of(config).get("rope_theta", 2.5 * part["rope_theta"])
    text_of(config)[name] = rope or None


# ---- sizes ----


def resize(config, number):
    text = text_of(config)
    old, was = dict(text), layers_of(text)
    for part in [text, *(text.get("per_layer_config") or {}).values()]:
        for names, values in SIZES.items():
            for name in names.split():
                if part.get(name) and isinstance(part[name], int):
                    part[name] = values[number % len(values)]
    for part in (text.get("per_layer_config") or {}).values():  # layers of another kind have their own sizes
        part.update({"head_dim": text["head_dim"] + 8} if "head_dim" in part else {})
        part.update({"num_attention_heads": 2 * text["num_attention_heads"]} if "num_attention_heads" in part else {})
        part.update({"num_key_value_heads": 2} if "num_key_value_heads" in part else {})
    keep_relations(text, old)
    keep_rope(text, old)
    by_layer(text, was, SIZES["num_hidden_layers n_layer num_layers n_layers"][number % 2])
    for part in config.values():  # towers end in vectors of the text model's size
        if isinstance(part, dict) and part is not text and "out_hidden_size" in part:
            part["out_hidden_size"] = text["hidden_size"]


def keep_relations(text, old):
    """Sizes that a family derives from others, or that are equal in the base, stay so."""
    hidden = next((name for name in ("hidden_size", "n_embd", "d_model") if name in text), None)
    heads = text.get("num_attention_heads") or text.get("n_head") or text.get("n_heads")
    if heads and not old.get("head_dim") and "qk_nope_head_dim" not in text:
        text[hidden] = heads * (16 if heads == 6 else 8)
    if "qk_nope_head_dim" in text:
        rope, both = text["qk_rope_head_dim"], text["qk_rope_head_dim"] + text["qk_nope_head_dim"]
        text.update({"qk_head_dim": both} if "qk_head_dim" in text else {})
        if old.get("head_dim"):
            text["head_dim"] = both if old["head_dim"] == old["qk_rope_head_dim"] + old["qk_nope_head_dim"] else rope
        if old.get("num_key_value_heads") == old["num_attention_heads"]:
            text["num_key_value_heads"] = heads
    if "lru_width" in text:
        text[hidden] = text["lru_width"] = heads * text["head_dim"]
        text["intermediate_size"] *= 2  # of gate and up together
    if old.get("word_embed_proj_dim"):
        text["word_embed_proj_dim"] = text[hidden]
    if old.get("num_key_value_heads") == 1:
        text["num_key_value_heads"] = 1
    if "vocab_size_per_layer_input" in text:
        text["vocab_size_per_layer_input"] = text["vocab_size"]
    for inner, expand, count in ("mamba_d_head", "mamba_expand", "mamba_n_heads"), ("head_dim", "expand", "num_heads"):
        if inner in text and expand in text and count in text:
            text[inner] = text[expand] * text[hidden] // text[count]
    if "mamba_d_ssm" in text:
        text["mamba_d_ssm"] = text["mamba_n_heads"] * text["mamba_d_head"]


def rotary(text):
    """The size of a head, of which rotary positions take a part."""
    return text.get("head_dim") or text.get("hidden_size", 0) // (text.get("num_attention_heads") or 1)


def keep_rope(text, old):
    """Parts of heads keep their meaning where heads have another size."""
    for rope in text.get("rope_scaling") or {}, text.get("rope_parameters") or {}:
        if "mrope_section" in rope:
            half = sum(rope["mrope_section"]) * rotary(text) // rotary(old)
            rope["mrope_section"] = [half - half // 3 * 2, half // 3, half // 3]
        for name in "short_factor", "long_factor":
            if name in rope:
                count = len(rope[name]) * rotary(text) // rotary(old)
                rope[name] = [1.0 + 0.1 * i for i in range(count)]
    if "qk_rope_head_dim" in text and old.get("head_dim"):
        was, factor = old["qk_rope_head_dim"] / old["head_dim"], text["qk_rope_head_dim"] / text["head_dim"]
        ropes = [text, text.get("rope_parameters") or {}]
        for part in ropes + [r for r in ropes[1].values() if isinstance(r, dict)]:
            if part.get("partial_rotary_factor") == was:
                part["partial_rotary_factor"] = factor


def by_layer(text, was, layers):
    """Where the base ends, layers go on from its second one, in all that has an entry for each layer. The last layer
    is like the base's last one."""
    like = [i if i < was else 1 + (i - 1) % (was - 1) for i in range(layers - 1)] + [was - 1]
    for name, value in text.items():
        if not isinstance(value, list | str) or len(value) != was or name in LISTS_OF_LAYERS or "mtp" in name:
            continue
        if "pattern" in name and isinstance(value, str):
            text[name] = "".join(value[i] for i in like)
        elif isinstance(value, list) and any(part in name for part in ("layer", "types", "limits")):
            text[name] = [value[i] for i in like]
    if text.get("per_layer_config"):
        own = text["per_layer_config"]
        text["per_layer_config"] = {str(i): dict(own[str(j)]) for i, j in enumerate(like) if str(j) in own}
