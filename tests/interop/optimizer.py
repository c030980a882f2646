"""Optimizer states in Megatron's formats: checks ferry against megatron-core itself, on CPU ranks.

Of each case real GPTModels are trained for some steps and saved in every format that megatron-core writes.
What ferry makes of each, for another layout, must hold what the live optimizer held, bit for bit; and
megatron-core must load it there and take the same next step as the original run. Then files are damaged:
ferry must refuse each, and say why."""

import copy
import dataclasses
import json
import pickle
import queue
import random
import shlex
import shutil
import subprocess
from pathlib import Path

import expected
import gpt_model
import megatron_files
import models
import numpy
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from checks import layout_parser, run_program
from megatron.core import dist_checkpointing
from megatron.core import parallel_state as mpu
from megatron.core import tensor_parallel
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron_files import require, require_equal
from megatron_ranks import run_ranks
from share import of_share

# model, dtype, optimizer, layout that is saved / layout that ferry makes of it
CASES = """
llama      bfloat16 distributed --tp 2 --dp 2                     / --pp 2 --dp 2
llama-tied bfloat16 distributed --pp 2 --dp 2                     / --tp 2
llama      float32  distributed --tp 2 --pp 2 --vpp 2             / --dp 2
llama      bfloat16 distributed --dp 2 --bucket-size 20000        / --tp 2
llama-tied bfloat16 distributed --pp 2 --dp 2 --bucket-size 20000 --divisor 1 / --pp 2 --vpp 2 --divisor 1
qwen2      bfloat16 distributed --pp 3 --first 3 --last 2         / --tp 2
llama      bfloat16 distributed --dp 4 --instances 2             / --tp 2 --dp 2
llama      bfloat16 distributed --dp 3                            / --tp 4 --divisor 64
gpt2       float16  distributed --tp 2 --dp 2                     / --pp 2
qwen3_moe  bfloat16 distributed --tp 2 --ep 2 --etp 1             / --tp 2 --ep 2 --etp 1
mixtral    bfloat16 distributed --tp 2 --ep 2 --dp 2              / --ep 4 --dp 4
qwen3_moe  float32  distributed --ep 2 --dp 2 --pp 2 --vpp 2      / --tp 2
mixtral    bfloat16 distributed --dp 2 --bucket-size 60000        / --tp 2 --ep 2 --etp 1
qwen3      bfloat16 distributed --dp 2 --bucket-size 70000 --high-bandwidth --decoupled-lr / --tp 2 --decoupled-lr
qwen3_moe  bfloat16 distributed --pp 2 --vpp 2 --ep 2 --dp 2 --bucket-size 20000 --step-first-chunk / --dp 2
llama      bfloat16 plain       --tp 2 --pp 2 --vpp 2             / --dp 2
llama      bfloat16 plain       --dp 2                            / --tp 2 --pp 2
gpt2       float32  plain       --tp 2 --dp 2                     / --pp 2 --vpp 2
qwen2      float16  plain       --pp 2                            / --tp 2
mixtral    bfloat16 plain       --ep 2 --dp 2 --divisor 1         / --pp 2 --ep 2 --dp 2 --divisor 1
qwen3_moe  float32  plain       --tp 2 --ep 2 --etp 1             / --pp 2
gpt2       bfloat16 plain       --pp 2 --decoupled-lr             / --tp 2 --decoupled-lr
qwen3      bfloat16 plain       --tp 2 --decay-qk-norms           / --pp 2 --decay-qk-norms
"""
STEPS = 2  # before the checkpoint is saved; then one more
KINDS = {
    "distributed": (
        "fully_reshardable",
        "dp_reshardable",
        "dp_zero_gather_scatter",
        "fully_sharded_model_space",
        "torch",
    ),
    "plain": ("torch_dist", "torch"),
}
# |difference| / |change by the step| of the tensors after the step: ranks add gradients in another order. A
# wrong state makes it 1; at the same layout nothing may differ. In 16 bits a token that rounds otherwise may be
# sent to another expert.
TOLERANCE = {"float32": 5e-3, "bfloat16": 0.1, "float16": 0.1}
TOLERANCE_OF_EXPERTS = {"float32": 5e-3, "bfloat16": 0.5}

