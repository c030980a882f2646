"""json_check.py - what json_test.sh asks of what --json has printed.

answer STDOUT STDERR COMMAND CODE   one strict object with the fields of all commands, the text of stderr in "error"
missing STDOUT                      an object that lists missing tensors
page JSON.md COMMAND FOLDER         the section of the command names the fields of the answers in the folder
progress JSON.md LINES              the same of progress lines

A field is named by its path, in backticks, in the first column of a table: a.b, list[].c, map{} where the names in a
map are data, any{..} where all of an object is somebody else's."""

import json
import pathlib
import re
import sys

COMMON = ["ferry", "schema", "command"], ["seconds", "exit_code", "error"]


def refuse(word):
    raise ValueError(f"{word} is no JSON")


def read(text):
    def unique(pairs):
        assert len({k for k, _ in pairs}) == len(pairs), f"a name twice: {pairs}"
        return dict(pairs)

    return json.loads(text, parse_constant=refuse, object_pairs_hook=unique)


def answer(stdout, stderr, command, code):
    o = read(pathlib.Path(stdout).read_text())
    names = list(o)
    assert (names[:3], names[-3:]) == COMMON, names
    assert (o["schema"], o["command"], o["exit_code"]) == (1, command, int(code)), o
    assert isinstance(o["seconds"], float) and 0 <= o["seconds"] < 600, o["seconds"]
    if int(code) < 2:
        assert o["error"] is None, o["error"]
    else:
        said = pathlib.Path(stderr).read_text()
        assert o["error"] and f"ferry {command}: {o['error']}\n" in said, (o["error"], said)


def missing(stdout):
    names = read(pathlib.Path(stdout).read_text())["source"]["missing"]
    assert "model.layers.4.mlp.down_proj.weight" in names, names


def paths(value, path, maps, out):
    if isinstance(value, dict) and path + "{..}" in maps:
        return
    if isinstance(value, dict) and path + "{}" in maps:
        for v in value.values():
            paths(v, path + "{}", maps, out)
    elif isinstance(value, dict):
        for k, v in value.items():
            out.add(f"{path}.{k}".lstrip("."))
            paths(v, f"{path}.{k}".lstrip("."), maps, out)
    elif isinstance(value, list):
        for v in value:
            paths(v, path + "[]", maps, out)


def named(page, title):
    sections = re.split(r"^## ", pathlib.Path(page).read_text(), flags=re.M)
    section = next((s for s in sections if s.split("\n")[0].strip() == title), "")
    rows = [line.split("|")[1] for line in section.split("\n") if line.startswith("|")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def compare(page, title, known, objects):
    on_page = named(page, title)
    assert on_page, f"no table below ## {title}"
    printed = set()
    for o in objects:
        paths({k: v for k, v in o.items() if k not in known}, "", on_page, printed)
    on_page = {p.removesuffix("{}").removesuffix("{..}") for p in on_page}
    wrong = [f"not on the page: {p}" for p in sorted(printed - on_page)]
    wrong += [f"never printed: {p}" for p in sorted(on_page - printed)]
    assert not wrong, "\n".join(wrong)


def page(path, command, folder):
    objects = [read(p.read_text()) for p in pathlib.Path(folder).iterdir()]
    codes = {o["exit_code"] for o in objects}
    assert min(codes) < 2 and (max(codes) >= 2 or command == "version"), "one outcome only"
    assert named(path, "Every command") == {*COMMON[0], *COMMON[1]}, "Every command: other fields"
    compare(path, command, [*COMMON[0], *COMMON[1]], objects)


def progress(path, lines):
    compare(path, "Progress", [], [read(line) for line in open(lines) if line.startswith("{")])


try:
    globals()[sys.argv[1]](*sys.argv[2:])
except (AssertionError, ValueError, KeyError) as e:
    sys.exit(str(e))
