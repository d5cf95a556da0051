#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs that end early: a request to stop (signal, time limit) ends between two schemes with code 75
and a report; a second one ends at once; ranks that the launcher did not join are refused. What a
killed or hung rank does is in rank_faults.sh."""
import json
import os
import signal
import time

from support import Case, main, on_ranks, program, sets

ENDLESS = sets(attention__schemes="ring,all_gather", attention__passes="forward",
               attention__sequence=256, attention__query_heads=2, attention__kv_heads=2,
               attention__head_dim=16, run__repeats=1000000, verify__enabled="false")
# Schemes of a second or two each: the first is under way when the signal comes.
STEPS = sets(attention__schemes="ring,all_gather,mesh,double_ring", attention__passes="forward",
             attention__sequence=1024, attention__query_heads=4, attention__kv_heads=4,
             attention__head_dim=64, run__repeats=300, verify__enabled="false")


class Stops(Case):
    def begin(self, ranks, options):
        """Starts and waits until the first scheme runs; returns the job and the ranks' ids."""
        command = [program("tessera-attention"), *options, "--out", str(self.out)]
        job = self.start(on_ranks(ranks, *command) if ranks > 1 else command)
        seen = b""
        os.set_blocking(job.stderr.fileno(), True)
        while b"1 of " not in seen:
            byte = os.read(job.stderr.fileno(), 4096)
            self.assertTrue(byte, f"ended early: {seen.decode()}")
            seen += byte
        found = [pid for pid in self.processes()
                 if os.path.realpath(f"/proc/{pid}/exe") == program("tessera-attention")]
        self.assertEqual(len(found), ranks)
        return job, found

    def assert_stopped(self, result):
        self.assertEqual(result.code, 75, result)
        self.assertIn("RESULT verdict=INVALID", result.out)
        report = json.loads((self.out / "report.json").read_text())
        self.assertEqual(report["verdict"], "INVALID")
        self.assertTrue(any("stopped" in reason for reason in report["reasons"]), report["reasons"])
        done = ["seconds" in run for run in report["runs"]]
        self.assertFalse(done[-1], "the last scheme was run although a stop was asked for")
        self.assertTrue((self.out / "results.h5").exists())
        return done

    def test_first_sigterm_stops_politely(self):
        job, _ = self.begin(1, STEPS)
        job.send_signal(signal.SIGTERM)
        self.assertTrue(self.assert_stopped(self.finish(job))[0], "the first scheme is complete")

    def test_signal_to_one_rank_stops_all(self):
        job, ranks = self.begin(2, STEPS)
        os.kill(ranks[-1], signal.SIGUSR1)
        self.assert_stopped(self.finish(job))

    def test_second_sigterm_ends_at_once(self):
        job, _ = self.begin(1, ENDLESS)
        job.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        self.assertIsNone(job.poll(), "the first signal is a request only")
        job.send_signal(signal.SIGTERM)
        result = self.finish(job, limit=10)
        self.assertEqual(result.code, 128 + signal.SIGTERM, result)
        self.assertFalse((self.out / "results.h5").exists())

    def test_time_limit(self):
        result = self.attention(*STEPS, "--time-limit", "250ms")
        self.assert_stopped(result)

    def test_interrupted_launcher_leaves_no_rank(self):
        job, _ = self.begin(2, ENDLESS)
        job.send_signal(signal.SIGINT)
        result = self.finish(job, limit=30)
        self.assertNotEqual(result.code, 0, result)

    def test_scheduler_started_more_tasks_than_mpi_sees(self):  # OB-120
        result = self.run_command([program("tessera-attention"), *ENDLESS, "--out", str(self.out)],
                                  env={"SLURM_NTASKS": "4"})
        self.assert_error(result, 3, "SLURM_NTASKS=4", "one rank", "srun --mpi=pmix")

    def test_one_rank_inside_a_larger_job_is_fine(self):
        result = self.attention(*ENDLESS, "--check", ranks=1, env={"SLURM_NTASKS": "4"})
        self.assert_ok(result)


if __name__ == "__main__":
    main()
