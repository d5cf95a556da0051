#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Report of a GPU run: our schemes beside the torch peers, tiles beside torch's kernels, links.

Usage: gpu_report.py DIR   reads what is there of
  conditions.txt   date, command, devices        tile.json, torch.json   operators on one GPU
  ours_*.json      reports of tessera-attention  peers.json, flex.json   torch_peers, torch_flex
  throttle.json    mesh against ring             pass.json               bench_gpu_pass
and writes report.txt, report.md (table for the README), gpu.png; prints the ratios. Rates are
TFLOP/s per GPU of visible pairs: forward 2 (d + dv), backward 6 d + 4 dv per pair and head. Forward
and backward together: all flops over the sum of the two medians for ours and single kernels, one
timed run of both for the other torch methods."""
import json
import math
import re
import sys
from collections import namedtuple
from pathlib import Path

import mesh_against_ring
from gpu_plot import draw

# Rows of one group may be compared: same place, problem and mask.
Group = namedtuple("Group", "place gpus mask query_heads kv_heads head_dim dtype")
PASSES = ("forward", "both")
MOST_OF_FRACTION = 1.25  # of (visible fraction x time under the full mask) that a mask may take
MOST_EXPOSED = 0.1  # of a pass whose transfers take no longer than its computing (issue 4, F)
PASS_NAMES = {"forward": "forward", "both": "forward and backward"}


def load(path):
    return json.loads(path.read_text()) if path.exists() else None


def plural(n, word):
    return f"{n} {word}{'' if n == 1 else 's'}"


def visible(kind, fraction):
    """Masks other than full and causal are the same only if as much of them is visible."""
    return kind if kind in ("full", "causal") else f"{kind}, {100 * fraction:.1f} % visible"


def timed(flops, seconds, spread=None):
    """A measurement: seconds with fastest and slowest, TFLOP/s."""
    spread = spread or {}
    return {"median": seconds, "min": spread.get("min"), "max": spread.get("max"),
            "rate": 1e-12 * flops / seconds}


def place_of(report):
    """("2 GPUs", 2); ranks that share a GPU, or host ranks, have 0 GPUs: no peer fits them."""
    ranks = report["ranks"]
    device = report.get("conditions", {}).get("device", "host")
    if device == "host":
        return plural(ranks, "host rank"), 0
    if "shared by ranks" in device:
        return f"{ranks} ranks sharing {re.search(r'[0-9]+ GPUs?', device)[0]}", 0
    return plural(ranks, "GPU"), ranks


def transport_of(report):
    """"peer", "nccl", "nccl 1 channel"; empty for host ranks."""
    found = re.search(r"transport ([^;]+)", report.get("conditions", {}).get("device", ""))
    channels = re.search(r"nccl_channels *= *([1-9][0-9]*)", report.get("config", ""))
    return (found[1] if found else "") + (f" {plural(int(channels[1]), 'channel')}"
                                          if found and channels else "")


def transfers_of(run):
    """Time in which messages moved over that in which tiles were computed; None where all of it is
    hidden, which is at most as long as computing. From one pass with events around every step."""
    exposed, hidden = run["exposed_comm_seconds"], run["overlap_share"]
    computing = run["seconds"]["median"] - exposed
    if exposed == 0 or hidden == 1:
        return None
    return exposed / (1 - hidden) / computing if computing > 0 else math.inf


def rows_of_ours(report):
    """(group, rows) of one report of tessera-attention; a row has both passes of a scheme."""
    shape, ranks, mask = report["shape"], report["ranks"], report["mask"]
    place, gpus = place_of(report)
    group = Group(place, gpus, visible(mask["kind"], mask["fraction"]), shape["query_heads"],
                  shape["kv_heads"], shape["head_dim"], report["dtype"])
    d, dv = shape["head_dim"], shape["value_dim"]
    pairs = mask["area"] * shape["query_heads"] / ranks
    flops = {"forward": 2 * (d + dv) * pairs, "backward": (6 * d + 4 * dv) * pairs}
    transport, rows = transport_of(report), {}
    for run in report["runs"]:
        if "seconds" not in run:
            continue
        label = run["name"].replace("_", " ")
        if run["scheme"] == "unified":  # its mesh may be another one backward
            label = re.sub(r" [0-9]+x[0-9]+$", "", label)
        row = rows.setdefault(label, {
            "side": "ours", "label": label, "scheme": run["scheme"].replace("_", " "),
            "transport": transport, "tokens": shape["sequence"],
            "fraction": mask["fraction"], "valid": report.get("verdict") == "VALID",
            "predicted": {}, "exposed": {}, "transfers": {}, "launch": {}})
        seconds, median = run["seconds"], run["seconds"]["median"]
        row[run["pass"]] = timed(flops[run["pass"]], median, seconds)
        row["predicted"][run["pass"]] = run["predicted_seconds"] / median
        row["exposed"][run["pass"]] = run["exposed_comm_seconds"] / median
        row["transfers"][run["pass"]] = transfers_of(run)
        row["launch"][run["pass"]] = run.get("launch_seconds", 0) / median
        if run["bytes_sent"] != run["bytes_formula"]:
            row["valid"] = False
    for row in rows.values():
        if "forward" in row and "backward" in row:
            row["both"] = timed(flops["forward"] + flops["backward"],
                                row["forward"]["median"] + row["backward"]["median"])
    return group, list(rows.values())


def rows_of_peers(report):
    """[(group, row)] of torch_peers; cases that failed have an error and no rates."""
    n, rows = report["gpus"], []
    for r in report["results"]:
        # A share of the tokens is another problem; the limit has the flops of the whole.
        if r["method"].endswith("share of tokens"):
            continue
        limit = r["method"].startswith("single")
        row = {"side": "limit" if limit else "torch", "tokens": r["tokens"], "valid": True,
               "scheme": "single GPU, no transfers" if limit else r["method"].replace("_", " ")}
        row["label"] = row["scheme"] if limit else f"torch {row['scheme']}"
        for name in PASSES:
            if name in r:
                row[name] = {"rate": r[name]["tflops_per_gpu"],
                             **{key: r[name][key] for key in ("median", "min", "max")}}
        row["note"] = r.get("error", "") or r["backend"] + (
            ", KV repeated" if r.get("kv_repeated") else "")
        group = Group(plural(n, "GPU"), n, r["mask"], report["query_heads"], r["kv_heads"],
                      report["head_dim"], report["dtype"])
        rows.append((group, row))
    return rows


def rows_of_kernels(report, title):
    """[(group, row)] of torch_sdpa or torch_flex: one GPU, passes timed apart."""
    rows = {}
    for r in report["results"]:
        if "error" in r:
            continue
        mask = visible(r["mask"], r.get("fraction", 1))
        group = Group("1 GPU", 1, mask, 32, 32, 128, "bf16")
        scheme = title if title == "FlexAttention" else f"{title} {r['backend']}"
        _, row = rows.setdefault((group, scheme, r["tokens"]), (group, {
            "side": "torch", "label": f"torch {scheme}", "scheme": scheme,
            "tokens": r["tokens"], "valid": True}))
        flops = 1e12 * r["rate"] * r["median_s"]
        row[r["name"].split()[0]] = timed(flops, r["median_s"],
                                          {"min": r["min_s"], "max": r["max_s"]})
    for _, row in rows.values():
        if "forward" in row and "backward" in row:
            parts = [row["forward"], row["backward"]]
            row["both"] = timed(sum(1e12 * p["rate"] * p["median"] for p in parts),
                                sum(p["median"] for p in parts))
    return list(rows.values())


def collect(folder):
    """{group: rows}, those with rows of ours first, then the most GPUs."""
    groups = {}
    for path in sorted(folder.glob("ours_*.json")):
        group, rows = rows_of_ours(load(path))
        groups.setdefault(group, []).extend({**row, "file": path.stem} for row in rows)
    for group, row in rows_of_peers(load(folder / "peers.json") or {"gpus": 0, "results": []}):
        groups.setdefault(group, []).append(row)
    for name, title in (("torch", "SDPA"), ("flex", "FlexAttention")):
        for group, row in rows_of_kernels(load(folder / f"{name}.json") or {"results": []}, title):
            groups.setdefault(group, []).append(row)
    for rows in groups.values():
        name_apart(rows)
    return dict(sorted(groups.items(), key=lambda item: (
        not any(r["side"] == "ours" for r in item[1]), -item[0].gpus, item[0].place,
        item[0].mask, -item[0].kv_heads)))


def name_apart(rows):
    """Runs of one scheme that differ in transport, then in file only, say so in their label."""
    for key in ("transport", "file"):
        seen = {}
        for row in rows:
            if row["side"] == "ours":
                seen.setdefault((row["label"], row["tokens"]), []).append(row)
        double = {label for (label, _), same in seen.items() if len(same) > 1}
        for row in rows:
            if row["side"] == "ours" and row["label"] in double:
                row["label"] += f", {row[key]}" if row[key] else ""


def best_of(rows, side, name):
    """The fastest valid row of a side in a pass, or None."""
    fit = [r for r in rows if r["side"] == side and name in r and r["valid"]]
    return max(fit, key=lambda r: r[name]["rate"], default=None)


def title_of(group):
    return (f"{group.place}, {group.mask}, {group.query_heads} query and {group.kv_heads} KV heads "
            f"of {group.head_dim}, {group.dtype}")


def cell_of(row, name, best):
    if name not in row:
        return f"{'-':>9} "
    return f"{row[name]['rate']:>9.1f}{'*' if row is best[row['side'], name] else ' '}"


def spread_of(m):
    if not m:
        return ""
    text = f"{1e3 * m['median']:.3f}"
    return text if m.get("min") is None else (
        text + f" ({1e3 * m['min']:.3f} .. {1e3 * m['max']:.3f})")


def lines_of_group(group, rows):
    lines = ["", title_of(group), f"{'tokens':>8}  {'':<34}{'forward':>9} {'fwd+bwd':>9}  "
             f"{'forward ms (fastest .. slowest)':<33}{'predicted/measured':>19}{'exposed':>12}"
             f"{'launch':>16}"]
    for tokens in sorted({r["tokens"] for r in rows}):
        here = [r for r in rows if r["tokens"] == tokens]
        best = {(s, n): best_of(here, s, n) for s in ("ours", "torch", "limit") for n in PASSES}
        for row in sorted(here, key=lambda r: ("ours", "torch", "limit").index(r["side"])):
            line = (f"{tokens:>8}  {row['label']:<34}{cell_of(row, 'forward', best)}"
                    f"{cell_of(row, 'both', best)}  {spread_of(row.get('forward')):<33}")
            for key, form, width in (("predicted", "{:.2f}", 19), ("exposed", "{:.0%}", 12),
                                     ("launch", "{:.2%}", 16)):
                values = [form.format(row[key][p]) for p in ("forward", "backward")
                          if p in row.get(key, {})]
                line += f"{' / '.join(values):>{width}}"
            line += "" if row["valid"] else "  NOT VALID"
            line += f"  {row['note'][:120]}" if row.get("note") else ""
            lines.append(line.rstrip())
        lines += [f"{tokens:>8}  {text}" for text in ratios_of(best)]
    return lines


def ratios_of(best):
    """Sentences: best of ours, over the best peer and over the single GPU, per pass."""
    texts = []
    for name in PASSES:
        ours, peer, limit = (best[side, name] for side in ("ours", "torch", "limit"))
        if not ours:
            continue
        parts = [f"{ours[name]['rate']:.0f} TFLOP/s"]
        parts += [f"{ours[name]['rate'] / other[name]['rate']:.3f} of {other['label']}"
                  for other in (peer, limit) if other]
        texts.append(f"-> {PASS_NAMES[name]}: {ours['label']} {', '.join(parts)}")
    return texts


def lines_of_masks(groups):
    """Time under a mask over (visible fraction x time under the full mask), for the same scheme."""
    lines = []
    for group, rows in groups.items():
        dense = groups.get(group._replace(mask="full"), [])
        for row in rows:
            full = next((r for r in dense if r["side"] == "ours" and r["tokens"] == row["tokens"]
                         and r["label"] == row["label"]), None)
            if row["side"] != "ours" or not full or group.mask in ("full", "causal"):
                continue
            ratios = [f"{p} {row[p]['median'] / (row['fraction'] * full[p]['median']):.3f}"
                      for p in ("forward", "backward") if p in row and p in full]
            lines.append(f"{row['tokens']:>8}  {group.place}, {group.mask:<28}{row['label']:<28}"
                         + ", ".join(ratios))
    head = ["", "time / (visible fraction x time under the full mask), same scheme"]
    return head + lines if lines else []


def lines_of_exposed(groups):
    """Share of a pass in which messages moved and nothing was computed: schemes on several GPUs."""
    lines = []
    for group, rows in groups.items():
        ours = [r for r in rows if r["side"] == "ours" and group.gpus > 1]
        for row in sorted(ours, key=lambda r: (r["tokens"], r["label"])):
            for name, share in row["exposed"].items():
                transfers = row["transfers"][name]
                word = "BELOW" if share <= MOST_EXPOSED else "ABOVE"
                if transfers is not None and transfers > 1:
                    word = "no limit, transfers dominate"
                times = "-" if transfers is None else f"{transfers:.2f}"
                place = f"{group.place}, {group.mask}, {group.kv_heads} KV heads"
                lines.append(f"{row['tokens']:>8}  {place:<40}{row['label']:<28}{name:<9}"
                             f"{100 * share:>7.1f} %{times:>23}  {word}")
    head = ["", "exposed communication, share of the pass; limit "
            f"{100 * MOST_EXPOSED:.0f} % where transfers take no longer than computing",
            f"{'tokens':>8}  {'':<68}{'pass':<9}{'exposed':>9}{'transfers / computing':>23}"]
    return head + lines if lines else []


def lines_of_ratios(folder):
    """Ring over mesh where communication dominates: slowed links, NCCL held to one channel."""
    lines = []
    for path in [folder / "throttle.json", *sorted(folder.glob("ours_*_nccl1_*.json"))]:
        report = load(path) or {"runs": []}
        texts = mesh_against_ring.lines_of(mesh_against_ring.ratios_of(report))
        if texts:
            lines.append(f"{report['shape']['sequence']:>8}  {place_of(report)[0]}, transport "
                         f"{transport_of(report)}, {report['machine']['name']}")
            lines += [f"{'':>10}{text}" for text in texts]
    return ["", "time of the ring over that of the mesh", *lines] if lines else []


def lines_of_pass(report):
    """Computing of all ranks' plans on one GPU beside one call for the whole problem."""
    lines = ["", f"{report['ranks']} ranks' plans one after the other on one GPU, no transfers, "
             f"against one call: {report['device']}; machine {report['machine']}"]
    if report.get("in_turn"):
        lines.append(f"one call and schemes in turn, {report['repetitions']} rounds; ratio: median "
                     "within rounds (least .. most)")
    lines.append(f"{'per rank':>8}  {'':<22}{'TFLOP/s':>9}{'1 call':>9}{'ratio':>25}{'limit':>7}"
                 f"{'of cuDNN':>10}{'launch':>9}  {'ms (fastest .. slowest)'}")
    for r in report["results"]:
        within = (f" ({r['of_single_min']:.3f} .. {r['of_single_max']:.3f})"
                  if "of_single_min" in r else "")
        spread = {"median": r["median_s"], "min": r["min_s"], "max": r["max_s"]}
        cudnn = f"{r['of_cudnn']:.3f}" if "of_cudnn" in r else "-"
        lines.append(f"{r['tokens_per_rank']:>8}  {r['scheme'] + ' ' + r['pass']:<22}"
                     f"{r['rate']:>9.1f}{r['single_rate']:>9.1f}"
                     f"{format(r['of_single'], '.3f') + within:>25}"
                     f"{r['limit']:>7.2f}{cudnn:>10}{100 * r['launch_share']:>7.2f} %  "
                     f"{spread_of(spread)}{'' if r['kept'] else '  LIMIT NOT KEPT'}")
    return lines


