"""documents.py FILE - runs the commands of a Markdown file in this folder, in
their order, and compares what they print with what the file says. Prints TAP.

Commands are in blocks of four blanks: lines behind "$ ", whose output follows,
or blocks whose first word is one of RUN, which must succeed. In the output
"..." stands for any text, alone on a line for any lines. Times, rates, disk and
memory vary. Commands that begin with one of BUILD are another test's.
"""
import re
import subprocess
import sys

RUN = ("ferry", "printf", "for")
BUILD = ("git clone", "make", "export PATH", "hf download")
VARIES = (
    (r"\d[\d.]* (s\b|[kMGT]?B/s)", r"N \1"),
    (r"peak memory [\d.]+ MB", "peak memory N MB"),
    (r"memory   [\d.]+ MB of", "memory   N MB of"),
    (r"[\d.]+ [MGT]B free", "N free"),
)


def blocks(text):
    for block in re.findall(r"(?:^    .*\n)+", text, re.M):
        yield re.sub(r" *\\\n *", " ", re.sub(r"^    ", "", block, flags=re.M))


def commands(block):
    """Pairs of a command and its output; None: any."""
    if block.startswith("$ "):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, _, output = part.partition("\n")
            yield command, output
    elif block.startswith(RUN):
        for line in block.splitlines():
            yield line, None


def fold(text):
    for pattern, replacement in VARIES:
        text = re.sub(pattern, replacement, text)
    return text


def as_pattern(output):
    lines = []
    for line in fold(output).splitlines():
        if line == "...":
            lines.append(r"(.*\n)*?")
        else:
            lines.append(re.escape(line).replace(re.escape("..."), ".*") + r"\n")
    return "".join(lines)


def problem_of(command, output):
    ran = subprocess.run(["sh", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True)
    no_space = "no space" in ran.stdout and ran.returncode == 4  # a plan of terabytes
    if ran.returncode and not no_space:
        return f"exit code {ran.returncode}:\n{ran.stdout}"
    if output and not re.fullmatch(as_pattern(output), fold(ran.stdout)):
        return f"expected:\n{output}printed:\n{ran.stdout}"
    return None


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        text = f.read()
    number = 0
    for command, output in (pair for block in blocks(text) for pair in commands(block)):
        if command.startswith(BUILD):
            continue
        number += 1
        problem = problem_of(command, output)
        print(f"{'not ok' if problem else 'ok'} {number} - {sys.argv[1].split('/')[-1]}: {command}")
        if problem:
            print("\n".join("# " + line for line in problem.splitlines()))
    print(f"{'ok' if number else 'not ok'} {number + 1} - it has commands")


main()
