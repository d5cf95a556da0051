#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rates of torch's scaled_dot_product_attention, by backend, with the shapes, flop counts and way
of timing of bench_gpu_tile: 32 heads of 128 in bf16, [token, head, dim], medians of 20 after 5
warm-ups or more, so many that they take 0.15 s and the clocks have settled.

Usage: torch_sdpa.py OUT.json [--quick: up to 8192 tokens]"""
import json
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

WARM_UPS, WARM_UP_S, REPETITIONS = 5, 0.15, 20
HEADS, DIM = 32, 128
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def seconds_of(work, busy_cycles=0):
    """(median, fastest, slowest) in seconds. The device is kept busy for `busy_cycles` before each
    run, so that what the host needs for a call does not show."""
    times, runs, start = [], 0, time.monotonic()
    while len(times) < REPETITIONS:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if busy_cycles:
            torch.cuda._sleep(busy_cycles)
        begin.record()
        work()
        end.record()
        end.synchronize()
        if runs >= WARM_UPS and (times or time.monotonic() - start > WARM_UP_S):
            times.append(1e-3 * begin.elapsed_time(end))
        runs += 1
    times.sort()
    return (times[REPETITIONS // 2 - 1] + times[REPETITIONS // 2]) / 2, times[0], times[-1]


def measure(backend, tokens, causal):
    """Two results: forward, and backward alone."""
    q, k, v = (torch.randn(1, tokens, HEADS, DIM, device="cuda", dtype=torch.bfloat16)
               .transpose(1, 2).requires_grad_() for _ in range(3))
    grad = torch.randn(1, tokens, HEADS, DIM, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
    pairs = tokens * (tokens + 1) / 2 if causal else float(tokens) ** 2
    results = []
    with sdpa_kernel(BACKENDS[backend]):
        def forward():
            return scaled_dot_product_attention(q, k, v, is_causal=causal)

        with torch.no_grad():
            forward_times = seconds_of(forward)
        out = forward()

        def backward():
            torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)

        backward_times = seconds_of(backward)
    for name, factor, times in (("forward", 4, forward_times), ("backward", 10, backward_times)):
        flops = factor * pairs * HEADS * DIM
        results.append({"name": f"{name} d{DIM}", "backend": backend, "tokens": tokens,
                        "mask": "causal" if causal else "full",
                        "rate": 1e-12 * flops / times[0], "unit": "TFLOP/s", "median_s": times[0],
                        "min_s": times[1], "max_s": times[2]})
    return results


def main():
    out, quick = sys.argv[1], "--quick" in sys.argv[2:]
    report = {"torch": torch.__version__, "cuda": torch.version.cuda,
              "cudnn": torch.backends.cudnn.version(), "device": torch.cuda.get_device_name(),
              "results": []}
    tokens = 2048
    while tokens <= (8192 if quick else 65536):
        for causal in (True, False):
            for backend in BACKENDS:
                for result in measure(backend, tokens, causal):
                    report["results"].append(result)
                    print(f"{backend:<8}{result['name']:<16}{tokens:>8}{result['mask']:>8}"
                          f"{result['rate']:>9.1f} TFLOP/s", flush=True)
        tokens *= 2
    with open(out, "w") as file:
        json.dump(report, file, indent=1)


if __name__ == "__main__":
    main()