# Formats that ferry writes from a case's first kind beside torch_dist: rank files with an --optim-format, and a Hugging
# Face folder that torch_dist is made of again, also without its training.json. That folder has no vocabulary padding,
# which takes part in the loss: such a case has none (--divisor 1). resaved: what a training run of ferry saves
# that begins with it, on one rank (tests/trainer/resave.c).
WRITTEN = """
llama bfloat16 distributed --tp 2 --dp 2               | distributed
llama-tied bfloat16 distributed --pp 2 --dp 2 --bucket | distributed not_distributed hf hf_without_training
mixtral bfloat16 distributed --tp 2                    | distributed not_distributed
qwen3_moe bfloat16 distributed --tp 2                  | distributed not_distributed
qwen3_moe float32 distributed                          | distributed not_distributed
llama bfloat16 plain --dp 2                            | distributed not_distributed
gpt2 float32 plain                                     | distributed not_distributed
mixtral bfloat16 plain                                 | distributed not_distributed hf
llama float32 distributed --tp 2 --pp 2                | resaved resaved_torch
llama bfloat16 plain --tp 2 --pp 2                     | resaved
qwen3_moe bfloat16 distributed --pp 2 --vpp 2 --ep 2   | resaved resaved_torch
"""

# The case that is damaged, one of its kinds, what is done to it (a function below), and the words in which
# ferry must say why it is not read. Each is also converted without its optimizer.
DAMAGES = """
llama bfloat16 distributed --tp 2 --dp 2               | torch | lose_flat_file | tensor rank 1 missing
llama bfloat16 distributed --tp 2 --dp 2               | torch | take_later_file | not their master weights
llama bfloat16 distributed --tp 2 --dp 2               | torch | take_shorter_file | mp_rank_01 elements need
llama bfloat16 distributed --tp 2 --dp 2               | torch | swap_flat_files | not their master weights
llama bfloat16 distributed --tp 2 --dp 2               | torch | change_master | not their master weights
llama bfloat16 distributed --tp 2 --dp 2               | dp_reshardable | swap_cells | not their master weights
llama bfloat16 distributed --dp 2 --bucket             | dp_reshardable | swap_buckets | bucket elements
llama bfloat16 plain --tp 2                            | torch | lose_group | mp_rank_01 groups
llama bfloat16 plain --tp 2                            | torch | swap_parameters | mp_rank_01 by Megatron's order
"""

parser = copy.deepcopy(layout_parser)
for name in ("first", "last", "divisor"):  # ferry's are longer
    parser.add_argument("--" + name, type=int, default=parser.get_default(name))
parser.add_argument("--bucket-size", type=int)
parser.add_argument("--instances", type=int, default=1)  # of the distributed optimizer
for name in ("high-bandwidth", "decoupled-lr", "decay-qk-norms", "step-first-chunk"):
    parser.add_argument("--" + name, action="store_true")
parser.set_defaults(names="local")


class Case:
    def __init__(self, line):
        self.name = " ".join(line.split())
        saved, made = line.split("/")
        rows = [row.split("|") for row in WRITTEN.strip().splitlines()]
        self.written = [how for case, ways in rows if self.name.startswith(case.strip()) for how in ways.split()]
        self.model, self.dtype, self.optimizer, options = saved.split(None, 3)
        self.layout, self.target = (parser.parse_args(shlex.split(x)) for x in (options, made))
        self.torch_dtype = getattr(torch, self.dtype)
        self.kinds = KINDS[self.optimizer]
        if self.saves_wrong():
            self.kinds = tuple(k for k in self.kinds if k != "fully_reshardable")
        self.slug = self.name.replace(" / ", "_to").replace(" ", "_").replace("--", "")

    def loads(self, distributed):
        """What is loaded into a run whose optimizer is distributed, or is not."""
        written = [w for w in self.written if (w != "not_distributed") == distributed]
        return [*self.kinds, *written] if distributed else written

    def is_same_layout(self):
        return vars(self.layout) == vars(self.target)

    def saves_wrong(self):
        """Whether 0.16.1 saves wrong elements as fully_reshardable: where there are several buckets."""
        return bool(self.layout.bucket_size) and not self.layout.step_first_chunk


