"""bridge.py FERRY [--only TEXT] [--fixtures FOLDER] [--keep FOLDER] - compares what ferry writes for Megatron with the
models that Megatron-Bridge builds and fills from the same Hugging Face folders.

Each config.json of tests/golden/families and of the fixtures whose class Bridge knows gives a random model of other
sizes (variations.py); the fixtures' own weights are taken, too, for they have layers of multi-token prediction. Compared
are the names, shapes and values of all tensors of the model's sharded_state_dict(), and the fields of the model in
run_config.yaml with those of Bridge's provider.

Each line is PASS, FAIL or skipped, the family and the base. What Bridge leaves out or reads in another way is in a
table here, by family, and is shown with its reason. The last line has the sums."""

import argparse
import dataclasses
import fnmatch
import importlib
import json
import logging
import re
import shutil
import sys
import tempfile
import typing
from functools import partial
from pathlib import Path

import families
import family_model
import gpu_stand_ins
import torch
import torch.distributed.checkpoint
import transformers
import typing_extensions
import variations
import yaml
from safetensors.torch import load_file, save_file
from share import of_share

typing.override = typing_extensions.override  # Bridge asks for Python 3.12's
logging.disable(logging.ERROR)
gpu_stand_ins.install()
for name in """extensions.transformer_engine models.gpt.gpt_layer_specs models.mamba transformer.transformer_block
        optimizer distributed dist_checkpointing transformer.multi_token_prediction transformer.moe.moe_layer
        ssm.mamba_mixer fp8_utils""".split():
    importlib.import_module("megatron.core." + name)
gpu_stand_ins.stub_the_rest()

import megatron.bridge.training.model_load_save  # noqa: E402, F401  AutoBridge would hide why it cannot be imported
from megatron.bridge import AutoBridge  # noqa: E402
from megatron.bridge.models.conversion.model_bridge import MegatronModelBridge  # noqa: E402
from megatron.bridge.utils.instantiate_utils import instantiate  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.dist_checkpointing.dict_utils import nested_values  # noqa: E402
from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories  # noqa: E402
from megatron.core.process_groups_config import ProcessGroupCollection  # noqa: E402
from megatron_files import iteration_folder  # noqa: E402
from megatron_ranks import run_ranks  # noqa: E402

ON_A_CPU = dict(
    **dict.fromkeys(
        """persist_layer_norm bias_activation_fusion bias_dropout_fusion masked_softmax_fusion
        gradient_accumulation_fusion apply_rope_fusion cross_entropy_loss_fusion moe_permute_fusion moe_router_fusion
        moe_shared_expert_overlap sequence_parallel""".split(),
        False,
    ),
    **dict.fromkeys(
        """tensor_model_parallel_size pipeline_model_parallel_size context_parallel_size expert_model_parallel_size
        expert_tensor_parallel_size""".split(),
        1,
    ),
    use_cpu_initialization=True,
    moe_token_dispatcher_type="alltoall",
    params_dtype=torch.bfloat16,
    bf16=True,
)
METADATA = dict(singleton_local_shards=False, chained_optim_avoid_prefix=True)  # as Bridge's save has it

# Not of the model: how a run pads, computes and regularizes.
OF_A_RUN = """should_pad_vocab make_vocab_size_divisible_by seq_length pipeline_dtype autocast_dtype moe_grouped_gemm
    attention_dropout moe_aux_loss_coeff""".split()

# Bridge makes their layers of multi-token prediction; transformers makes none.
MTP_BY_BRIDGE = "exaone_moe hy_v3"

# Fields of config.json that Bridge takes for granted, by family. Those of a family go first.
BRIDGE_WANTS = {
    "exaone_moe": {"num_nextn_predict_layers": 1},
    "hy_v3": {"num_nextn_predict_layers": 1, "first_k_dense_replace": 1},
    "nemotron_h falcon_h1": {"conv_kernel": 4, "mamba_d_conv": 4, "mamba_norm_before_gate": False},
    "glm4_moe deepseek*": {"n_shared_experts": 1},
    "ernie4_5_moe": {"moe_layer_end_index": lambda text: text["num_hidden_layers"] - 1},
    "olmoe": {"num_key_value_heads": lambda text: text["num_attention_heads"]},
    "gemma4": {"vocab_size": 256, "vocab_size_per_layer_input": 256},
    "*": {"num_nextn_predict_layers": 0, "mtp_num_hidden_layers": 0},
}