def lines_of_links(peers):
    lines = ["", f"NCCL {peers['nccl']}, GB/s per GPU and direction"] if peers["links"] else []
    return lines + [f"{r['bytes']:>12} bytes  {r['pattern']:<12}{r['gb_s']:>8.1f} GB/s"
                    f"{1e6 * r['seconds']:>10.1f} us" for r in peers["links"]]


def untagged(name):
    """The name of an operator's case without that of the backend."""
    return re.sub(r" (cudnn|one-pass)$", "", name)


def lines_of_gaps(tile, flex):
    """Single operators under masks with gaps: time without the launch floor over (visible fraction
    x time under the full mask), and FlexAttention's time over ours under the same mask."""
    peers = {(r["name"], r["tokens"], r["mask"], round(r["fraction"], 6)): r
             for r in flex if "rate" in r}
    lines = []
    for r in tile["results"]:
        if "full_s" not in r:
            continue
        ratio = (r["median_s"] - r["floor_s"]) / (r["fraction"] * r["full_s"])
        spread = {"median": r["median_s"], "min": r["min_s"], "max": r["max_s"]}
        line = (f"{r['tokens']:>8}  {r['mask']:<10}{100 * r['fraction']:>7.2f} %  {r['name']:<24}"
                f"{spread_of(spread):<30}{1e3 * r['full_s']:>9.3f}{1e6 * r['floor_s']:>9.1f}"
                f"{ratio:>8.3f}{'' if ratio <= MOST_OF_FRACTION else ' LIMIT NOT KEPT'}")
        peer = peers.get((untagged(r["name"]), r["tokens"], r["mask"], round(r["fraction"], 6)))
        if peer:
            ours = r["median_s"] + r.get("before_s", 0)
            line += f"   {1e3 * peer['median_s']:.3f}, {peer['median_s'] / ours:.3f} of ours"
        lines.append(line)
    if not lines:
        return []
    return ["", "masks with gaps, one operator on one GPU; ratio = (time - launch floor) / "
            f"(visible fraction x time under the full mask), limit {MOST_OF_FRACTION}",
            "FlexAttention's backward holds Delta and clearing: in the last column ours does too",
            f"{'tokens':>8}  {'mask':<10}{'visible':>9}  {'':<24}{'ms (fastest .. slowest)':<30}"
            f"{'full ms':>9}{'floor us':>9}{'ratio':>8}   FlexAttention ms, of ours", *lines]


