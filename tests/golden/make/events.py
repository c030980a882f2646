#!/usr/bin/env python3
"""events.py FILE - writes an event file of TensorBoard by torch's SummaryWriter, at fixed times.

The scalars are those that train/trainer/events_test.c writes."""
import shutil
import sys
import tempfile
import time
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

SCALARS = [
    ("lm loss", 4.964262008666992, 1, 1000000001.5),
    ("lm loss vs samples", 4.964262008666992, 8, 1000000001.5),
    ("loss-scale", 4294967296.0, 0, 1000000002.25),
    ("grad-norm", 0.0, 127, 1000000003.0),
    ("learning-rate", 0.00125, 128, 1000000004.0),
    ("lm loss validation ppl", float("inf"), 1 << 40, 1000000005.125),
    ("n" * 300, -1.5, 300, 1000000006.0),
]


def main():
    time.time = lambda: 1000000000.75
    with tempfile.TemporaryDirectory() as folder:
        writer = SummaryWriter(log_dir=folder)
        for tag, value, step, wall_time in SCALARS:
            writer.add_scalar(tag, value, step, wall_time)
        writer.close()
        [file] = Path(folder).iterdir()
        assert file.name.startswith("events.out.tfevents.1000000000."), file.name
        shutil.copy(file, sys.argv[1])


main()
