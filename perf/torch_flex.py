#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rates of torch's FlexAttention (compiled, block mask) on one GPU under masks with gaps: causal,
window of 4096, causal documents, random slices. Shapes, flops of visible pairs and way of timing
as in torch_sdpa.py: 32 heads of 128 in bf16, medians of 20 after 5 warm-ups. Each mask is checked
on some rows against plain attention in f32 before it is timed.

Usage: torch_flex.py OUT.json [--tokens N] [--documents FILE] [--slices FILE] [--autotune]
FILE is the HDF5 input of the run to compare with (inputs/data/make_attention.py) or a JSON list:
of lengths, or of [q begin, q end, k begin, k end, type]. By default documents and slices are those
of bench_gpu_tile."""
import argparse
import json

import torch
import torch._functorch.config
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from torch_sdpa import DIM, HEADS, REPETITIONS, WARM_UPS, seconds_of

WINDOW, NUM_SLICES, CHECKED_ROWS, TOLERANCE = 4096, 64, 64, 0.03


def read_list(path, name):
    if path.endswith(".json"):
        with open(path) as file:
            return json.load(file)
    import h5py
    with h5py.File(path) as file:
        return file["mask"][name][...].tolist()


def bench_documents(tokens):
    """Lengths 500, 1500, 2500, ... as in bench_gpu_tile.cpp."""
    lengths, size = [], 500
    while sum(lengths) < tokens:
        lengths.append(min(size, tokens - sum(lengths)))
        size = (size + 1000) % 7000
    return lengths


def bench_slices(tokens):
    """Query ranges from random cuts, each with half of the keys from a random place on and a random
    type (0 full, 1 causal, 2 inverse causal, 3 both), as in bench_gpu_tile.cpp."""
    state = 1

    def draw(below):
        nonlocal state
        state = (1103515245 * state + 12345) % 2**31
        return (state >> 8) % below

    cuts = set()
    while len(cuts) < NUM_SLICES - 1:
        cuts.add(1 + draw(tokens - 1))
    slices, begin = [], 0
    for end in [*sorted(cuts), tokens]:
        k = draw(tokens // 2 + 1)
        slices.append([begin, end, k, k + tokens // 2, draw(4)])
        begin = end
    return slices


def intervals_of(slices, tokens):
    """[first, end) of the visible keys of each query row; slices must not share query rows."""
    first, end = (torch.zeros(tokens, dtype=torch.int64) for _ in range(2))
    for q0, q1, k0, k1, kind in slices:
        if first[q0:q1].any() or end[q0:q1].any():
            raise SystemExit(f"error: slices share query rows of [{q0}, {q1}); one interval of "
                             "keys per row is what this script can express")
        q = torch.arange(q0, q1)
        first[q0:q1] = torch.clamp(q + k0 - q0, min=k0) if kind & 2 else k0
        end[q0:q1] = torch.clamp(q + k1 - q1 + 1, max=k1) if kind & 1 else k1
    return first, torch.maximum(first, end)


def masks_of(options):
    """{name: (mask_mod, first, end)}; the intervals give the area and the check."""
    tokens = options.tokens
    rows = torch.arange(tokens)
    lengths = (read_list(options.documents, "documents") if options.documents
               else bench_documents(tokens))
    if sum(lengths) != tokens:
        raise SystemExit(f"error: documents of {sum(lengths)} tokens for --tokens {tokens}")
    begins = torch.repeat_interleave(torch.tensor([sum(lengths[:i]) for i in range(len(lengths))]),
                                     torch.tensor(lengths))
    slices = read_list(options.slices, "slices") if options.slices else bench_slices(tokens)
    first, end = intervals_of(slices, tokens)
    document, low, high = (x.to("cuda", torch.int32) for x in (begins, first, end))

    def causal(b, h, q, k):
        return q >= k

    def window(b, h, q, k):
        return (q >= k) & (q - k < WINDOW)

    def documents(b, h, q, k):
        return (q >= k) & (document[q] == document[k])

    def sliced(b, h, q, k):
        return (k >= low[q]) & (k < high[q])

    return {"causal": (causal, torch.zeros_like(rows), rows + 1),
            "window": (window, torch.clamp(rows - WINDOW + 1, min=0), rows + 1),
            "documents": (documents, begins, rows + 1), "slices": (sliced, first, end)}


def error_of(out, q, k, v, first, end):
    """Largest error on some rows over the largest value there."""
    tokens = q.shape[2]
    rows = torch.linspace(0, tokens - 1, CHECKED_ROWS, device="cuda").long()
    keys = torch.arange(tokens, device="cuda")
    first, end = first.to("cuda")[rows, None], end.to("cuda")[rows, None]
    visible = (keys >= first) & (keys < end)
    scores = (q[0, :, rows].float() @ k[0].float().transpose(1, 2)) * DIM**-0.5
    weights = scores.masked_fill(~visible, float("-inf")).softmax(-1).nan_to_num(0)
    expected = weights @ v[0].float()
    return ((out[0, :, rows].float() - expected).abs().max() / expected.abs().max()).item()


def measure(name, mask, tokens, attention):
    mask_mod, first, end = mask
    torch.manual_seed(1)
    q, k, v, grad = (torch.randn(1, tokens, HEADS, DIM, device="cuda", dtype=torch.bfloat16)
                     .transpose(1, 2) for _ in range(4))
    for x in (q, k, v):
        x.requires_grad_()
    block_mask = create_block_mask(mask_mod, None, None, tokens, tokens, device="cuda",
                                   _compile=True)
    out = attention(q, k, v, block_mask=block_mask)
    with torch.no_grad():
        error = error_of(out, q, k, v, first, end)
    if not error <= TOLERANCE:
        raise RuntimeError(f"wrong: error {error:.3g} of the largest value")
    pairs = (end - first).sum().item()
    results = []
    for pass_name, factor, work in (
            ("forward", 4, lambda: attention(q, k, v, block_mask=block_mask)),
            ("backward", 10,
             lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True))):
        median, fastest, slowest = seconds_of(work)
        results.append({"name": f"{pass_name} d{DIM}", "backend": "flex", "tokens": tokens,
                        "mask": name, "fraction": pairs / tokens**2,
                        "rate": 1e-12 * factor * pairs * HEADS * DIM / median,
                        "unit": "TFLOP/s", "median_s": median, "min_s": fastest,
                        "max_s": slowest})
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out", metavar="OUT.json")
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--documents", metavar="FILE")
    parser.add_argument("--slices", metavar="FILE")
    parser.add_argument("--autotune", action="store_true",
                        help="let the compiler time tile sizes (minutes)")
    options = parser.parse_args()
    # Backward runs many times on one graph, so the compiler must not reuse what it saved.
    torch._functorch.config.donated_buffer = False
    mode = "max-autotune-no-cudagraphs" if options.autotune else None
    report = {"torch": torch.__version__, "cuda": torch.version.cuda,
              "device": torch.cuda.get_device_name(), "warm_ups": WARM_UPS,
              "repetitions": REPETITIONS, "autotune": options.autotune, "results": []}
    for name, mask in masks_of(options).items():
        try:
            torch._dynamo.reset()
            attention = torch.compile(flex_attention, dynamic=False, mode=mode)
            results = measure(name, mask, options.tokens, attention)
        except Exception as problem:  # the compiler raises many kinds; the next mask may work
            why = f"{type(problem).__name__}: {problem}".split("\n")[0][:300]
            results = [{"mask": name, "tokens": options.tokens, "error": why}]
        for result in results:
            rate = f"{result['rate']:9.1f} TFLOP/s" if "rate" in result else result["error"]
            print(f"flex {result.get('name', ''):<16}{result['tokens']:>8} {name:<10}{rate}",
                  flush=True)
        report["results"] += results
        with open(options.out, "w") as file:
            json.dump(report, file, indent=1)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
