#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What users of torch could pick for attention over several GPUs, measured: context_parallel (both
rotations), Ulysses, all-gather of K and V; beside one GPU's SDPA and NCCL's own bandwidth.

Usage: torchrun --standalone --nproc-per-node=N torch_peers.py OUT.json [options]

bf16, 32 query heads of 128, batch 1, tensors [1, local token, head, dim]. 20 repeats after 3
warm-ups, 5 after 1 above 65536 tokens, as gpu.sh does; a barrier on the device before each; CUDA
events, the slowest rank of each repeat counts.
Flops are those of unmasked pairs: forward 4 d, forward and backward 14 d per pair and head. Each
method is checked (output and gradients) against plain attention in f32 before it is timed."""
import argparse
import datetime
import json
import os
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.attention import SDPBackend, sdpa_kernel

from peer_cases import go_on, is_done
from torch_methods import (DIM, HEADS, AllGather, ContextParallel, Single, Ulysses, Unsupported,
                           device_of_rank, sdpa)

WARM_UPS, REPETITIONS = 3, 20
FEW_ABOVE, FEW_WARM_UPS, FEW_REPETITIONS = 65536, 1, 5  # tokens
HANG_S = 120  # a collective that takes longer ends the run
CHOOSE_UP_TO = 32768  # tokens; longer sequences keep the backend that won there
LIKELY_RATE = 4e14  # FLOP/s, only for the budget of a case with no shorter one before it
TOLERANCE = 0.03  # of the largest reference value; bf16 rounds P and O to 2^-9
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION,
            "efficient": SDPBackend.EFFICIENT_ATTENTION}


def repeats_of(tokens):
    """(warm-ups, repetitions)"""
    return (FEW_WARM_UPS, FEW_REPETITIONS) if tokens > FEW_ABOVE else (WARM_UPS, REPETITIONS)


def pairs_of(tokens, causal):
    return tokens * (tokens + 1) / 2 if causal else float(tokens) ** 2


class Bench:
    def __init__(self, options):
        self.options, self.begin = options, time.monotonic()
        self.device = device_of_rank()
        torch.cuda.set_device(self.device)
        limit = datetime.timedelta(seconds=HANG_S)
        dist.init_process_group("nccl", timeout=limit, device_id=self.device)
        self.rank, self.n = dist.get_rank(), dist.get_world_size()
        self.control = dist.new_group(backend="gloo", timeout=limit)
        self.mesh = init_device_mesh(self.device.type, (self.n,))
        self.token = torch.zeros(1, device=self.device)
        self.checked, self.chosen, self.last = {}, {}, {}
        self.report = {
            "torch": torch.__version__, "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
            "device": torch.cuda.get_device_name(), "gpus": self.n, "dtype": "bf16",
            "warm_ups": WARM_UPS, "repetitions": REPETITIONS, "query_heads": HEADS,
            "head_dim": DIM, "budget_s": options.budget, "links": [], "results": []}
        if options.resume and Path(options.out).exists():
            go_on(self.report, json.loads(Path(options.out).read_text()))

    def save(self):
        if self.rank == 0:
            path = Path(self.options.out)
            part = path.with_name(path.name + ".part")
            part.write_text(json.dumps(self.report, indent=1) + "\n")
            part.replace(path)

    def all(self, value):
        """The values of all ranks, exchanged between the hosts."""
        values = [None] * self.n
        dist.all_gather_object(values, value, group=self.control)
        return values

    def together(self, work):
        """(result, None), or (None, why) on all ranks where it failed on any."""
        result, error = None, None
        try:
            result = work()
            torch.cuda.synchronize()
        except Exception as problem:  # whatever torch cannot do: all ranks must hear of it
            error = f"{type(problem).__name__}: {problem}".split("\n")[0][:300]
            if isinstance(problem, Unsupported):
                error = str(problem)
        errors = [e for e in self.all(error) if e]
        if errors:
            torch.cuda.empty_cache()
            return None, errors[0]
        return result, None

    def tensors(self, shapes):
        torch.manual_seed(1 + self.rank)
        return [torch.randn(s, device=self.device, dtype=torch.bfloat16) for s in shapes]

    def repeat(self, forward, inputs, grad, warm_ups, repetitions):
        """[(forward, both)] seconds per repeat, of the slowest rank."""
        times = []
        for i in range(warm_ups + repetitions):
            begin, middle, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
            torch.cuda.synchronize()
            dist.all_reduce(self.token)  # a barrier in the order of the device
            begin.record()
            out = forward(*inputs)
            middle.record()
            torch.autograd.grad(out, inputs, grad)
            end.record()
            end.synchronize()
            del out
            if i >= warm_ups:
                times.append((1e-3 * begin.elapsed_time(middle), 1e-3 * begin.elapsed_time(end)))
        ranks = self.all(times)
        return [tuple(max(r[i][part] for r in ranks) for part in (0, 1))
                for i in range(repetitions)]

    def error_of(self, method, backend, causal, kv_heads):
        """Largest error of O, dQ, dK, dV of this rank over the largest value of the reference."""
        tokens = 256 * self.n
        rows = method.rows(tokens, causal).to(self.device)
        torch.manual_seed(0)
        full = [torch.randn(1, tokens, h, DIM, device=self.device).bfloat16()
                for h in (HEADS, kv_heads, kv_heads, HEADS)]
        plain = [x.float().requires_grad_() for x in full[:3]]
        with sdpa_kernel(SDPBackend.MATH):
            out = sdpa(*plain, causal)
            expected = [out, *torch.autograd.grad(out, plain, full[3].float())]
        mine = [x[:, rows].clone().requires_grad_() for x in full[:3]]
        with method.context(tokens, causal), sdpa_kernel(BACKENDS[backend]):
            def work():
                o = method(*mine, causal)
                return [o, *torch.autograd.grad(o, mine, full[3][:, rows])]
            got, error = self.together(work)  # inside: the context does not clean up on errors
        if error:
            raise Unsupported(error)
        return max(((g.float() - e[:, rows]).abs().max() / e.abs().max()).item()
                   for g, e in zip(got, expected))

    def refusal(self, method, backend, causal, kv_heads):
        """Why this backend must not be used for the method, or None."""
        key = (method.name, backend, method.repeat_kv, causal, kv_heads)
        if key not in self.checked:
            error, why = self.together(lambda: self.error_of(method, backend, causal, kv_heads))
            worst = max(self.all(error or 0.0))
            if not why and not worst <= TOLERANCE:
                why = f"wrong: error {worst:.3g} of the largest value"
            self.checked[key] = why
        return self.checked[key]

    def choose(self, method, tokens, causal, kv_heads, run):
        """(backend, repeat_kv, what each candidate took in seconds or why not)."""
        key = (method.name, causal, kv_heads)
        if key in self.chosen and tokens > CHOOSE_UP_TO:
            return self.chosen[key]
        tried, best = {}, None
        for group in method.candidates(causal, kv_heads):
            for backend, method.repeat_kv in group:
                name = backend + (", KV repeated" if method.repeat_kv else "")
                why = None
                if not isinstance(method, Single):
                    why = self.refusal(method, backend, causal, kv_heads)
                if not why:
                    times, why = run(backend, 1, 3)
                tried[name] = why or statistics.median(t[1] for t in times)
                if not why and (best is None or tried[name] < best[0]):
                    best = (tried[name], backend, method.repeat_kv)
            if best:
                break
        if best is None:
            raise Unsupported("; ".join(f"{name}: {why}" for name, why in tried.items()))
        self.chosen[key] = (best[1], best[2], tried)
        return self.chosen[key]

    def measure(self, method, tokens, causal, kv_heads):
        """The result of one case as it goes into the report."""
        method.require(tokens, kv_heads)
        heads, local = (HEADS, kv_heads), tokens // self.n
        flops = 4 * pairs_of(tokens, causal) * HEADS * DIM / self.n
        if isinstance(method, Single) and method.share == "heads":
            heads, local = (HEADS // self.n, kv_heads // self.n), tokens
        elif isinstance(method, Single):
            flops = 4 * pairs_of(local, causal) * HEADS * DIM
        sizes = [(1, local, h, DIM) for h in (heads[0], heads[1], heads[1], heads[0])]
        made, error = self.together(lambda: self.tensors(sizes))
        if error:
            raise Unsupported(error)
        inputs, grad = [x.requires_grad_() for x in made[:3]], made[3]

        def run(backend, warm_ups, repetitions):
            with method.context(tokens, causal), sdpa_kernel(BACKENDS[backend]):
                return self.together(lambda: self.repeat(
                    lambda *x: method(*x, causal), inputs, grad, warm_ups, repetitions))

        backend, method.repeat_kv, tried = self.choose(method, tokens, causal, kv_heads, run)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        times, error = run(backend, *repeats_of(tokens))
        if error:
            raise Unsupported(error)
        result = {"backend": backend, "kv_repeated": method.repeat_kv, "backends_s": tried,
                  "repetitions": len(times),
                  "peak_bytes": max(self.all(torch.cuda.max_memory_allocated()))}
        both = [t[1] for t in times]
        for name, seconds, factor in (("forward", [t[0] for t in times], 1), ("both", both, 3.5)):
            median = statistics.median(seconds)
            result[name] = {"median": median, "min": min(seconds), "max": max(seconds),
                            "tflops_per_gpu": 1e-12 * factor * flops / median}
        return result

    def case(self, method, tokens, causal, kv_heads):
        """Measures one case or notes why not, and saves the report."""
        result = {"method": method.name, "tokens": tokens,
                  "mask": "causal" if causal else "full", "kv_heads": kv_heads}
        if is_done(self.report, result):
            return
        key = (method.name, causal, kv_heads)
        likely = 14 * pairs_of(tokens, causal) * HEADS * DIM / self.n / LIKELY_RATE
        before, seconds = self.last.get(key, (tokens, likely))
        coming = seconds * (tokens / before) ** 2 * sum(repeats_of(tokens))
        spent = max(self.all(time.monotonic() - self.begin))
        if spent + coming > self.options.budget:
            result["error"] = (f"left out: {spent:.0f} s spent and about {coming:.0f} s needed "
                               f"of --budget {self.options.budget:.0f}")
        else:
            self.report["running"] = dict(result)
            self.save()
            try:
                result.update(self.measure(method, tokens, causal, kv_heads))
                self.last[key] = (tokens, result["both"]["median"])
            except Unsupported as why:
                result["error"] = str(why)
        torch.cuda.empty_cache()
        self.report.pop("running", None)
        self.report["results"].append(result)
        self.save()
        if self.rank == 0:
            rates = "  ".join(f"{name} {result[name]['tflops_per_gpu']:7.1f} TFLOP/s"
                              for name in ("forward", "both") if name in result)
            print(f"{method.name:<27}{tokens:>8} {result['mask']:<7}kv {kv_heads:>2}  "
                  + (result.get("error") or f"{rates}  {result['backend']}"), flush=True)

    def links(self):
        """NCCL's bandwidth per GPU and direction: to the next rank, and all to all. 5 in a row
        are timed, so that small messages show NCCL's latency and not that of one launch."""
        rows, size = 5, 64 << 10
        following, previous = (self.rank + 1) % self.n, (self.rank - 1) % self.n
        while size <= 256 << 20:
            x, y = (torch.zeros(size, dtype=torch.uint8, device=self.device) for _ in range(2))

            def neighbours():
                ops = [dist.P2POp(dist.isend, x, following), dist.P2POp(dist.irecv, y, previous)]
                for request in dist.batch_isend_irecv(ops):
                    request.wait()

            patterns = {"neighbours": (neighbours, size)}
            if size % self.n == 0:
                patterns["all to all"] = (lambda: dist.all_to_all_single(y, x),
                                          size - size // self.n)
            for name, (work, sent) in patterns.items():
                times = []
                for i in range(WARM_UPS + REPETITIONS):
                    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    torch.cuda.synchronize()
                    dist.all_reduce(self.token)
                    begin.record()
                    for _ in range(rows):
                        work()
                    end.record()
                    end.synchronize()
                    times.append(1e-3 * begin.elapsed_time(end) / rows)
                slowest = [max(t) for t in zip(*self.all(times[WARM_UPS:]))]
                median = statistics.median(slowest)
                self.report["links"].append({
                    "pattern": name, "bytes": size, "seconds": median, "min": min(slowest),
                    "max": max(slowest), "gb_s": 1e-9 * sent / median})
                if self.rank == 0:
                    print(f"NCCL {name:<12}{size:>12} bytes {1e6 * median:>10.1f} us "
                          f"{1e-9 * sent / median:>8.1f} GB/s", flush=True)
            size *= 4
        self.save()

    def methods(self):
        made = [ContextParallel(self.rank, self.n, self.mesh, "allgather"),
                ContextParallel(self.rank, self.n, self.mesh, "alltoall"),
                Ulysses(self.rank, self.n), AllGather(self.rank, self.n)] if self.n > 1 else []
        made += [Single(self.rank, self.n, share) for share in ("heads", "tokens")[:self.n]]
        wanted = self.options.methods
        return [m for m in made if not wanted or any(w in m.name for w in wanted)]


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out", metavar="OUT.json")
    parser.add_argument("--quick", action="store_true", help="8192 and 16384 tokens only")
    parser.add_argument("--resume", action="store_true",
                        help="keep what is in OUT.json and go on behind the case in which the "
                             "process ended")
    parser.add_argument("--tokens", type=int, nargs="+", help="of the whole sequence")
    parser.add_argument("--kv-heads", type=int, nargs="+", default=[32, 8])
    parser.add_argument("--masks", nargs="+", choices=["causal", "full"],
                        default=["causal", "full"])
    parser.add_argument("--methods", nargs="+", metavar="PART",
                        help="those whose name holds a PART: allgather, alltoall, ulysses, "
                             "all_gather, single")
    parser.add_argument("--budget", type=float, default=240, metavar="SECONDS",
                        help="cases that would end later are left out (default 240)")
    options = parser.parse_args()
    options.tokens = options.tokens or [8192 << i for i in range(2 if options.quick else 6)]
    return options


def main():
    # Host exchanges stay on this host: torchrun --standalone, whose name may not resolve.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    bench = Bench(parse())
    if bench.n > 1 and not bench.report["links"]:
        bench.links()
    # One kind of case at all lengths before the next kind: a short budget then compares something.
    for mask in bench.options.masks:
        for kv_heads in bench.options.kv_heads:
            for tokens in sorted(bench.options.tokens):
                for method in bench.methods():
                    bench.case(method, tokens, mask == "causal", kv_heads)
    bench.save()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