# ---- one model ----


def leave_what_has_no_mapping():
    """Bridge's loop ends at a parameter that it has no mapping for. Here it goes on, and the parameter stays NaN."""
    plan = MegatronModelBridge.build_conversion_tasks

    def build_conversion_tasks(self, *args, **more):
        return [task for task in plan(self, *args, **more) if task]

    MegatronModelBridge.build_conversion_tasks = build_conversion_tasks


def bridge_model(source):
    """Bridge's provider and model, with the weights of a Hugging Face folder; parameters that it leaves are NaN."""
    bridge = AutoBridge.from_hf_pretrained(source)
    provider = bridge.to_megatron_provider(load_weights=False)
    for name, value in ON_A_CPU.items():
        setattr(provider, name, value)
    provider.finalize()
    fields = {f.name: getattr(provider, f.name) for f in dataclasses.fields(provider)}
    if not parallel_state.is_initialized():
        provider.initialize_model_parallel(seed=0)
    if getattr(provider, "_pg_collection", None) is None:
        provider._pg_collection = ProcessGroupCollection.use_mpu_process_groups()
    model = provider.provide(pre_process=True, post_process=True)
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.is_floating_point():
                tensor.fill_(float("nan"))
    bridge.load_hf_weights([model], source)
    return fields, model


def box_of(piece):
    shape = (1,) * piece.prepend_axis_num + tuple(piece.local_shape)
    return tuple(slice(o, o + n) for o, n in zip(piece.global_offset, shape, strict=True))


def bridge_tensors(model):
    """Whole tensors by their keys on disk. Wrappers of towers have the text model under a name of its own."""
    state, whole = model.sharded_state_dict(metadata=METADATA), {}
    apply_factories(state)
    for piece in nested_values(state):
        if isinstance(piece, ShardedTensor):
            empty = partial(torch.full, tuple(piece.global_shape), float("nan"), dtype=piece.data.dtype)
            into = (whole[piece.key] if piece.key in whole else whole.setdefault(piece.key, empty()))[box_of(piece)]
            into.copy_(piece.data.detach().reshape(into.shape))
    text = {key.removeprefix("language_model."): t for key, t in whole.items() if key.startswith("language_model.")}
    return text or whole


def ferry_tensors(folder):
    reader = torch.distributed.checkpoint.FileSystemReader(str(folder))
    known = reader.read_metadata().state_dict_metadata
    state = {key: torch.empty(tuple(x.size), dtype=x.properties.dtype) for key, x in known.items() if hasattr(x, "size")}
    torch.distributed.checkpoint.load(state, checkpoint_id=str(folder), no_dist=True)
    return state


def tensor_differences(ours, bridges):
    for key in sorted(ours.keys() | bridges.keys()):
        if key not in ours or key not in bridges:
            yield f"{key}: only {'Bridge' if key in bridges else 'ferry'} has it"
            continue
        a, b = ours[key], bridges[key]
        left = torch.isnan(b)
        if a.shape != b.shape:
            yield f"{key}: {list(a.shape)}, Bridge has {list(b.shape)}"
        elif left.any():
            yield f"{key}: Bridge fills {'no element' if left.all() else 'not all'} of it"
        elif not torch.equal(a.to(b.dtype), b):
            yield f"{key}: {(a.to(b.dtype) != b).sum()} of {b.numel()} elements differ"


def plain(value):
    """A field as it can be compared: functions by their names, tuples as lists."""
    if isinstance(value, (list, tuple)):
        return [plain(x) for x in value]
    if isinstance(value, partial):
        return [plain(value.func), plain(value.args), value.keywords]
    return getattr(value, "__name__", value)


