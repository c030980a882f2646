"""families.py FERRY --python VERSION=PYTHON... [--models N] [--only TEXT] [--fixtures FOLDER] [--keep FOLDER] - takes
models of every family through Megatron's layout and back, as the classes of transformers make them.

The families are those of convert/models. Each config.json of tests/golden/families and of the fixtures is a base, of
which N models are made by each version of transformers that has its class, at other sizes and with other options
(variations.py, family_model.py).

Each line is PASS, FAIL or skipped, the family, the base and the number of the model, and what was done. An option that
makes a model fail gets a line of its own and is left out, so that the rest is checked, too. The last line has the sums.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from share import of_share

HERE = Path(__file__).resolve().parent
GOLDEN = HERE.parent / "golden" / "families"
MAPS = HERE.parents[1] / "convert" / "models"
FIXTURES = ("hf", "hf-published", "hf-new")

# Faults of transformers: a family, a version, the option that brings it on (or none), and what the class does.
PEERS_OWN = {
    ("kimi_k25", "5.24.0", ""): "it writes layers of the text model under names of the vision tower: blocks, wqkv",
    ("longcat_flash", "5.24.0", ""): "it writes gates of experts that are the identity, which nothing reads",
    ("olmo_hybrid", "5.24.0", "sizes"): "it writes the convolutions of q, k and v as equal thirds of the three together",
    ("nemotron_h", "5.24.0", "attention_bias"): "its class ignores the option, which the published code heeds",
}


def as_list(value):
    return value if isinstance(value, list) else [value] if value else []


def read_maps():
    """Families by their model_type, and the reasons that maps give for refusing a model."""
    families, reasons = {}, set()
    for path in sorted(MAPS.glob("*.json")):
        for one in as_list(json.loads(path.read_text())):
            if "family" in one:
                families.update({kind: one["family"] for kind in as_list(one.get("model_type"))})
                reasons.update(row["why"] for row in one.get("unsupported", []))
    return families, reasons


def family_of(config, families):
    outer = config.get("model_type")
    inner = (config.get("text_config") or {}).get("model_type")
    return next((families[kind] for kind in (f"{outer}.{inner}", outer, inner) if kind in families), None)


def find_bases(fixtures, families, report):
    """Each different config.json by a name, for each family."""
    folders = [("", GOLDEN)]
    for name in FIXTURES:
        if (fixtures / name).is_dir():
            folders.append((name.removeprefix("hf").removeprefix("-"), fixtures / name))
        else:
            report.line("skipped", f"fixtures/{name}", "not there; tests/golden/families has its configs of then")
    seen = {}
    for above, folder in folders:
        for path in sorted(folder.glob("*/config.json")):
            config = json.loads(path.read_text())
            name = "-".join(filter(None, (above, path.parent.name)))
            seen.setdefault(json.dumps(config, sort_keys=True), (name, config))
    bases = {family: [] for family in sorted(set(families.values()))}
    for name, config in seen.values():
        family = family_of(config, families)
        if family is None:
            report.line("FAIL", name, f"no map has its model_type {config.get('model_type')}")
        else:
            bases[family].append((name, config))
    add_text_models(bases, families)
    return bases


def add_text_models(bases, families):
    """Families that are there as the text model of another one only."""
    for name, config in [base for of_family in bases.values() for base in of_family]:
        text = config.get("text_config") or {}
        family = families.get(text.get("model_type"))
        if family and not bases[family]:
            bases[family].append((f"{name}-text", text))


class Report:
    def __init__(self):
        self.counts = {"PASS": 0, "FAIL": 0, "skipped": 0}

    def line(self, verdict, case, said):
        self.counts[verdict] += 1
        first, *more = said.splitlines()
        print(f"{verdict:8}{case}: {first}", flush=True)
        for line in more[:8]:
            print("        " + line)


def run_jobs(python, ferry, work, jobs, keep):
    """Answers of a version of transformers, one by one."""
    work.mkdir(parents=True, exist_ok=True)
    command = [python, "-W", "ignore", HERE / "family_model.py", ferry, work, *(["keep"] if keep else [])]
    with open(work / "log", "w") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
    left = list(jobs)
    try:
        while left and (line := ask(process, left[0])):
            yield json.loads(line)
            left.pop(0)
    finally:
        process.kill()
        process.wait()
    for job in left:
        last = (work / "log").read_text().splitlines()[-4:]
        yield {**job, "verdict": "FAIL", "said": "\n".join(["family_model.py ended", *last])}


def ask(process, job):
    try:
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        return ""
    return process.stdout.readline()


def option_text(option, value):
    text = "" if option == "sizes" else f" {json.dumps(value)}"
    return option + (text if len(text) < 100 else text[:97] + "...")


def print_answer(report, version, job, reasons):
    case = f"{job['title']}, transformers {version}"
    if job["verdict"] == "FAIL":
        report.line("FAIL", case, job["said"])
        return
    for option, value, error in job["wrong"]:
        own = PEERS_OWN.get((job["family"], version, option))
        reason = own or next((why for why in reasons if why in error), None)
        what = f"{case} with {option_text(option, value)}"
        if reason:
            report.line("skipped", what, own or f"ferry refuses it: {reason}")
        else:
            report.line("FAIL", what, error)
    if job["recognised"] != job["family"]:
        report.line("FAIL", case, f"ferry says that it is {job['recognised']}")
        return
    if job["terse"]:
        report.line("FAIL", f"{case}, without the fields that have the class's default", job["terse"])
    said = f"{job['count']} tensors, {job['layout']}"
    if job["left"]:
        said += f"; the class does not take {', '.join(option_text(o, v) for o, v, _ in job['left'])}"
    if job["unknown"]:
        said += f"; unknown to ferry: {', '.join(field['name'] for field in job['unknown'])}"
    if job["info"]:
        said += f"; transformers says of both: {job['info']}"
    report.line("PASS", case, said)


def jobs_of(family, bases, count):
    """What family_model.py is asked for."""
    return [
        {
            "family": family,
            "base": config,
            "number": number,
            "name": f"{name}-{number}",
            "title": f"{family} {name} {number}",
        }
        for name, config in bases
        for number in range(count)
    ]


def check(args, work, families, bases, report, reasons):
    """Makes and checks the models of some families by each version of transformers."""
    not_built, built = {}, set()
    for version, python in (word.split("=", 1) for word in args.python):
        jobs = []
        for family in families:
            if reason := PEERS_OWN.get((family, version, "")):
                report.line("skipped", f"{family}, transformers {version}", reason)
                built.add(family)
            else:
                jobs += jobs_of(family, bases[family], args.models)
        for job in run_jobs(python, args.ferry, work / version, jobs, args.keep):
            if job["verdict"] == "not built":
                not_built.setdefault(job["family"], {}).setdefault(version, job["said"])
            else:
                built.add(job["family"])
                print_answer(report, version, job, reasons)
    for family in families:
        if family in not_built and family not in built:
            whys = [f"{version}: {why}" for version, why in not_built[family].items()]
            report.line("skipped", family, "no version of transformers builds it\n" + "\n".join(whys))


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("ferry", type=Path)
    options.add_argument("--python", action="append", required=True, metavar="VERSION=PYTHON")
    options.add_argument("--models", type=int, default=2, metavar="N", help="models of each base (default 2)")
    options.add_argument("--fixtures", type=Path, default=HERE.parents[2] / "shared" / "fixtures")
    options.add_argument("--only", default="", metavar="TEXT", help="only families and bases that contain it")
    options.add_argument("--keep", type=Path, metavar="FOLDER", help="work there, and leave all files")
    args = options.parse_args()
    report = Report()
    families, reasons = read_maps()
    bases = {
        family: [base for base in of_family if args.only in f"{family} {base[0]}"]
        for family, of_family in find_bases(args.fixtures, families, report).items()
    }
    taken = of_share([family for family in bases if bases[family] or not args.only])
    for family in taken:
        if not bases[family]:
            report.line("skipped", family, "no config.json of it is there")
    work = args.keep or Path(tempfile.mkdtemp(prefix="ferry-interop-models-"))
    try:
        check(args, work, taken, bases, report, reasons)
    finally:
        if not args.keep:
            shutil.rmtree(work, ignore_errors=True)
    print("interop-models: {PASS} passed, {FAIL} failed, {skipped} skipped".format(**report.counts))
    sys.exit(report.counts["FAIL"] > 0 or report.counts["PASS"] == 0)


if __name__ == "__main__":
    main()
