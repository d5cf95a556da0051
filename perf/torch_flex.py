#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rates of torch's FlexAttention (compiled, block mask) on one GPU under the masks with gaps that
bench_gpu_tile ran under: documents, window, slices. It takes them from that program's JSON file.
Shapes and flops of visible pairs as there: 32 heads of 128 in bf16, [token, head, dim], medians of
20 after 5 warm-ups. The GPU is kept busy while the host prepares a run, so that the host's part of
a call does not count. Each mask is checked on some rows against plain attention in f32 first.

All masks here have one interval of keys for each query, so one mask function does for all, and
one compilation; it looks at two numbers of a row and is asked in partly visible blocks only.

Usage: torch_flex.py TILE.json OUT.json [--autotune]"""
import argparse
import json
import time

import torch
import torch._functorch.config
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from torch_sdpa import DIM, HEADS, REPETITIONS, WARM_UPS, seconds_of

CHECKED_ROWS, TOLERANCE = 64, 0.03
BUSY_CYCLES = 4_000_000  # about 2 ms: longer than the host needs for a call


def read_masks(path):
    """[(name, tokens, bands)] of a report of bench_gpu_tile."""
    with open(path) as file:
        masks = json.load(file).get("masks")
    if not masks:
        raise SystemExit(f"error: {path} names no masks; make it with bench_gpu_tile --masks")
    return [(mask["name"], mask["tokens"], mask["bands"]) for mask in masks]


def intervals_of(bands, tokens):
    """[first, end) of the visible keys of each query, from bands [q0, q1, k0, k1, lo, hi]: key k is
    visible for q0 <= q < q1, k0 <= k < k1, lo <= k - q <= hi; None is no bound."""
    first, end = (torch.zeros(tokens, dtype=torch.int64) for _ in range(2))
    for q0, q1, k0, k1, lo, hi in bands:
        if end[q0:q1].any():
            raise SystemExit(f"error: bands share query rows of [{q0}, {q1}); one interval of keys "
                             "per row is what this script can express")
        q = torch.arange(q0, q1)
        first[q0:q1] = k0 if lo is None else torch.clamp(q + lo, min=k0)
        end[q0:q1] = k1 if hi is None else torch.clamp(q + hi + 1, max=k1)
    return first, torch.maximum(first, end)


def error_of(out, q, k, v, first, end):
    """Largest error on some rows over the largest value there."""
    tokens = q.shape[2]
    rows = torch.linspace(0, tokens - 1, CHECKED_ROWS, device=q.device).long()
    keys = torch.arange(tokens, device=q.device)
    visible = (keys >= first[rows, None]) & (keys < end[rows, None])
    scores = (q[0, :, rows].float() @ k[0].float().transpose(1, 2)) * DIM**-0.5
    weights = scores.masked_fill(~visible, float("-inf")).softmax(-1).nan_to_num(0)
    expected = weights @ v[0].float()
    return ((out[0, :, rows].float() - expected).abs().max() / expected.abs().max()).item()


class Flex:
    """Compiled attention of one length; tensors and mask function are the same for all masks."""

    def __init__(self, tokens, mode):
        self.attention = torch.compile(flex_attention, dynamic=False, mode=mode)
        torch.manual_seed(1)
        self.q, self.k, self.v, self.grad = (
            torch.randn(1, tokens, HEADS, DIM, device="cuda", dtype=torch.bfloat16)
            .transpose(1, 2) for _ in range(4))
        for x in (self.q, self.k, self.v):
            x.requires_grad_()
        first, end = (torch.zeros(tokens, device="cuda", dtype=torch.int32) for _ in range(2))
        self.first, self.end = first, end

        def visible(b, h, q, k):
            return (k >= first[q]) & (k < end[q])

        self.visible = visible

    def measure(self, name, tokens, bands):
        """Two results: forward, and backward alone."""
        first, end = intervals_of(bands, tokens)
        self.first.copy_(first)
        self.end.copy_(end)
        block_mask = create_block_mask(self.visible, None, None, tokens, tokens, device="cuda")

        def forward():
            return self.attention(self.q, self.k, self.v, block_mask=block_mask)

        out = forward()
        with torch.no_grad():
            error = error_of(out, self.q, self.k, self.v, self.first, self.end)
        if not error <= TOLERANCE:
            raise RuntimeError(f"wrong: error {error:.3g} of the largest value")

        def backward():
            torch.autograd.grad(out, (self.q, self.k, self.v), self.grad, retain_graph=True)

        pairs = (end - first).sum().item()
        results = []
        for pass_name, factor, work in (("forward", 4, forward), ("backward", 10, backward)):
            median, fastest, slowest = seconds_of(work, BUSY_CYCLES)
            results.append({"name": f"{pass_name} d{DIM}", "backend": "flex", "tokens": tokens,
                            "mask": name, "fraction": pairs / tokens**2,
                            "rate": 1e-12 * factor * pairs * HEADS * DIM / median,
                            "unit": "TFLOP/s", "median_s": median, "min_s": fastest,
                            "max_s": slowest})
        return results


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("tile", metavar="TILE.json", help="report of bench_gpu_tile")
    parser.add_argument("out", metavar="OUT.json")
    parser.add_argument("--autotune", action="store_true",
                        help="let the compiler time tile sizes (minutes)")
    options = parser.parse_args()
    masks = read_masks(options.tile)
    # Backward runs many times on one graph, so the compiler must not reuse what it saved.
    torch._functorch.config.donated_buffer = False
    mode = "max-autotune-no-cudagraphs" if options.autotune else None
    report = {"torch": torch.__version__, "cuda": torch.version.cuda,
              "device": torch.cuda.get_device_name(), "warm_ups": WARM_UPS,
              "repetitions": REPETITIONS, "autotune": options.autotune, "results": []}
    flex = {}  # by length
    for name, tokens, bands in masks:
        begin = time.monotonic()
        try:
            if tokens not in flex:
                flex[tokens] = Flex(tokens, mode)
            results = flex[tokens].measure(name, tokens, bands)
        except Exception as problem:  # the compiler raises many kinds; the next mask may work
            why = f"{type(problem).__name__}: {problem}".split("\n")[0][:300]
            results = [{"mask": name, "tokens": tokens, "error": why}]
        for result in results:
            text = (f"{result['rate']:9.1f} TFLOP/s {1e3 * result['median_s']:10.3f} ms"
                    if "rate" in result else result["error"])
            print(f"flex {result.get('name', ''):<16}{tokens:>8} {name:<10}{text}", flush=True)
        print(f"{name}: {time.monotonic() - begin:.0f} s with compilation", flush=True)
        report["results"] += results
        with open(options.out, "w") as file:
            json.dump(report, file, indent=1)


if __name__ == "__main__":
    main()
