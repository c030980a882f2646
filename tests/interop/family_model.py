"""family_model.py FERRY WORK - makes models by the classes of the transformers at hand, as one line of JSON for each
on stdin says, and takes them through Megatron's layout and back. Answers each with a line of JSON.

What comes back must be the same: tensors bit for bit, the config by its meaning, and what transformers says of
missing and unexpected tensors."""

import copy
import json
import random
import shutil
import subprocess
import sys
import traceback
from pathlib import Path

import torch
import transformers
import variations
from safetensors import safe_open

ABOUT_THE_FILE = ("_name_or_path", "transformers_version")
# Families whose maps lack the names of transformers 5 in memory.
UNREAD_IN_MEMORY = (
    "aria_text axk1 exaone glm5_next granitemoe granitemoeshared hy_v4 kolibri1 laguna lara_mini mistral_large4 "
    "olmo_hybrid sarvam_moe"
).split()


class Wrong(Exception):
    """A check that fails; the text says how."""


class NotBuilt(Exception):
    """A model that this transformers cannot make; the text says why."""


def first_line(error):
    return " ".join(f"{type(error).__name__}: {error}".split())[:240]


# ---- making a model ----


def class_of(config):
    for name in config.architectures or ():
        if hasattr(transformers, name):
            return getattr(transformers, name)
    return transformers.AutoModelForCausalLM


def build(fields, folder):
    """A model of these fields of config.json, written to a folder first, as users have it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields))
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
    kind = class_of(config)
    make = kind.from_config if kind is transformers.AutoModelForCausalLM else kind._from_config
    return make(config, dtype=torch.bfloat16)


def computes(model):
    """Why it computes no logits, None if it does: then its sizes do not fit together."""
    if hasattr(model, "set_experts_implementation"):  # 5: its default wants rows of 16 bytes
        model.set_experts_implementation("eager")
    try:
        with torch.no_grad():
            model.eval()(input_ids=torch.tensor([[3, 4, 5, 6, 7, 8, 9, 10]]), use_cache=False)
    except Exception as error:
        return first_line(error)
    return None


def tied_otherwise(model):
    """Whether the class ties embeddings although the config says no, or the other way round: None, or what is wrong."""
    text = variations.text_of(json.loads(model.config.to_json_string(use_diff=False)))
    head = model.get_output_embeddings()
    tied = head is not None and head.weight is model.get_input_embeddings().weight
    if head is not None and text.get("tie_word_embeddings", tied) != tied:
        return f"the class does not heed tie_word_embeddings {text['tie_word_embeddings']}"
    return None


def full_config(base, folder):
    """The fields of a config.json with the class's defaults for those that it lacks."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(base))
    fields = config_of(folder)
    if transformers.__version__.startswith("4."):
        for part in fields, variations.text_of(fields):
            part.pop("rope_parameters", None)  # 4 knows rope_scaling only
    return fields


def config_of(folder):
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
    return json.loads(config.to_json_string(use_diff=False))


@torch.no_grad()
def randomise(model, seed):
    gen = torch.Generator().manual_seed(seed)
    saved = model.state_dict()
    named = {**dict(model.named_parameters()), **{n: b for n, b in model.named_buffers() if n in saved}}
    for tensor in named.values():
        if tensor.is_floating_point():  # whole numbers are tables that the class computes
            tensor.copy_(torch.randn(tensor.shape, generator=gen) * 0.1)
    strict = getattr(model, "_keep_in_fp32_modules_strict", None) or ()
    for name, tensor in named.items():
        if any(part in name.split(".") for part in strict):
            tensor.data = tensor.data.float()


# ---- comparing ----


def stored(folder):
    """Dtype, shape and bytes of each tensor of a folder."""
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():
                tensor = file.get_tensor(name)
                raw = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
                tensors[name] = (str(tensor.dtype), tuple(tensor.shape), raw)
    return tensors


def same_tensors(folder, reference):
    got, want = stored(folder), stored(reference)
    if got.keys() != want.keys():
        raise Wrong(f"tensors lack {sorted(want.keys() - got.keys())[:4]}, have {sorted(got.keys() - want.keys())[:4]}")
    for name, tensor in want.items():
        if got[name][:2] != tensor[:2]:
            raise Wrong(f"{name} is {got[name][:2]}, was {tensor[:2]}")
        if got[name][2] != tensor[2]:
            raise Wrong(f"{name} has other bytes")
    return len(want)