def ferry_options(layout):
    names = dict(tp="--tp", pp="--pp", vpp="--vpp", ep="--ep", etp="--etp")
    names.update(first="--decoder-first-pipeline-num-layers", last="--decoder-last-pipeline-num-layers")
    names.update(divisor="--make-vocab-size-divisible-by")
    return [x for k, option in names.items() if getattr(layout, k) for x in (option, getattr(layout, k))]


# ---- on the ranks ----


class Run:
    """A model, its optimizer and schedule on this rank."""

    def __init__(self, m, case, layout, distributed):
        self.m, self.case, self.layout, self.distributed = m, case, layout, distributed
        self.common_state = None
        gpt_model.start_parallel(layout)
        self.chunks = gpt_model.build_chunks(m, layout, case.torch_dtype)
        self.wrapped, self.optimizer = gpt_model.make_optimizer(
            self.chunks, layout, case.torch_dtype, distributed
        )
        self.scheduler = gpt_model.make_scheduler(self.optimizer)

    def step(self, number):
        gpt_model.train_step(self.m, self.layout, self.wrapped, self.optimizer, number)
        self.scheduler.step(gpt_model.BATCH)

    def write_tensors(self, path):
        whole = gpt_model.gather(self.chunks, self.optimizer)
        whole["loss_scale"] = self.optimizer.get_loss_scale().cpu().clone()
        whole["lr"] = torch.tensor(sorted({g["lr"] for g in self.optimizer.param_groups}))
        if dist.get_rank() == 0:
            torch.save(whole, path)

    def write_groups(self, path):
        groups = [{k: v for k, v in g.items() if k != "params"} for g in self.optimizer.param_groups]
        if dist.get_rank() == 0:
            torch.save(groups, path)

    def write_flattened(self, path):
        whole = gpt_model.gather_flattened(self.chunks, self.optimizer)
        if dist.get_rank() == 0:
            torch.save(whole, path)

    # -- the formats --

    def common(self):
        args = megatron_files.args_of(self.m, self.layout)
        vars(args).update(
            world_size=gpt_model.world_of(self.layout),
            data_parallel_size=self.layout.dp,
            context_parallel_size=1,
            use_distributed_optimizer=self.distributed,
            overlap_grad_reduce=bool(self.layout.bucket_size),
            ddp_bucket_size=self.layout.bucket_size,
            ddp_pad_buckets_for_high_nccl_busbw=self.layout.high_bandwidth,
            decoupled_lr=gpt_model.ADAM["lr"] / 3 if self.layout.decoupled_lr else None,
            decoupled_min_lr=None,
            overlap_param_gather_with_optimizer_step=self.layout.step_first_chunk,
            apply_wd_to_qk_layernorm=self.layout.decay_qk_norms,
            optimizer="adam",
            num_distributed_optimizer_instances=self.layout.instances,
            params_dtype=self.case.torch_dtype,
            bf16=self.case.dtype == "bfloat16",
            fp16=self.case.dtype == "float16",
            sequence_parallel=bool(self.m.experts) and self.layout.tp > 1,
            **gpt_model.ADAM,
        )
        state = {"args": args, "checkpoint_version": 3.0, "iteration": STEPS}
        return {**state, "opt_param_scheduler": self.scheduler.state_dict()}

    def model_state(self, metadata):
        names = gpt_model.chunk_names(self.chunks)
        return {n: c.sharded_state_dict(metadata=metadata) for n, c in zip(names, self.chunks, strict=True)}

    def metadata(self, content):
        return dict(content, dp_cp_group=mpu.get_data_parallel_group(with_context_parallel=True))

    def save_torch_dist(self, folder, sharding):
        from megatron.core.dist_checkpointing.strategies import filesystem_async
        from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy

        # In place of one in another process, which takes seconds to start.
        filesystem_async._results_queue = filesystem_async._results_queue or queue.Queue()
        content = {"singleton_local_shards": False, "chained_optim_avoid_prefix": True}
        if sharding:
            content["distrib_optim_sharding_type"] = sharding
            content["distrib_optim_fully_reshardable_mem_efficient"] = False
        metadata = self.metadata(content)
        model = self.model_state(metadata)
        state = {**self.common(), **model}
        state["optimizer"] = self.optimizer.sharded_state_dict(model, metadata=metadata)
        strategy = TorchDistSaveShardedStrategy("torch_dist", 1, thread_count=1)
        dist_checkpointing.save(state, str(folder), strategy, content_metadata=content)

    def save_model_space(self, folder):
        """As Megatron-Core 0.8 to 0.15 did, which 0.16.1 no longer does: put together here."""
        like = folder.parent.parent / "fully_reshardable" / folder.name
        weights = gpt_model.gather(self.chunks, self.optimizer)
        states = gpt_model.gather_flattened(self.chunks, self.optimizer)
        if dist.get_rank() > 0:
            return
        weights = {k: v for k, v in weights.items() if not k.startswith("optimizer.")}
        dcp.save({**weights, **states}, storage_writer=dcp.FileSystemWriter(folder), no_dist=True)
        common = torch.load(like / "common.pt", weights_only=False)
        common["content_metadata"]["distrib_optim_sharding_type"] = folder.parent.name
        torch.save(common, folder / "common.pt")
        shutil.copy(like / "metadata.json", folder)

    def rank_name(self):
        name = f"mp_rank_{mpu.get_tensor_model_parallel_rank():02d}"
        name += f"_{mpu.get_pipeline_model_parallel_rank():03d}" if self.layout.pp > 1 else ""
        return name + (f"_{mpu.get_expert_model_parallel_rank():03d}" if self.layout.ep > 1 else "")

    def save_torch(self, folder):
        """As Megatron-LM's save_checkpoint() does."""
        mine = folder / self.rank_name()
        mine.mkdir(exist_ok=True)
        dist.barrier()
        if self.distributed:
            self.optimizer.save_parameter_state(str(mine / "distrib_optim.pt"))
        if mpu.get_expert_data_parallel_rank() == 0:
            state = self.common()
            for name, chunk in zip(gpt_model.chunk_names(self.chunks), self.chunks, strict=True):
                state[name] = chunk.state_dict_for_save_checkpoint()
            state["optimizer"] = self.optimizer.state_dict()
            torch.save(state, mine / "model_optim_rng.pt")

    def save(self, root, kind):
        folder = root / f"iter_{STEPS:07d}"
        if dist.get_rank() == 0:
            folder.mkdir(parents=True)
            (root / "latest_checkpointed_iteration.txt").write_text(str(STEPS))
        dist.barrier()
        if kind == "torch":
            self.save_torch(folder)
        elif kind == "fully_sharded_model_space":
            self.save_model_space(folder)
        else:
            self.save_torch_dist(folder, None if kind == "torch_dist" else kind)

    def load(self, folder):
        """Loads all but the schedule, which sets the groups' learning rate, too: that comes with go_on()."""
        self.scheduler = gpt_model.make_scheduler(self.optimizer)
        if (folder / "metadata.json").exists():
            self.load_torch_dist(folder)
        else:
            self.load_torch(folder)
        # 0.16.1 gives all parameters one tensor, which each then counts up.
        for one in gpt_model.each(self.optimizer) if self.distributed else ():
            for states in one.optimizer.state.values():
                states["step"] = states["step"].clone()

    def load_torch(self, folder):
        """As Megatron-LM's load_checkpoint() does."""
        mine = folder / self.rank_name()
        self.common_state = state = torch.load(mine / "model_optim_rng.pt", weights_only=False)
        for name, chunk in zip(gpt_model.chunk_names(self.chunks), self.chunks, strict=True):
            chunk.load_state_dict(state[name], strict=True)
        self.optimizer.load_state_dict(state["optimizer"])
        if self.distributed:
            self.optimizer.load_parameter_state(str(mine / "distrib_optim.pt"))

    def load_torch_dist(self, folder):
        self.common_state = common = dist_checkpointing.load_common_state_dict(str(folder))
        metadata = self.metadata(common["content_metadata"])
        state = self.model_state(metadata)
        state["optimizer"] = self.optimizer.sharded_state_dict(state, is_loading=True, metadata=metadata)
        state = dist_checkpointing.load(state, str(folder))
        for name, chunk in zip(gpt_model.chunk_names(self.chunks), self.chunks, strict=True):
            chunk.load_state_dict(state[name], strict=True)
        self.optimizer.load_state_dict(state["optimizer"])

    def load_rng(self, folder):
        """As Megatron-LM's load_checkpoint() does, which refuses a checkpoint without."""
        if (folder / "metadata.json").exists():
            rng = ShardedObject("rng_state", None, (1, 1), (0, 0), replica_id=dist.get_rank())
            rng = dist_checkpointing.load({"rng_state": rng}, str(folder))["rng_state"]
        else:
            rng = self.common_state["rng_state"]
        (rng,) = rng
        random.setstate(rng["random_rng_state"])
        numpy.random.set_state(rng["np_rng_state"])
        torch.set_rng_state(rng["torch_rng_state"])
        torch.cuda.set_rng_state(rng["cuda_rng_state"])
        require(rng["rng_tracker_states"], "no states of the tracker")
        tensor_parallel.get_cuda_rng_tracker().set_states(rng["rng_tracker_states"])
        with tensor_parallel.get_cuda_rng_tracker().fork():
            torch.rand(1)

    def go_on(self):
        schedule = self.common_state["opt_param_scheduler"]
        if schedule["lr_decay_style"]:
            self.scheduler.load_state_dict(schedule)
        else:  # without training.json nothing says it
            self.scheduler.step(STEPS * gpt_model.BATCH)
        self.step(STEPS)


