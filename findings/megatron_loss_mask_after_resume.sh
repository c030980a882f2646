#!/bin/sh
# megatron_loss_mask_after_resume.sh - a resumed run that trains on other tokens of the same samples.
#
# package:  megatron-core 0.16.1 with torch 2.13.0 on a CPU
# expected: The loss mask of a sample of GPTDataset hides the labels that are padding in this sample. A run that is
#           resumed at sample 6 trains on samples 6 to 11 like the run that was not stopped.
# instead:  A dataset also hides, in every sample it reads, the labels at the places where the first sample that it
#           ever read had padding. Which labels train depends on where a process began to read: after a resume, or with
#           another number of the data loader's workers, they are others. Tokens, labels and their order are the same.
# why:      The first sample's loss mask is kept for all others, since it has only ones unless ends of documents reset
#           something. But then the padding of the first sample is cleared in the kept tensor itself. Later samples
#           get copies of that.
# seen:
#   labels that train (x) of samples 6 to 11: expected, not stopped, resumed
#   sample 6: ---xxxxx ---xxxxx ---xxxxx
#   sample 7: xxxxx--x x--xx--x ---xx--x
#   sample 8: xxxxxxxx x--xxxxx ---xxxxx
#   sample 9: xxxxxxxx x--xxxxx ---xxxxx
#   sample 10: ---xxxxx ---xxxxx ---xxxxx
#   sample 11: xxxxxxxx x--xxxxx ---xxxxx
#   resumed: of 6 samples 6 have equal tokens, 6 equal labels, 2 equal loss masks
#   read by 2 workers: of 12 samples 12 have equal tokens, 12 equal labels, 6 equal loss masks
#   as stated: the labels that train depend on the sample that was read first
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
        "$folder/venv/bin/pip" install torch==2.13.0 && # first and alone, else pip brings CUDA
        "$folder/venv/bin/pip" install torch==2.13.0 numpy==2.1.3 packaging==26.3 &&
        "$folder/venv/bin/pip" install --no-deps megatron-core==0.16.1
}
install >"$folder/log" 2>&1 || changed "the packages cannot be installed"

cat >"$folder/show.py" <<'END'
import sys
import types

import numpy
import torch
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
from torch.utils.data import DataLoader, Subset

PAD, END_OF_DOCUMENT, FIRST_WORD, VOCABULARY = 0, 1, 2, 64
LENGTH, SAMPLES, RESUMED_AT = 8, 12, 6


def write_documents(prefix):
    """Documents of 3 to 12 words, each padded to a multiple of 4 tokens."""
    random = numpy.random.RandomState(1)
    builder = IndexedDatasetBuilder(prefix + ".bin", dtype=numpy.uint16)
    for _ in range(24):
        words = random.randint(FIRST_WORD, VOCABULARY, random.randint(3, 13)).tolist()
        words.append(END_OF_DOCUMENT)
        builder.add_document(torch.tensor(words + [PAD] * (-len(words) % 4)), [len(words) + -len(words) % 4])
    builder.finalize(prefix + ".idx")


def open_dataset(prefix):
    names = {"class": "words"}
    tokenizer = types.SimpleNamespace(pad=PAD, eod=END_OF_DOCUMENT, vocab_size=VOCABULARY, unique_identifiers=names)
    config = GPTDatasetConfig(
        random_seed=1,
        sequence_length=LENGTH,
        blend=([prefix], None),
        split="1,0,0",
        tokenizer=tokenizer,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    return BlendedMegatronDatasetBuilder(GPTDataset, [SAMPLES, 0, 0], lambda: True, config).build()[0]


def text(mask):
    return "".join("x" if m else "-" for m in mask)


def read(dataset, indices, num_workers=0):
    """The samples as a process reads them, or as workers of torch's DataLoader do in turn."""
    return list(DataLoader(Subset(dataset, indices), batch_size=None, num_workers=num_workers))


prefix = sys.argv[1]
write_documents(prefix)
run = read(open_dataset(prefix), range(SAMPLES))
resumed = read(open_dataset(prefix), range(RESUMED_AT, SAMPLES))
in_workers = read(open_dataset(prefix), range(SAMPLES), num_workers=2)
words = [sample["labels"] != PAD for sample in run]  # the labels that should train

print(f"labels that train (x) of samples {RESUMED_AT} to {SAMPLES - 1}: expected, not stopped, resumed")
for i, sample in enumerate(resumed, RESUMED_AT):
    print(f"sample {i}:", text(words[i]), text(run[i]["loss_mask"]), text(sample["loss_mask"]))
counts = []
for title, others in (("resumed", resumed), ("read by 2 workers", in_workers)):
    pairs = list(zip(run[-len(others) :], others, strict=True))
    equal = [sum(torch.equal(a[key], b[key]) for a, b in pairs) for key in ("tokens", "labels", "loss_mask")]
    print(f"{title}: of {len(pairs)} samples {equal[0]} have equal tokens,", end=" ")
    print(f"{equal[1]} equal labels, {equal[2]} equal loss masks")
    counts.append(equal)
right = all(torch.equal(run[i]["loss_mask"] > 0, words[i] & words[0]) for i in range(SAMPLES))
for i, sample in enumerate(resumed, RESUMED_AT):
    right = right and torch.equal(sample["loss_mask"] > 0, words[i] & words[RESUMED_AT])
if right and counts == [[6, 6, 2], [12, 12, 6]]:
    print("as stated: the labels that train depend on the sample that was read first")
else:
    print("changed: stated are equal tokens and labels, and 2 and 6 equal masks that hide the first sample's padding")
END
touch "$folder/seen"
HOME=$folder "$folder/venv/bin/python" -W ignore "$folder/show.py" "$folder/words" >"$folder/seen" 2>"$folder/log" ||
    true
cat "$folder/seen"
case $(tail -n 1 "$folder/seen") in
"as stated: "*) ;;
"changed: "*) exit 1 ;;
*) changed "the program fails" ;;
esac