def field_differences(folder, bridges):
    file = folder / "run_config.yaml"  # none for a hybrid model
    for name, value in yaml.safe_load(file.read_text())["model"].items() if file.exists() else ():
        if name in bridges and name not in ON_A_CPU and name not in OF_A_RUN:
            value = plain(instantiate(value) if isinstance(value, dict) and "_target_" in value else value)
            theirs = plain(bridges[name])
            if value != theirs:
                yield f"field {name} is {value}, Bridge has {theirs}"


def compare(ferry, source, work):
    out, refused = work / "ours", None
    options = ["--to", "torch_dist", "--make-vocab-size-divisible-by", 1, "--overwrite", "-q"]
    try:
        family_model.run_ferry(ferry, "convert", source, out, *options)
    except family_model.Wrong as wrong:
        if "--ferry-only" not in str(wrong):
            raise
        family_model.run_ferry(ferry, "convert", source, out, *options, "--ferry-only")
        refused = str(wrong)
    try:
        fields, model = bridge_model(source)
    except Exception as error:
        return {"not built": family_model.first_line(error)}
    ours, bridges = ferry_tensors(iteration_folder(out)), bridge_tensors(model)
    found = [*tensor_differences(ours, bridges), *field_differences(iteration_folder(out), fields)]
    return {"count": len(bridges), "differences": found, "refused": refused}


def as_bridge_wants(family, config):
    text = variations.text_of(config)
    wanted = {}
    for names, values in BRIDGE_WANTS.items():
        wanted = {**values, **wanted} if matches(family, names) else wanted
    for name, value in wanted.items():
        if name in text or name in BRIDGE_WANTS.get(family, ()):
            text[name] = value(text) if callable(value) else value


def matches(family, names):
    return any(fnmatch.fnmatch(family, name) for name in names.split())


def make(ferry, family, config, work):
    models = family_model.Models(ferry, {"base": config, "number": 0, "family": family}, work)
    sizes = variations.changes(models.fields, family, 0)[:1]
    model = models.make([*sizes, ("", partial(as_bridge_wants, family))])
    family_model.randomise(model, 1)
    source = work / "source"
    model.save_pretrained(source)
    if matches(family, MTP_BY_BRIDGE):
        add_mtp(source)
    return source


def add_mtp(source):
    """Adds layers of multi-token prediction with random weights, under the names that Bridge gives them."""
    _, model = bridge_model(source)
    family_model.randomise(model, 2)
    config = transformers.AutoConfig.from_pretrained(source)  # of a folder it exports only what is there
    made = AutoBridge.from_hf_config(config).export_hf_weights([model], cpu=True, show_progress=False)
    stored = load_file(source / "model.safetensors")
    added = {name: tensor.contiguous() for name, tensor in made if name not in stored}
    if not added:
        raise family_model.Wrong("Bridge has no layers of multi-token prediction")
    save_file({**stored, **added}, source / "model.safetensors", {"format": "pt"})


def answer(ferry, family, source, work, result):
    """In a rank of its own: Megatron's parallel state is the process's."""
    sys.stdout = open(work / "log", "w")  # Bridge shows its progress
    leave_what_has_no_mapping()
    try:
        if not isinstance(source, Path):
            try:
                source = make(ferry, family, source, work)
            except Exception as error:
                raise family_model.NotBuilt(family_model.first_line(error)) from error
        said = compare(ferry, source, work)
    except family_model.NotBuilt as why:
        said = {"not made": str(why)}
    except family_model.Wrong as wrong:
        said = {"wrong": str(wrong)}
    result.write_text(json.dumps(said))


# ---- all of them ----

