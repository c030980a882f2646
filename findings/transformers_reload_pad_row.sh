#!/bin/sh
# transformers_reload_pad_row.sh - a saved and reloaded model trains one row less.
#
# package:  transformers 5.24.0 with torch 2.13.0 on a CPU; 4.57.6 does the same
# expected: save_pretrained and from_pretrained give back the same model: the same logits, and from the same batch the
#           same gradients. config.pad_token_id serves generate and the masks of a batch's padding.
# instead:  A script sets config.pad_token_id to the end-of-text id, as many fine-tuning scripts do for a tokenizer
#           without padding. The model still trains that row of the input embedding. After a reload it does not: the
#           gradient of the row is 0, though the batch has the token and no padding. Logits, loss and all other
#           gradients are equal.
# why:      LlamaModel passes config.pad_token_id to nn.Embedding as padding_idx, once, when it is built.
#           Megatron-LM's embedding has no such row, so a run that moves there trains it again.
# seen:
#   padding_idx of the input embedding: None, reloaded 2
#   loss: 3.480982, reloaded 3.480982; largest difference of logits 0
#   gradient of row 2, the end-of-text id: 2.855233, reloaded 0.000000
#   other gradients that differ: 0 of 431 rows
#   as stated: the reloaded model does not train the row of the end-of-text id
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
        "$folder/venv/bin/pip" install torch==2.13.0 numpy==2.1.3 safetensors==0.8.0 tokenizers==0.23.3 \
            huggingface_hub==2.4.0 transformers==5.24.0
}
install >"$folder/log" 2>&1 || changed "the packages cannot be installed"

cat >"$folder/show.py" <<'END'
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

END_OF_TEXT = 2
TOKENS = torch.tensor([[1, 5, 6, END_OF_TEXT, 1, 7, 8, END_OF_TEXT]])  # two documents, no padding


def make_model():
    torch.manual_seed(0)
    sizes = dict(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2)
    return LlamaForCausalLM(LlamaConfig(bos_token_id=1, eos_token_id=END_OF_TEXT, pad_token_id=None, **sizes))


def rows_of_gradients(model):
    """Each gradient as a list of rows, by parameter; the loss; the logits."""
    out = model(TOKENS, labels=TOKENS)
    out.loss.backward()
    rows = {name: p.grad.reshape(p.shape[0], -1) for name, p in model.named_parameters()}
    return rows, out.loss.item(), out.logits.detach()


model = make_model()
model.config.pad_token_id = model.config.eos_token_id
model.save_pretrained(sys.argv[1])
reloaded = LlamaForCausalLM.from_pretrained(sys.argv[1])

(rows, loss, logits), (rows2, loss2, logits2) = rows_of_gradients(model), rows_of_gradients(reloaded)
norm, norm2 = (r["model.embed_tokens.weight"][END_OF_TEXT].abs().sum().item() for r in (rows, rows2))
others = [
    torch.equal(row, row2)
    for name in rows
    for i, (row, row2) in enumerate(zip(rows[name], rows2[name], strict=True))
    if (name, i) != ("model.embed_tokens.weight", END_OF_TEXT)
]
index, index2 = (m.get_input_embeddings().padding_idx for m in (model, reloaded))
distance = (logits - logits2).abs().max().item()
print(f"padding_idx of the input embedding: {index}, reloaded {index2}")
print(f"loss: {loss:.6f}, reloaded {loss2:.6f}; largest difference of logits {distance:g}")
print(f"gradient of row {END_OF_TEXT}, the end-of-text id: {norm:.6f}, reloaded {norm2:.6f}")
print(f"other gradients that differ: {others.count(False)} of {len(others)} rows")
if norm > 0 and norm2 == 0 and distance == 0 and all(others):
    print("as stated: the reloaded model does not train the row of the end-of-text id")
else:
    print("changed: stated are a gradient above 0, reloaded 0, and no other difference")
END
touch "$folder/seen"
HOME=$folder "$folder/venv/bin/python" -W ignore "$folder/show.py" "$folder/model" >"$folder/seen" 2>"$folder/log" ||
    true
cat "$folder/seen"
case $(tail -n 1 "$folder/seen") in
"as stated: "*) ;;
"changed: "*) exit 1 ;;
*) changed "the program fails" ;;
esac
