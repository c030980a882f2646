"""remainders.py DISTRIB_OPTIM - makes of the masters in a distrib_optim.pt their remainders, as Transformer Engine's
FusedAdam keeps them and Megatron saves them: whole numbers of F32."""

import array
import io
import pickle
import sys
import zipfile


class Reader(pickle.Unpickler):
    """Tensors are the keys of their storages."""

    def persistent_load(self, pid):
        return pid[2]

    def find_class(self, module, name):
        if name == "_rebuild_tensor_v2":
            return lambda storage, *rest: storage
        return dict if name == "OrderedDict" else type(name, (), {})


def masters(value):
    for name, item in value.items():
        if isinstance(item, dict):
            yield from masters(item)
        elif name == "param":
            yield item


def remainders(data):
    bits = array.array("H", data)[::2]  # the lower halves
    return array.array("f", array.array("h", bits.tobytes())).tobytes()


path = sys.argv[1]
with zipfile.ZipFile(path) as z:
    members = {i.filename: z.read(i) for i in z.infolist()}
root = next(iter(members)).split("/")[0]
keys = list(masters(Reader(io.BytesIO(members[root + "/data.pkl"])).load()))
assert keys, "no masters"
for key in keys:
    members[f"{root}/data/{key}"] = remainders(members[f"{root}/data/{key}"])
with zipfile.ZipFile(path, "w") as z:
    for name, data in members.items():
        z.writestr(name, data)