def train_and_save(m, case, work):
    run = Run(m, case, case.layout, case.optimizer == "distributed")
    for step in range(STEPS):
        run.step(step)
    run.write_tensors(work / "saved.pt")
    run.write_groups(work / "groups.pt")
    for kind in KINDS[case.optimizer]:
        run.save(work / kind, kind)
    run.step(STEPS)
    run.write_tensors(work / "stepped.pt")
    run.save(work / "later", "torch")


def load_and_step(m, case, work):
    for distributed in (True, False):
        if not case.loads(distributed):
            continue
        run = Run(m, case, case.target, distributed)
        for one in gpt_model.each(run.optimizer) if distributed else ():
            one._init_optimizer_states_with_dummy_values()  # torch's AdamW has none before a step
        for kind in case.loads(distributed):
            folder = megatron_files.iteration_folder(work / f"{kind}_converted")
            run.load(folder)
            if kind.startswith("resaved"):
                run.load_rng(folder)
            run.write_tensors(work / f"{kind}_loaded.pt")
            run.write_groups(work / f"{kind}_groups.pt")
            if kind == case.kinds[0] and distributed:
                run.write_flattened(work / "flattened.pt")
            run.go_on()
            run.write_tensors(work / f"{kind}_stepped.pt")


# ---- comparisons ----


