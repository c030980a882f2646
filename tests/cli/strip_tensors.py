"""strip_tensors.py FILE PATTERN - takes the tensors whose names begin with the pattern (a regular expression) out of a
safetensors file."""

import json
import re
import struct
import sys

path, pattern = sys.argv[1:]
data = open(path, "rb").read()
end = 8 + struct.unpack("<Q", data[:8])[0]
header, body = {}, b""
for name, entry in json.loads(data[8:end]).items():
    if name == "__metadata__" or re.match(pattern, name):
        continue
    low, high = entry["data_offsets"]
    header[name] = dict(entry, data_offsets=[len(body), len(body) + high - low])
    body += data[end + low : end + high]
text = json.dumps(header).encode()
open(path, "wb").write(struct.pack("<Q", len(text)) + text + body)
