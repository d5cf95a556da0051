# SPDX-License-Identifier: Apache-2.0
"""Pictures of a GPU report: TFLOP/s per GPU over tokens, a column per mask and number of KV heads,
a row per pass; our schemes solid, torch dashed, a single GPU without transfers grey."""
import textwrap

PASSES = {"forward": "forward", "both": "forward and backward"}
# Blues to greens for ours, warm colours for torch; a name keeps its colour in all pictures.
OURS = {"mesh": ("#012a4a", "o"), "ring": ("#2a6f97", "s"), "double ring": ("#61a5c2", "D"),
        "all gather": ("#2b9348", "^"), "ulysses": ("#80b918", "v"), "unified": ("#7b2cbf", "P")}
TORCH = {"ulysses": ("#d00000", "v"), "context parallel allgather": ("#e85d04", "s"),
         "context parallel alltoall": ("#faa307", "D"), "all gather": ("#b5838d", "^"),
         "SDPA cudnn": ("#d00000", "o"), "SDPA flash": ("#faa307", "s"),
         "FlexAttention": ("#e85d04", "P")}
FAINT, LIMIT = "#6c757d", "#adb5bd"


def curves_of(rows, name):
    """{(side, scheme): {tokens: rate}}, the best variant of a scheme at each length."""
    curves = {}
    for row in rows:
        if name in row and row["valid"]:
            points = curves.setdefault((row["side"], row["scheme"]), {})
            points[row["tokens"]] = max(points.get(row["tokens"], 0), row[name]["rate"])
    return curves


def style_of(side, scheme):
    if side == "limit":
        return {"color": LIMIT, "linewidth": 4, "zorder": 1, "solid_capstyle": "round"}
    color, marker = (OURS if side == "ours" else TORCH).get(scheme, ("#495057", "x"))
    return {"color": color, "marker": marker, "zorder": 3 if side == "ours" else 2,
            "linestyle": "-" if side == "ours" else (0, (4, 2)), "linewidth": 1.8,
            "markersize": 6 if side == "ours" else 5,
            "markerfacecolor": color if side == "ours" else "white"}


def short(tokens):
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else str(tokens)


def draw_panel(axes, curves, lengths, handles):
    for (side, scheme), points in sorted(curves.items(), key=lambda item: item[0][0] == "ours"):
        x = [lengths.index(t) for t in sorted(points)]
        line, = axes.plot(x, [points[t] for t in sorted(points)], **style_of(side, scheme))
        handles.setdefault((side, scheme), line)
    for i, tokens in enumerate(lengths):
        best = {side: max((points[tokens] for (s, _), points in curves.items()
                           if s == side and tokens in points), default=None)
                for side in ("ours", "torch")}
        if best["ours"] and best["torch"]:
            ratio = best["ours"] / best["torch"]
            axes.text(i, 0.025, f"{ratio:.2f}x", transform=axes.get_xaxis_transform(),
                      ha="center", fontsize=8.5, fontweight="bold",
                      color="#012a4a" if ratio >= 1 else "#d00000")
    axes.set_xticks(range(len(lengths)), [short(t) for t in lengths])
    axes.set_xlim(-0.3, len(lengths) - 0.7)
    axes.grid(axis="y", color="#e9ecef")
    axes.set_axisbelow(True)
    axes.tick_params(length=0, colors=FAINT, labelsize=9)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(LIMIT)


