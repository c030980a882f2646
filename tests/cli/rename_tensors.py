"""rename_tensors.py FILE PATTERN NEW... - renames the tensors of a safetensors file: in each name, what the regular
expression has first becomes the text NEW, for each pair. '+NAME' in place of a pattern copies tensor NEW as NAME."""

import json
import re
import struct
import sys

path, *pairs = sys.argv[1:]
data = open(path, "rb").read()
end = 8 + struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8:end])
body = data[end:]
for pattern, new in zip(pairs[::2], pairs[1::2]):
    if pattern.startswith("+"):
        low, high = header[new]["data_offsets"]
        header[pattern[1:]] = dict(header[new], data_offsets=[len(body), len(body) + high - low])
        body += body[low:high]
        continue
    header = {k if k == "__metadata__" else re.sub(pattern, new, k, count=1): v for k, v in header.items()}
text = json.dumps(header).encode()
open(path, "wb").write(struct.pack("<Q", len(text)) + text + body)