def read_plain(folder):
    """Every tensor of a torch_dist folder, by plain torch.distributed.checkpoint."""
    reader = dcp.FileSystemReader(folder)
    there = reader.read_metadata().state_dict_metadata
    state = {k: torch.empty(v.size, dtype=v.properties.dtype) for k, v in there.items() if hasattr(v, "size")}
    dcp.load(state, storage_reader=reader, no_dist=True)
    return state


def without_padding(m, key, tensor):
    vocabulary = key.endswith(("embedding.word_embeddings.weight", "output_layer.weight"))
    return tensor[: m.vocab] if vocabulary else tensor


def require_tensors(m, got, want, what):
    require(got.keys() == want.keys(), f"{what}: {sorted(got.keys() ^ want.keys())[:4]}")
    for key, tensor in want.items():
        have = got[key]
        if have.shape != tensor.shape:
            have, tensor = without_padding(m, key, have), without_padding(m, key, tensor)
        require_equal(f"{what}: {key}", have, tensor)


def require_groups(common, want, split):
    """The groups in a common state. Where experts were split over ranks on one side alone, theirs are equal
    to dense ones."""
    optimizer = common["optimizer"]
    chained = [optimizer[k] for k in sorted(optimizer)] if 0 in optimizer else [optimizer]
    got = [group for one in chained for group in one["optimizer"]["param_groups"]]
    steps = {group["step"] for group in got}
    require(steps == {STEPS}, f"steps: {steps}")
    require_same_groups(got, want, split)


def require_same_groups(got, want, split):
    def plain(groups):
        left_out = ("step",) if split else ("step", "is_expert_parallel")
        return sorted({str(sorted((k, v) for k, v in g.items() if k not in left_out)) for g in groups})

    require(plain(got) == plain(want), f"groups: {plain(got)}, wanted {plain(want)}")


