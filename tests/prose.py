#!/usr/bin/env python3
"""prose.py [--list] [FILE...] - checks names and prose of the tree, or of some files: part of `make fmt-check`.

Rules (docs/STYLE.md, "Words"):
  - no comment and no message begins with "Of", "What" or "That of"
  - a comment line has at most MOST_WORDS words on average, over the C and CUDA of the product
  - the name of a function stands in at most MOST_FILES files of the product
  - a line of a document has at most MOST_COLUMNS columns

--list prints the average of each file, highest first."""
import collections
import re
import subprocess
import sys

MOST_WORDS = 7.6  # of the tree; lower it whenever the average falls
MOST_FILES = 3
MOST_COLUMNS = 120

BEGINNING = re.compile(r"(Of|What|That of)\b")
MESSAGE_BEGINNING = re.compile(BEGINNING.pattern + " ", re.I)  # one word alone is a key, no message
# One token: a comment, a string, a character, an identifier or any other character.
TOKEN = re.compile(
    r"""(?P<comment>/\*.*?\*/|//[^\n]*)|(?P<string>"(?:\\.|[^"\\\n])*")|'(?:\\.|[^'\\\n])+'|\w+|\s+|.""", re.S)
DEFINITION = re.compile(r"^[A-Za-z_][\w \t*]*?[\s*](\w+)\([^;{}]*\)\s*\{", re.M)


def tracked_files():
    names = subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True).stdout.split("\n")
    return [name for name in names if name and not name.startswith("tests/golden/")]


def is_code(name):
    return name.endswith((".c", ".h", ".cu", ".cpp"))


def is_product(name):
    return is_code(name) and not name.startswith("tests/") and not re.search(r"_test\.c$|testing[^/]*$", name)


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def words_of_comment(comment):
    """Its paragraphs, without the marks of a comment."""
    lines = [re.sub(r"^\s*(/\*+|\*/|\*|//|#+!?)\s?|\s*\*/$", "", line).strip() for line in comment.split("\n")]
    return [" ".join(paragraph.split()) for paragraph in re.split(r"\n{2,}", "\n".join(lines))]


def code_beginnings(text, with_messages):
    """(line, a match if it begins badly) for each paragraph of a comment and each message."""
    previous = ""
    for match in TOKEN.finditer(text):
        token = match.group()
        if match.group("comment"):
            for paragraph in words_of_comment(token):
                yield line_of(text, match.start()), BEGINNING.match(paragraph)
        elif not token.isspace():
            if with_messages and match.group("string") and not previous.startswith('"'):
                yield line_of(text, match.start()), MESSAGE_BEGINNING.match(token[1:])
            previous = token


def script_beginnings(text):
    """The same for each run of lines that begin with #."""
    inside = False
    for number, line in enumerate(text.split("\n"), 1):
        comment = re.match(r"\s*#+!?\s*(.*)", line)
        if comment and comment.group(1) and not inside:
            yield number, BEGINNING.match(comment.group(1))
        inside = bool(comment and comment.group(1))


def comment_lines(text):
    """Words, of two letters or more, of each line that is comment alone."""
    inside = False
    for line in text.split("\n"):
        stripped = line.strip()
        begins = inside or stripped.startswith(("/*", "//"))
        if begins:
            inside = "*/" not in stripped and not stripped.startswith("//")
            yield len(re.findall(r"\b[A-Za-z]{2,}\b", stripped))


def check_beginnings(name, text):
    if is_code(name):
        found = code_beginnings(text, with_messages=is_product(name))
    elif re.search(r"\.(sh|mk|py)$|Makefile$|run$", name):
        found = script_beginnings(text)
    else:
        return
    for line, match in found:
        if match:
            yield f'{name}:{line}: begins with "{" ".join(match.string.split()[:4])}"'


def check_columns(name, text):
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > MOST_COLUMNS:
            yield f"{name}:{number}: {len(line)} columns, at most {MOST_COLUMNS} are allowed"


def check_names(texts):
    files = collections.defaultdict(set)
    for name, text in texts.items():
        if not is_product(name):
            continue
        code = TOKEN.sub(lambda m: " " if m.group("comment") else m.group(), text)
        for match in DEFINITION.finditer(code):
            if match.group(1) not in ("main", "if", "switch", "while", "for", "NAME", "__launch_bounds__"):
                files[match.group(1)].add(name)
    for function, where in sorted(files.items()):
        if len(where) > MOST_FILES:
            yield f"{function}(): defined in {len(where)} files, at most {MOST_FILES} are allowed: {' '.join(sorted(where))}"


def averages(texts):
    """(average, lines, file), and their sum."""
    rows, words, lines = [], 0, 0
    for name, text in texts.items():
        if is_product(name):
            counts = list(comment_lines(text))
            words, lines = words + sum(counts), lines + len(counts)
            if counts:
                rows.append((sum(counts) / len(counts), len(counts), name))
    return sorted(rows, reverse=True), words / max(lines, 1)


def main():
    wanted = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    names = wanted or tracked_files()
    texts = {}
    for name in names:
        try:
            with open(name, encoding="utf-8") as file:
                texts[name] = file.read()
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue
    rows, average = averages(texts)
    if "--list" in sys.argv:
        for row in rows:
            print("%5.1f words a comment line, %4d lines  %s" % row)
    problems = [problem for name, text in texts.items() for problem in check_beginnings(name, text)]
    problems += [p for name, text in texts.items() if name.endswith(".md") for p in check_columns(name, text)]
    problems += check_names(texts)
    if not wanted and average > MOST_WORDS:
        problems.append(f"comments: {average:.2f} words a line, at most {MOST_WORDS} are allowed")
    for problem in problems:
        print(problem)
    print(f"prose: {average:.2f} words a comment line, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
