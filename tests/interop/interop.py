"""interop.py FERRY [--peers FOLDER] [--megatron-lm TREE] [--only TEXT] [--keep FOLDER] - checks ferry against transformers and
Megatron-Core: what it writes is read by them, and what they write is read by it.

Each line is PASS, FAIL or skipped, the case, and what was done. The last line has the sums. The cases of
optimizer states are in optimizer.py, those of training runs in training.py."""

import argparse
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import digests
import expected
import fsdp_dtensor
import megatron_files
import models
import optimizer
import safetensors.torch
import torch
import training
from checks import Report, layout_parser, run_program
from megatron_files import require, require_equal
from peers import run_peer
from share import of_share

# model, format, and ferry's own options for the layout
CASES = """
llama       torch_dist  --tp 1
llama       torch_dist  --tp 2 --pp 2
llama       torch_dist  --tp 4
llama       torch_dist  --tp 2 --pp 2 --vpp 2 --transformer-impl local
llama       torch_dist  --pp 3 --decoder-first-pipeline-num-layers 3 --decoder-last-pipeline-num-layers 1
llama       torch_dist  --pp 2 --pipeline-model-parallel-layout Et|tt|ttt|ttL
llama       torch       --tp 1
llama       torch       --tp 2 --pp 2
llama       torch       --tp 2 --pp 2 --vpp 2 --transformer-impl local
llama       torch       --pp 2 --pipeline-model-parallel-layout Ettt|tt|t|ttL
llama-tied  torch_dist  --tp 2 --pp 2
llama-tied  torch       --pp 4
llama-tied  torch       --tp 2 --transformer-impl local
llama3      torch_dist  --tp 4 --pp 2
llama3      torch       --tp 2
mistral     torch_dist  --tp 2 --pp 4 --make-vocab-size-divisible-by 16
mistral     torch       --tp 2 --pp 2
qwen2       torch_dist  --tp 2 --pp 2
qwen2       torch       --tp 4
qwen3       torch_dist  --tp 2 --vpp 2 --pp 2
qwen3       torch       --tp 2 --pp 3 --decoder-first-pipeline-num-layers 2
gpt2        torch_dist  --tp 2 --pp 2
gpt2        torch_dist  --tp 4 --transformer-impl local
gpt2        torch       --tp 2 --pp 2
mixtral     torch_dist  --tp 2 --ep 2
mixtral     torch_dist  --ep 4 --pp 2 --transformer-impl local
mixtral     torch       --ep 2 --pp 2
mixtral     torch       --tp 2 --ep 2 --moe-grouped-gemm
qwen3_moe   torch_dist  --tp 2 --pp 2 --ep 2 --etp 1
qwen3_moe   torch_dist  --ep 2 --pp 2 --vpp 2
qwen3_moe   torch       --tp 2 --ep 2 --pp 2
qwen3_moe   torch       --ep 4 --transformer-impl local
"""
# Megatron-Bridge itself: imports what ferry then exports, and exports what ferry imported. It wants a
# vocabulary that needs no padding (-v132).
BRIDGE_CASES = """
llama-v132      torch_dist  --tp 2 --pp 2
llama-tied-v132 torch_dist  --tp 2
qwen2-v132      torch_dist  --pp 2
qwen3-v132      torch_dist  --tp 2
qwen3_moe-v132  torch_dist  --pp 2
"""