def beyond_rounding(difference, x, dtype):
    """What is left of a difference without a unit in the last place of x."""
    _, exponent = torch.frexp(x)
    unit = torch.ldexp(torch.full_like(x, torch.finfo(dtype).eps), exponent - 1)
    return (difference.abs() - unit).clamp(min=0)


def worst_difference(m, got, want, before, exact):
    """The largest |difference| / |change| of the tensors, and whose it is. Unless all must be exact, a weight in 16
    bits may round to the other neighbour of its master, which counts too: a step changes few of its bits."""
    worst = (0.0, "")
    require(got.keys() == want.keys(), f"{sorted(got.keys() ^ want.keys())[:4]}")
    for key, tensor in want.items():
        x, y, z = (without_padding(m, key, t[key]).double() for t in (got, want, before))
        change = (y - z).norm().item()
        difference = x - y
        if not exact and tensor.element_size() == 2:
            difference = beyond_rounding(difference, torch.maximum(x.abs(), y.abs()), tensor.dtype)
        difference = difference.norm().item()
        if difference:
            worst = max(worst, (difference / change if change else float("inf"), key))
    return worst


# ---- damage: each is done to an iteration's folder ----


def change(file, function):
    value = torch.load(file, weights_only=False)
    function(value)
    torch.save(value, file)


def flat_of(value):
    """The first dict {STATE: flat tensor} of a distrib_optim.pt."""
    return next(iter(value[0].values()))


def lose_flat_file(folder):
    (folder / "mp_rank_01" / "distrib_optim.pt").unlink()


def take_later_file(folder):
    later = megatron_files.iteration_folder(folder.parent.parent / "later")
    shutil.copy(later / "mp_rank_01" / "distrib_optim.pt", folder / "mp_rank_01")


def take_shorter_file(folder):
    def shorten(value):
        flat = flat_of(value)
        flat.update({k: v[:-64].clone() for k, v in flat.items() if k != "numel_unpadded"})

    change(folder / "mp_rank_01" / "distrib_optim.pt", shorten)


def swap_flat_files(folder):
    a, b = (folder / rank / "distrib_optim.pt" for rank in ("mp_rank_00", "mp_rank_01"))
    a.rename(folder / "aside")
    b.rename(a)
    (folder / "aside").rename(b)


def change_master(folder):
    def add(value):
        flat_of(value)["param"][0] *= 1.02

    change(folder / "mp_rank_00" / "distrib_optim.pt", add)


def lose_group(folder):
    def lose(state):
        del state["optimizer"]["optimizer"]["param_groups"][1]

    change(next(folder.glob("mp_rank_01*")) / "model_optim_rng.pt", lose)


def swap_parameters(folder):
    """Two numbers of a group, whose tensors are of different shapes."""

    def swap(state):
        states = state["optimizer"]["optimizer"]["state"]
        states[0], states[1] = states[1], states[0]

    change(next(folder.glob("mp_rank_01*")) / "model_optim_rng.pt", swap)


def swap_keys(folder, one, other):
    """Renames ONE in keys to OTHER, and the other way round."""
    file = folder / ".metadata"
    metadata = pickle.loads(file.read_bytes())

    def renamed(key):
        return key.replace(one, "?").replace(other, one).replace("?", other)

    metadata.state_dict_metadata = {renamed(k): v for k, v in metadata.state_dict_metadata.items()}
    metadata.storage_data = {
        dataclasses.replace(k, fqn=renamed(k.fqn)): v for k, v in metadata.storage_data.items()
    }
    file.write_bytes(pickle.dumps(metadata))


def swap_cells(folder):
    swap_keys(folder, "dp_group_idx_0.", "dp_group_idx_1.")


def swap_buckets(folder):
    swap_keys(folder, "bucket_idx_0.", "bucket_idx_1.")


class Damage:
    def __init__(self, line):
        self.case, self.kind, function, words = (x.strip() for x in line.split("|"))
        self.function, self.words = globals()[function], words


