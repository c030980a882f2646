#!/usr/bin/env python3
"""families.py OUT FOLDER... - makes OUT/NAME of Hugging Face folders: their config.json, and in tensors.json the
dtype and shape of each tensor, and which other tensor has the same bytes. NAME is the folder's, with the name of the
folder above it if that is not "hf": published-NAME, new-NAME."""
import glob
import json
import os
import struct
import sys

out, *folders = sys.argv[1:]
for folder in folders:
    above, name = folder.rstrip('/').split('/')[-2:]
    name = above[len('hf-'):] + '-' + name if above.startswith('hf-') else name
    tensors, seen = {}, {}
    for path in sorted(glob.glob(folder + '/model*.safetensors')):
        data = open(path, 'rb').read()
        size, = struct.unpack('<Q', data[:8])
        for key, t in json.loads(data[8:8 + size]).items():
            if key == '__metadata__':
                continue
            begin, end = t['data_offsets']
            tensors[key] = [t['dtype'], t['shape']]
            raw = (t['dtype'], tuple(t['shape']), data[8 + size + begin:8 + size + end])
            if raw in seen and end - begin > 64:
                tensors[key].append(seen[raw])
            seen.setdefault(raw, key)
    os.makedirs(f'{out}/{name}', exist_ok=True)
    with open(f'{out}/{name}/config.json', 'w') as f:
        f.write(open(folder + '/config.json').read().rstrip() + '\n')
    with open(f'{out}/{name}/tensors.json', 'w') as f:
        f.write('{\n' + ',\n'.join(f'{json.dumps(k)}: {json.dumps(v)}' for k, v in tensors.items()) + '\n}\n')
