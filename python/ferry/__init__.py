"""Converts, verifies and trains LLM checkpoints, by the program `ferry`.

    import ferry

    ferry.convert("hf", "megatron", tp=2, pp=2)
    ferry.verify("hf", "megatron")["verdict"]  # "identical"

A keyword is an option of the command, with `_` for `-` (`ferry convert --help` lists them): torch_dtype="float32" is
--torch-dtype float32. True gives the option alone, None and False leave it out. A list gives several values, in the
way that the option takes them. A keyword of Python gets a `_` behind it: from_="dcp".

Each function returns the object that --json prints (JSON.md; typed in ferry.types), or raises ferry.Error.

`progress` is called with a dict (ferry.types.Progress) about once a second and at the end, `log` with each other line
of stderr: notes, the plan, the log of a training run. What they raise ends the program, as Ctrl-C does; finished work
is kept where the command keeps it, and the same call continues.
"""
import json
import os
import shutil
import subprocess
import tempfile
from typing import IO, Any, Callable, Dict, List, Optional, Sequence, Union, cast

from ferry.types import Convert, Digest, Inspect, Models, Progress, Synth, Verify

__all__ = ["Error", "convert", "digest", "inspect", "models", "plan", "program", "run", "synth", "verify"]

Path = Union[str, "os.PathLike[str]"]
OnProgress = Optional[Callable[[Progress], Any]]
OnLine = Optional[Callable[[str], Any]]

# How options take several values; others take them in one word, with commas.
REPEATED = {"allow-config", "allow-mismatch", "allow-missing", "allow-unexpected", "ignore", "ignore-config",
            "ignore-training", "only"}
WORDS = {"cp-comm-type", "data-path", "moe-aux-loss-coeff", "moe-router-load-balancing-type", "rampup-batch-size",
         "recompute-modules", "test-data-path", "train-data-path", "valid-data-path"}


class Error(Exception):
    """A command failed. str() is its message, exit_code the kind of failure, result the object with what it knew."""

    def __init__(self, exit_code: int, message: str, result: Dict[str, Any]):
        super().__init__(message)
        self.exit_code = exit_code
        self.message = message
        self.result = result


def convert(source: Path, destination: Path, progress: OnProgress = None, log: OnLine = None,
            **options: Any) -> Convert:
    """Converts a checkpoint to another format or parallel layout: to="hf", tp=2, pp=2, torch_dtype="bfloat16"."""
    return cast(Convert, _command("convert", [source, destination], progress, log, options))


def plan(source: Path, destination: Path, log: OnLine = None, **options: Any) -> Convert:
    """Plans a conversion and writes nothing; raises Error where the conversion would not start."""
    return convert(source, destination, log=log, **{**options, "dry_run": True})


def verify(a: Path, b: Path, progress: OnProgress = None, log: OnLine = None, **options: Any) -> Verify:
    """Compares two checkpoints. A difference is a result, not an error: exit_code is 1, and verdict says more."""
    return cast(Verify, _command("verify", [a, b], progress, log, options))


def digest(path: Path, progress: OnProgress = None, log: OnLine = None, **options: Any) -> Digest:
    """Digests of all tensors; with check="FILE" a comparison, whose verdict is "identical" or "different"."""
    return cast(Digest, _command("digest", [path], progress, log, options))


def inspect(path: Path, log: OnLine = None, **options: Any) -> Inspect:
    """Describes a checkpoint: tensors="*", stats=True, args=True."""
    return cast(Inspect, _command("inspect", [path], None, log, options))


def synth(destination: Path, log: OnLine = None, **options: Any) -> Synth:
    """Creates a model of random weights: model="llama", layers=2."""
    return cast(Synth, _command("synth", [destination], None, log, options))


def models(**options: Any) -> Models:
    """Lists the supported models; show="llama" has the mapping of one."""
    return cast(Models, _command("models", [], None, None, options))


def run(arguments: Sequence[Path], progress: OnProgress = None, log: OnLine = None, **options: Any) -> Dict[str, Any]:
    """Runs any command: run(["print", "hf", "lm_head.weight[0]"]), run(["train"], load="hf", train_iters=10, log=print).

    Where several processes do the work (RANK, WORLD_SIZE), all but rank 0 get {"exit_code": 0}.
    """
    if isinstance(arguments, str):
        arguments = [arguments]
    words = [os.fspath(word) for word in arguments]
    if progress:
        options["progress"] = "json"
    line = [program(), words[0], *_option_words(options), "--json", *words[1:]]
    with tempfile.TemporaryFile() as answer:  # a pipe could fill up while stderr is read
        # In a session of its own: a terminal's Ctrl-C would reach it beside ours, and a second one ends it at once.
        with subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=answer, stderr=subprocess.PIPE,
                              encoding="utf-8", errors="replace", start_new_session=True) as process:
            try:
                last = _read_lines(cast(IO[str], process.stderr), progress, log)
                code = process.wait()
            except BaseException:
                _interrupt(process)
                raise
        answer.seek(0)
        return _result(code, answer.read(), last)


def program() -> str:
    """The program: $FERRY_PROGRAM, else the one that came with this module, else the one on PATH."""
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "ferry")
    found = os.environ.get("FERRY_PROGRAM") or (own if os.path.exists(own) else shutil.which("ferry"))
    if not found:
        raise FileNotFoundError("no program ferry: not in FERRY_PROGRAM, beside the module or on PATH")
    return found


def _command(name: str, paths: List[Path], progress: OnProgress, log: OnLine,
             options: Dict[str, Any]) -> Dict[str, Any]:
    return run([name, "--", *paths], progress, log, **options)


def _option_words(options: Dict[str, Any]) -> List[str]:
    words: List[str] = []
    for keyword, value in options.items():
        name = keyword.rstrip("_").replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            words.append(f"--{name}")
        elif not isinstance(value, (list, tuple)):
            words.append(f"--{name}={_text(value)}")
        elif name in REPEATED:
            words += [f"--{name}={_text(item)}" for item in value]
        elif name in WORDS:
            words += [f"--{name}", *map(_text, value)]
        else:
            words.append(f"--{name}=" + ",".join(map(_text, value)))
    return words


def _text(value: Any) -> str:
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def _read_lines(lines: IO[str], progress: OnProgress, log: OnLine) -> str:
    """Passes lines on until the program ends, and returns the last one."""
    last = ""
    for line in lines:
        line = line.rstrip("\n")
        if progress and line.startswith('{"event":'):
            progress(json.loads(line))
        else:
            last = line or last
            if log:
                log(line)
    return last


def _interrupt(process: "subprocess.Popen[str]") -> None:
    """Ends the program as Ctrl-C does, and waits until it has saved its work; another Ctrl-C does not wait."""
    try:
        process.terminate()  # SIGINT would be ignored where the shell started Python in the background
        process.communicate()
    except BaseException:
        process.kill()
        process.communicate()
        raise


def _result(code: int, answer: bytes, last: str) -> Dict[str, Any]:
    try:
        result = json.loads(answer.decode("utf-8", "surrogateescape")) if answer else {"exit_code": code}
    except ValueError:  # it died while it wrote
        result = {"exit_code": code}
    if code in (0, 1):
        return cast(Dict[str, Any], result)
    message = str(result.get("error") or (f"ferry was killed by signal {-code}" if code < 0 else last))
    raise Error(code, message, result)