class Optimizers:
    def __init__(self, ferry, work):
        self.ferry, self.work = ferry, work

    def run_ferry(self, *args):
        return run_program(self.ferry, *args)

    def model(self, case):
        folder = self.work / "hf" / case.model
        if not folder.exists():
            models.make(case.model, folder)
        return expected.Model(folder)

    def folder(self, case):
        return self.work / case.slug

    def tensors(self, case, name):
        return torch.load(self.folder(case) / f"{name}.pt")

    def saved(self, case):
        self.folder(case).mkdir(parents=True)
        m = self.model(case)
        run_ranks(gpt_model.world_of(case.layout), train_and_save, m, case, self.folder(case))
        return f"{len(self.tensors(case, 'saved'))} tensors"

    def inspected(self, case, kind):
        said = json.loads(
            subprocess.run(
                [self.ferry, "inspect", self.folder(case) / kind, "--json"], capture_output=True, text=True
            ).stdout
        )
        optimizer = said.get("optimizer") or {}
        require(optimizer and not optimizer.get("not_read"), json.dumps(optimizer or said)[:300])
        return optimizer["kind"]

    def converted(self, case, kind):
        m, out = self.model(case), self.folder(case) / f"{kind}_converted"
        options = ferry_options(case.target)
        if case.optimizer == "plain":  # else it stays one that is not distributed
            options += ["--optim-format", "fully_reshardable"]
        self.run_ferry("convert", self.folder(case) / kind, out, "--to", "torch_dist", *options)
        want = {k: t for k, t in self.tensors(case, "saved").items() if k not in ("loss_scale", "lr")}
        folder = megatron_files.iteration_folder(out)
        require_tensors(m, read_plain(folder), want, kind)
        common = torch.load(folder / "common.pt", weights_only=False)
        groups = torch.load(self.folder(case) / "groups.pt")
        require_groups(common, groups, (case.layout.ep > 1) == (case.target.ep > 1))
        return f"{len(want)} tensors"

    def written(self, case, how):
        """Writes it, and nothing else: only megatron-core reads these files."""
        saved, out = self.folder(case) / case.kinds[0], self.folder(case) / f"{how}_converted"
        options = ferry_options(case.target)
        if how.startswith("resaved"):
            resave = self.ferry.parent / "tests" / "trainer" / "resave"
            elem = {"float32": "f32", "bfloat16": "bf16"}[case.dtype]
            format = "torch" if how.endswith("_torch") else "torch_dist"
            return run_program(resave, saved, out, "--elem", elem, "--format", format)
        if not how.startswith("hf"):
            return self.run_ferry("convert", saved, out, "--to", "torch", "--optim-format", how, *options)
        hf, config = self.folder(case) / how, self.work / "hf" / case.model
        self.run_ferry("convert", saved, hf, "--to", "hf", "--optim", "--hf-config", config)
        if how == "hf_without_training":
            (hf / "training.json").unlink()
            options += [x for k, v in gpt_model.ADAM.items() for x in ("--" + k.replace("_", "-"), v)]
        return self.run_ferry("convert", hf, out, "--to", "torch_dist", "--transformer-impl", "local", *options)

    def tolerance(self, case, m, kind):
        exact = case.is_same_layout() and case.optimizer == "distributed" and kind != "not_distributed"
        return 0 if exact else (TOLERANCE_OF_EXPERTS if m.experts else TOLERANCE)[case.dtype]

    def went_on(self, case, m, kind):
        """How far the tensors are from the original run's after a step, where they were loaded as saved."""
        saved, stepped = self.tensors(case, "saved"), self.tensors(case, "stepped")
        loaded, groups = self.tensors(case, f"{kind}_loaded"), self.tensors(case, f"{kind}_groups")
        # 0.16.1 takes one of its two groups for the other, or the schedule was lost.
        without_rates = case.layout.decoupled_lr or kind == "hf_without_training"
        if without_rates:
            loaded["lr"] = saved["lr"]
        require_tensors(m, loaded, saved, f"{kind}, loaded")
        if case.layout.decoupled_lr:
            return 0.0
        if not without_rates:
            want = self.tensors(case, "groups")
            if kind == "hf":  # training.json has what an optimizer does, not how: Apex's has bias_correction
                groups = [{k: v for k, v in g.items() if k in want[0]} for g in groups]
            require_same_groups(groups, want, False)
        got = self.tensors(case, f"{kind}_stepped")
        for key in ("loss_scale", "lr"):
            require_equal(key, got[key], stepped[key])
        tolerance = self.tolerance(case, m, kind)
        worst = worst_difference(m, got, stepped, saved, tolerance == 0)
        said = f"{kind}: after a step {worst[1]} differs by {worst[0]:.2g} of its change"
        require(worst[0] <= tolerance, said)
        return worst[0]

    def loaded(self, case):
        m = self.model(case)
        run_ranks(gpt_model.world_of(case.target), load_and_step, m, case, self.folder(case))
        kinds = [*case.loads(True), *case.loads(False)]
        worst = max(self.went_on(case, m, kind) for kind in kinds)
        return f"{len(kinds)} formats; after a step they differ by {worst:.2g} of the change"

    def flattened(self, case):
        """As Megatron-Core 0.8 to 0.15 wants the states where ferry's other files were loaded."""
        m, out = self.model(case), self.folder(case) / "flattened"
        saved, options = self.folder(case) / case.kinds[0], ferry_options(case.target)
        self.run_ferry("convert", saved, out, "--optim-format", "fully_sharded_model_space", *options)
        got = read_plain(megatron_files.iteration_folder(out))
        got = {k: v for k, v in got.items() if "optimizer." in k}
        require_tensors(m, got, self.tensors(case, "flattened"), "flattened")
        return f"{len(got)} tensors"

    def noted(self, case):
        """0.16.1 saves wrong elements as fully_reshardable where there are several buckets: ferry carries
        them as they are, as lossy, and says so."""
        bad, out = self.folder(case) / "fully_reshardable", self.folder(case) / "noted"
        done = subprocess.run([self.ferry, "convert", bad, out], capture_output=True, text=True)
        require(done.returncode == 0, f"exit code {done.returncode}")
        require("are shifted: Megatron-Core before 0.20" in done.stderr, done.stderr)
        require("are shifted, and written so" in done.stderr, done.stderr)
        require("overlap_grad_reduce" in done.stderr, done.stderr)

    def refused(self, case, damage):
        name = f"{damage.kind}_{damage.function.__name__}"
        bad, out = (self.folder(case) / f"{name}{x}" for x in ("", "_converted"))
        shutil.copytree(self.folder(case) / damage.kind, bad)
        damage.function(megatron_files.iteration_folder(bad))
        done = subprocess.run([self.ferry, "convert", bad, out], capture_output=True, text=True)
        require(done.returncode in (3, 5), f"exit code {done.returncode}")
        why = subprocess.run([self.ferry, "inspect", bad, "--json"], capture_output=True, text=True)
        why = json.loads(why.stdout)["optimizer"].get("not_read")
        require(why and why in done.stderr, f"inspect: {why}; convert: {done.stderr}")
        missing = [word for word in damage.words.split() if word not in why]
        require(not missing, f"{missing} not in: {why}")
        self.run_ferry("convert", bad, out, "--no-optim", "--to", "torch_dist")
        return why


