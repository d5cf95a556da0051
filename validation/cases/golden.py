#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plans of rank 0 against validation/golden/*.txt, whose first line is the command that made them.
After a wanted change of a plan: golden.py BUILD SOURCE --update, and read the difference."""
import re
import shlex
import sys

from support import SOURCE, Case, main, program

FOLDER = SOURCE / "validation/golden"
UPDATE = "--update" in sys.argv
if UPDATE:
    sys.argv.remove("--update")


class Golden(Case):
    def compare(self, name):
        path = FOLDER / name
        first, _, wanted = path.read_text().partition("\n")
        words = shlex.split(first.removeprefix("# "))
        self.assertEqual(words[0], "tessera-plan", f"first line of {path}")
        result = self.assert_ok(self.run_command([program(words[0]), *words[1:]], cwd=SOURCE))
        # The table alone: predictions below it change with the machine model.
        table = re.search(r"^plan of rank 0, .*?\n(.*?)\n\n", result.out, re.S | re.M)[1] + "\n"
        if UPDATE:
            path.write_text(f"{first}\n{table}")
            return
        self.maxDiff = None
        self.assertEqual(table, wanted, f"{path}: made by {first}")

    def test_plans(self):
        files = sorted(f.name for f in FOLDER.glob("*.txt"))
        self.assertGreaterEqual(len(files), 2)
        for name in files:
            with self.subTest(name):
                self.compare(name)


if __name__ == "__main__":
    main()