def lines_of_tiles(tile, torch):
    """Operators on one GPU beside torch's scaled_dot_product_attention, by backend."""
    lines = ["", f"operators on one GPU: {tile['device']}",
             f"CUDA driver {tile['driver']}, runtime {tile['runtime']}; medians of "
             f"{tile['repetitions']} after {tile['warm_ups']} warm-ups and {tile['warm_up_s']} s "
             "(fastest .. slowest)",
             f"backend cudnn: {tile['cudnn']}"]
    peers = {(r["name"], r["tokens"], r["mask"], r["backend"]): r["rate"]
             for r in torch if "rate" in r}
    backends = sorted({key[3] for key in peers})
    lines.append(f"{'case':<30}{'tokens':>7} {'mask':<10}{'ours':>8} {'':<8}{'ms':>10}"
                 f"{'fastest':>10}{'slowest':>10}"
                 + "".join(f"{b:>9}{'ours/':>7}" for b in backends))
    for r in tile["results"]:
        line = (f"{r['name']:<30}{r['tokens']:>7} {r['mask']:<10}{r['rate']:>8.2f} {r['unit']:<8}"
                f"{1e3 * r['median_s']:>10.3f}{1e3 * r['min_s']:>10.3f}{1e3 * r['max_s']:>10.3f}")
        for b in backends:
            peer = peers.get((untagged(r["name"]), r["tokens"], r["mask"], b))
            line += f"{peer:>9.1f}{r['rate'] / peer:>7.2f}" if peer else f"{'':>16}"
        lines.append(line.rstrip())
    return lines


