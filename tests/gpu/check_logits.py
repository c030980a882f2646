"""check_logits.py OURS THEIRS MOST - whether logits are those that transformers computed: prints
|ours - theirs| / |theirs|, and fails where that is more than MOST, or no number."""

import sys

import numpy
from safetensors.numpy import load_file

ours, theirs = (load_file(path)["logits"].astype(numpy.float64).ravel() for path in sys.argv[1:3])
off = numpy.linalg.norm(ours - theirs) / numpy.linalg.norm(theirs)
print(f"{off:.2e}")
sys.exit(0 if off <= float(sys.argv[3]) else 1)
