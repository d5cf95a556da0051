#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One picture of a report.json of tessera-attention: bytes that the busiest rank sent, predicted
and measured time per scheme for both passes, error ratios; the conditions stand below.

Usage: plot_attention.py REPORT.json [--out FILE.png] [--table]
--table prints the same as a Markdown table; without --out no picture is drawn then."""
import argparse
import json
import sys
import textwrap

PASSES = ("forward", "backward")
BYTES_COLORS = {"forward": "#2a6f97", "backward": "#89c2d9"}
MEASURED, PREDICTED, FAINT = "#014f86", "#f4a259", "#6c757d"


def scaled(value, steps):
    """(number, unit) with the largest unit of `steps` = [(factor, name), ...] that fits."""
    for factor, name in steps:
        if abs(value) >= factor:
            return value / factor, name
    return value / steps[-1][0], steps[-1][1]


def text_of_bytes(value):
    steps = [(2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")]
    number, unit = scaled(value, steps)
    return f"{number:.3g} {unit}" if number < 1000 else f"{number:.0f} {unit}"


def text_of_seconds(value):
    if value == 0:
        return "0 s"
    number, unit = scaled(value, [(1, "s"), (1e-3, "ms"), (1e-6, "µs")])
    return f"{number:.3g} {unit}" if number < 1000 else f"{number:.0f} {unit}"


def number_of(run, key):
    value = run.get(key)
    return value if isinstance(value, (int, float)) else None


def label_of(run, several_layouts):
    """Scheme with its parameters, "mesh 2x2", and its layout where the runs differ in it."""
    name = run.get("name") or run["scheme"]
    a, b = number_of(run, "a"), number_of(run, "b")
    if "name" not in run and run["scheme"] == "mesh" and a and b:
        name += f" {a}x{b}"
    if several_layouts:
        name += f", {run.get('layout', '')}"
    return name.replace("_", " ")


def rows_of(report):
    """[(label, {pass: run})] in the order of the report."""
    runs = report.get("runs", [])
    several = len({run.get("layout") for run in runs}) > 1
    rows = {}
    for run in runs:
        rows.setdefault(label_of(run, several), {})[run["pass"]] = run
    return list(rows.items())


def flat(value):
    """A dictionary or list of the report as short text."""
    if isinstance(value, dict):
        return ", ".join(f"{k} {flat(v)}" for k, v in value.items() if not isinstance(v, dict))
    if isinstance(value, list):
        return "x".join(str(v) for v in value)
    return str(value)


def conditions(report):
    """The text below the picture: what these numbers hold for."""
    ranks = report.get("ranks", "?")
    more = report.get("conditions", {})
    parts = [f"{ranks} rank{'s' if ranks != 1 else ''}"]
    if "oversubscribed" in more:
        parts[0] += (f" on {more.get('hosts', '?')} x {more.get('cores_per_host', '?')} cores"
                     + (" (oversubscribed: ranks share cores)" if more["oversubscribed"] else ""))
    parts.append(flat(report.get("dtype", "?")))
    parts.append(f"shape: {flat(report.get('shape', '?'))}".replace("_", " "))
    mask = report.get("mask", "?")
    parts.append(f"mask: {mask.get('kind') if isinstance(mask, dict) else flat(mask)}")
    if "layout" in report:
        parts.append(f"layout: {report['layout']}")
    machine = report.get("machine", "?")
    if isinstance(machine, dict):
        machine = machine.get("file") or machine.get("name") or flat(machine)
    parts.append(f"machine model: {machine}")
    repeats = f"{more['repeats']} repeats" if "repeats" in more else "the repeats"
    parts.append(f"time: median of {repeats} with min and max, slowest rank")
    parts.append("error ratio: error of the run / error of one plain rank, both against fp64")
    return "; ".join(parts)


def print_table(rows):
    print("| scheme | pass | sent, busiest rank | predicted | measured (min, max) | exposed comm "
          "| GFLOP/s per rank | error ratio | tiles skipped |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|")

    def seconds(value):
        return "" if value is None else text_of_seconds(value)

    def plain(value, form="{:.3g}"):
        return "" if value is None else form.format(value)

    for label, passes in rows:
        for name in PASSES:
            run = passes.get(name)
            if run is None:
                continue
            time = run.get("seconds") or {}
            measured = seconds(time.get("median"))
            if measured:
                measured += f" ({seconds(time.get('min'))}, {seconds(time.get('max'))})"
            tiles = f"{run.get('tiles_skipped', '?')} of {run.get('tiles_total', '?')}"
            rate = run.get("gflops_per_rank")
            if isinstance(rate, list):
                rate = min(rate, default=None)
            print(f"| {label} | {name} | {text_of_bytes(max(run['bytes_sent'], default=0))} | "
                  f"{seconds(run.get('predicted_seconds'))} | {measured} | "
                  f"{seconds(run.get('exposed_comm_seconds'))} | {plain(rate)} | "
                  f"{plain(run.get('error_ratio'))} | {tiles} |")


def style_axes(axes, title, unit):
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axes.set_xlabel(unit, color=FAINT)
    axes.grid(axis="x", color="#dee2e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="both", length=0)
    axes.tick_params(axis="x", colors=FAINT)
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)
    axes.spines["left"].set_color("#adb5bd")


def draw_bytes(axes, rows):
    most = max((max(run["bytes_sent"], default=0) for _, passes in rows
                for run in passes.values()), default=0)
    factor, unit = next(((f, n) for f, n in [(2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")]
                         if most >= f), (1, "bytes"))
    for index, (_, passes) in enumerate(rows):
        for place, name in enumerate(PASSES):
            if name not in passes:
                continue
            sent = max(passes[name]["bytes_sent"], default=0)
            y = index + (place - 0.5) * 0.36
            axes.barh(y, sent / factor, height=0.32, color=BYTES_COLORS[name],
                      label=name if index == 0 else None)
            axes.text(sent / factor, y, f" {text_of_bytes(sent)}", va="center", fontsize=8,
                      color=FAINT)
    axes.set_xlim(0, 1.3 * max(most / factor, 1e-9))
    style_axes(axes, "Sent by the busiest rank", unit)


def draw_times(axes, rows, name):
    values = [(passes[name].get("seconds") or {}).get("max") or 0 for _, passes in rows
              if name in passes]
    values += [number_of(passes[name], "predicted_seconds") or 0 for _, passes in rows
               if name in passes]
    most = max(values, default=0)
    factor, unit = next(((f, n) for f, n in [(1, "seconds"), (1e-3, "milliseconds")]
                         if most >= f), (1e-6, "microseconds"))
    for index, (_, passes) in enumerate(rows):
        run = passes.get(name)
        if run is None:
            continue
        predicted, time = number_of(run, "predicted_seconds"), run.get("seconds") or {}
        median, end = time.get("median"), predicted or 0
        if predicted is not None:
            axes.barh(index - 0.18, predicted / factor, height=0.32, color=PREDICTED,
                      label="predicted" if index == 0 else None)
            axes.text(predicted / factor, index - 0.18, f" {text_of_seconds(predicted)}",
                      va="center", fontsize=8, color=FAINT)
        if median is not None:
            low, high = time.get("min", median), time.get("max", median)
            axes.barh(index + 0.18, median / factor, height=0.32, color=MEASURED,
                      label="measured" if index == 0 else None)
            axes.plot([low / factor, high / factor], [index + 0.18] * 2, color="#343a40",
                      linewidth=1.4, solid_capstyle="butt")
            end = high
            ratio = number_of(run, "error_ratio")
            text = f"  {text_of_seconds(median)}"
            if ratio is not None:
                text += f" · error ratio {ratio:.3g}"
            axes.text(end / factor, index + 0.18, text, va="center", fontsize=8, color=FAINT)
    axes.set_xlim(0, 1.7 * max(most / factor, 1e-9))
    style_axes(axes, f"Time, {name}", unit)


def draw(report, rows, path):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    timed = [p for p in PASSES if any(p in passes for _, passes in rows)]
    columns = 1 + len(timed)
    width = 4.4 * columns
    caption = textwrap.fill(conditions(report), width=int(17 * width))
    above, below = 1.0, 0.75 + 0.16 * caption.count("\n")  # inches around the panels
    height = above + below + 0.62 * max(len(rows), 2)
    figure, panels = plt.subplots(1, columns, figsize=(width, height), sharey=True, squeeze=False)
    panels = panels[0]
    draw_bytes(panels[0], rows)
    for axes, name in zip(panels[1:], timed):
        draw_times(axes, rows, name)
    panels[0].set_yticks(range(len(rows)), [label for label, _ in rows], fontsize=10)
    panels[0].invert_yaxis()
    longest = max(len(label) for label, _ in rows)
    figure.subplots_adjust(left=(0.3 + 0.085 * longest) / width, right=1 - 0.15 / width,
                           top=1 - above / height, bottom=below / height, wspace=0.08)
    figure.suptitle("Distributed attention: bytes and time per scheme", x=0.12 / width,
                    y=1 - 0.1 / height, ha="left", va="top", fontsize=14, fontweight="bold")
    verdict = report.get("verdict", "?")
    figure.text(1 - 0.12 / width, 1 - 0.12 / height, verdict, ha="right", va="top", fontsize=12,
                fontweight="bold", color="#2b9348" if verdict == "VALID" else "#c1121f")
    figure.text(0.12 / width, 0.1 / height, caption, ha="left", va="bottom", fontsize=8,
                color=FAINT)
    for axes in panels[:2]:  # the third panel has the colours of the second
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="upper left", ncol=2, fontsize=9, frameon=False,
                      bbox_to_anchor=(axes.get_position().x0, 1 - 0.42 / height),
                      borderaxespad=0, borderpad=0, handlelength=1, columnspacing=1)
    figure.savefig(path, dpi=160)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("report")
    parser.add_argument("--out", metavar="FILE.png")
    parser.add_argument("--table", action="store_true", help="print a Markdown table")
    options = parser.parse_args()
    try:
        with open(options.report, encoding="utf-8") as file:
            report = json.load(file)
    except (OSError, json.JSONDecodeError) as error:
        print(f"error: {options.report}: {error}", file=sys.stderr)
        return 4
    rows = rows_of(report)
    if not rows:
        print(f"error: {options.report} holds no runs", file=sys.stderr)
        return 1
    if options.table:
        print_table(rows)
        print(f"\n{conditions(report)}")
    if options.out or not options.table:
        path = options.out or options.report.rsplit(".", 1)[0] + ".png"
        draw(report, rows, path)
        print(f"picture: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
