#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of inputs/data/make_attention.py: what it writes, that it repeats, what it refuses.

Usage: io_make_attention_test.py PATH_OF_make_attention.py"""

import os
import subprocess
import sys
import tempfile
import unittest

try:
    import h5py
    import numpy as np
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

SCRIPT = sys.argv.pop(1)
SMALL = ["--sequence", "300", "--batch", "2", "--query-heads", "4", "--kv-heads", "2",
         "--head-dim", "24", "--value-dim", "16"]


class MakeAttention(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def run_script(self, *options, name="x.h5", limit=None):
        command = [sys.executable, SCRIPT, *SMALL, *options, "--out", self.path(name)]
        if limit:  # bytes of the largest file
            limited = f"trap '' XFSZ; ulimit -f {limit // 1024}; exec \"$@\""
            command = ["bash", "-c", limited, "bash", *command]
        return subprocess.run(command, capture_output=True, text=True)

    def make(self, *options, name="x.h5"):
        result = self.run_script(*options, name=name)
        self.assertEqual(result.returncode, 0, result.stderr)
        return h5py.File(self.path(name), "r")

    def refused(self, code, part, *options, **more):
        result = self.run_script(*options, **more)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertIn(part, result.stderr)
        self.assertEqual(os.listdir(self.folder.name), [])

    def test_shapes_types_and_provenance(self):
        with self.make("--sink", "--dtype", "float64", "--seed", "7", "--key-sequence", "100") as f:
            self.assertEqual(f["q"].shape, (600, 4, 24))
            self.assertEqual(f["k"].shape, (200, 2, 24))
            self.assertEqual(f["v"].shape, (200, 2, 16))
            self.assertEqual(f["do"].shape, (600, 4, 16))
            self.assertEqual(f["sink"].shape, (4,))
            self.assertEqual(f["q"].dtype, np.float64)
            self.assertEqual(f.attrs["schema"], "tessera.attention.input")
            self.assertEqual(f.attrs["schema_version"], 1)
            self.assertEqual(f.attrs["seed"], 7)
            self.assertIn("--key-sequence 100", f.attrs["arguments"])
            self.assertTrue(f.attrs["generator"] and f.attrs["created"].endswith("Z"))
            self.assertEqual(f["mask"].attrs["kind"], "causal")

    def test_numbers_are_normal_and_repeat(self):
        with self.make(name="a.h5") as a, self.make(name="b.h5") as b, \
                self.make("--seed", "2", name="c.h5") as c:
            q = a["q"][...]
            self.assertTrue(np.array_equal(q, b["q"][...]))
            self.assertFalse(np.array_equal(q, c["q"][...]))
            self.assertFalse(np.array_equal(a["q"][:, :, :16], a["do"][...]))
            # 57600 numbers: five standard errors of mean and variance.
            self.assertLess(abs(q.mean()), 5 / np.sqrt(q.size))
            self.assertLess(abs(q.var() - 1), 5 * np.sqrt(2 / q.size))

    def test_documents_have_the_lengths_of_the_texts(self):
        with open(self.path("a.txt"), "w") as f:
            f.write("one two three " * 40)
        with open(self.path("b.txt"), "w") as f:
            f.write("word\n" * 70)
        texts = [self.path("a.txt"), self.path("b.txt")]
        with self.make("--mask", "documents", "--texts", *texts) as f:
            # 120 and 70 words in turn, cut at the end of each batch item of 300 tokens.
            self.assertEqual(list(f["mask/documents"]), [120, 70, 110, 70, 120, 70, 40])
            self.assertIn("a.txt 560 bytes sha256", f.attrs["sources"][0])

    def test_documents_by_default_from_installed_texts(self):
        if not os.path.isdir("/usr/share/common-licenses"):
            self.skipTest("no licence texts here")
        with self.make("--mask", "documents_full") as f:
            lengths = f["mask/documents"][...]
            self.assertEqual(lengths.sum(), 600)
            self.assertEqual(lengths.dtype, np.int64)

    def test_regions_are_disjoint_and_inside(self):
        with self.make("--mask", "regions", "--regions", "5") as f:
            flat = f["mask/regions"][...].reshape(-1)
            self.assertEqual(flat.size, 20)
            self.assertTrue((np.diff(flat) >= 0).all() and flat[0] >= 0 and flat[-1] <= 600)
            self.assertTrue((flat[:10] <= 300).all() and (flat[10:] >= 300).all())

    def test_slices_are_disjoint_and_inside(self):
        with self.make("--mask", "slices", "--slices", "30") as f:
            seen = np.zeros((600, 600), dtype=int)
            for q0, q1, k0, k1, kind in f["mask/slices"]:
                self.assertIn(kind, range(4))
                self.assertEqual(q0 // 300, (q1 - 1) // 300)
                self.assertTrue(q0 // 300 * 300 <= k0 <= k1 <= q0 // 300 * 300 + 300)
                seen[q0:q1, k0:k1] += 1
            self.assertEqual(seen.max(), 1)

    def test_refusals_have_a_hint_and_leave_nothing(self):
        self.refused(2, "try: --kv-heads 2", "--kv-heads", "3")
        self.refused(2, "'8Q' is no size", "--sequence", "8Q")
        self.refused(2, "invalid choice: 'casual'", "--mask", "casual")
        self.refused(2, "must be at least 1", "--head-dim", "0")
        self.refused(2, "needs as many keys", "--mask", "regions", "--key-sequence", "9")
        self.refused(2, "cannot read the text", "--mask", "documents", "--texts", "/no/text")
        self.refused(2, "--texts has no use", "--texts", "/no/text")
        self.refused(2, "longer than the 300 keys", "--mask", "prefix", "--prefix", "301")
        self.refused(2, "do not fit 300 tokens", "--mask", "regions", "--regions", "151")

    def test_full_disk_keeps_the_old_file(self):
        self.refused(4, "cannot write", limit=65536)
        self.make(name="x.h5").close()
        with open(self.path("x.h5"), "rb") as f:
            before = f.read()
        self.assertEqual(self.run_script("--seed", "9", limit=65536).returncode, 4)
        with open(self.path("x.h5"), "rb") as f:
            self.assertEqual(f.read(), before)
        self.assertEqual(os.listdir(self.folder.name), ["x.h5"])


if __name__ == "__main__":
    unittest.main()
