"""What the cases share: how a check is reported, how ferry and other programs are run, and ferry's
options for a layout."""

import argparse
import concurrent.futures
import os
import shlex
import subprocess
import traceback
from pathlib import Path

from megatron_files import Wrong, require

layout_parser = argparse.ArgumentParser()
layout_parser.add_argument("--tp", type=int, default=1)
layout_parser.add_argument("--pp", type=int, default=1)
layout_parser.add_argument("--vpp", type=int, default=1)
layout_parser.add_argument("--dp", type=int, default=1)
layout_parser.add_argument("--ep", type=int, default=1)
layout_parser.add_argument("--etp", type=int)
layout_parser.add_argument("--decoder-first-pipeline-num-layers", dest="first", type=int)
layout_parser.add_argument("--decoder-last-pipeline-num-layers", dest="last", type=int)
layout_parser.add_argument("--pipeline-model-parallel-layout", dest="stages")
layout_parser.add_argument("--make-vocab-size-divisible-by", dest="divisor", type=int, default=128)
layout_parser.add_argument("--transformer-impl", dest="names", default="te")
layout_parser.add_argument("--moe-grouped-gemm", dest="grouped", action="store_true")


class Report:
    def __init__(self):
        self.counts = {"PASS": 0, "FAIL": 0, "skipped": 0}

    def line(self, verdict, case, what, said=""):
        self.counts[verdict] += 1
        print(f"{verdict:8}{case}: {what}{': ' + said if said else ''}", flush=True)

    def attempt(self, case, what, function, *args):
        """What went wrong, None where nothing did."""
        try:
            said = function(*args)
            self.line("PASS", case, what, said or "")
        except Exception as error:
            if not isinstance(error, Wrong):
                traceback.print_exc()
            return str(error).strip().splitlines() or [type(error).__name__]

    def check(self, case, what, function, *args):
        wrong = self.attempt(case, what, function, *args)
        if wrong:
            self.line("FAIL", case, what, wrong[0][:200])
            for more in wrong[1:20]:
                print("        " + more)

    def check_side_by_side(self, checks):
        """Each of checks is a case, what is done, and a function of the case. Two of them at a time may be given
        the same TCP port, so what failed is run again, alone."""
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            tries = [pool.submit(self.attempt, case.name, what, f, case) for case, what, f in checks]
        for (case, what, function), done in zip(checks, tries, strict=True):
            if done.result():
                print(f"again   {case.name}: {what}: {' '.join(done.result()[-3:])[-300:]}")
                self.check(case.name, what, function, case)


def run_program(*command, cwd=None):
    done = subprocess.run([str(x) for x in command], capture_output=True, text=True, timeout=600, cwd=cwd)
    text = (done.stdout + done.stderr).strip()
    require(
        done.returncode == 0,
        f"{Path(command[0]).name} {shlex.join(map(str, command[1:]))}: exit code "
        f"{done.returncode}\n{text[-1500:]}",
    )
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""
