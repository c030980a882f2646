#!/usr/bin/env python3
"""touching.py BUILD FOLDER SECONDS TEST... - prints those of the shell tests that touch a folder of sources, best first.

A test touches the folders whose headers its commands include, by the compiler's dependency files
(BUILD/*/X_command.d). A folder whose headers no command includes plugs into another one, through the table of
formats for instance: it is touched by the tests of the commands that include what it includes.

Tests that are named after the folder come first, then the quickest. The list ends where they would take SECONDS, by
BUILD/costs, which run.sh writes; a test that is not in it counts 10 s."""
import collections
import os
import re
import subprocess
import sys

UNKNOWN_SECONDS = 10
ALIASES = {"import": "convert", "export": "convert", "reshard": "convert", "plan": "convert", "info": "inspect"}


def dependencies(path):
    """Headers of the tree that a dependency file lists."""
    with open(path, encoding="utf-8") as file:
        words = file.read().replace("\\\n", " ").split()
    return {word for word in words if word.endswith(".h") and not word.startswith("/")}


def commands_by_name(build):
    names = subprocess.run(["find", build, "-name", "*_command.d", "-not", "-path", f"{build}/*/build/*"],
                           check=True, capture_output=True, text=True).stdout.split()
    return {re.sub(r"_command\.d$", "", os.path.basename(name)): dependencies(name) for name in names}


def commands_of(text, known):
    """Commands of a test, by how often it runs them."""
    called = re.findall(r'(?:\brun|\brun_ranks [0-9]+|\brun_as_nobody|\$ferry"?|"\$native")\s+([a-z]+)', text)
    if "train_lib.sh" in text:
        called.append("train")
    if "recipes" in text:
        called += known
    return {ALIASES.get(name, name) for name in called} & set(known)


def headers_of_folder(build, folder):
    """Headers that the sources of a folder include."""
    found = set()
    for name in os.listdir(os.path.join(build, folder)):
        if name.endswith(".d") and not name.endswith("_test.d"):
            found |= dependencies(os.path.join(build, folder, name))
    return found


def is_in(folder, headers):
    return any(os.path.dirname(header) == folder for header in headers)


def is_named_after(folder, test):
    return folder.split("/")[-1] in os.path.basename(test)


def read_costs(path):
    costs = collections.defaultdict(lambda: UNKNOWN_SECONDS)
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            for line in file:
                seconds, _, test = line.split()
                costs[test] = float(seconds)
    return costs


def main():
    build, folder, budget, tests = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4:]
    commands = commands_by_name(build)
    touching = {name for name, headers in commands.items() if is_in(folder, headers)}
    if not touching:
        needed = {os.path.dirname(header) for header in headers_of_folder(build, folder)} - {folder, "common"}
        touching = {name for name, headers in commands.items() if any(is_in(other, headers) for other in needed)}
    texts = {}
    for test in tests:
        with open(test, encoding="utf-8") as file:
            texts[test] = file.read()
    costs = read_costs(os.path.join(build, "costs"))
    found = [test for test in tests if commands_of(texts[test], list(commands)) & touching]
    for test in sorted(found, key=lambda test: (not is_named_after(folder, test), costs[test])):
        if costs[test] <= budget:
            budget -= costs[test]
            print(test)


if __name__ == "__main__":
    main()
