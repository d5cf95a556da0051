#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tessera-plan: hundreds of ranks in one process within bounds of time and memory, volumes as the
closed forms say (in U = N D / n elements), and its outputs and errors."""
import json
import os
import re
import tempfile
import time

import h5py
import numpy as np

from support import DECKS, MACHINES, Case, main, make_input, program, sets

LONG = DECKS / "long.toml"
H100 = ["--machine", MACHINES / "h100-8x400g.toml"]
RUN = {"scheme", "a", "b", "u", "layout", "pass", "bytes_sent", "bytes_formula",
       "predicted_seconds", "tiles_total", "tiles_skipped", "bytes_skipped", "peak_bytes",
       "volume_u"}
MEASURED = {"error_ratio", "error_max_abs", "seconds", "exposed_comm_seconds", "gflops_per_rank"}


class PlanTool(Case):
    def plan(self, *options, **keys):
        return self.run_command([program("tessera-plan"), "attention", *options, *sets(**keys)])

    def runs(self, *options, **keys):
        result = self.assert_ok(self.plan(*options, "--json", **keys))
        return json.loads(result.out)["runs"]

    def volumes(self, ranks, **keys):
        runs = self.runs(LONG, "--ranks", ranks, attention__passes="forward", **keys)
        return {run["scheme"]: run for run in runs}


class Size(PlanTool):
    def test_a_million_tokens_on_256_ranks_in_20_s_and_2_gib(self):
        command = [program("tessera-plan"), "attention", LONG, "--ranks", 256, *H100, "--json"]
        with tempfile.TemporaryFile("w+") as out:
            begin = time.monotonic()
            job = os.posix_spawn(command[0], [str(w) for w in command], os.environ, file_actions=[
                (os.POSIX_SPAWN_DUP2, out.fileno(), 1)])
            _, status, used = os.wait4(job, 0)
            seconds = time.monotonic() - begin
            out.seek(0)
            report = json.load(out)
        self.assertEqual(os.waitstatus_to_exitcode(status), 0)
        gib = used.ru_maxrss / 2**20  # ru_maxrss is in KiB
        cpu = used.ru_utime + used.ru_stime
        print(f"{self.id()}: {seconds:.1f} s, {cpu:.1f} s of processor time, {gib:.2f} GiB")
        self.assertLess(seconds, 20)
        self.assertLess(gib, 2)
        self.assertEqual(report["ranks"], 256)
        self.assertEqual(report["machine"]["name"], "h100-8x400g")
        self.assertEqual(len(report["runs"]), 10)
        for run in report["runs"]:
            self.assertLessEqual(RUN, set(run))
            self.assertEqual(MEASURED & set(run), set())
            self.assertEqual(len(run["bytes_sent"]), 256)
            self.assertEqual(run["bytes_sent"], run["bytes_formula"])
            self.assertTrue(0.01 < run["predicted_seconds"] < 100, run["predicted_seconds"])

    def test_prediction_follows_the_rates_of_the_machine(self):
        base = sets(attention__schemes="mesh", attention__passes="forward")
        text = H100[1].read_text()
        slow = self.folder / "slow.toml"
        slow.write_text(re.sub(r"flops_s = 610e12", "flops_s = 61e12", text))
        times = [self.runs(LONG, "--ranks", 16, *base, "--machine", file)[0]["predicted_seconds"]
                 for file in (H100[1], slow)]
        self.assertGreater(times[1], 5 * times[0])


class Volumes(PlanTool):
    def test_mesh_16x16_sends_60_units_where_ring_sends_510(self):
        runs = self.volumes(256, attention__schemes="mesh,ring", attention__mesh__a=16,
                            attention__mesh__b=16)
        self.assertAlmostEqual(runs["mesh"]["volume_u"], 60, places=9)
        self.assertAlmostEqual(runs["ring"]["volume_u"], 510, places=9)

    def test_ulysses_8_with_mesh_4x8_sends_20_units_where_its_ring_sends_62(self):
        mesh = self.volumes(256, attention__schemes="unified", attention__mesh__a=4,
                            attention__mesh__b=8)["unified"]["volume_u_axes"]
        ring = self.volumes(256, attention__schemes="unified",
                            attention__unified__outer="ring")["unified"]["volume_u_axes"]
        self.assertAlmostEqual(mesh["row"] + mesh["column"], 20, places=9)
        self.assertAlmostEqual(ring["ring"], 62, places=9)

    def test_bytes_are_units_of_two_bytes(self):
        ring = self.volumes(256, attention__schemes="ring")["ring"]
        unit = 2**20 * 32 * 128 // 256
        self.assertEqual(set(ring["bytes_sent"]), {510 * unit * 2})

    def test_grouped_queries_make_the_ring_light(self):
        runs = self.volumes(256, attention__schemes="ring", attention__kv_heads=8)
        self.assertAlmostEqual(runs["ring"]["volume_u"], 510 / 4, places=9)


class Outputs(PlanTool):
    SMALL = {"attention__sequence": "1K", "attention__schemes": "ring,mesh"}

    def test_all_machine_files_load(self):
        files = sorted(MACHINES.glob("*.toml"))
        self.assertGreaterEqual(len(files), 4)
        for file in files:
            result = self.assert_ok(self.plan("--ranks", 16, "--machine", file, **self.SMALL))
            self.assertIn(f"machine model {file.stem}", result.out)
            self.assertIn("4 plans without a fault", result.out)

    def test_json_to_a_file(self):
        path = self.folder / "plan.json"
        self.assert_ok(self.plan("--ranks", 4, "--json", path, **self.SMALL))
        self.assertEqual(len(json.loads(path.read_text())["runs"]), 4)

    def test_trace_is_a_timeline_of_all_ranks(self):
        path = self.folder / "trace.json"
        self.assert_ok(self.plan("--ranks", 4, "--trace", path, **self.SMALL))
        events = json.loads(path.read_text())
        spans = [e for e in events if e["ph"] == "X"]
        self.assertEqual({e["pid"] for e in spans}, set(range(4)))
        self.assertIn("attn.fwd.tile", {e["name"] for e in spans})
        arrows = [e["id"] for e in events if e["ph"] == "s"]
        self.assertEqual(sorted(arrows), sorted(e["id"] for e in events if e["ph"] == "f"))
        self.assertGreater(len(arrows), 0)

    def test_export_holds_the_plan_of_every_rank(self):
        path = self.folder / "programs.json"
        self.assert_ok(self.plan("--ranks", 3, "--export", path, **self.SMALL))
        self.assertEqual(len(json.loads(path.read_text())), 4)

    def test_print_plan_of_a_rank(self):
        result = self.assert_ok(self.plan("--ranks", 4, "--print-plan", 3, **self.SMALL))
        self.assertEqual(result.out.count("plan of rank 3, "), 4)
        self.assertRegex(result.out, r"(?m)^ *step +queue +kind +label")

    def test_mask_from_a_file(self):
        text = self.folder / "text"
        text.write_text("word " * 100)
        path = make_input(self.folder / "input.h5", "sequence", 1024, "mask", "documents", "texts",
                          text)
        keys = {**self.SMALL, "attention__schemes": "ring", "attention__mask": "documents",
                "attention__layout": "contiguous", "input__file": path}
        run = self.runs("--ranks", 16, **keys)[0]
        self.assertGreater(run["tiles_skipped"], 16 * 15 // 2)
        with h5py.File(path, "r+") as file:
            del file["mask/documents"]
            file["mask/documents"] = np.array([1024])
        self.assertEqual(self.runs("--ranks", 16, **keys)[0]["tiles_skipped"], 16 * 15 // 2)


class Errors(PlanTool):
    def test_ranks_missing(self):
        self.assert_error(self.plan(LONG), 2, "--ranks was not given", "--ranks 256")

    def test_subcommand_missing(self):
        result = self.run_command([program("tessera-plan"), LONG])
        self.assert_error(result, 2)

    def test_unknown_option_gets_a_suggestion(self):
        self.assert_error(self.plan(LONG, "--rank", 4), 2, "'--rank'", "'--ranks'")

    def test_mesh_that_does_not_fill_the_ranks(self):
        self.assert_error(self.plan(LONG, "--ranks", 256, attention__schemes="mesh",
                                    attention__mesh__a=3, attention__mesh__b=5), 2,
                          "attention.mesh.a = 3", "256")

    def test_rank_to_print_is_out_of_range(self):
        self.assert_error(self.plan("--ranks", 4, "--print-plan", 4), 2, "no rank 4")

    def test_machine_file_with_an_unknown_key(self):
        path = self.folder / "machine.toml"
        path.write_text(H100[1].read_text().replace("latency_s", "latancy_s", 1))
        self.assert_error(self.plan("--ranks", 4, "--machine", path), 2, "latancy_s", "latency_s",
                          "machine.toml:")

    def test_output_below_a_file(self):
        (self.folder / "file").write_text("")
        self.assert_error(self.plan("--ranks", 2, "--json", self.folder / "file/plan.json"), 4,
                          "file/plan.json")


if __name__ == "__main__":
    main()
