#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tessera-info says what the build is; tessera-comm measures and writes a machine file that the
other programs take."""
import json
import tomllib

from support import Case, main, on_ranks, program, sets

OPERATORS = {f"attention.{n}" for n in ("forward", "backward", "merge", "delta", "reset", "sink",
                                        "sink_grad")}
OPERATORS |= {f"tensor.{n}" for n in ("zero", "copy", "add", "sum")}


class Info(Case):
    def test_lists_libraries_operators_and_backends(self):
        text = self.assert_ok(self.run_command([program("tessera-info")])).out
        for word in ("mpi", "hdf5", "kokkos", "compiler", "cuda", "cudnn", "nccl", "device",
                     *OPERATORS):
            self.assertIn(word, text)
        self.assertRegex(text, r"attention\.forward .*kokkos 10, .*reference 0")

    def test_json_has_every_operator_in_both_backends(self):
        result = self.assert_ok(self.run_command([program("tessera-info"), "--json"]))
        info = json.loads(result.out)
        self.assertLessEqual(OPERATORS, set(info["operators"]))
        for backends in info["operators"].values():
            priorities = [b["priority"] for b in backends]
            self.assertEqual(priorities, sorted(priorities, reverse=True))
            self.assertLessEqual({"kokkos", "reference"}, {b["backend"] for b in backends})
        self.assertTrue(info["devices"])
        self.assertGreaterEqual(info["cores"], 1)

    def call(self, text):
        return self.run_command([program("tessera-info"), "--call", text])

    def test_backend_of_a_call(self):
        self.assertIn(": kokkos", self.assert_ok(
            self.call("attention.forward bf16 512 8 4 64 host")).out)
        for dtype in ("f64", "f16"):
            self.assertIn(": kokkos", self.assert_ok(
                self.call(f"attention.backward {dtype} 512 8 4 64 host")).out)

    def test_call_that_nobody_runs(self):
        self.assert_error(self.call("attention.forward bf16 512 8 3 64 host"), 3, "multiple")
        for text in ("attention.forward fp16 512 8 4 64 host", "tensor.add f32 512 8 4 64 host",
                     "attention.forward f32 512 8 0 64 host", "attention.forward"):
            self.assert_error(self.call(text), 2, text)

    def test_needs_no_launcher_inside_a_job(self):
        result = self.run_command([program("tessera-info")], env={"SLURM_NTASKS": "4"})
        self.assert_ok(result)

    def test_unknown_option(self):
        self.assert_error(self.run_command([program("tessera-info"), "--jsn"]), 2, "'--json'")


class Comm(Case):
    def comm(self, *options):
        return self.run_command(on_ranks(2, program("tessera-comm"), "--quick", *options))

    def test_measured_machine_is_taken_by_plan_and_attention(self):
        path = self.folder / "machine.toml"
        result = self.assert_ok(self.comm("--out", path, "--name", "here"))
        self.assertRegex(result.out, r"(?m)^RESULT program=tessera-comm ranks=2 ")
        machine = tomllib.loads(path.read_text())
        self.assertEqual(machine["machine"]["name"], "here")
        self.assertEqual(len(machine["rates"]), 8)
        self.assertTrue(all(1e8 < rate["flops_s"] < 1e14 for rate in machine["rates"]))
        self.assertTrue(1e7 < machine["machine"]["intra"]["bandwidth_b_s"] < 1e13)
        small = sets(attention__sequence=256, attention__schemes="ring,mesh", run__repeats=1)
        plan = self.assert_ok(self.run_command([program("tessera-plan"), "attention", "--ranks", 64,
                                                "--machine", path, *small]))
        self.assertIn("machine model here", plan.out)
        self.assert_ok(self.attention(*small, *sets(machine__file=path)))
        report = json.loads((self.out / "report.json").read_text())
        self.assertEqual(report["machine"], {"name": "here", "file": str(path)})

    def test_output_below_a_file(self):
        (self.folder / "file").write_text("")
        self.assert_error(self.comm("--out", self.folder / "file/machine.toml"), 4, "file")


if __name__ == "__main__":
    main()