# Globs of differences, families, and why ferry is right to differ.
BRIDGES_OWN = [
    ("field kv_channels *", "deepseek* glm4_moe_lite sarvam_mla", "no code of latent attention reads it"),
    ("field softmax_scale *", "deepseek*", "latent attention makes its scale of mscale"),
    ("field rope_type is rope, Bridge has yarn", "deepseek* glm4_moe_lite sarvam_mla", "Bridge leaves Megatron's default"),
    ("*linear_q_proj.layer_norm_weight: only Bridge has it", "deepseek* sarvam_mla",
     "Megatron-Core 0.19 gives queries without a latent a norm that the family lacks"),
    ("field moe_router_pre_softmax is False, Bridge has True", "*", "it has no effect on sigmoid scores"),
    ("field moe_router_topk_scaling_factor is None, Bridge has 1.0", "*", "it is the same"),
    ("field rope_scaling_factor *", "exaone_moe gemma3_text", "it has no effect without rope_scaling"),
    ("field ffn_hidden_size *", "qwen3_5_moe", "every layer has experts"),
    ("field add_qkv_bias is True, Bridge has False", "gpt_oss", "add_bias_linear gives it, too"),
    ("field activation_func is *gelu*tanh*, Bridge has fast_gelu", "gemma*", "it is the same function"),
    ("field rotary_percent is 0.*", "glm4_moe minimax_m2 nemotron qwen3_next",
     "Bridge does not look for partial_rotary_factor in rope_parameters"),
    ("field window_*", "exaone4 qwen2 qwen3 gpt_oss gemma*", "Bridge fixes the windows of the family, or leaves them out"),
    ("field yarn_*", "gpt_oss mistral3", "Bridge fixes yarn's numbers for the family"),
    ("field rotary_base *", "gemma3_text", "Bridge's own model has two"),
    ("field seq_len_interpolation_factor *", "gemma3_text", "Bridge's own model takes it from rope_scaling_factor"),
    ("field softmax_scale *", "gemma2", "Bridge's own model makes it of query_pre_attn_scalar"),
    ("field position_embedding_type is rope, Bridge has mrope", "qwen3*", "ferry writes the text model alone"),
    ("field moe_router_score_function is softmax, Bridge has sigmoid", "ernie4_5_moe", "transformers takes softmax"),
    ("field experimental_attention_variant *", "minimax_m3", "Bridge drops the indexer"),
    ("*.indexer.*: only ferry has it", "minimax_m3", "Bridge drops the indexer"),
    ("*: only *", "glm4_moe qwen3_moe", "Bridge takes a list of layers for all of them, or all of them for a list"),
    ("field moe_layer_freq *", "glm4_moe qwen3_moe", "Bridge takes a list of layers for all of them, or all of them for a list"),
    ("*: only *", "ernie4_5_moe", "Bridge does not read moe_layer_end_index"),
    ("field moe_layer_freq *", "ernie4_5_moe", "Bridge does not read moe_layer_end_index"),
    ("*: Bridge fills no element of it", "exaone llama sarvam_moe", "Bridge has no mapping for such a tensor"),
    ("output_layer.weight: Bridge fills no element of it", "exaone4", "Bridge takes every model for a tied one"),
    ("*experts.linear_fc1.weight: * elements differ", "gpt_oss",
     "Bridge guesses from the shape whether experts are transposed, which fails where it is square"),
    ("decoder.layers.mlp.experts.*: Bridge fills no element of it", "qwen3_moe", "Bridge wants its experts one by one"),
    ("KeyError: *gate_up_proj*", "glm4_moe", "Bridge wants packed experts in the layer of multi-token prediction"),
    ("ValueError: Shape mismatch *shared_experts*", "glm4_moe", "Bridge does not read n_shared_experts"),
    ("*: Bridge fills no element of it", "gemma3_text", "Bridge does not know such names"),
    ("AttributeError: *", "glm4v_moe glm_moe_dsa hy_v3 mimo_v2_flash", "transformers 5.24.0 names a field otherwise"),
    ("AmbiguousGlobalPerLayerAttributeError*", "gemma4 step3p7", "transformers 5.24.0 has the field by layer"),
    ("KeyError: *llama_4_scaling_beta*", "mistral3", "Bridge takes every Mistral 3 for Ministral 3"),
    ("ValueError: Shape mismatch *linear_proj*", "mistral4", "Bridge takes it for Mistral 3"),
    ("ValueError: Invalid experimental attention variant*", "deepseek_v4", "Megatron-Core 0.19.2 lacks its attention"),
    ("AssertionError: *FalconH1MambaMixer*", "falcon_h1", "Megatron-Core's kernels have no norm before the gate"),
    ("*: only *", "falcon_h1", "under --ferry-only the names are ferry's; Bridge has them by layer, sections apart"),
    ("field transformer_impl *", "falcon_h1", "Bridge leaves Megatron's default"),
    ("ValueError: Failed to load configuration*", "kimi_k2", "its config is code of its own"),
]


