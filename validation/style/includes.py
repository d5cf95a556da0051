#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on an include that breaks the table of rooms (src/README.md). A room may include itself
and, transitively, what stands on the right of its line; drivers/ may include everything.

Usage: includes.py ROOT             check the tree
       includes.py ROOT --self-test  check that injected violations are found"""
import re
import sys
import tempfile
from pathlib import Path

TABLE = {
    "base": [],
    "config": ["base"],
    "memory": ["base"],
    "plan": ["base"],
    "parallel": ["base", "memory"],
    "trace": ["base"],
    "io": ["base", "memory", "parallel"],
    "ops": ["base", "memory"],
    "exec": ["plan", "parallel", "ops", "trace", "memory"],
    "attention": ["plan", "exec"],
    "moe": ["plan", "exec"],
    "pipeline": ["plan", "exec"],
    "model": ["attention", "moe", "ops"],
    "train": ["model", "pipeline", "io", "config"],
    "kernels/reference": ["memory", "ops"],
    "kernels/kokkos": ["memory", "ops"],
    "kernels/cuda": ["memory", "ops"],
}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')
SUFFIXES = {".hpp", ".cpp", ".cu", ".cuh"}


def closure(room):
    """All rooms that `room` may include, itself among them."""
    seen, todo = set(), [room]
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += TABLE[name]
    return seen


def room_of(include):
    """Room named by an include path or a path below src/; None when it names none."""
    parts = include.split("/")
    if parts[0] == "kernels" and len(parts) > 2:
        return "/".join(parts[:2])
    return parts[0] if len(parts) > 1 else None


def violations(root):
    """Texts "file:line: ..." for src/ and kernels/."""
    found = []
    files = [(path, str(path.relative_to(root / "src"))) for path in (root / "src").rglob("*")]
    files += [(path, str(path.relative_to(root))) for path in (root / "kernels").rglob("*")]
    for path, name in sorted(files):
        room = room_of(name)
        if path.suffix not in SUFFIXES or room is None:
            continue
        if room not in TABLE:
            found.append(f"{path.relative_to(root)}: room '{room}' is not in the table")
            continue
        allowed = closure(room)
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            place = f"{path.relative_to(root)}:{number}"
            target = room_of(match[1])
            if target is None:
                found.append(f'{place}: write "{room}/{match[1]}", with the room')
            elif target not in allowed:
                found.append(f"{place}: {room} may not include {match[1]}")
    return found


def self_test():
    """One tree with a good and several bad includes; each bad one must be found, nothing else."""
    cases = [
        ("src/plan/a.cpp", '#include "base/error.hpp"', None),
        ("src/exec/a.cpp", '#include "base/error.hpp"', None),
        ("src/attention/a.cpp", '#include "ops/call.hpp"', None),  # through exec
        ("src/plan/b.cpp", '#include "parallel/communicator.hpp"', "plan may not include"),
        ("src/base/c.cpp", ' #  include "memory/buffer.hpp"', "base may not include"),
        ("src/io/d.hpp", '#include "plan/plan.hpp"', "io may not include"),
        ("src/ops/e.cpp", '#include "kernels/kokkos/tile.hpp"', "ops may not include"),
        ("src/ops/f.cpp", '#include "call.hpp"', "with the room"),
        ("src/attention/g.cpp", '#include "drivers/common/main.hpp"', "attention may not include"),
        ("kernels/kokkos/h.cpp", '#include "plan/plan.hpp"', "kernels/kokkos may not include"),
        ("kernels/kokkos/i.cpp", '#include "kernels/reference/operators.hpp"', "may not include"),
        ("src/odd/j.cpp", "", "not in the table"),
    ]
    wrong = 0
    for name, line, expected in cases:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "src").mkdir()
            (root / "kernels").mkdir()
            (root / name).parent.mkdir(parents=True)
            (root / name).write_text(line + "\n")
            found = violations(root)
        good = not found if expected is None else len(found) == 1 and expected in found[0]
        wrong += not good
        print(f"{'ok' if good else 'WRONG'}: {name}: {line or '(room)'} -> {found or 'allowed'}")
    return wrong


def main():
    root = Path(sys.argv[1])
    if "--self-test" in sys.argv:
        return 1 if self_test() else 0
    found = violations(root)
    print("\n".join(found) if found else "every include keeps to the table")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
