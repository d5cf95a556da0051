#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the HDF5 input of tessera-attention: Q, K, V, dO and the mask.

Datasets: /q [batch*sequence, query_heads, head_dim], /k [batch*key_sequence, kv_heads, head_dim],
/v [.., kv_heads, value_dim], /do [.., query_heads, value_dim], on request /sink [query_heads];
/mask with the attribute `kind` and /mask/documents (lengths), /mask/regions ([begin, end) pairs) or
/mask/slices (q begin, q end, k begin, k end, type). Row i of batch item b is row b*sequence + i.

Numbers come from Philox keyed by (seed, dataset, chunk): the same for the same options, whatever
the memory of the machine. Document lengths are those of real texts, in words.
"""

import argparse
import datetime
import hashlib
import os
import sys

import h5py
import numpy as np

SCHEMA = "tessera.attention.input"
SCHEMA_VERSION = 1
VERSION = "make_attention.py 1"
LICENCES = "/usr/share/common-licenses"
CHUNK = 1 << 20  # elements drawn at a time
MASKS = {
    "full": "every token sees every key",
    "causal": "keys up to the token's own position, aligned at the top left",
    "causal_bottom_right": "causal with the last query aligned to the last key",
    "window": "causal, at most --window keys",
    "documents": "tokens see the earlier tokens of their own document",
    "documents_full": "tokens see all of their own document",
    "block_causal": "tokens see their block of --block tokens and all blocks before it",
    "prefix": "the first --prefix keys are seen by all, the rest causally",
    "regions": "causal text with regions (images, say) whose tokens see each other",
    "slices": "--slices random disjoint rectangles of random types",
}
EPILOG = """masks:
{masks}

