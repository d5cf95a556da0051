#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tensors of results.h5 against attention in numpy, fp64, from the same input file: O and LSE,
dQ, dK and dV, for every scheme and mask. Shares no code with the programs."""
import h5py
import numpy as np

from support import SCHEMES, Case, main, make_input, sets

HEADS, KV_HEADS, DIM, VALUE_DIM = 6, 2, 12, 8


def documents(mask, rows, keys):
    number = np.repeat(np.arange(len(mask["documents"])), mask["documents"])
    return (number[rows] == number[keys]) & (keys <= rows)


def regions(mask, rows, keys):
    seen = keys <= rows
    for begin, end in mask["regions"]:
        seen |= (rows >= begin) & (rows < end) & (keys >= begin) & (keys < end)
    return seen


def slices(mask, rows, keys):
    """Types: 0 full, 1 causal at the bottom right, 2 inverse causal at the top left, 3 both."""
    seen = np.zeros(np.broadcast(rows, keys).shape, bool)
    for q0, q1, k0, k1, kind in mask["slices"]:
        cell = (rows >= q0) & (rows < q1) & (keys >= k0) & (keys < k1)
        if kind & 1:
            cell = cell & (keys - k1 <= rows - q1)
        if kind & 2:
            cell = cell & (keys - k0 >= rows - q0)
        seen |= cell
    return seen


MASKS = {
    "full": lambda mask, rows, keys: np.ones(np.broadcast(rows, keys).shape, bool),
    "causal": lambda mask, rows, keys: keys <= rows,
    "window": lambda mask, rows, keys: (keys <= rows) & (keys > rows - mask.attrs["window"]),
    "documents": documents,
    "regions": regions,
    "slices": slices,
}


def visible(file, kind):
    """[query rows, key rows]; rows of different batch items never see each other."""
    batch, queries, keys = (int(file.attrs[n]) for n in ("batch", "sequence", "key_sequence"))
    row, key = np.arange(batch * queries)[:, None], np.arange(batch * keys)[None, :]
    if kind in ("full", "causal", "window"):  # by positions inside a batch item
        seen = MASKS[kind](file["mask"], row % queries, key % keys)
    else:
        seen = MASKS[kind](file["mask"], row, key)
    return seen & (row // queries == key // keys)


def attention(q, k, v, do, seen, softcap):
    """O, LSE, dQ, dK, dV; rows that see nothing give 0 and LSE -inf."""
    group = q.shape[1] // k.shape[1]
    o, dq = np.zeros((*q.shape[:2], v.shape[2])), np.zeros_like(q)
    dk, dv = np.zeros_like(k), np.zeros_like(v)
    lse = np.full((q.shape[1], q.shape[0]), -np.inf)
    some = seen.any(axis=1)
    for h in range(q.shape[1]):
        g = h // group
        scale = q.shape[2] ** -0.5
        s = scale * q[:, h] @ k[:, g].T
        slope = 1.0
        if softcap:
            s = softcap * np.tanh(s / softcap)
            slope = 1 - (s / softcap) ** 2
        s = np.where(seen, s, -np.inf)
        top = np.where(some, s.max(axis=1, initial=-np.inf), 0)
        lse[h, some] = (top + np.log(np.exp(s - top[:, None]).sum(axis=1), where=some,
                                     out=np.zeros(len(top))))[some]
        p = np.exp(s - np.where(some, lse[h], 0)[:, None])
        o[:, h] = p @ v[:, g]
        dp = do[:, h] @ v[:, g].T
        ds = p * (dp - (do[:, h] * o[:, h]).sum(axis=1)[:, None]) * slope * scale
        dq[:, h] = ds @ k[:, g]
        dk[:, g] += ds.T @ q[:, h]
        dv[:, g] += p.T @ do[:, h]
    return {"o": o, "lse": lse, "dq": dq, "dk": dk, "dv": dv}


class ExactResults(Case):
    def compare(self, kind, ranks, *options, softcap=0.0, sequence=89, **keys):
        path = make_input(self.folder / "input.h5", "sequence", sequence, "query-heads", HEADS,
                          "kv-heads", KV_HEADS, "head-dim", DIM, "value-dim", VALUE_DIM, "dtype",
                          "float64", "mask", kind, *options)
        with h5py.File(path) as file:
            shape = {f"attention__{n}": int(file.attrs[n]) for n in
                     ("batch", "sequence", "key_sequence")}
            extra = {f"attention__{n}": int(file["mask"].attrs[n]) for n in ("window",)
                     if n in file["mask"].attrs}
            expected = attention(*(file[n][:] for n in ("q", "k", "v", "do")),
                                 visible(file, kind), softcap)
        schemes = [s for s in SCHEMES if ranks != 4 or s != "ulysses"]  # 6 heads on 4 ranks
        if ranks == 4:
            keys = {"attention__unified__ulysses": 2, **keys}
        self.assert_ok(self.attention(*sets(
            **shape, **extra, **keys, attention__mask=kind, attention__query_heads=HEADS,
            attention__kv_heads=KV_HEADS, attention__head_dim=DIM, attention__value_dim=VALUE_DIM,
            attention__dtype="f64", attention__softcap=softcap, input__file=path,
            attention__schemes=",".join(schemes), run__warmup=0, run__repeats=1,
            output__tensors="true"), ranks=ranks))
        self.check_tensors(expected, schemes)

    def check_tensors(self, expected, schemes):
        compared, worst = 0, 0.0
        with h5py.File(self.out / "results.h5") as file:
            self.assertEqual(len(file["runs"]), 2 * len(schemes))
            for name, run in file["runs"].items():
                wanted = ["o", "lse"] if run.attrs["pass"] == "forward" else ["dq", "dk", "dv"]
                for tensor in wanted:
                    found = run[tensor][:]
                    self.assertEqual(found.shape, expected[tensor].shape, (name, tensor))
                    finite = np.isfinite(expected[tensor])
                    np.testing.assert_array_equal(np.isneginf(found), ~finite, f"{name} {tensor}")
                    error = np.abs(found - np.where(finite, expected[tensor], found),
                                   where=finite, out=np.zeros(found.shape)).max()
                    self.assertLess(error, 1e-10, f"{name} {tensor}")
                    compared, worst = compared + 1, max(worst, error)
        print(f"{self.id()}: {compared} tensors, largest error {worst:.1e}")

    def test_full_with_other_key_length_and_batch(self):
        self.compare("full", 4, "key-sequence", 70, "batch", 2)

    def test_causal_padded_striped(self):
        self.compare("causal", 4, attention__layout="striped")

    def test_causal_on_six_ranks_with_replicated_kv_heads(self):
        self.compare("causal", 6, attention__unified__ulysses=2)

    def test_window_with_softcap(self):
        self.compare("window", 4, "window", 10, softcap=1.5)

    def test_documents(self):
        texts = []
        for i, words in enumerate((7, 30, 1, 19)):
            texts.append(self.folder / f"text{i}")
            texts[-1].write_text("word " * words)
        self.compare("documents", 2, "batch", 2, "texts", texts[0], attention__layout="contiguous")

    def test_regions(self):
        self.compare("regions", 4, "regions", 3)

    def test_regions_balanced(self):
        self.compare("regions", 4, "regions", 5, "batch", 2, attention__layout="balanced")

    def test_slices_with_rows_that_see_nothing(self):
        self.compare("slices", 4, "slices", 7, attention__layout="contiguous")

    def test_slices_over_two_batch_items(self):
        self.compare("slices", 2, "slices", 5, "batch", 2)


if __name__ == "__main__":
    main()
