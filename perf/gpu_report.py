#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One text table from the files of a GPU run: our tile rates beside those of torch by backend.

Usage: gpu_report.py DIR   reads DIR/tile.json and, if there, DIR/torch.json; writes report.txt"""
import json
import sys
from pathlib import Path


def load(path):
    return json.loads(path.read_text()) if path.exists() else None


def main():
    folder = Path(sys.argv[1])
    tile, torch = load(folder / "tile.json"), load(folder / "torch.json")
    lines = [(folder / "conditions.txt").read_text().rstrip(), f"device: {tile['device']}",
             f"CUDA driver {tile['driver']}, runtime {tile['runtime']}; medians of "
             f"{tile['repetitions']} after {tile['warm_ups']} warm-ups (fastest .. slowest)"]
    peers = {}
    lines.append(f"backend cudnn: {tile['cudnn']}")
    if torch:
        lines.append(f"torch {torch['torch']}, cuDNN {torch['cudnn']}")
        for r in torch["results"]:
            peers[r["name"], r["tokens"], r["mask"], r["backend"]] = r["rate"]
    backends = sorted({key[3] for key in peers})
    lines.append("")
    lines.append(f"{'case':<30}{'tokens':>7} {'mask':<10}{'ours':>8} {'':<8}{'ms':>10}"
                 f"{'fastest':>10}{'slowest':>10}"
                 + "".join(f"{b:>9}{'ours/':>7}" for b in backends))
    for r in tile["results"]:
        line = (f"{r['name']:<30}{r['tokens']:>7} {r['mask']:<10}{r['rate']:>8.2f} {r['unit']:<8}"
                f"{1e3 * r['median_s']:>10.3f}{1e3 * r['min_s']:>10.3f}{1e3 * r['max_s']:>10.3f}")
        for b in backends:
            peer = peers.get((r["name"].replace(" cudnn", ""), r["tokens"], r["mask"], b))
            line += f"{peer:>9.1f}{r['rate'] / peer:>7.2f}" if peer else ""
        lines.append(line)
    text = "\n".join(lines) + "\n"
    (folder / "report.txt").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
