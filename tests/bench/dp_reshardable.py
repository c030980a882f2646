"""dp_reshardable.py FROM TO - rewrites a torch_dist checkpoint of a Llama as Megatron-Core writes its
optimizer by default: dp_reshardable, flat buffers of each rank, one bucket, dp 1.

FROM is one iteration, pp 1, of fully_reshardable states, as ferry synth makes it. Its chunks are the
shards of tensor parallel ranks; here each becomes a run of its rank's bucket, chunk by chunk."""
import dataclasses
import io
import os
import pickle
import re
import shutil
import sys

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorStorageMetadata

STATES = ("param", "exp_avg", "exp_avg_sq")
LAYER = ("mlp.linear_fc2.weight", "mlp.linear_fc1.weight", "mlp.linear_fc1.layer_norm_weight",
         "self_attention.linear_qkv.weight", "self_attention.linear_proj.weight",
         "self_attention.linear_qkv.layer_norm_weight")
ALIGN = 64

source, target = sys.argv[1:]
os.makedirs(target)
with open(f"{source}/.metadata", "rb") as f:
    meta = pickle.load(f)
common = torch.load(f"{source}/common.pt", weights_only=False)
tp = common["args"].tensor_model_parallel_size
tensors, storage = {}, {}
files = [open(f"{target}/__{rank}_0.distcp", "wb") for rank in range(tp)]
chunks = {}  # key -> [(rank, offsets, place)]
for index, place in meta.storage_data.items():
    rank = int(re.match(r"__(\d+)_", place.relative_path)[1])
    chunks.setdefault(index.fqn, []).append((rank, index.offset, place))


def read(place):
    with open(f"{source}/{place.relative_path}", "rb") as f:
        f.seek(place.offset)
        return f.read(place.length)


def write(rank, index, archive):
    f = files[rank]
    start = f.tell()
    f.write(archive)
    storage[index] = dataclasses.replace(place_like, relative_path=f"__{rank}_0.distcp", offset=start,
                                         length=len(archive))


def parameters():
    """In the order of the buffer: key, layer."""
    layers = meta.state_dict_metadata["decoder.layers." + LAYER[0]].size[0]
    if "output_layer.weight" in meta.state_dict_metadata:
        yield "output_layer.weight", None
    yield "decoder.final_layernorm.weight", None
    for layer in reversed(range(layers)):
        for name in LAYER:
            yield "decoder.layers." + name, layer
    yield "embedding.word_embeddings.weight", None


def shards(state, key, layer, rank):
    """The chunks of a rank, first rows first; a replicated one has one chunk, which all ranks hold."""
    key = f"optimizer.state.{state}.{key}"
    mine = [c for c in chunks[key] if layer is None or c[1][0] == layer]
    if len(mine) > 1:
        mine = [c for c in mine if c[0] == rank]
    return sorted(mine, key=lambda c: tuple(c[1]))


def add_bucket(rank, state):
    name = f"optimizer.distributed.dp_group_idx_{rank}.gbuf_idx_0.dtype_(torch.bfloat16, torch.float32).bucket_idx_0.{state}"
    at, made = 0, []

    def add(values):
        nonlocal at
        archive = io.BytesIO()
        torch.save(values, archive)
        write(rank, MetadataIndex(name, torch.Size([at]), len(made)), archive.getvalue())
        made.append(ChunkStorageMetadata(torch.Size([at]), torch.Size([len(values)])))
        at += len(values)

    for key, layer in parameters():
        if at % ALIGN:
            add(torch.zeros(ALIGN - at % ALIGN))
        parts = [torch.load(io.BytesIO(read(place))).flatten() for _, _, place in shards(state, key, layer, rank)]
        add(torch.cat(parts))
    properties = meta.state_dict_metadata[f"optimizer.state.{state}.decoder.final_layernorm.weight"].properties
    tensors[name] = TensorStorageMetadata(properties, torch.Size([at]), made)


place_like = next(iter(meta.storage_data.values()))
for index, place in meta.storage_data.items():
    if not index.fqn.startswith("optimizer."):
        write(int(re.match(r"__(\d+)_", place.relative_path)[1]), index, read(place))
        tensors[index.fqn] = meta.state_dict_metadata[index.fqn]
for rank in range(tp):
    for state in STATES:
        add_bucket(rank, state)
    files[rank].close()
common["optimizer"]["param_state_sharding_type"] = "dp_reshardable"
common.get("content_metadata", {})["distrib_optim_sharding_type"] = "dp_reshardable"
torch.save(common, f"{target}/common.pt")
with open(f"{target}/.metadata", "wb") as f:
    pickle.dump(dataclasses.replace(meta, state_dict_metadata=tensors, storage_data=storage), f)
shutil.copy(f"{source}/metadata.json", target)