def run(args, work, report):
    o = Optimizers(args.ferry, work)
    for case in of_share([case for case in map(Case, CASES.strip().splitlines()) if args.only in case.name]):
        report.check(case.name, "megatron-core trains and saves it", o.saved, case)
        if not (o.folder(case) / "stepped.pt").exists():
            continue
        for kind in case.kinds:
            report.check(case.name, f"{kind}: ferry inspects it", o.inspected, case, kind)
            what = f"{kind}: ferry converts it, every state bit for bit"
            report.check(case.name, what, o.converted, case, kind)
        for how in case.written:
            report.check(case.name, f"{how}: ferry writes it", o.written, case, how)
        report.check(case.name, "megatron-core goes on with what ferry wrote", o.loaded, case)
        if case.loads(True):
            what = "fully_sharded_model_space: ferry writes every state where Megatron has it"
            report.check(case.name, what, o.flattened, case)
        if case.saves_wrong():
            report.check(case.name, "fully_reshardable: ferry says that it is saved wrong", o.noted, case)
        for damage in map(Damage, DAMAGES.strip().splitlines()):
            if case.name.startswith(damage.case):
                what = f"{damage.kind}: ferry refuses it after {damage.function.__name__}()"
                report.check(case.name, what, o.refused, case, damage)
        if not args.keep:
            shutil.rmtree(o.folder(case))