def table_of(groups):
    """Markdown: per group and length the best of ours beside the best peer and the limit."""
    lines = ["| GPUs, mask, KV heads | tokens | pass | ours | TFLOP/s per GPU | best of torch | "
             "TFLOP/s per GPU | ours / torch | ours / single GPU |",
             "|---|---:|---|---|---:|---|---:|---:|---:|"]
    for group, rows in groups.items():
        for tokens in sorted({r["tokens"] for r in rows}):
            here = [r for r in rows if r["tokens"] == tokens]
            for name in PASSES:
                ours, peer, limit = (best_of(here, s, name) for s in ("ours", "torch", "limit"))
                if not ours or group.gpus == 0:
                    continue
                rate = ours[name]["rate"]
                cells = [f"{group.place}, {group.mask}, {group.kv_heads}", f"{tokens:,}",
                         PASS_NAMES[name], ours["label"], f"{rate:.0f}"]
                cells += [peer["label"], f"{peer[name]['rate']:.0f}"] if peer else ["", ""]
                cells += [f"{rate / r[name]['rate']:.2f}" if r else "" for r in (peer, limit)]
                lines.append("| " + " | ".join(cells) + " |")
    return lines if len(lines) > 2 else []


def conditions_of(folder, peers):
    """Lines above the tables: where, when, with what."""
    lines = []
    if (folder / "conditions.txt").exists():
        lines += (folder / "conditions.txt").read_text().rstrip().split("\n")
    ours = [load(path) for path in sorted(folder.glob("ours_*.json"))]
    if ours:
        last = max(ours, key=lambda report: report["ranks"])
        counts = {(c.get("repeats"), c.get("warmup")): None
                  for c in (report.get("conditions", {}) for report in ours)}
        lines.append(f"ours: {last['version']}; medians of "
                     + " or ".join(f"{n} after {plural(w, 'warm-up')}" for n, w in counts)
                     + f", slowest rank; {last.get('conditions', {}).get('device', '')}")
    for path in (folder / "peers.json", folder / "flex.json", folder / "torch.json"):
        r = load(path)
        if r and (path.stem != "torch" or not (folder / "peers.json").exists()):
            parts = [f"torch {r['torch']}"] + [f"{name} {r[key]}" for key, name in (
                ("cudnn", "cuDNN"), ("nccl", "NCCL")) if key in r] + [r["device"]]
            if "repetitions" in r:
                parts.append(f"medians of {r['repetitions']} after {r['warm_ups']} warm-ups")
            lines.append(f"{path.stem}: " + ", ".join(parts))
    return lines