def legends(figure, handles, top, left):
    """One line of entries per side, in the order of the tables of colours."""
    order = {"ours": list(OURS), "torch": list(TORCH), "limit": []}
    titles = {"ours": "Tessera", "torch": "torch", "limit": ""}
    for side in ("ours", "torch", "limit"):
        keys = [k for k in handles if k[0] == side]
        keys.sort(key=lambda k: order[side].index(k[1]) if k[1] in order[side] else 99)
        if not keys:
            continue
        height = figure.get_size_inches()[1]
        figure.text(left, top, titles[side], fontsize=10, fontweight="bold", va="top")
        legend = figure.legend([handles[k] for k in keys], [k[1] for k in keys], ncol=len(keys),
                               loc="upper left", bbox_to_anchor=(left + 0.055, top + 0.03 / height),
                               fontsize=9.5, frameon=False, borderaxespad=0, borderpad=0,
                               handlelength=2.6, columnspacing=1.6)
        figure.add_artist(legend)
        top -= 0.24 / height


def draw_place(columns, place, caption, path):
    """columns: [(mask, KV heads, rows)]"""
    import matplotlib.pyplot as plt

    lengths = sorted({r["tokens"] for _, _, rows in columns for r in rows
                      if any(name in r for name in PASSES)})
    shown = [name for name in PASSES if any(name in r for _, _, rows in columns for r in rows)]
    width = max(9.0, 0.9 + 4.0 * len(columns))
    text = textwrap.fill(caption, width=int(14.5 * width))
    above, below = 1.65, 0.75 + 0.16 * text.count("\n")
    height = above + below + 3.3 * len(shown)
    figure, panels = plt.subplots(len(shown), len(columns), figsize=(width, height), sharex=True,
                                  sharey="row", squeeze=False)
    handles, left = {}, 0.75 / width
    for name, line in zip(shown, panels):
        for (mask, kv_heads, rows), axes in zip(columns, line):
            draw_panel(axes, curves_of(rows, name), lengths, handles)
            axes.set_title(f"{mask}, {kv_heads} KV heads · {PASSES[name]}", loc="left",
                           fontsize=10.5, fontweight="bold")
        line[0].set_ylabel("TFLOP/s per GPU", color=FAINT)
        low, high = line[0].get_ylim()
        line[0].set_ylim(max(0, low - 0.12 * (high - low)), high)  # room for the ratios
    for axes in panels[-1]:
        axes.set_xlabel("tokens of the whole sequence", color=FAINT)
    figure.subplots_adjust(left=left, right=1 - 0.2 / width, top=1 - above / height,
                           bottom=below / height, wspace=0.06, hspace=0.22)
    figure.suptitle(f"Attention over {place}: rate of visible pairs", x=left,
                    y=1 - 0.12 / height, ha="left", va="top", fontsize=14, fontweight="bold")
    legends(figure, handles, 1 - 0.5 / height, left)
    figure.text(left, 0.1 / height, text, ha="left", va="bottom", fontsize=8, color=FAINT)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def draw(groups, conditions, folder):
    """Writes gpu.png for the most GPUs that ran a scheme of ours, gpu-N.png for the other counts;
    masks with one length only are left to the tables. Returns the paths."""
    places = {}
    for group, rows in groups.items():
        if group.gpus and len({r["tokens"] for r in rows if "forward" in r}) > 1:
            places.setdefault(group.gpus, []).append((group, rows))
    counts = sorted((n for n, parts in places.items() if any(
        r["side"] == "ours" for _, rows in parts for r in rows)), reverse=True)
    if not counts:
        return []
    try:
        import matplotlib
    except ImportError:
        print("no matplotlib: no picture")
        return []
    matplotlib.use("Agg")
    paths = []
    for n in counts:
        parts = sorted(places[n], key=lambda part: (part[0].mask, -part[0].kv_heads))
        group = parts[0][0]
        caption = (f"{group.query_heads} query heads of {group.head_dim}, {group.dtype}; "
                   "flops of visible pairs; best variant of each scheme; bold figures below: "
                   "best of Tessera over best of torch; axes do not begin at 0; "
                   + "; ".join(conditions))
        path = folder / ("gpu.png" if n == counts[0] else f"gpu-{n}.png")
        draw_place([(g.mask, g.kv_heads, rows) for g, rows in parts], group.place, caption, path)
        paths.append(path)
    return paths
