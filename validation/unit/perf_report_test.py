#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of perf/gpu_report.py on made-up numbers: rates, what is compared with what, what is left
out, pictures.

Usage: perf_report_test.py PATH_OF_gpu_report.py"""
import importlib.util
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = sys.argv.pop(1)
TOKENS = 4096
CAUSAL = TOKENS * (TOKENS + 1) // 2


def seconds(flops, rate):
    """That one of two GPUs takes for its half of `flops` per (pair, head) at `rate` TFLOP/s."""
    return flops * CAUSAL * 32 * 128 / 2 / (1e12 * rate)


def run_of(name, which, median, **more):
    return {"scheme": name.split()[0], "name": name, "pass": which, "bytes_sent": [8, 8],
            "bytes_formula": [8, 8], "seconds": {"median": median, "min": median, "max": median},
            "predicted_seconds": 0.5 * median, "exposed_comm_seconds": 0.25 * median,
            "overlap_share": 0.5, **more}


def ours(runs, tokens=TOKENS, kind="causal", area=None, device="one rank each", **more):
    area = area or tokens * (tokens + 1) // 2
    return {"verdict": "VALID", "ranks": 2, "dtype": "bf16", "version": "tessera 1",
            "shape": {"sequence": tokens, "query_heads": 32, "kv_heads": 32, "head_dim": 128,
                      "value_dim": 128},
            "mask": {"kind": kind, "area": area, "fraction": area / tokens**2},
            "conditions": {"device": f"GPU; 2 GPUs, {device}; transport nccl; a pass is one graph"},
            "runs": runs, **more}


def peers(results, gpus=2):
    return {"torch": "2.11", "cudnn": 9, "nccl": "2.28", "device": "GPU", "gpus": gpus,
            "dtype": "bf16", "warm_ups": 5, "repetitions": 20, "query_heads": 32, "head_dim": 128,
            "links": [{"pattern": "neighbours", "bytes": 65536, "seconds": 1e-5, "gb_s": 6.5}],
            "results": results}


def peer(method, forward, both, tokens=TOKENS):
    def part(rate):
        return {"median": 1e-3, "min": 1e-3, "max": 1e-3, "tflops_per_gpu": rate}
    return {"method": method, "tokens": tokens, "mask": "causal", "kv_heads": 32,
            "backend": "cudnn", "forward": part(forward), "both": part(both)}


class Report(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def write(self, **files):
        for name, content in files.items():
            (self.folder / f"{name}.json").write_text(json.dumps(content))

    def report(self):
        result = subprocess.run([sys.executable, "-B", SCRIPT, str(self.folder)],
                                capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        return (self.folder / "report.txt").read_text()

    def line(self, text, *parts):
        # Ratios and what is judged by a limit name the same schemes; they are asked for by a word.
        rows = [x for x in text.split("\n") if all(
            word not in x or any(word in p for p in parts)
            for word in ("->", "BELOW", "ABOVE", "dominate"))]
        lines = [x for x in rows if all(p in x for p in parts)]
        self.assertEqual(len(lines), 1, f"{parts} in\n{text}")
        return lines[0]

    def test_rates_best_and_ratios(self):
        self.write(
            ours_a=ours([run_of("ring", "forward", seconds(4, 500)),
                         run_of("ring", "backward", seconds(10, 400)),
                         run_of("mesh 1x2", "forward", seconds(4, 550)),
                         run_of("mesh 1x2", "backward", seconds(10, 300))]),
            peers=peers([peer("ulysses", 440, 400), peer("single gpu, share of heads", 625, 600),
                         peer("single gpu, share of tokens", 999, 999),
                         {**peer("all_gather", 0, 0), "error": "out of memory"}]))
        bad = json.loads((self.folder / "peers.json").read_text())
        del bad["results"][3]["forward"], bad["results"][3]["both"]
        self.write(peers=bad)
        text = self.report()
        # 14 flops over 4 / 500 + 10 / 400 is 424.2; 14 over 4 / 550 + 10 / 300 is 344.8.
        self.assertRegex(self.line(text, "  ring  "), r"ring +500\.0 +424\.2\*.*0\.50 / 0\.50"
                         r" +25% / 25%")
        self.assertRegex(self.line(text, "mesh 1x2  "), r"550\.0\* +344\.8 ")
        self.assertRegex(self.line(text, "torch ulysses  "), r"440\.0\* +400\.0\*.*cudnn")
        self.line(text, "-> forward: mesh 1x2 550 TFLOP/s, 1.250 of torch ulysses, "
                        "0.880 of single GPU")
        self.line(text, "-> forward and backward: ring 424 TFLOP/s, 1.061 of torch ulysses, "
                        "0.707 of single GPU")
        self.assertRegex(self.line(text, "torch all gather"), r" -  +-  .*out of memory")
        self.line(text, "65536 bytes", "6.5 GB/s")
        self.assertNotIn("999", text)
        table = (self.folder / "report.md").read_text()
        self.line(table, "| 4,096 | forward | mesh 1x2 | 550 | torch ulysses | 440 | 1.25 | 0.88 |")

    def test_only_valid_runs_win(self):
        slow, fast = seconds(4, 100), seconds(4, 900)
        self.write(ours_a=ours([run_of("ring", "forward", slow),
                                run_of("ulysses", "forward", fast, bytes_sent=[9, 8])]),
                   ours_b=ours([run_of("unified u2", "forward", fast)], verdict="INVALID"),
                   peers=peers([peer("ulysses", 50, 50)]))
        text = self.report()
        self.line(text, "-> forward: ring 100 TFLOP/s, 2.000 of torch ulysses")
        for name in ("  ulysses ", "unified u2"):
            self.assertIn("NOT VALID", self.line(text, name))

    def test_a_shared_gpu_is_compared_with_nobody(self):
        self.write(ours_a=ours([run_of("ring", "forward", 1.0)], device="shared by ranks"),
                   peers=peers([peer("ulysses", 50, 50)]))
        text = self.report()
        self.line(text, "2 ranks sharing 2 GPUs, causal")
        self.assertNotIn(" of torch", text)
        self.assertFalse((self.folder / "report.md").exists())

    def test_exposed_communication_has_a_limit_where_computing_is_longer(self):
        # Of a pass of 10 ms: exposed / (1 - overlap) of transfers beside 10 - exposed of computing.
        def run(name, which, exposed_ms, overlap):
            return run_of(name, which, 10e-3, exposed_comm_seconds=1e-3 * exposed_ms,
                          overlap_share=overlap)
        shared = ours([run("double_ring w2", "forward", 2, 0.5)], device="shared by ranks")
        self.write(ours_shared=shared, ours_a=ours([
            run("ring", "forward", 1.0, 0.75), run("ring", "backward", 1.01, 0.75),
            run("mesh 1x2", "forward", 4, 0.4), run("ulysses", "forward", 0, 1),
            run("unified u2", "forward", 11, 0)]))
        text = self.report()
        self.assertIn("limit 10 % where transfers take no longer than computing", text)
        place = "2 GPUs, causal, 32 KV heads"
        for parts, figures in ((("ring ", "forward", "BELOW"), r" 10\.0 % +0\.44  BELOW$"),
                               (("ring ", "backward", "ABOVE"), r" 10\.1 % +0\.45  ABOVE$"),
                               (("mesh 1x2", "dominate"), r" 40\.0 % +1\.11  no limit, "),
                               (("ulysses", "BELOW"), r" 0\.0 % +-  BELOW$"),
                               (("unified u2", "dominate"), r" 110\.0 % +inf  no limit, ")):
            self.assertRegex(self.line(text, place, *parts), figures)
        rows = [x for x in text.split("\n") if "double ring w2" in x and "->" not in x]
        self.assertEqual(len(rows), 1, "ranks that share GPUs are not judged")

    def test_two_transports_are_told_apart(self):
        a, b = (ours([run_of("ring", "forward", 1.0)]) for _ in range(2))
        b["conditions"]["device"] = b["conditions"]["device"].replace("nccl", "peer")
        self.write(ours_a=a, ours_b=b)
        text = self.report()
        self.line(text, "ring, nccl")
        self.line(text, "ring, peer")

    def test_masks_against_the_full_one_and_flex(self):
        one = {"ranks": 1, "conditions": {"device": "GPU; 1 GPU, one rank each; transport none"}}
        run = {"bytes_sent": [0], "bytes_formula": [0]}
        area = TOKENS * TOKENS // 4
        flex = [{"name": f"{p} d128", "backend": "flex", "tokens": TOKENS, "mask": "documents",
                 "fraction": fraction, "rate": 200.0, "median_s": s, "min_s": s, "max_s": s}
                for p, s, fraction in (("forward", 1e-3, 0.25), ("backward", 2.5e-3, 0.25),
                                       ("forward", 1e-3, 0.3))]
        self.write(
            ours_a=ours([run_of("ring", "forward", 4e-3, **run)], kind="full", area=4 * area,
                        **one),
            ours_b=ours([run_of("ring", "forward", 1.1e-3, **run),
                         run_of("ring", "backward", 2e-3, **run)], kind="documents", area=area,
                        **one),
            flex={"torch": "2.11", "device": "GPU", "results": flex})
        text = self.report()
        self.line(text, "documents, 25.0 % visible", "ring", "forward 1.100")
        self.line(text, "1 GPU, documents, 25.0 % visible, 32 query")
        self.line(text, "1 GPU, documents, 30.0 % visible, 32 query")
        lines = [x for x in text.split("\n") if "torch FlexAttention" in x and "->" not in x]
        self.assertEqual([x.split()[3:5] for x in lines], [["200.0*", "200.0*"], ["200.0*", "-"]])

    def test_operators_under_masks_with_gaps(self):
        def tile(name, median, mask="documents", **more):
            return {"name": f"{name} d128", "tokens": TOKENS, "mask": mask, "rate": 1.0,
                    "unit": "TFLOP/s", "median_s": median, "min_s": median, "max_s": median,
                    "fraction": 0.25, **more}
        # forward (3.01 - 0.01) / (0.25 x 10); backward (5.02 - 0.02) / (0.25 x 20), flex against
        # 5.02 + 0.48.
        self.write(
            tile={"device": "GPU", "driver": 1, "runtime": 1, "repetitions": 20, "warm_ups": 5,
                  "warm_up_s": 0.15, "cudnn": "none", "results": [
                      tile("forward", 10e-3, "full"),
                      tile("forward", 3.01e-3, full_s=10e-3, floor_s=1e-5),
                      {**tile("backward", 5.02e-3, full_s=20e-3, floor_s=2e-5, before_s=0.48e-3),
                       "name": "backward d128 one-pass"},
                      tile("forward", 2e-3, "window", full_s=10e-3, floor_s=1e-5)]},
            flex={"torch": "2.11", "device": "GPU", "results": [
                {**tile("forward", 3.612e-3), "backend": "flex"},
                {**tile("backward", 4.4e-3), "backend": "flex"},
                {**tile("forward", 1e-3, "window"), "backend": "flex", "fraction": 0.26}]})
        text = self.report()
        self.assertRegex(self.line(text, "documents", "forward", "%", "10.0"),
                         r"1\.200   3\.612, 1\.200 of ours$")
        self.assertRegex(self.line(text, "documents", "backward", "%"),
                         r"20\.0 +1\.000   4\.400, 0\.800 of ours$")
        self.assertRegex(self.line(text, "window", "forward", "%"), r"0\.796$")
        self.assertNotIn("NOT KEPT", text)

    def test_a_mask_that_takes_too_long_is_marked(self):
        self.write(tile={"device": "GPU", "driver": 1, "runtime": 1, "repetitions": 20,
                         "warm_ups": 5, "warm_up_s": 0.15, "cudnn": "none", "results": [
                             {"name": "forward d128", "tokens": TOKENS, "mask": "slices",
                              "rate": 1.0, "unit": "TFLOP/s", "median_s": 2.52e-3, "min_s": 2e-3,
                              "max_s": 3e-3, "fraction": 0.5, "full_s": 4e-3, "floor_s": 1e-5}]})
        self.assertRegex(self.line(self.report(), "slices", "%"), r"1\.255 LIMIT NOT KEPT$")

    def test_passes_beside_one_call(self):
        row = {"scheme": "ring", "pass": "backward", "tokens_per_rank": 2048, "rate": 312.1,
               "median_s": 4.404e-3, "min_s": 4.387e-3, "max_s": 4.43e-3, "single_rate": 471.7,
               "of_single": 0.662, "limit": 0.8, "launch_share": 0.0036, "kept": False}
        report = {"device": "GPU", "machine": "one", "ranks": 4, "repetitions": 20,
                  "results": [row]}
        self.write(**{"pass": report})
        line = r"312\.1 +471\.7 +0\.662 +0\.80 +- +0\.36 %  4\.404 .*  LIMIT NOT KEPT$"
        text = self.report()
        self.assertRegex(self.line(text, "ring backward"), line)
        self.assertNotIn("in turn", text)
        report["in_turn"] = True
        row.update(of_single=0.812, of_single_min=0.79, of_single_max=0.825, of_cudnn=0.9,
                   kept=True)
        self.write(**{"pass": report})
        text = self.report()
        self.assertIn("one call and schemes in turn, 20 rounds", text)
        self.assertRegex(self.line(text, "ring backward"),
                         r"471\.7 +0\.812 \(0\.790 \.\. 0\.825\) +0\.80 +0\.900 +0\.36 %")
        self.assertNotIn("NOT KEPT", text)

    def test_nothing_is_made_up(self):
        (self.folder / "conditions.txt").write_text("date: today\n")
        self.assertEqual(self.report(), "date: today\n")
        self.assertEqual([p.name for p in sorted(self.folder.iterdir())],
                         ["conditions.txt", "report.txt"])

    @unittest.skipUnless(importlib.util.find_spec("matplotlib"), "no matplotlib")
    def test_one_picture_per_number_of_gpus(self):
        for n in (2, 4):
            for tokens in (4096, 8192):
                runs = [run_of("ring", p, 1e-3 * tokens, bytes_sent=[1] * n, bytes_formula=[1] * n)
                        for p in ("forward", "backward")]
                report = ours(runs, tokens=tokens, ranks=n)
                self.write(**{f"ours_{n}_{tokens}": report})
        self.write(peers=peers([peer("ulysses", 440, 400), peer("ulysses", 450, 420, 8192)]))
        self.report()
        for name in ("gpu.png", "gpu-2.png"):
            data = (self.folder / name).read_bytes()
            self.assertEqual(data[:8], b"\x89PNG\r\n\x1a\n")
            self.assertGreater(int.from_bytes(data[16:20], "big"), 1000)  # pixels across

    def test_refuses_what_is_no_folder(self):
        result = subprocess.run([sys.executable, "-B", SCRIPT, str(self.folder / "none")],
                                capture_output=True, text=True)
        self.assertEqual(result.returncode, 2)
        self.assertIn("usage", result.stderr)


class PeerCases(unittest.TestCase):
    """A run whose process was ended by a case goes on behind it."""

    def setUp(self):
        sys.path.insert(0, str(Path(SCRIPT).parent))
        self.cases = importlib.import_module("peer_cases")
        sys.path.pop(0)

    def test_goes_on_behind_the_case_that_ended_the_process(self):
        case = {"method": "ulysses", "tokens": 8192, "mask": "causal", "kv_heads": 32}
        done = {**case, "method": "all_gather", "both": {"median": 1.0}}
        report = {"torch": "2", "links": [], "results": []}
        self.cases.go_on(report, {"torch": "1", "links": [{"bytes": 8}], "results": [done],
                                  "running": case})
        self.assertEqual(report["torch"], "2")
        self.assertEqual(report["links"], [{"bytes": 8}])
        self.assertEqual(report["results"][0], done)
        self.assertIn("ended in this case", report["results"][1]["error"])
        self.assertTrue(self.cases.is_done(report, case))
        self.assertFalse(self.cases.is_done(report, {**case, "tokens": 16384}))

    def test_a_run_that_came_to_its_end_notes_no_failure(self):
        report = {"results": []}
        self.cases.go_on(report, {"results": []})
        self.assertEqual(report, {"links": [], "results": []})


if __name__ == "__main__":
    unittest.main()
