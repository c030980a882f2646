#!/bin/sh
# tensorboard_resumed_run.sh - three readers of one package that differ about the steps a resumed run repeats.
#
# package:  tensorboard 2.21.0 with tensorboard-data-server 0.7.2, on 127.0.0.1
# expected: A run writes steps 1 to 6, is resumed from a checkpoint of step 4 and writes steps 5 to 8 to a second file
#           of its folder. Each reader then drops the first values of steps 5 and 6: purge_orphaned_data, "discard any
#           events that were orphaned by a restart", is on by default. Or at least all readers of the package agree.
# instead:  TensorBoard's page shows 8 values, the page with --load_fast=false and EventAccumulator, with which
#           programs read runs, keep 10: steps 1 to 6, then 5 to 8. If the second file begins with a session that
#           starts at step 5, as torch's SummaryWriter(purge_step=5) writes, EventAccumulator has 8 too, but the page
#           with --load_fast=false still 10. It needs such a start in the first file as well. And of a longer run
#           EventAccumulator keeps, without a word, at most 10000 values, picked at random from the whole run.
# why:      A file of version 2, which all writers write, has its steps compared no more: its readers in Python wait for
#           SessionLog.START, and plugin_event_accumulator takes the first one for the begin of the run, even when
#           other events came before. The fast reader, in Rust, drops values whenever steps go back.
#           size_guidance={"scalars": 0} keeps all values.
# seen:
#   no session starts: page 1 2 3 4 5' 6' 7' 8'
#   no session starts: page without fast loading 1 2 3 4 5 6 5' 6' 7' 8'
#   no session starts: EventAccumulator 1 2 3 4 5 6 5' 6' 7' 8'
#   one starts in file 2: page 1 2 3 4 5' 6' 7' 8'
#   one starts in file 2: page without fast loading 1 2 3 4 5 6 5' 6' 7' 8'
#   one starts in file 2: EventAccumulator 1 2 3 4 5' 6' 7' 8'
#   one starts in both files: page 1 2 3 4 5' 6' 7' 8'
#   one starts in both files: page without fast loading 1 2 3 4 5' 6' 7' 8'
#   one starts in both files: EventAccumulator 1 2 3 4 5' 6' 7' 8'
#   of 20000 values EventAccumulator keeps 10000, with size_guidance={"scalars": 0} 20000
#   as stated: repeated steps stay or go by the reader
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
        "$folder/venv/bin/pip" install tensorboard==2.21.0 tensorboard-data-server==0.7.2 numpy==2.1.3 \
            protobuf==7.36.2 grpcio==1.85.3
}
install >"$folder/log" 2>&1 || changed "the packages cannot be installed"

cat >"$folder/show.py" <<'END'
import json
import pathlib
import subprocess
import sys
import time
import urllib.error
import urllib.request

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

BOTH, LAST = "1 2 3 4 5 6 5' 6' 7' 8'", "1 2 3 4 5' 6' 7' 8'"


def write_file(folder, steps, value, session):
    """One event file with `value` at these steps, behind the start of a session if asked, as torch writes it."""
    writer = EventFileWriter(str(folder))
    if session:
        start = SessionLog(status=SessionLog.START)
        writer.add_event(Event(wall_time=time.time(), step=steps[0], session_log=start))
    for step in steps:
        summary = Summary(value=[Summary.Value(tag="loss", simple_value=value)])
        writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
    writer.close()


def text(points):
    """The steps; with an apostrophe those of the second file, whose values are 2."""
    return " ".join(f"{step}{chr(39) if value == 2 else ''}" for step, value in points)


def read_page(folder, *options):
    """What the page of scalars asks the server for."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", folder, "--host", "127.0.0.1", "--port", "0"]
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True) as server:
        try:
            line = next(line for line in server.stderr if " at http://" in line)
            url = line.split(" at ")[1].split()[0] + "data/plugin/scalars/scalars?run=.&tag=loss"
            for _ in range(60):  # until the first load is done
                try:
                    with urllib.request.urlopen(url, timeout=60) as answer:
                        return text((step, value) for _, step, value in json.load(answer))
                except urllib.error.HTTPError:
                    time.sleep(1)
        finally:
            server.kill()


def read_accumulator(folder, **options):
    return [(e.step, e.value) for e in EventAccumulator(str(folder), **options).Reload().Scalars("loss")]


root = pathlib.Path(sys.argv[1])
found = []
with open(sys.argv[2], "w") as seen:
    for title, sessions in (
        ("no session starts", (False, False)),
        ("one starts in file 2", (False, True)),
        ("one starts in both files", (True, True)),
    ):
        folder = root / title
        write_file(folder, range(1, 7), 1, sessions[0])
        time.sleep(1.5)  # the files are read by their names, which have whole seconds
        write_file(folder, range(5, 9), 2, sessions[1])
        for reader, points in (
            ("page", read_page(folder)),
            ("page without fast loading", read_page(folder, "--load_fast=false")),
            ("EventAccumulator", text(read_accumulator(folder))),
        ):
            found.append(points)
            print(f"{title}: {reader} {points}", file=seen)
    write_file(root / "long", range(20000), 1, False)
    counts = [len(read_accumulator(root / "long", size_guidance=size)) for size in (None, {"scalars": 0})]
    print(f"of 20000 values EventAccumulator keeps {counts[0]},", end=" ", file=seen)
    print(f'with size_guidance={{"scalars": 0}} {counts[1]}', file=seen)
    if found == [LAST, BOTH, BOTH, LAST, BOTH, LAST, LAST, LAST, LAST] and counts == [10000, 20000]:
        print("as stated: repeated steps stay or go by the reader", file=seen)
    else:
        print("changed: stated are other steps or counts", file=seen)
        sys.exit(1)
END
export HOME="$folder"
touch "$folder/seen"
"$folder/venv/bin/python" -W ignore "$folder/show.py" "$folder" "$folder/seen" >"$folder/log" 2>&1 || true
cat "$folder/seen"
case $(tail -n 1 "$folder/seen") in
"as stated: "*) ;;
"changed: "*) exit 1 ;;
*) changed "the program fails" ;;
esac