examples:
  a causal input of 4096 tokens, 8 query heads over 2 key/value heads:
    make_attention.py --sequence 4096 --query-heads 8 --kv-heads 2 --head-dim 128 --out q.h5
  documents with the lengths of your own texts:
    make_attention.py --sequence 32K --mask documents --texts book/*.txt --out packed.h5
  latent attention (unequal head dimensions) in double precision:
    make_attention.py --sequence 1K --head-dim 192 --value-dim 128 --dtype float64 --out mla.h5

Give the deck the same sizes, `attention.mask` the same name, and `input.file` the path."""


class Refused(Exception):
    """An option that makes no sense: message and hint."""

    def __init__(self, message, hint):
        super().__init__(f"{message}\n  try: {hint}")


def size(text):
    """'4096', '8K', '1M': whole numbers with binary prefixes."""
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper())
    digits = text[:-1] if factor else text
    if not digits.isdigit():
        raise argparse.ArgumentTypeError(f"'{text}' is no size: write 4096, 8K or 1M")
    return int(digits) * (factor or 1)


def parse(argv):
    masks = "\n".join(f"  {name:20} {text}" for name, text in MASKS.items())
    p = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], epilog=EPILOG.format(masks=masks),
        formatter_class=argparse.RawDescriptionHelpFormatter)
    shape = p.add_argument_group("shape")
    shape.add_argument("--sequence", type=size, default=4096, metavar="N",
                       help="query tokens of one batch item (default 4096)")
    shape.add_argument("--key-sequence", type=size, metavar="N",
                       help="key tokens of one batch item (default: --sequence)")
    shape.add_argument("--batch", type=size, default=1, metavar="N", help="batch items (default 1)")
    shape.add_argument("--query-heads", type=size, default=8, metavar="N", help="default 8")
    shape.add_argument("--kv-heads", type=size, metavar="N",
                       help="key/value heads, a divisor of the query heads (default: the same)")
    shape.add_argument("--head-dim", type=size, default=128, metavar="N", help="default 128")
    shape.add_argument("--value-dim", type=size, metavar="N", help="default: --head-dim")
    shape.add_argument("--dtype", choices=["float32", "float64"], default="float32",
                       help="element type in the file (default float32)")
    shape.add_argument("--sink", action="store_true", help="write a learnable sink per query head")
    mask = p.add_argument_group("mask")
    mask.add_argument("--mask", choices=list(MASKS), default="causal", metavar="KIND",
                      help="see the list below (default causal)")
    mask.add_argument("--window", type=size, default=1024, metavar="N", help="default 1024")
    mask.add_argument("--block", type=size, default=1024, metavar="N", help="default 1024")
    mask.add_argument("--prefix", type=size, default=1024, metavar="N", help="default 1024")
    mask.add_argument("--texts", nargs="+", metavar="FILE", default=[],
                      help="texts whose numbers of words are the document lengths "
                           f"(default: all of {LICENCES})")
    mask.add_argument("--regions", type=size, default=4, metavar="N",
                      help="regions per batch item of mask regions (default 4)")
    mask.add_argument("--slices", type=size, default=16, metavar="N",
                      help="slices of mask slices (default 16)")
    p.add_argument("--seed", type=int, default=1, metavar="N", help="default 1")
    p.add_argument("--out", required=True, metavar="FILE", help="HDF5 file to write")
    args = p.parse_args(argv)
    args.key_sequence = args.sequence if args.key_sequence is None else args.key_sequence
    args.kv_heads = args.query_heads if args.kv_heads is None else args.kv_heads
    args.value_dim = args.head_dim if args.value_dim is None else args.value_dim
    return args


def check(a):
    """Refuses what the program would refuse later, with the reason."""
    for name in ("sequence", "key_sequence", "batch", "query_heads", "kv_heads", "head_dim",
                 "value_dim", "window", "block", "slices"):
        if getattr(a, name) < 1:
            raise Refused(f"--{name.replace('_', '-')} must be at least 1", "a positive size")
    if a.query_heads % a.kv_heads:
        most = min(a.kv_heads, a.query_heads)
        below = max(h for h in range(1, most + 1) if a.query_heads % h == 0)
        raise Refused(f"{a.query_heads} query heads do not divide among {a.kv_heads} key/value "
                      "heads", f"--kv-heads {below}")
    if a.seed < 0:
        raise Refused("--seed must not be negative", "--seed 1")
    square = ("documents", "documents_full", "regions")
    if a.mask in square and a.key_sequence != a.sequence:
        raise Refused(f"mask {a.mask} needs as many keys as queries "
                      f"({a.key_sequence} and {a.sequence} given)", "leave --key-sequence out")
    if a.mask == "prefix" and a.prefix > a.key_sequence:
        raise Refused(f"--prefix {a.prefix} is longer than the {a.key_sequence} keys",
                      f"--prefix {a.key_sequence}")
    if a.mask == "regions" and 2 * a.regions > a.sequence:
        raise Refused(f"{a.regions} regions do not fit {a.sequence} tokens",
                      f"--regions {max(1, a.sequence // 2)}")
    if a.mask == "slices" and a.slices > a.batch * a.sequence:
        raise Refused(f"{a.slices} slices need as many query rows, there are "
                      f"{a.batch * a.sequence}", f"--slices {a.batch * a.sequence}")
    if a.texts and not a.mask.startswith("documents"):
        raise Refused(f"--texts has no use with mask {a.mask}", "--mask documents")
    if a.batch * a.sequence > 2**40:
        raise Refused("more than 2^40 tokens", "a smaller --sequence or --batch")
    folder = os.path.dirname(a.out) or "."
    if os.path.isdir(a.out):
        raise Refused(f"'{a.out}' is a folder", f"--out {os.path.join(a.out, 'attention.h5')}")
    os.makedirs(folder, exist_ok=True)


def generator(seed, purpose, chunk):
    """Random numbers of one chunk of one dataset; independent of all others."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{chunk}".encode()).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(digest[:16], dtype=np.uint64)))


def write_normal(file, name, shape, a):
    """Standard normal numbers, drawn in fixed chunks so that memory stays small."""
    data = file.create_dataset(name, shape=shape, dtype=a.dtype)
    per_row = int(np.prod(shape[1:]))
    rows = max(1, CHUNK // per_row)
    for number, begin in enumerate(range(0, shape[0], rows)):
        end = min(begin + rows, shape[0])
        values = generator(a.seed, name, number).standard_normal((end - begin, *shape[1:]))
        data[begin:end] = values.astype(a.dtype)
    return data


def read_texts(paths):
    """[(name, bytes, sha256, words)] of the texts; links to one text count once."""
    if not paths:
        if not os.path.isdir(LICENCES):
            raise Refused(f"the texts of {LICENCES} are not there", "--texts FILE ...")
        paths = [os.path.join(LICENCES, f) for f in sorted(os.listdir(LICENCES))]
    seen, sources = set(), []
    for path in paths:
        real = os.path.realpath(path)
        if real in seen:
            continue
        seen.add(real)
        try:
            with open(real, "rb") as f:
                text = f.read()
        except OSError as e:
            raise Refused(f"cannot read the text '{path}': {e.strerror}", "check --texts") from e
        words = len(text.split())
        if words:
            digest = hashlib.sha256(text).hexdigest()
            sources.append((os.path.basename(path), len(text), digest, words))
    if not sources:
        raise Refused("the texts hold no words", "other --texts")
    return sources


def pack_documents(words, sequence, batch):
    """Lengths of documents laid one after the other; none crosses the end of a batch item."""
    lengths, at = [], 0
    for _ in range(batch):
        left = sequence
        while left:
            lengths.append(min(words[at % len(words)], left))
            left -= lengths[-1]
            at += 1
    return np.array(lengths, dtype=np.int64)


def make_regions(a):
    """Disjoint [begin, end) of packed rows, --regions per batch item, sorted."""
    rng, rows = generator(a.seed, "regions", 0), []
    for b in range(a.batch):
        cuts = np.sort(rng.choice(a.sequence + 1, size=2 * a.regions, replace=False))
        rows.append(cuts.reshape(-1, 2) + b * a.sequence)
    return np.concatenate(rows).astype(np.int64)


def make_slices(a):
    """Disjoint slices: consecutive query ranges, each with a random key range of its batch item and
    a random type (0 full, 1 causal, 2 inverse causal, 3 both)."""
    rng, total = generator(a.seed, "slices", 0), a.batch * a.sequence
    inner = 1 + rng.choice(max(1, total - 1), size=a.slices - 1, replace=False)
    # A slice stays inside its batch item: the ends of the items are cuts as well.
    cuts = np.unique(np.concatenate([[0], inner, np.arange(1, a.batch + 1) * a.sequence]))
    slices = []
    for begin, end in zip(cuts[:-1], cuts[1:]):
        first = int(begin) // a.sequence * a.key_sequence
        k = np.sort(rng.choice(a.key_sequence + 1, size=2, replace=False)) + first
        slices.append([begin, end, k[0], k[1], rng.integers(4)])
    return np.array(slices, dtype=np.int64)


def write_mask(file, a):
    mask = file.create_group("mask")
    mask.attrs["kind"] = a.mask
    for name in ("window", "block", "prefix"):
        if a.mask.startswith(name):
            mask.attrs[name] = np.int64(getattr(a, name))
    if a.mask.startswith("documents"):
        sources = read_texts(a.texts)
        mask["documents"] = pack_documents([s[3] for s in sources], a.sequence, a.batch)
        file.attrs["sources"] = [f"{n} {b} bytes sha256 {h} {w} words" for n, b, h, w in sources]
    elif a.mask == "regions":
        mask["regions"] = make_regions(a)
    elif a.mask == "slices":
        mask["slices"] = make_slices(a)


def write(path, a, argv):
    queries, keys = a.batch * a.sequence, a.batch * a.key_sequence
    with h5py.File(path, "w") as file:
        file.attrs["schema"] = SCHEMA
        file.attrs["schema_version"] = np.int64(SCHEMA_VERSION)
        file.attrs["seed"] = np.int64(a.seed)
        file.attrs["generator"] = f"{VERSION}, numpy {np.__version__}, h5py {h5py.__version__}"
        file.attrs["arguments"] = " ".join(argv)
        now = datetime.datetime.now(datetime.timezone.utc)
        file.attrs["created"] = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        for name in ("batch", "sequence", "key_sequence"):
            file.attrs[name] = np.int64(getattr(a, name))
        write_mask(file, a)
        # A full disk shows here and not in the middle; closing gives back what was too much.
        elements = (queries * a.query_heads + keys * a.kv_heads) * (a.head_dim + a.value_dim)
        with open(path, "r+b") as raw:
            os.posix_fallocate(raw.fileno(), 0, elements * np.dtype(a.dtype).itemsize)
        for name, rows, heads, dim in (("q", queries, a.query_heads, a.head_dim),
                                       ("k", keys, a.kv_heads, a.head_dim),
                                       ("v", keys, a.kv_heads, a.value_dim),
                                       ("do", queries, a.query_heads, a.value_dim)):
            data = write_normal(file, name, (rows, heads, dim), a)
            data.attrs["axes"] = "token, head, dim"
        if a.sink:
            write_normal(file, "sink", (a.query_heads,), a)


def main(argv):
    a = parse(argv)
    temporary = f"{a.out}.tmp-{os.getpid()}"
    try:
        check(a)
        write(temporary, a, argv)
        with open(temporary, "rb") as f:
            os.fsync(f.fileno())
        os.replace(temporary, a.out)
    except Refused as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    except (OSError, RuntimeError) as e:  # h5py raises RuntimeError when closing fails
        reason = e if isinstance(e, OSError) else e.__context__ or e
        print(f"error: cannot write '{a.out}': {reason}\n  try: another --out, or free space there",
              file=sys.stderr)
        return 4
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
    print(f"{a.out}: {a.batch} x {a.sequence} tokens, {a.query_heads}/{a.kv_heads} heads, "
          f"dims {a.head_dim}/{a.value_dim}, {a.dtype}, mask {a.mask}, "
          f"{os.path.getsize(a.out) / 2**20:.1f} MiB")
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    if status == 4:
        os._exit(status)  # HDF5 may crash in its clean-up at exit after a failed write
    sys.exit(status)
