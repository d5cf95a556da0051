#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rules for single files: SPDX line, at most 500 lines and 100 columns, functions of at most 60
lines (kernels, tests and tables 120), no MPI_COMM_WORLD in src/ and kernels/, no marks of
unfinished work, no paths of one machine. Exceptions stand with a reason in exceptions.txt.

Usage: files.py ROOT               check the tree
       files.py ROOT --self-test    check that injected violations are found"""
import re
import sys
from pathlib import Path

FOLDERS = ["src", "kernels", "drivers", "validation", "perf", "inputs", "jobscripts", ".ci"]
CODE = {".hpp", ".cpp", ".cu", ".cuh"}
SCRIPTS = {".py", ".sh", ".sbatch", ".pbs"}
MAX_LINES, MAX_COLUMNS = 500, 100
# Names and plain types that open a block which is not a function.
NOT_A_FUNCTION = re.compile(
    r"^\s*(namespace|struct|class|enum|union|extern|using|#|//|\}|public|private|template)\b"
    r"|^\s*(if|for|while|switch|do|else|return)\b|=\s*\{$")
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX|HA" r"CK)\b")
MACHINE_PATH = re.compile(r"(?<![\w.])/(work|root|home|Users)/\w")


def function_lengths(lines):
    """(line number, length) of the functions at indent 0 and 2 of clang-formatted code."""
    found, start, indent = [], None, ""
    for number, line in enumerate(lines, 1):
        if start is None:
            opens = re.match(r"^( {0,2})\S.*\{$", line)
            if opens and ")" in line and not NOT_A_FUNCTION.search(line):
                start, indent = number, opens[1]
        elif re.match(rf"^{indent}\}}", line):
            found.append((start, number - start + 1))
            start = None
    return found


def limit_of(name):
    return 120 if name.startswith(("kernels/", "validation/")) else 60


def check(name, text):
    """(line, rule, message) of every violation in one file."""
    lines = text.splitlines()
    suffix = Path(name).suffix
    found = []
    if "SPDX-License-Identifier: Apache-2.0" not in "\n".join(lines[:2]):
        found.append((1, "spdx", "no SPDX line at the top"))
    if len(lines) > MAX_LINES:
        found.append((len(lines), "size", f"{len(lines)} lines, at most {MAX_LINES}"))
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_COLUMNS:
            found.append((number, "columns", f"{len(line)} columns, at most {MAX_COLUMNS}"))
        if UNFINISHED.search(line):
            found.append((number, "unfinished", f"unfinished: {line.strip()}"))
        if MACHINE_PATH.search(line):
            found.append((number, "path", f"a path of one machine: {line.strip()}"))
        code = line.split("//")[0]
        if name.startswith(("src/", "kernels/")) and re.search(r"\bMPI_COMM_WORLD\b", code):
            found.append((number, "world", "MPI_COMM_WORLD belongs into drivers/"))
    if suffix in CODE:
        for number, length in function_lengths(lines):
            if length > limit_of(name):
                found.append((number, "function", f"function of {length} lines, at most "
                              f"{limit_of(name)}"))
    return found


def exceptions(root):
    """{(file, rule)} from lines "file rule reason"."""
    allowed = set()
    for line in (root / "validation/style/exceptions.txt").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            name, rule, reason = line.split(None, 2)
            assert reason, line
            allowed.add((name, rule))
    return allowed


def self_test():
    good = "// SPDX-License-Identifier: Apache-2.0\nint f() {\n  return 1;\n}\n"
    body = "int f() {\n" + "  f();\n" * 59 + "}\n"
    mark = "TO" + "DO"
    cases = [
        ("src/a/a.cpp", good, []),
        ("src/a/a.cpp", good + "// not MPI_COMM_WORLD\n", []),
        ("kernels/a/a.cpp", good + body, []),
        ("src/a/a.cpp", "int x;\n", ["spdx"]),
        ("src/a/a.cpp", good + "\n" * 500, ["size"]),
        ("src/a/a.cpp", good + "//" + "x" * 99 + "\n", ["columns"]),
        ("src/a/a.cpp", good + body, ["function"]),
        ("src/a/a.cpp", good + "MPI_Comm c = MPI_COMM_WORLD;\n", ["world"]),
        ("drivers/a.cpp", good + "MPI_Comm c = MPI_COMM_WORLD;\n", []),
        ("src/a/a.cpp", good + f"// {mark} later\n", ["unfinished"]),
        ("perf/a.py", "# SPDX-License-Identifier: Apache-2.0\nopen('/" + "home/me/x')\n", ["path"]),
    ]
    wrong = 0
    for name, text, expected in cases:
        rules = [rule for _, rule, _ in check(name, text)]
        wrong += rules != expected
        print(f"{'ok' if rules == expected else 'WRONG'}: {name} -> {rules}, expected {expected}")
    return wrong


def main():
    root = Path(sys.argv[1])
    if "--self-test" in sys.argv:
        return 1 if self_test() else 0
    allowed, count, bad = exceptions(root), 0, 0
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in CODE | SCRIPTS and path.name != "run":
                continue
            if not path.is_file():
                continue
            name = str(path.relative_to(root))
            count += 1
            for number, rule, message in check(name, path.read_text()):
                if (name, rule) not in allowed:
                    bad += 1
                    print(f"{name}:{number}: {message}")
    print(f"{count} files checked, {bad} violations")
    return 1 if bad or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