class Case:
    def __init__(self, line):
        self.model, self.format, options = line.split(None, 2)
        self.options = shlex.split(options)
        self.layout = layout_parser.parse_args(self.options)
        if self.layout.stages:
            self.layout.vpp = len(self.layout.stages.split("|")) // self.layout.pp
        self.name = " ".join(line.split())

    def folder(self, work, what):
        """A new place for one check of this case."""
        return work / what / self.name.replace(" ", "_").replace("|", ".").replace("--", "")

    def peer_options(self):
        """The layout as the peers' programs call it."""
        lay, options = self.layout, []
        for name in ("tp", "pp", "ep", "etp", "first", "last", "stages"):
            if getattr(lay, name) is not None:
                options += ["--" + name, str(getattr(lay, name))]
        if lay.vpp > 1:
            options += ["--vpp", str(lay.vpp)]
        dense = max(1, lay.ep * (lay.etp or lay.tp) // lay.tp)
        return [
            *options,
            *("--dp", str(dense), "--vocab-divisor", str(lay.divisor)),
            *("--spec", "local" if lay.names == "local" else "te-names"),
        ]


class Interop:
    def __init__(self, args, work):
        self.ferry, self.peers, self.megatron_lm, self.work = args.ferry, args.peers, args.megatron_lm, work
        self.logits = {}

    def run_ferry(self, *args):
        return run_program(self.ferry, *args)

    def source(self, case):
        return self.work / "hf" / case.model

    # ---- with transformers and megatron-core alone ----

    def make_model(self, name):
        folder = self.work / "hf" / name
        models.make(name, folder)
        self.logits[name], wrong = models.logits(folder)
        require(not wrong, f"transformers: {wrong}")

    def written_by_ferry(self, case):
        """HF -> ferry -> megatron-core, or torch.load: every tensor."""
        out = case.folder(self.work, "ours")
        self.run_ferry("convert", self.source(case), out, "--to", case.format, *case.options)
        read = megatron_files.read_torch_dist if case.format == "torch_dist" else megatron_files.read_legacy
        return read(out, expected.Model(self.source(case)), case.layout)

    def written_by_megatron(self, case):
        """megatron-core, or torch.save -> ferry -> transformers: every tensor, and the logits."""
        theirs, out = case.folder(self.work, "theirs"), case.folder(self.work, "theirs_as_hf")
        m = expected.Model(self.source(case))
        write = (
            megatron_files.write_torch_dist if case.format == "torch_dist" else megatron_files.write_legacy
        )
        write(theirs, m, case.layout)
        config = ["--true-vocab-size", m.vocab]
        if case.model in ("llama3", "mistral"):  # Megatron-LM's arguments do not say all of it
            config = ["--hf-config", self.source(case)]
        self.run_ferry("convert", theirs, out, "--to", "hf", *config)
        return self.check_hf(out, case)

    def digests_of(self, name):
        """What ferry prints, of the model and of what it makes of it, against a program of its own."""
        folder, out = self.work / "hf" / name, self.work / "digests" / name
        want = digests.lines(folder)
        layout = ("--to", "hf") if name in models.HF_ONLY else ("--tp", 2)
        self.run_ferry("convert", folder, out, *layout)
        for path in (folder, out):
            got = subprocess.run([self.ferry, "digest", path], capture_output=True, text=True).stdout
            got = "".join(line for line in got.splitlines(True) if not line.startswith("config"))
            wrong = [g for g in got.splitlines() if g not in want.splitlines()]
            require(got == want, f"{path}: {wrong[:3] or 'lines are missing'}")
        return f"{len(want.splitlines())} lines"

    def computes_the_same(self, name):
        """Logits of ferry's engine, on one rank and on two, against those of transformers."""
        folder, stored = self.work / "hf" / name, self.work / f"{name}.logits.safetensors"
        values = {"input_ids": models.tokens(), "logits": self.logits[name]}
        safetensors.torch.save_file(values, stored)
        for layout in ((), ("--tp", 2, "--sp")):
            self.run_ferry("verify", folder, stored, "--forward", *layout)
        return f"{list(self.logits[name].shape)}"

    def check_hf(self, folder, case):
        got, want = expected.Model(folder).tensors, expected.Model(self.source(case)).tensors
        require(got.keys() == want.keys(), f"{sorted(got.keys() ^ want.keys())[:4]}")
        for name, tensor in want.items():
            require_equal(name, got[name], tensor)
        logits, wrong = models.logits(folder)
        require(not wrong, f"transformers: {wrong}")
        require(torch.equal(logits, self.logits[case.model]), "the logits differ")
        return f"{len(want)} tensors and the logits"

    # ---- with the peers' programs: a real GPTModel on CPU ranks ----

    def peer(self, program, *args):
        return run_peer(self.peers / program, *args).split(": ", 1)[-1]  # without verdict and path

    def loaded_by_peer(self, case):
        load = "megatron_load.py" if case.format == "torch_dist" else "megatron_legacy_load.py"
        folder = case.folder(self.work, "ours")
        # Weights are compared bit by bit; logits depend on the CPU's matrix products, too.
        hf = ("--hf", self.source(case), "--tolerance", 1e-4)
        return self.peer(load, folder, *hf, *case.peer_options())

    def saved_by_peer(self, case):
        theirs, out = case.folder(self.work, "peer"), case.folder(self.work, "peer_as_hf")
        dtype = models.dtype_of(case.model)
        self.peer(
            "megatron_save.py",
            self.source(case),
            theirs,
            "--format",
            case.format,
            "--dtype",
            dtype,
            *case.peer_options(),
        )
        self.run_ferry("convert", theirs, out, "--to", "hf", "--hf-config", self.source(case))
        self.peer("safetensors_check.py", out)
        return self.peer("hf_load.py", out, "--reference", self.source(case))

    def loaded_by_megatron_lm(self, case):
        said = run_program(
            sys.executable,
            *("-W", "ignore", Path(__file__).with_name("megatron_lm.py"), self.peers),
            *(case.folder(self.work, "ours"), self.source(case), "--mcore", self.megatron_lm),
            *("--format", case.format, "--dtype", models.dtype_of(case.model), *case.peer_options()),
        )
        return said.split(": ", 1)[-1]

    def read_by_dcp(self, case):
        folder = megatron_files.iteration_folder(case.folder(self.work, "ours"))
        return self.peer("dcp_load.py", folder, "--hf", self.source(case))

    def exported_by_bridge(self, case):
        ours, out = case.folder(self.work, "for_bridge"), case.folder(self.work, "by_bridge")
        self.run_ferry("convert", self.source(case), ours, "--make-vocab-size-divisible-by", 1, *case.options)
        return self.peer(
            "megatron_bridge.py", "export", ours, out, "--hf", self.source(case), *case.peer_options()
        )

    def imported_by_bridge(self, case):
        theirs, out = case.folder(self.work, "bridge"), case.folder(self.work, "bridge_as_hf")
        self.peer("megatron_bridge.py", "import", self.source(case), theirs, *case.peer_options())
        self.run_ferry("convert", theirs, out, "--to", "hf", "--hf-config", self.source(case))
        return self.peer("hf_load.py", out, "--reference", self.source(case))


def peer_checks(interop, cases, bridge_cases):
    for case in cases:
        # The peers' programs know neither llama3's rotary scaling nor grouped experts.
        known = case.model != "llama3" and not case.layout.grouped
        if known:
            yield case, "GPTModel loads what ferry writes", interop.loaded_by_peer
        if known:
            yield case, "ferry exports what GPTModel saves", interop.saved_by_peer
        if known and interop.megatron_lm:
            yield case, "Megatron-LM's load_checkpoint() takes it", interop.loaded_by_megatron_lm
        if case.format == "torch_dist":
            yield case, "plain torch.distributed.checkpoint reads it", interop.read_by_dcp
    for case in bridge_cases:
        if "moe" not in case.model:  # without Transformer Engine it finds no names of experts
            yield case, "Megatron-Bridge exports what ferry writes", interop.exported_by_bridge
        yield case, "ferry exports what Megatron-Bridge imports", interop.imported_by_bridge


def skip(report, checks, why):
    for case, what, _ in checks:
        report.line("skipped", case.name, what, why)


def read_as_fsdp_dtensor(family, ferry, work):
    """A model of ferry's, saved by torch under the names that Megatron-FSDP has."""
    made, saved, back = (work / f"dtensor-{family}-{what}" for what in ("made", "saved", "back"))
    run_program(ferry, "synth", "-q", made, "--model", family, "--optim", "--to", "torch_dist")
    saved.mkdir()
    fsdp_dtensor.save(made / "iter_0001000", saved / "iter_0001000")
    run_program(ferry, "verify", "-q", made, saved / "iter_0001000")
    run_program(ferry, "convert", "-q", saved / "iter_0001000", back, "--tp", "2", "--pp", "2")
    run_program(ferry, "verify", "-q", made, back)


def run(args, work, report):
    for family in "llama", "gpt2", "qwen3-moe":
        if args.only in f"fsdp_dtensor {family}":
            report.check(f"fsdp_dtensor {family}", "ferry reads the names of Megatron-FSDP", read_as_fsdp_dtensor,
                         family, args.ferry, work)
    chosen = [
        of_share([c for c in map(Case, table.strip().splitlines()) if args.only in c.name])
        for table in (CASES, BRIDGE_CASES)
    ]
    interop = Interop(args, work)
    variants = of_share([name for name in models.VARIANTS if args.only in name])
    for name in dict.fromkeys([c.model for c in sum(chosen, [])] + variants):
        report.check(name, "transformers makes it", interop.make_model, name)
        report.check(name, "its digests are those of another program", interop.digests_of, name)
        report.check(name, "ferry's engine computes its logits", interop.computes_the_same, name)
    for case in chosen[0]:
        report.check(case.name, "megatron-core reads what ferry writes", interop.written_by_ferry, case)
        report.check(
            case.name,
            "transformers loads what ferry exports of megatron-core's",
            interop.written_by_megatron,
            case,
        )
    for case, what, function in training.tensorboard_checks(args, work / "training"):
        report.check(case.name, what, function, case)
    checks, of_training = list(peer_checks(interop, *chosen)), list(training.checks(args, work / "training"))
    if not args.peers:
        skip(report, checks + of_training, "the peers' programs are not there (--peers)")
        return
    if not args.megatron_lm:
        skip(report, of_training, "no checkout of Megatron-LM is given (--megatron-lm)")
        of_training = []
    report.check_side_by_side(checks + of_training)


def main():
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("ferry", type=Path)
    options.add_argument("--peers", type=Path, help="folder of the peers' programs")
    options.add_argument("--megatron-lm", type=Path, help="checkout of Megatron-LM, which is not on PyPI")
    options.add_argument("--only", default="", metavar="TEXT", help="only cases that contain it")
    options.add_argument("--keep", type=Path, metavar="FOLDER", help="work there, and leave all files")
    args = options.parse_args()
    torch.set_num_threads(1)
    models.transformers.utils.logging.set_verbosity_error()
    models.transformers.utils.logging.disable_progress_bar()
    report = Report()
    work = args.keep or Path(tempfile.mkdtemp(prefix="ferry-interop-"))
    try:
        optimizer.run(args, work / "optimizer", report)  # first: its ranks are forks of this process
        megatron_files.start()
        run(args, work, report)
    finally:
        if not args.keep:
            shutil.rmtree(work)
    c = report.counts
    print(f"interop: {c['PASS']} passed, {c['FAIL']} failed, {c['skipped']} skipped")
    sys.exit(1 if c["FAIL"] or not c["PASS"] else 0)


if __name__ == "__main__":
    main()
