# SPDX-License-Identifier: Apache-2.0
"""What the case scripts share: they run the programs as users do, in a folder of their own, and
look at exit code, output and files. Each script is called as `SCRIPT BUILD SOURCE [unittest
options]`, where BUILD is the build folder and SOURCE the top of the source tree."""
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

try:
    import h5py  # noqa: F401 (for the scripts)
    import numpy  # noqa: F401
    import tomllib  # noqa: F401
except ImportError as error:
    print(f"skipped: needs Python 3.11 with h5py and numpy ({error})")
    sys.exit(77)

if len(sys.argv) < 3:
    sys.exit(f"usage: {sys.argv[0]} BUILD SOURCE [unittest options]")
BUILD, SOURCE = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
MPIRUN = SOURCE / "jobscripts/local/mpirun.sh"
DECKS = SOURCE / "inputs/attention"
MACHINES = SOURCE / "inputs/machines"
SCHEMES = ["ring", "double_ring", "all_gather", "ulysses", "mesh", "unified"]
LIMIT_S = 170  # of one program; far above what any takes, below the limit of CTest
# What a scheduler or a user of this machine set must not reach the tests.
SET_BY_JOBS = ("SLURM_", "PMI_", "OMPI_COMM_WORLD", "FLUX_", "PBS_", "JSM_")


def program(name):
    return str(BUILD / "drivers" / name)


def environment(extra=None):
    kept = {k: v for k, v in os.environ.items()
            if not k.startswith(SET_BY_JOBS) and not (k.startswith("TESSERA_") and "__" in k)}
    return {**kept, **(extra or {})}


def on_ranks(ranks, *command):
    return ["bash", str(MPIRUN), "-n", str(ranks), *map(str, command)]


def sets(**keys):
    """--set options; `__` stands for the dot: attention__sequence=256."""
    return [word for key, value in keys.items()
            for word in ("--set", f"{key.replace('__', '.')}={value}")]


class Result:
    def __init__(self, code, out, err, seconds):
        self.code, self.out, self.err, self.seconds = code, out, err, seconds
        self.text = out + err

    def __str__(self):
        return f"exit code {self.code} after {self.seconds:.1f} s\n{self.out}\n{self.err}"


class Case(unittest.TestCase):
    """A test with a folder of its own; no process may be left in it or know it afterwards."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tessera-case-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name).resolve()
        self.out = self.folder / "out"
        self.addCleanup(self.check_no_process)  # runs before the folder goes

    def start(self, command, env=None, cwd=None):
        return subprocess.Popen([str(w) for w in command], cwd=cwd or self.folder, text=True,
                                env=environment(env), stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, start_new_session=True)

    def finish(self, process, begin=None, limit=LIMIT_S):
        begin = begin or time.monotonic()
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            self.fail(f"still running after {limit} s\n{out}\n{err}")
        return Result(process.returncode, out, err, time.monotonic() - begin)

    def run_command(self, command, **options):
        return self.finish(self.start(command, **options), time.monotonic())

    def attention(self, *options, ranks=2, env=None, cwd=None, out=True):
        """tessera-attention on ranks, with results in self.out."""
        where = ["--out", str(self.out)] if out else []
        return self.run_command(on_ranks(ranks, program("tessera-attention"), *options, *where),
                                env=env, cwd=cwd)

    def assert_ok(self, result):
        self.assertEqual(result.code, 0, result)
        return result

    def assert_error(self, result, code, *texts):
        """The exit code; one message that names all `texts` and what to do; nothing left behind."""
        self.assertEqual(result.code, code, result)
        self.assertEqual(result.text.count("error:"), 1, result)
        self.assertIn("try:", result.text)
        for text in texts:
            self.assertIn(text, result.text)
        self.assertEqual(self.leftovers(), [], result)
        print(f"{self.id()}: {result.text[result.text.find('error:'):].splitlines()[0]}")

    def leftovers(self):
        """Results, complete or half-written."""
        return [str(f) for f in self.folder.rglob("*")
                if f.name in ("results.h5", "report.json", "trace.json", "probe")
                or ".tmp" in f.name or f.name.endswith(".part")]

    def processes(self):
        """Ids of the processes that work in the folder or have it in their command line."""
        mark, found = str(self.folder), []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                words = (entry / "cmdline").read_bytes().decode(errors="replace")
                if mark in words or os.readlink(entry / "cwd").startswith(mark):
                    found.append(int(entry.name))
            except OSError:  # it ended meanwhile
                pass
        return found

    def check_no_process(self):
        left = self.processes()
        deadline = time.monotonic() + 5
        while left and time.monotonic() < deadline:
            time.sleep(0.1)
            left = self.processes()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        self.assertEqual(left, [], "processes were left behind")


def make_input(path, *options):
    """inputs/data/make_attention.py; options without the leading dashes: "sequence", 256."""
    words = [f"--{word}" if i % 2 == 0 else str(word) for i, word in enumerate(options)]
    done = subprocess.run([sys.executable, str(SOURCE / "inputs/data/make_attention.py"), *words,
                           "--out", str(path)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return path


def main():
    """Runs the tests of the calling script; 77 when all of them were skipped, for CTest."""
    done = unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2, exit=False).result
    for test, reason in done.skipped:
        print(f"skipped: {test.id()}: {reason}")
    if not done.wasSuccessful() or done.testsRun == 0:
        sys.exit(1)
    sys.exit(77 if len(done.skipped) == done.testsRun else 0)