def meaning(folder):
    return {k: v for k, v in config_of(folder).items() if k not in ABOUT_THE_FILE}


def same_config(folder, reference):
    got, want = meaning(folder), meaning(reference)
    wrong = [k for k in sorted(got.keys() | want.keys()) if got.get(k) != want.get(k)]
    if wrong:
        raise Wrong("config: " + ", ".join(f"{k} is {got.get(k)}, was {want.get(k)}" for k in wrong)[:600])


def loading(folder, kind):
    _, info = kind.from_pretrained(folder, output_loading_info=True, dtype="auto")
    return {what: sorted(map(str, names)) for what, names in info.items() if names}


def same_loading(folder, reference, kind):
    got, want = loading(folder, kind), loading(reference, kind)
    if got != want:
        raise Wrong(f"transformers says {str(got)[:300]}, of the source {str(want)[:300]}")
    return got


# ---- one model ----


def run_ferry(ferry, *args):
    done = subprocess.run([ferry, *map(str, args)], capture_output=True, text=True, timeout=300)
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines() or [""]
        first = lines.pop(-1 if done.stderr.strip() else 0)  # an error ends with what it is
        raise Wrong("\n".join([f"ferry {args[0]}: exit code {done.returncode}: {first}", *lines[:8]]))
    return done.stdout


