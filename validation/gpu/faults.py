#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What goes wrong for users of GPUs: two ranks on one device, no driver, a transport that cannot
work, too little memory, a shape without a kernel, a rank that dies, a link that stands still. Each
ends all ranks with one clear message and its exit code. Needs a GPU; skips itself otherwise."""
import json
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "cases"))
from support import DECKS, Case, main, on_ranks, program, sets  # noqa: E402

GPU = DECKS / "gpu.toml"
ONE_DEVICE = {"CUDA_VISIBLE_DEVICES": "0"}
SMALL = dict(attention__schemes="ring", attention__sequence=512, attention__query_heads=2,
             attention__kv_heads=2, attention__head_dim=64, run__repeats=2)


class GpuFaults(Case):
    def setUp(self):
        super().setUp()
        info = self.run_command([program("tessera-info")], env=ONE_DEVICE)
        if "device 0" not in info.out:
            self.skipTest("no GPU here")

    def run_gpu(self, *options, ranks=2, env=None, **keys):
        return self.attention(GPU, *sets(**{**SMALL, **keys}), *options, ranks=ranks,
                              env={**ONE_DEVICE, **(env or {})})

    def test_two_ranks_on_one_device_are_refused_by_name(self):
        self.assert_error(self.run_gpu(), 3, "rank", "GPU-", "parallel.share_device")

    def test_shared_device_when_asked_for(self):
        result = self.run_gpu(parallel__share_device="true", verify__enabled="true")
        self.assert_ok(result)
        self.assertIn("ranks share a GPU", result.out)
        self.assertIn("verdict=VALID", result.out)

    def test_nccl_on_a_shared_device(self):
        result = self.run_gpu(parallel__share_device="true", parallel__transport="nccl")
        self.assert_error(result, 3, "parallel.transport", "nccl", "peer")

    def test_no_device_visible(self):
        self.assert_error(self.run_gpu(env={"CUDA_VISIBLE_DEVICES": ""}), 3, "no GPU", "host")

    def test_too_little_memory_is_said_before_anything_is_allocated(self):
        result = self.run_gpu(ranks=1, attention__sequence="64M", attention__query_heads=64,
                              attention__kv_heads=64, attention__head_dim=256)
        self.assert_error(result, 3, "the plans need up to", "GPU")
        self.assertLess(result.seconds, 60)

    def test_pinned_backend_without_a_kernel_for_the_shape(self):
        result = self.run_gpu("--set", "ops.pin=attention.forward=cuda", ranks=1,
                              attention__head_dim=80)
        self.assert_error(result, 3, "attention.forward", "cuda", "80")

    def test_shape_of_no_tensor_core_kernel_runs_on_the_plain_one(self):
        self.assert_ok(self.run_gpu(ranks=1, attention__head_dim=40, verify__enabled="true"))

    def test_link_that_stands_still_ends_by_the_watchdog(self):
        result = self.run_gpu("--watchdog", "4", parallel__share_device="true",
                              parallel__throttle=1)
        self.assertEqual(result.code, 6, result)
        self.assertIn("transfers by peer, throttled", result.text)
        self.assertEqual(self.leftovers(), [], result)

    def test_slow_link_ends_and_takes_its_time(self):
        # Fresh processes: kernels are loaded while nothing waits on the device.
        result = self.run_gpu("--watchdog", "60", parallel__share_device="true",
                              parallel__throttle="256K", attention__passes="forward",
                              verify__enabled="true", run__repeats=1, run__warmup=0)
        self.assert_ok(result)
        report = json.loads((self.out / "report.json").read_text())
        run = report["runs"][0]
        self.assertGreaterEqual(run["seconds"]["median"], max(run["bytes_sent"]) / 2**18)

    def test_autotune_lists_what_runs(self):
        result = self.run_gpu("--set", "ops.autotune=true", ranks=1, attention__sequence=2048,
                              attention__query_heads=8, attention__kv_heads=8, run__repeats=2)
        self.assert_ok(result)
        for run in json.loads((self.out / "report.json").read_text())["runs"]:
            tile = run["backends"][f"attention.{run['pass']}"]
            self.assertIn(next(iter(tile)), ("cuda", "cuda-one-pass", "cudnn"))

    def test_staged_transport_in_a_fresh_process(self):
        result = self.run_gpu("--watchdog", "60", parallel__share_device="true",
                              parallel__transport="staged", verify__enabled="true")
        self.assert_ok(result)

    def test_rank_that_dies_takes_the_job_down(self):
        command = [program("tessera-attention"), GPU, "--out", self.out,
                   *sets(**{**SMALL, "parallel.share_device": "true", "run__repeats": 1000000})]
        begin = time.monotonic()
        job = self.start(on_ranks(2, *command), env=ONE_DEVICE)
        seen = ""
        while "1 of 1" not in seen:
            line = job.stderr.readline()
            self.assertTrue(line, f"ended early: {seen}")
            seen += line
        time.sleep(1)
        ranks = [pid for pid in self.processes()
                 if os.path.realpath(f"/proc/{pid}/exe") == program("tessera-attention")]
        self.assertEqual(len(ranks), 2)
        os.kill(ranks[0], signal.SIGKILL)
        result = self.finish(job, begin, limit=60)
        self.assertNotEqual(result.code, 0, result)


if __name__ == "__main__":
    main()
