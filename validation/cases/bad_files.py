#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Input files that are missing, broken or of another shape, and output folders that cannot take the
results: exit code 4 (7 for NaN), the file and dataset named once, nothing half-written."""
import os
import shutil
import subprocess

import h5py
import numpy as np

from support import DECKS, Case, main, make_input, on_ranks, program, sets

SHAPE = {"attention__sequence": 128, "attention__query_heads": 4, "attention__kv_heads": 2,
         "attention__head_dim": 16, "attention__mesh__a": 0, "attention__mesh__b": 0,
         "attention__schemes": "ring", "run__repeats": 1}


class Files(Case):
    def setUp(self):
        super().setUp()
        self.input = make_input(self.folder / "input.h5", "sequence", 128, "query-heads", 4,
                                "kv-heads", 2, "head-dim", 16)

    def run_file(self, path=None, ranks=2, **keys):
        file = path or self.input
        return self.attention(DECKS / "quickstart.toml",
                              *sets(**{**SHAPE, "input__file": file, **keys}), ranks=ranks)

    def replace(self, name, array):
        with h5py.File(self.input, "r+") as file:
            del file[name]
            if array is not None:
                file[name] = array


class BadInputFile(Files):
    def test_the_good_file_runs(self):
        self.assert_ok(self.run_file())

    def test_missing(self):
        self.assert_error(self.run_file("nowhere.h5"), 4, "nowhere.h5", "No such file")

    def test_truncated(self):
        os.truncate(self.input, self.input.stat().st_size // 2)
        self.assert_error(self.run_file(), 4, "input.h5", "truncated")

    def test_not_hdf5(self):
        self.input.write_text("q,k,v\n" * 100)
        self.assert_error(self.run_file(), 4, "input.h5", "not an HDF5 file")

    def test_folder(self):
        self.assert_error(self.run_file(self.folder), 4, "Is a directory")

    def test_wrong_shape(self):
        self.assert_error(self.run_file(attention__head_dim=32), 4, "'/q'",
                          "expected shape [128, 4, 32]", "found [128, 4, 16]", "input.h5")

    def test_wrong_rank_of_a_dataset(self):
        self.replace("k", np.zeros((128, 32), np.float32))
        self.assert_error(self.run_file(), 4, "'/k'", "[128, 2, 16]", "[128, 32]")

    def test_wrong_dtype(self):
        self.replace("v", np.zeros((128, 2, 16), np.int32))
        self.assert_error(self.run_file(), 4, "'/v'", "32-bit", "f64, f32, bf16 or f16")

    def test_dataset_missing(self):
        self.replace("do", None)
        self.assert_error(self.run_file(), 4, "'/do'", "not in the file")

    def test_dataset_that_only_backward_needs(self):
        self.replace("do", None)
        self.assert_ok(self.run_file(attention__passes="forward"))

    def put(self, name, index, value):
        with h5py.File(self.input, "r+") as file:
            file[name][index] = value

    def test_nan_is_named_with_its_index(self):
        self.put("k", (77, 1, 5), np.nan)
        self.assert_error(self.run_file(), 7, "/k", "[77, 1, 5]", "nan")

    def test_infinity_is_named_with_its_index(self):
        self.put("do", (3, 2, 0), np.inf)
        self.assert_error(self.run_file(ranks=3), 7, "/do", "[3, 2, 0]", "inf")

    def test_number_beyond_the_range_of_f16(self):
        self.put("q", (5, 3, 2), 1e5)
        self.assert_ok(self.run_file(attention__dtype="bf16"))
        shutil.rmtree(self.out)
        self.assert_error(self.run_file(attention__dtype="f16"), 7, "/q", "[5, 3, 2]", "inf",
                          "65504")

    def test_float_of_16_bits_that_is_no_f16(self):
        kind = h5py.h5t.IEEE_F16LE.copy()
        kind.set_ebias(7)
        with h5py.File(self.input, "r+") as file:
            del file["v"]
            space = h5py.h5s.create_simple((128, 2, 16))
            h5py.h5d.create(file.id, b"v", kind, space)
        self.assert_error(self.run_file(), 4, "'/v'", "16-bit float", "f64, f32, bf16 or f16")

    def test_mask_arrays_missing(self):
        self.assert_error(self.run_file(attention__mask="regions"), 2, "attention.mask",
                          "/mask/regions", "make_attention.py")

    def test_documents_longer_than_the_sequence(self):
        with h5py.File(self.input, "r+") as file:
            file["mask/documents"] = np.array([64, 65])
        self.assert_error(self.run_file(attention__mask="documents"), 2, "documents", "129", "128")

    def test_regions_that_overlap(self):
        with h5py.File(self.input, "r+") as file:
            file["mask/regions"] = np.array([[10, 30], [20, 40]])
        self.assert_error(self.run_file(attention__mask="regions"), 2, "regions", "[20, 40)")

    def test_slices_that_overlap(self):
        with h5py.File(self.input, "r+") as file:
            file["mask/slices"] = np.array([[0, 20, 0, 20, 0], [10, 30, 0, 20, 0]])
        self.assert_error(self.run_file(attention__mask="slices"), 2, "slices")

    def test_one_name_but_another_file_with_another_mask_on_a_rank(self):
        folders = []
        for name, lengths in (("one", [64, 64]), ("two", [32, 96])):
            folders.append(self.folder / name)
            folders[-1].mkdir()
            shutil.copy(self.input, folders[-1] / "input.h5")
            with h5py.File(folders[-1] / "input.h5", "r+") as file:
                file["mask/documents"] = np.array(lengths)
        keys = {**SHAPE, "input__file": "input.h5", "attention__mask": "documents"}
        command = [program("tessera-attention"), DECKS / "quickstart.toml", *sets(**keys), "--out",
                   self.out]
        result = self.run_command(on_ranks(1, "-wdir", folders[0], *command, ":", "-n", 1, "-wdir",
                                           folders[1], *command))
        self.assert_error(result, 4, "input.h5", "rank 1", "rank 0", "that all hosts share")


class BadOutputFolder(Files):
    def test_a_file_in_the_way(self):
        self.out.write_text("precious")
        self.assert_error(self.run_file(), 4, str(self.out))
        self.assertEqual(self.out.read_text(), "precious")

    def test_below_a_file(self):
        (self.folder / "file").write_text("precious")
        self.out = self.folder / "file/out"
        self.assert_error(self.run_file(), 4, str(self.out), "Not a directory")

    def test_report_or_trace_below_a_file(self):
        (self.folder / "file").write_text("precious")
        for flag in ("--json", "--trace"):
            result = self.attention(*sets(**SHAPE), flag, self.folder / "file/report")
            self.assert_error(result, 4, str(self.folder / "file"))

    def mount(self, options):
        """A small file system at self.out, or a visible skip."""
        self.out.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.out)],
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            self.skipTest(f"needs the right to mount a tmpfs: {done.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "-l", str(self.out)], check=True)

    def test_read_only(self):
        self.mount("ro")
        self.assert_error(self.run_file(), 4, str(self.out), "Read-only")

    def test_disk_full(self):
        # Tensors of 4096 tokens are 1 MiB each; the folder has room for a quarter of one.
        self.mount("size=256k")
        make_input(self.input, "sequence", 4096, "query-heads", 4, "kv-heads", 2, "head-dim", 16)
        result = self.run_file(attention__sequence=4096, output__tensors="true",
                               verify__enabled="false", attention__mask="window",
                               attention__window=64)
        self.assert_error(result, 4, "No space left", str(self.out))

    def test_disk_full_at_the_last_file(self):
        # Room for results.h5 (180 kB) but not for the timeline (770 kB) as well.
        self.mount("size=400k")
        result = self.attention(*sets(attention__sequence=128, attention__head_dim=16,
                                      run__repeats=1, verify__enabled="false"), ranks=8)
        self.assertEqual(result.code, 4, result)
        self.assertEqual(result.text.count("error:"), 1, result)
        self.assertIn("No space left", result.text)
        self.assertNotIn("RESULT", result.out)
        for name in self.out.iterdir():
            self.assertIn(name.name, ("results.h5", "report.json"))
        with h5py.File(self.out / "results.h5") as file:
            self.assertEqual(len(file["runs"]), 12)


if __name__ == "__main__":
    main()
