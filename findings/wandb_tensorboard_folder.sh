#!/bin/sh
# wandb_tensorboard_folder.sh - a folder of TensorBoard's files that wandb takes and does not read.
#
# package:  wandb 0.31.0 with tensorboard 2.21.0 and no account, mode "offline"
# expected: The values of a finished run, a folder of event files, go to wandb by `wandb sync --sync-tensorboard FOLDER`
#           or `wandb sync FOLDER`, as older releases did and guides say; or by a run with sync_tensorboard=True in
#           which a writer is opened in that folder, "automatic syncing of W&B logs from TensorBoard".
# instead:  The option is removed, with exit code 1. Without it the exit code is 0 and nothing is read. The run records
#           only values that were written during it, without a warning; so a training that is resumed in a new run of
#           wandb, in its old folder, has no history there from before.
# why:      A run leaves out event files whose name has another host, or a time before its start: the same bytes under a
#           name with a later time are read. A program has to read the folder itself and call run.log().
# seen:
#   wandb sync --sync-tensorboard tb: exit code 1, Error: The following options have been removed: --sync-tensorboard.
#   wandb sync tb: exit code 0, wandb: No runs to sync.
#   run, steps 1 to 6 lie in tb: exit code 0, warnings no, steps in the history: none
#   run, it writes steps 7 and 8 to tb: exit code 0, warnings no, steps in the history: 7 8
#   run, the file of steps 1 to 6 has a later name: exit code 0, warnings no, steps in the history: 1 2 3 4 5 6
#   as stated: neither the command nor a run reads what lay in the folder
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
        "$folder/venv/bin/pip" install tensorboard==2.21.0 wandb==0.31.0 numpy==2.1.3 protobuf==7.36.2
}
install >"$folder/log" 2>&1 || changed "the packages cannot be installed"

cat >"$folder/run.py" <<'END'
"""Writes the steps given as arguments to the folder tb, in a run of wandb if the first is "run"."""
import contextlib
import sys

import wandb
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer import event_file_writer

in_run = sys.argv[1:2] == ["run"]
with wandb.init(project="words", mode="offline", sync_tensorboard=True) if in_run else contextlib.nullcontext():
    writer = event_file_writer.EventFileWriter("tb")
    for step in map(int, sys.argv[1 + in_run :]):
        summary = Summary(value=[Summary.Value(tag="lm loss", simple_value=1 / step)])
        writer.add_event(Event(wall_time=1000000000 + step, step=step, summary=summary))
    writer.close()
END
cat >"$folder/show.py" <<'END'
import pathlib
import re
import struct
import subprocess
import sys
import time

from wandb.proto.wandb_internal_pb2 import Record

BIN = pathlib.Path(sys.executable).parent
FIRST, BLOCK, HEADER = 7, 32768, 7  # of a .wandb file: its own header; the blocks and records of LevelDB's logs


def call(folder, *command):
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout)
    return done.returncode, done.stdout


def read_records(data):
    at, record = FIRST, b""
    while at < len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        record += data[at + HEADER : at + HEADER + size]
        at += HEADER + size
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(record)
            record = b""


def make_folder(name, later=False):
    """A folder with tb, in which steps 1 to 6 lie; and its event file, dated to an hour later if asked."""
    folder = root / name
    folder.mkdir()
    call(folder, sys.executable, root / "run.py", *"123456")
    [file] = folder.glob("tb/*")
    if later:
        file.rename(re.sub(r"(?<=tfevents\.)\d+", lambda t: str(int(t[0]) + 3600), str(file)))
    time.sleep(1.5)  # names have whole seconds
    return folder


def run(title, steps="", **how):
    folder = make_folder(title, **how)
    code, output = call(folder, sys.executable, root / "run.py", "run", *steps)
    [file] = folder.glob("wandb/offline-run-*/*.wandb")
    rows = [r.history for r in read_records(file.read_bytes()) if r.WhichOneof("record_type") == "history"]
    items = [{i.key or i.nested_key[-1]: i.value_json for i in row.item} for row in rows]
    found = [item["global_step"] for item in items if "lm loss" in item]
    warned = "yes" if re.search("warn|error", output, re.IGNORECASE) else "no"
    print(f"run, {title}: exit code {code}, warnings {warned},", end=" ", file=seen)
    print("steps in the history:", " ".join(found) or "none", file=seen)
    return code, warned, "".join(found)


def sync(*options):
    code, output = call(plain, BIN / "wandb", "sync", *options, "tb")
    said = re.match(r".*?\.", output)
    print(f"wandb sync {' '.join([*options, 'tb'])}: exit code {code}, {said[0] if said else output}", file=seen)
    return code, "have been removed: --sync-tensorboard" in output, "No runs to sync." in output


root = pathlib.Path(sys.argv[1])
seen = open(sys.argv[2], "w")
plain = make_folder("plain")
commands = [sync("--sync-tensorboard"), sync()]
runs = [
    run("steps 1 to 6 lie in tb"),
    run("it writes steps 7 and 8 to tb", "78"),
    run("the file of steps 1 to 6 has a later name", later=True),
]
if commands == [(1, True, False), (0, False, True)] and runs == [(0, "no", s) for s in ("", "78", "123456")]:
    print("as stated: neither the command nor a run reads what lay in the folder", file=seen)
else:
    print(f"changed: sync {commands}, runs {runs}", file=seen)
    sys.exit(1)
END
export HOME="$folder" WANDB_ERROR_REPORTING=false
touch "$folder/seen"
"$folder/venv/bin/python" -W ignore "$folder/show.py" "$folder" "$folder/seen" >"$folder/log" 2>&1 || true
cat "$folder/seen"
case $(tail -n 1 "$folder/seen") in
"as stated: "*) ;;
"changed: "*) exit 1 ;;
*) changed "the program fails" ;;
esac
