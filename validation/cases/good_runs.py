#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs that succeed: the quickstart deck on several rank counts with all that it promises to leave
behind, the other decks as their comments say, and the flags that print or check."""
import json
import re
import tomllib

import h5py
import numpy as np

from support import DECKS, SCHEMES, Case, main, make_input, program, sets

QUICKSTART = DECKS / "quickstart.toml"
SMALL = sets(attention__sequence=256, attention__query_heads=4, attention__kv_heads=2,
             attention__head_dim=32, run__repeats=2)
ANY_RANKS = sets(attention__mesh__a=0, attention__mesh__b=0, attention__unified__ulysses=0,
                 attention__double_ring__inner=0)
TOP = {"verdict", "reasons", "ranks", "dtype", "shape", "mask", "machine", "runs"}
RUN = {"scheme", "a", "b", "u", "layout", "pass", "bytes_sent", "bytes_formula", "error_ratio",
       "error_max_abs", "seconds", "predicted_seconds", "exposed_comm_seconds", "gflops_per_rank",
       "tiles_total", "tiles_skipped", "bytes_skipped", "peak_bytes"}


class Quickstart(Case):
    def check_report(self, ranks, schemes):
        report = json.loads((self.out / "report.json").read_text())
        self.assertLessEqual(TOP, set(report))
        self.assertEqual((report["verdict"], report["reasons"]), ("VALID", []))
        self.assertEqual((report["ranks"], report["dtype"]), (ranks, "f32"))
        self.assertEqual(report["shape"]["sequence"], 256)
        self.assertEqual([(run["scheme"], run["pass"]) for run in report["runs"]],
                         [(s, p) for s in schemes for p in ("forward", "backward")])
        for run in report["runs"]:
            self.check_run(run, ranks)
        return report

    def check_run(self, run, ranks):
        self.assertLessEqual(RUN, set(run), run["name"])
        self.assertEqual(len(run["bytes_sent"]), ranks)
        self.assertEqual(run["bytes_sent"], run["bytes_formula"])
        self.assertEqual(min(run["bytes_sent"]) > 0, ranks > 1, run)
        seconds = run["seconds"]
        self.assertTrue(0 < seconds["min"] <= seconds["median"] <= seconds["max"] < 60, seconds)
        self.assertTrue(0 < run["error_ratio"] < 2.5, run["error_ratio"])
        self.assertTrue(0 < run["error_max_abs"] < 1e-3, run["error_max_abs"])
        self.assertTrue(0 < run["predicted_seconds"] < 60, run["predicted_seconds"])
        self.assertTrue(0 <= run["exposed_comm_seconds"] <= 1.01 * seconds["max"], run)
        self.assertGreater(run["gflops_per_rank"], 0)
        self.assertTrue(0 <= run["tiles_skipped"] < run["tiles_total"], run)
        self.assertGreaterEqual(run["bytes_skipped"], 0)
        self.assertGreater(run["peak_bytes"], 256 // ranks * 32 * 4)
        if run["scheme"] in ("mesh", "unified") and run["a"]:
            self.assertEqual(run["a"] * run["b"] * run["u"], ranks)
        if run["scheme"] == "ulysses":
            self.assertEqual(run["u"], ranks)

    def check_trace(self, ranks):
        """A process per rank, a thread per queue, an arrow per message between known tracks."""
        events = json.loads((self.out / "trace.json").read_text())
        names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
        self.assertEqual(sorted(names), list(range(ranks)))
        self.assertTrue(all(f"rank {r}" in name for r, name in names.items()), names)
        tracks = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
        queues = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
        self.assertTrue(any("compute" in q for q in queues), queues)
        spans = [e for e in events if e["ph"] == "X"]
        self.assertTrue(spans and all((e["pid"], e["tid"]) in tracks for e in spans))
        self.assertEqual({e["pid"] for e in spans}, set(range(ranks)))
        self.check_nesting(spans)
        begins = {e["id"]: e for e in events if e["ph"] == "s"}
        ends = {e["id"]: e for e in events if e["ph"] == "f"}
        self.assertEqual(set(begins), set(ends))
        self.assertEqual(len(begins) > 0, ranks > 1)
        for flow, begin in begins.items():
            self.assertNotEqual(begin["pid"], ends[flow]["pid"])
            self.assertLessEqual(begin["ts"], ends[flow]["ts"])

    def check_nesting(self, spans):
        """OB-108: spans of one track lie inside each other or apart, which viewers rely on."""
        open_ends = {}
        for span in sorted(spans, key=lambda e: (e["pid"], e["tid"], e["ts"], -e["dur"])):
            ends = open_ends.setdefault((span["pid"], span["tid"]), [])
            begin, end = span["ts"], span["ts"] + span["dur"]
            while ends and ends[-1] <= begin + 1e-6:
                ends.pop()
            self.assertTrue(not ends or end <= ends[-1] + 1e-3, f"{span} crosses another")
            ends.append(end)

    def check_results(self, ranks, num_runs):
        with h5py.File(self.out / "results.h5") as file:
            self.assertEqual(file.attrs["schema"], "tessera.attention.results")
            self.assertEqual(len(file["runs"]), num_runs)
            for name, run in file["runs"].items():
                np.testing.assert_array_equal(run["bytes_sent"], run["bytes_formula"], name)
                self.assertEqual(run["seconds"].shape, (2,))
                steps = run["steps"][:]  # rank, step, begin, end
                self.assertEqual(sorted(set(steps[:, 0])), list(range(ranks)))
                self.assertTrue(np.all(steps[:, 3] >= steps[:, 2]) and np.all(steps[:, 2] >= 0))
                self.assertTrue(0 < steps[:, 3].max() < 60)

    def run_on(self, ranks):
        schemes = SCHEMES if ranks != 3 else [s for s in SCHEMES if s != "ulysses"]
        result = self.assert_ok(self.attention(
            QUICKSTART, *SMALL, *(ANY_RANKS if ranks != 4 else []),
            *sets(attention__schemes=",".join(schemes)), ranks=ranks))
        self.assertEqual(len(re.findall(r"^RESULT verdict=VALID", result.out, re.M)), 1, result)
        self.assertNotIn("DIFFER", result.out)
        report = self.check_report(ranks, schemes)
        self.check_trace(ranks)
        self.check_results(ranks, len(report["runs"]))
        self.assertEqual(sorted(f.name for f in self.out.iterdir()),
                         ["report.json", "results.h5", "trace.json"])

    def test_one_rank(self):
        self.run_on(1)

    def test_two_ranks(self):
        self.run_on(2)

    def test_three_ranks(self):
        self.run_on(3)

    def test_four_ranks_as_the_deck_says(self):
        self.run_on(4)

    def test_without_a_launcher(self):
        self.assert_ok(self.run_command([program("tessera-attention"), *SMALL, "--out", self.out]))

    def test_a_second_run_replaces_the_first(self):
        def run(sequence):
            self.assert_ok(self.attention(*SMALL, *sets(attention__schemes="ring",
                                                        attention__sequence=sequence)))
        run(64)
        with h5py.File(self.out / "results.h5") as old:  # OB-098: a reader keeps what it has open
            run(128)
            self.assertEqual(tomllib.loads(old.attrs["config"])["attention"]["sequence"], 64)
        report = json.loads((self.out / "report.json").read_text())
        self.assertEqual(report["shape"]["sequence"], 128)


class Backends(Case):
    def backends(self, *options, ranks=2):
        """Operator -> names of the backends that ran its steps, per pass of one scheme."""
        result = self.assert_ok(self.attention(*SMALL, *sets(attention__schemes="ring"), *options,
                                               ranks=ranks))
        report = json.loads((self.out / "report.json").read_text())
        self.assertEqual(report["verdict"], "VALID", result)
        for run in report["runs"]:
            tiles = run["backends"][f"attention.{run['pass']}"]
            # Two causal chunks of a zigzag layout: both tiles of rank 0 have visible pairs.
            self.assertEqual(sum(tiles.values()), ranks, run["backends"])
        return {run["pass"]: {op: set(names) for op, names in run["backends"].items()}
                for run in report["runs"]}

    def test_report_lists_what_ran(self):
        listed = self.backends()
        self.assertEqual(set(listed), {"forward", "backward"})
        self.assertTrue({"attention.forward", "attention.reset"} <= set(listed["forward"]), listed)
        for operators in listed.values():
            self.assertTrue(all(len(names) == 1 for names in operators.values()), listed)

    def test_pins_are_listed(self):
        listed = self.backends(*sets(ops__pin="attention.forward=reference"))
        self.assertEqual(listed["forward"]["attention.forward"], {"reference"})

    def test_autotune_is_valid_and_keeps_pins(self):
        tuned = sets(ops__autotune="true")
        self.assertEqual(self.backends(*tuned), self.backends())  # fallbacks do not compete
        listed = self.backends(*tuned, *sets(ops__pin="attention.backward=reference"))
        self.assertEqual(listed["backward"]["attention.backward"], {"reference"})


class Decks(Case):
    def report(self):
        return json.loads((self.out / "report.json").read_text())

    def test_documents(self):
        deck = (DECKS / "documents.toml").read_text()
        words = re.search(r"make_attention\.py (.*?)\\\n#(.*?)--out", deck, re.S)
        options = " ".join(words.groups()).replace("--", "").split()
        (self.folder / "out").mkdir()
        make_input(self.folder / "out/documents.h5", *options)
        self.assert_ok(self.attention(DECKS / "documents.toml", *sets(run__repeats=1), ranks=4))
        report = self.report()
        self.assertEqual(report["mask"]["kind"], "documents")
        ring = report["runs"][0]
        self.assertGreater(ring["tiles_skipped"], 0)
        self.assertGreater(ring["bytes_skipped"], 0)
        self.assertIsNone(ring["error_ratio"] if "error_ratio" in ring else None)

    def test_latent(self):
        self.assert_ok(self.attention(DECKS / "latent.toml", *sets(run__repeats=1,
                                                                   attention__sequence=512)))
        report = self.report()
        self.assertEqual((report["verdict"], report["dtype"]), ("VALID", "bf16"))
        self.assertEqual((report["shape"]["head_dim"], report["shape"]["value_dim"]), (192, 128))
        self.assertTrue(all(0 < run["error_ratio"] < 2.5 for run in report["runs"]))

    def test_double_precision(self):
        self.assert_ok(self.attention(QUICKSTART, *SMALL, *sets(attention__dtype="f64"), ranks=4))
        self.assertTrue(all(run["error_max_abs"] < 1e-10 for run in self.report()["runs"]))

    def half_input(self):
        """An input file of h5py's float16, in either byte order."""
        path = make_input(self.folder / "half.h5", "sequence", 256, "query-heads", 4, "kv-heads", 2,
                          "head-dim", 32)
        with h5py.File(path, "r+") as file:
            for name, dtype in (("q", "<f2"), ("k", "<f2"), ("v", ">f2"), ("do", "<f2")):
                values = file[name][:].astype(dtype)
                del file[name]
                file[name] = values
        return path

    def test_half_precision_from_h5py_and_back(self):
        outputs = {}
        path = self.half_input()
        for dtype in ("f32", "f16"):
            self.assert_ok(self.attention(QUICKSTART, *SMALL, *ANY_RANKS, *sets(
                attention__dtype=dtype, input__file=path, output__tensors="true"), ranks=4))
            with h5py.File(self.out / "results.h5") as file:
                outputs[dtype] = {(run, name): file["runs"][run][name][:] for run in file["runs"]
                                  for name in ("o", "dq", "dk", "dv") if name in file["runs"][run]}
        report = self.report()
        self.assertEqual((report["verdict"], report["dtype"]), ("VALID", "f16"))
        self.assertTrue(all(0 < run["error_ratio"] < 2.5 for run in report["runs"]))
        self.assertEqual(len(outputs["f16"]), 4 * len(SCHEMES))
        for key, half in outputs["f16"].items():
            self.assertEqual(half.dtype, np.dtype("float16"), key)
            size = np.abs(outputs["f32"][key]).max()
            np.testing.assert_allclose(half.astype(np.float32), outputs["f32"][key], rtol=2**-10,
                                       atol=2**-11 * size, err_msg=str(key))

    def test_half_precision_that_overflows_is_invalid(self):
        path = self.half_input()
        with h5py.File(path, "r+") as file:
            file["do"][:] = 6e4  # of dV, row 0 is a sum of more than two of them
        result = self.attention(QUICKSTART, *SMALL, *ANY_RANKS, *sets(
            attention__dtype="f16", input__file=path, output__tensors="true"))
        self.assertEqual(result.code, 1, result)
        report = self.report()
        self.assertEqual(report["verdict"], "INVALID")
        for run in report["runs"]:
            what = f"{run['name']} {run['pass']}: error of d"
            named = any(reason.startswith(what) for reason in report["reasons"])
            self.assertEqual(named, run["pass"] == "backward", report["reasons"])
        with h5py.File(self.out / "results.h5") as file:
            dv = [run["dv"][0] for run in file["runs"].values() if "dv" in run]
        self.assertTrue(all(np.isinf(row).all() for row in dv), dv)

    def test_a_limit_that_cannot_be_met_makes_the_run_invalid(self):
        result = self.attention(*SMALL, *sets(attention__schemes="ring", attention__dtype="f64",
                                              verify__max_abs=1e-30))
        self.assertEqual(result.code, 1, result)
        self.assertIn("RESULT verdict=INVALID", result.out)
        report = self.report()
        self.assertEqual(report["verdict"], "INVALID")
        self.assertRegex(report["reasons"][0], r"ring forward: .* limit 1e-30")

    def test_every_key_of_every_deck_is_in_the_reference(self):
        page = self.run_command([program("tessera-attention"), "--keys"]).out
        known = set(re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", page))
        self.assertIn("attention.sequence", known)

        def names(table, before=""):
            for key, value in table.items():
                if isinstance(value, dict):
                    yield from names(value, f"{before}{key}.")
                else:
                    yield before + key

        decks = sorted(DECKS.glob("*.toml"))
        self.assertGreaterEqual(len(decks), 4)
        for deck in decks:
            self.assertEqual(set(names(tomllib.loads(deck.read_text()))) - known, set(), deck)
            for number, line in enumerate(deck.read_text().splitlines(), 1):
                self.assertLessEqual(len(line), 110, f"{deck}:{number}")


class Flags(Case):
    def test_check_writes_nothing(self):
        result = self.assert_ok(self.attention(QUICKSTART, "--check", ranks=4))
        self.assertIn("12 plans without a fault", result.out)
        self.assertFalse(self.out.exists())

    def test_check_finds_what_a_run_would(self):
        self.assert_error(self.attention("--check", *sets(input__file="nowhere.h5")), 4,
                          "nowhere.h5")

    def test_dry_run_runs_each_scheme_once_without_a_reference(self):
        self.assert_ok(self.attention(QUICKSTART, "--dry-run", ranks=4))
        report = json.loads((self.out / "report.json").read_text())
        self.assertEqual(len(report["runs"]), 12)
        for run in report["runs"]:
            self.assertEqual(run["seconds"]["min"], run["seconds"]["max"])
            self.assertIsNone(run["error_ratio"])

    def print_config(self, *options, env=None):
        result = self.assert_ok(self.attention(*options, "--print-config", env=env))
        self.assertFalse(self.out.exists())
        return result.out

    def test_printed_config_fed_back_gives_the_same(self):
        first = self.print_config(QUICKSTART, *sets(attention__sequence="8K",
                                                    attention__document_lengths="100,1K"))
        path = self.folder / "deck.toml"
        path.write_text(first)
        values = tomllib.loads(first)
        self.assertEqual(values["attention"]["sequence"], 8192)
        self.assertEqual(tomllib.loads(self.print_config(path)), values)

    def test_environment_overrides_the_deck_and_set_the_environment(self):
        env = {"TESSERA_ATTENTION__SEQUENCE": "512"}
        text = self.print_config(QUICKSTART, env=env)
        self.assertRegex(text, r"(?m)^sequence\s+= 512 .*TESSERA_ATTENTION__SEQUENCE")
        text = self.print_config(QUICKSTART, *sets(attention__sequence=128), env=env)
        self.assertRegex(text, r"(?m)^sequence\s+= 128 .*--set")
        self.assertRegex(text, r"(?m)^kv_heads\s+= 4 .*quickstart.toml:")

    def test_print_plan_shows_the_steps_of_rank_0(self):
        result = self.assert_ok(self.attention(QUICKSTART, "--print-plan", "--check", ranks=4))
        self.assertEqual(result.out.count("plan of rank 0, "), 1)
        self.assertRegex(result.out, r"(?m)^ *step +queue +kind +label")
        self.assertRegex(result.out, r"(?m)^ *\d+ +compute +compute +attn\.fwd\.tile ")

    def test_keys_is_a_page_of_markdown(self):
        result = self.assert_ok(self.attention("--keys"))
        self.assertEqual(result.out.count("# Keys of attention decks"), 1)
        self.assertIn("`attention.schemes`", result.out)

    def test_help_is_printed_once(self):
        text = self.assert_ok(self.attention("--help")).out
        self.assertEqual(text.count("--time-limit"), 1)
        self.assertIn("--time-limit hh:mm:ss ", text)
        self.assertIn("Exit codes", text)

    def test_version_is_printed_once(self):
        text = self.assert_ok(self.attention("--version")).out
        self.assertEqual(len(text.splitlines()), 1, text)

    def test_json_and_trace_go_where_they_are_told(self):
        self.assert_ok(self.attention(*SMALL, *sets(attention__schemes="ring"), "--json",
                                      self.folder / "a.json", "--trace", self.folder / "b.json"))
        self.assertEqual([f.name for f in self.out.iterdir()], ["results.h5"])
        self.assertEqual(json.loads((self.folder / "a.json").read_text())["verdict"], "VALID")
        self.assertTrue(json.loads((self.folder / "b.json").read_text()))

    def output(self, ranks, seed):
        options = sets(attention__schemes="ring", attention__passes="forward",
                       attention__dtype="f64", output__tensors="true")
        self.assert_ok(self.attention(*SMALL, *options, "--seed", seed, ranks=ranks))
        with h5py.File(self.out / "results.h5") as file:
            return next(iter(file["runs"].values()))["o"][:]

    def test_seed_decides_the_numbers_and_ranks_do_not(self):
        first, same, other = self.output(2, 1), self.output(3, 1), self.output(2, 2)
        np.testing.assert_allclose(first, same, rtol=0, atol=1e-13)
        self.assertGreater(np.abs(first - other).max(), 0.1)


if __name__ == "__main__":
    main()