def layout(config):
    """Two of each kind of rank, but where a size is odd."""
    text = variations.text_of(config)
    layers, heads = variations.layers_of(text), text.get("num_attention_heads") or text.get("n_head") or 2
    options = ["--tp", 1 if heads % 2 else 2, "--pp", 2]
    if layers % 2:
        options += ["--decoder-first-pipeline-num-layers", layers // 2]
    return options + (["--ep", 2] if variations.experts_of(text) and variations.experts_of(text) % 2 == 0 else [])


def there_and_back(ferry, source, folder, kind):
    there, back = folder / "there", folder / "back"
    options = layout(config_of(source))
    said = json.loads(run_ferry(ferry, "convert", source, there, "--ferry-only", "--overwrite", "--json", *options))["source"]
    run_ferry(ferry, "convert", "-q", there, back, "--overwrite", "--to", "hf")
    count = same_tensors(back, source)
    same_config(back, source)
    run_ferry(ferry, "verify", "-q", source, there)
    run_ferry(ferry, "verify", "-q", source, back)
    return {
        "recognised": said["family"],
        "unknown": said["unknown"],
        "count": count,
        "layout": " ".join(map(str, options)),
        "info": same_loading(back, source, kind),
        "terse": wrong_when_terse(ferry, source, folder / "terse"),
    }


def model_digests(ferry, folder):
    """The digests of what Megatron has a place for: other tensors may be named otherwise in memory."""
    lines = run_ferry(ferry, "digest", folder).splitlines()
    return [line for line in lines if line.startswith(("decoder.", "embedding.", "mtp.", "output_layer."))]


def same_as_in_memory(ferry, model, source, memory, family):
    """The same of a model saved by the names that transformers 5 has in memory, as trainers save a state_dict."""
    shutil.rmtree(memory, ignore_errors=True)
    try:
        model.save_pretrained(memory, save_original_format=False)
    except TypeError:  # 4 has the same names
        return
    if stored(memory).keys() == stored(source).keys():
        return
    try:
        same = model_digests(ferry, memory) == model_digests(ferry, source)
    except Wrong:
        if family in UNREAD_IN_MEMORY:
            return
        raise
    if not same or family in UNREAD_IN_MEMORY:
        raise Wrong("other tensors by the names in memory" if not same else "its names in memory are read: say so")


def wrong_when_terse(ferry, source, terse):
    """What ferry reads otherwise in a config.json without the fields that have the class's default."""
    shutil.rmtree(terse, ignore_errors=True)
    terse.mkdir()
    for path in source.glob("*.safetensors*"):
        (terse / path.name).hardlink_to(path)
    fields, want = json.loads((source / "config.json").read_text()), meaning(source)
    text = variations.text_of(fields)
    config = transformers.AutoConfig.from_pretrained(source)
    try:
        defaults = json.loads(type(getattr(config, "text_config", config))().to_json_string(use_diff=False))
    except Exception:  # a class without defaults
        return None
    usual = {name for name, value in text.items() if name in defaults and defaults[name] == value} - {"model_type"}
    if not means_the_same(terse, fields, want, usual):  # some are needed by others
        usual = {name for name in usual if means_the_same(terse, fields, want, {name})}
        if not means_the_same(terse, fields, want, usual):
            return None
    try:
        run_ferry(ferry, "verify", source, terse)
    except Wrong as wrong:
        return str(wrong)
    return None


def means_the_same(folder, fields, want, without):
    """Whether a config.json without some fields of the text model means the same; it is left in the folder."""
    fields = copy.deepcopy(fields)
    text = variations.text_of(fields)
    for name in without:
        del text[name]
    (folder / "config.json").write_text(json.dumps(fields))
    try:
        return meaning(folder) == want
    except Exception:  # a field that others need
        return False


class Models:
    """The models of one job: a base, with more or fewer changes."""

    def __init__(self, ferry, job, folder):
        self.ferry, self.job, self.folder = ferry, job, folder
        try:
            self.fields = full_config(job["base"], folder / "base")
            self.must_compute = computes(build(self.fields, folder / "try")) is None
        except Exception as error:
            raise NotBuilt(first_line(error)) from error

    def changed(self, changes):
        fields = copy.deepcopy(self.fields)
        for _, change in changes:
            change(fields)
        return fields

    def make(self, changes):
        try:
            model = build(self.changed(changes), self.folder / "try")
        except Exception as error:
            raise NotBuilt(first_line(error)) from error
        wrong = self.must_compute and computes(model) or tied_otherwise(model)
        if wrong:
            raise NotBuilt(wrong)
        return model

    def check(self, changes):
        """What is said of the model with these changes."""
        model = self.make(changes)
        randomise(model, self.job["number"] + 1)
        source = self.folder / "source"
        shutil.rmtree(source, ignore_errors=True)
        try:
            model.save_pretrained(source)
        except Exception as error:
            raise NotBuilt(first_line(error)) from error
        same_as_in_memory(self.ferry, model, source, self.folder / "memory", self.job["family"])
        return there_and_back(self.ferry, source, self.folder, type(model))

    def error_of(self, changes):
        try:
            self.said = self.check(changes)
        except (NotBuilt, Wrong) as error:
            return error
        return None

    def check_all(self):
        """Leaves out changes until what is left is right. Returns what was said then, and the changes left out with
        their errors."""
        made, out = variations.changes(self.fields, self.job["family"], self.job["number"]), []
        good = 0  # so many of the changes are right
        while error := self.error_of(made):
            bad, errors = len(made), {len(made): error}
            while bad - good > 1:
                middle = (good + bad) // 2
                errors[middle] = self.error_of(made[:middle])
                good, bad = (middle, bad) if errors[middle] is None else (good, middle)
            if bad == 1 and (error := self.error_of([])):
                raise error  # the base is wrong
            if bad == 0:
                raise error
            name = made[bad - 1][0]
            value = variations.text_of(self.changed(made[:bad])).get(name) if name != "sizes" else None
            out.append((name, value, errors[bad]))
            good = bad - 1
            del made[bad - 1]
        return self.said, out


def answer(ferry, work, job):
    shutil.rmtree(work / job["name"], ignore_errors=True)
    try:
        said, out = Models(ferry, job, work / job["name"]).check_all()
    except NotBuilt as why:
        return {"verdict": "not built", "said": str(why)}
    except Wrong as wrong:
        return {"verdict": "FAIL", "said": str(wrong)}
    except Exception as error:
        return {"verdict": "FAIL", "said": first_line(error), "trace": traceback.format_exc()}
    return {
        "verdict": "PASS",
        **said,
        "left": [(name, value, str(error)) for name, value, error in out if isinstance(error, NotBuilt)],
        "wrong": [(name, value, str(error)) for name, value, error in out if isinstance(error, Wrong)],
    }


def main():
    ferry, work, keep = sys.argv[1], Path(sys.argv[2]), len(sys.argv) > 3
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity(50)
    transformers.utils.logging.disable_progress_bar()
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        job = json.loads(line)
        random.seed(0)
        torch.manual_seed(0)
        said = answer(ferry, work, job)
        if not keep:
            shutil.rmtree(work / job["name"], ignore_errors=True)
        print(json.dumps({**job, **said}), file=answers, flush=True)


if __name__ == "__main__":
    main()