def reason_of(family, text):
    return next((why for what, names, why in BRIDGES_OWN
                 if fnmatch.fnmatch(text, what) and matches(family, names)), None)


def print_answer(report, family, case, said):
    if "not made" in said:
        report.line("skipped", case, f"transformers makes no such model: {said['not made']}")
        return
    if why := said.get("wrong"):
        report.line("FAIL", case, why)
        return
    if why := said.get("not built"):
        own = reason_of(family, why)
        report.line("skipped" if own else "FAIL", case, f"Bridge builds no model{'; ' + own if own else ''}: {why}")
        return
    known, new = {}, {}
    for text in said["differences"]:
        kept = known if (reason := reason_of(family, text)) else new
        kept.setdefault(reason or re.sub(r"\blayers\.\d+\.", "layers.#.", text), []).append(text)
    if new:
        report.line("FAIL", case, "\n".join([f"{len(new)} differences", *new]))
        return
    count = f"{said['count']} tensors" + ("; under --ferry-only" if said["refused"] else "")
    reasons = [f"{why}: {texts[0]}" + (f" and {len(texts) - 1} more" if texts[1:] else "") for why, texts in known.items()]
    report.line("PASS", case, "\n".join([count, *reasons]))


def find_cases(fixtures, report):
    known, _ = families.read_maps()
    bases = families.find_bases(fixtures, known, report)
    supported = set(AutoBridge.list_supported_models())
    for family, of_family in bases.items():
        for name, config in of_family:
            if set(config.get("architectures") or ()) & supported:
                yield family, f"{family} {name}", config
    for path in sorted(path for name in families.FIXTURES[1:] for path in fixtures.glob(f"{name}/*/config.json")):
        config = json.loads(path.read_text())
        if set(config.get("architectures") or ()) & supported and any(path.parent.glob("*.safetensors")):
            family = families.family_of(config, known)
            yield family, f"{family} {path.parent.parent.name}/{path.parent.name} as it is", path.parent


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("ferry", type=Path)
    options.add_argument("--fixtures", type=Path, default=families.HERE.parents[2] / "shared" / "fixtures")
    options.add_argument("--only", default="", metavar="TEXT", help="only cases that contain it")
    options.add_argument("--keep", type=Path, metavar="FOLDER", help="work there, and leave all files")
    args = options.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity(50)
    transformers.utils.logging.disable_progress_bar()
    report = families.Report()
    cases = of_share([case for case in find_cases(args.fixtures, report) if args.only in case[1]])
    top = args.keep or Path(tempfile.mkdtemp(prefix="ferry-interop-bridge-"))
    try:
        for family, case, source in cases:
            work = top / case.replace(" ", "_").replace("/", "_")
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir(parents=True)
            try:
                run_ranks(1, answer, args.ferry, family, source, work, work / "answer.json")
                print_answer(report, family, case, json.loads((work / "answer.json").read_text()))
            except RuntimeError as error:
                report.line("FAIL", case, str(error).strip().splitlines()[-1])
            if not args.keep:
                shutil.rmtree(work)
    finally:
        if not args.keep:
            shutil.rmtree(top, ignore_errors=True)
    print("interop-bridge: {PASS} passed, {FAIL} failed, {skipped} skipped".format(**report.counts))
    sys.exit(report.counts["FAIL"] > 0 or report.counts["PASS"] == 0)


if __name__ == "__main__":
    main()