def main():
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        print("usage: gpu_report.py DIR, a folder that exists", file=sys.stderr)
        return 2
    folder = Path(sys.argv[1])
    groups, peers = collect(folder), load(folder / "peers.json")
    head = conditions_of(folder, peers)
    head += ["", "TFLOP/s per GPU of visible pairs; * = best of its side"] if groups else []
    tables = [line for group, rows in groups.items() for line in lines_of_group(group, rows)]
    tile = load(folder / "tile.json")
    results = {name: (load(folder / f"{name}.json") or {"results": []})["results"]
               for name in ("torch", "flex")}
    rest = lines_of_masks(groups) + (lines_of_gaps(tile, results["flex"]) if tile else [])
    rest += lines_of_exposed(groups) + lines_of_ratios(folder)
    rest += lines_of_links(peers) if peers else []
    if (folder / "pass.json").exists():
        rest += lines_of_pass(load(folder / "pass.json"))
    if tile:
        rest += lines_of_tiles(tile, results["torch"])
    (folder / "report.txt").write_text("\n".join(head + tables + rest).strip("\n") + "\n")
    # The terminal gets how ours compares, the file all rates.
    short = []
    for group, rows in groups.items():
        ratios = [line for line in lines_of_group(group, rows) if " -> " in line]
        short += [title_of(group), *ratios] if ratios else []
    print("\n".join(head + short + rest).strip("\n"))
    print(f"all rates: {folder / 'report.txt'}")
    if table := table_of(groups):
        (folder / "report.md").write_text("\n".join(table) + "\n")
    for path in draw(groups, conditions_of(folder, peers), folder):
        print(f"picture: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
