#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time of the ring over that of the mesh, measured and predicted, where communication dominates.

Usage: mesh_against_ring.py report.json   of a run of tessera-attention with schemes ring and mesh.
Exit code 1 when a measured ratio is more than 20 % off the predicted one, 2 when there is no pair
of runs to compare."""
import json
import sys
from pathlib import Path

LIMIT = 0.2  # issue 4, D


def ratios_of(report):
    """One dict per pass and proper mesh (a and b above 1): both times of both schemes, the ratios,
    how far the measured one is off."""
    found = []
    runs = [r for r in report["runs"] if "seconds" in r]
    for ring in (r for r in runs if r["scheme"] == "ring"):
        for mesh in runs:
            if mesh["scheme"] != "mesh" or min(mesh["a"], mesh["b"]) < 2:
                continue
            if mesh["pass"] != ring["pass"]:
                continue
            measured = ring["seconds"]["median"] / mesh["seconds"]["median"]
            predicted = ring["predicted_seconds"] / mesh["predicted_seconds"]
            found.append({
                "mesh": mesh["name"], "pass": ring["pass"], "measured": measured,
                "predicted": predicted, "off": measured / predicted - 1,
                "seconds": {"ring": (ring["seconds"]["median"], ring["predicted_seconds"]),
                            "mesh": (mesh["seconds"]["median"], mesh["predicted_seconds"])}})
    return found


def lines_of(ratios):
    lines = []
    for r in ratios:
        times = ", ".join(f"{name} {1e3 * measured:.1f} ms (predicted {1e3 * predicted:.1f})"
                          for name, (measured, predicted) in r["seconds"].items())
        lines.append(f"ring / {r['mesh']} {r['pass']}: measured {r['measured']:.3f}, predicted "
                     f"{r['predicted']:.3f}, off by {100 * r['off']:+.1f} %"
                     f"{'' if abs(r['off']) <= LIMIT else ', MORE THAN 20 %'}; {times}")
    return lines


def main():
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_file():
        print("usage: mesh_against_ring.py report.json, a file that exists", file=sys.stderr)
        return 2
    ratios = ratios_of(json.loads(Path(sys.argv[1]).read_text()))
    if not ratios:
        print(f"{sys.argv[1]} has no ring and mesh with a, b > 1 in one pass", file=sys.stderr)
        return 2
    print("\n".join(lines_of(ratios)))
    return int(any(abs(r["off"]) > LIMIT for r in ratios))


if __name__ == "__main__":
    sys.exit(main())
