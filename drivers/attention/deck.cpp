// SPDX-License-Identifier: Apache-2.0
#include "drivers/attention/deck.hpp"

#include <fmt/format.h>

#include "base/units.hpp"

namespace tessera::drivers {

using attention::Layout;
using attention::Pass;
using attention::Problem;
using attention::Scheme;
using attention::SchemeKind;
using config::Texts;
using config::Type;

namespace {

const Texts scheme_names{"ring", "double_ring", "all_gather", "ulysses", "mesh", "unified"};
const Texts mask_names{"full",      "causal",         "causal_bottom_right", "window",
                       "documents", "documents_full", "block_causal",        "prefix",
                       "regions",   "slices"};

std::vector<config::Key> shape_keys() {
  return {
      {.name = "attention.sequence",
       .type = Type::size,
       .fallback = std::int64_t{4096},
       .unit = "tokens",
       .minimum = 1,
       .meaning = "queries of one batch item"},
      {.name = "attention.key_sequence",
       .type = Type::size,
       .fallback = std::int64_t{0},
       .unit = "tokens",
       .minimum = 0,
       .meaning = "keys of one batch item; 0 = as many as queries"},
      {.name = "attention.batch",
       .type = Type::integer,
       .fallback = std::int64_t{1},
       .minimum = 1,
       .meaning = "sequences of this length; they never see each other"},
      {.name = "attention.query_heads",
       .type = Type::integer,
       .fallback = std::int64_t{8},
       .minimum = 1,
       .meaning = "query heads"},
      {.name = "attention.kv_heads",
       .type = Type::integer,
       .fallback = std::int64_t{8},
       .minimum = 1,
       .meaning = "key and value heads: = query_heads MHA, 1 MQA, between GQA"},
      {.name = "attention.head_dim",
       .type = Type::integer,
       .fallback = std::int64_t{128},
       .minimum = 1,
       .meaning = "elements of one query or key vector"},
      {.name = "attention.value_dim",
       .type = Type::integer,
       .fallback = std::int64_t{0},
       .minimum = 0,
       .meaning = "elements of one value vector; 0 = head_dim"},
      {.name = "attention.dtype",
       .type = Type::text,
       .fallback = std::string("f32"),
       .choices = {"f64", "f32", "bf16", "f16"},
       .meaning = "storage; sums are kept in f64 for f64, in f32 otherwise"},
      {.name = "attention.scale",
       .type = Type::real,
       .fallback = 0.0,
       .minimum = 0,
       .meaning = "factor on Q K^T; 0 = 1 / sqrt(head_dim)"},
      {.name = "attention.softcap",
       .type = Type::real,
       .fallback = 0.0,
       .minimum = 0,
       .meaning = "scores become cap * tanh(score / cap); 0 = off"},
      {.name = "attention.sink",
       .type = Type::boolean,
       .fallback = false,
       .meaning = "one learnable logit per query head in the denominator"},
  };
}

std::vector<config::Key> mask_keys() {
  return {
      {.name = "attention.mask",
       .type = Type::text,
       .fallback = std::string("causal"),
       .choices = mask_names,
       .meaning = "which (query, key) pairs are visible"},
      {.name = "attention.window",
       .type = Type::size,
       .fallback = std::int64_t{1024},
       .unit = "tokens",
       .minimum = 1,
       .meaning = "mask window: keys a token sees, itself counted"},
      {.name = "attention.block",
       .type = Type::size,
       .fallback = std::int64_t{1024},
       .unit = "tokens",
       .minimum = 1,
       .meaning = "mask block_causal: tokens of one block"},
      {.name = "attention.prefix",
       .type = Type::size,
       .fallback = std::int64_t{1024},
       .unit = "tokens",
       .minimum = 0,
       .meaning = "mask prefix: keys that all queries see"},
      {.name = "attention.document_lengths",
       .type = Type::texts,
       .fallback = Texts{},
       .unit = "tokens",
       .meaning =
           "masks documents*: lengths, repeated until the batch is full; empty = from input.file"},
  };
}

std::vector<config::Key> scheme_keys() {
  return {
      {.name = "attention.schemes",
       .type = Type::texts,
       .fallback = scheme_names,
       .choices = scheme_names,
       .meaning = "schemes to run, in this order"},
      {.name = "attention.passes",
       .type = Type::texts,
       .fallback = Texts{"forward", "backward"},
       .choices = {"forward", "backward"},
       .meaning = "passes to report"},
      {.name = "attention.layout",
       .type = Type::text,
       .fallback = std::string("zigzag"),
       .choices = {"contiguous", "zigzag", "striped", "balanced"},
       .meaning = "which tokens a rank holds"},
      {.name = "attention.mesh.a",
       .type = Type::integer,
       .fallback = std::int64_t{0},
       .minimum = 0,
       .meaning = "Q chunks of a mesh tile; 0 = chosen from the machine model"},
      {.name = "attention.mesh.b",
       .type = Type::integer,
       .fallback = std::int64_t{0},
       .minimum = 0,
       .meaning = "KV chunks of a mesh tile; 0 = chosen"},
      {.name = "attention.mesh.all",
       .type = Type::boolean,
       .fallback = false,
       .meaning = "run scheme mesh with every pair a x b = ranks"},
      {.name = "attention.ulysses.slices",
       .type = Type::integer,
       .fallback = std::int64_t{0},
       .minimum = 0,
       .meaning = "slices of a rank's heads, the exchange of one beside the tile of another; 0 = "
                  "chosen, 1 = all heads at once"},
      {.name = "attention.unified.ulysses",
       .type = Type::integer,
       .fallback = std::int64_t{0},
       .minimum = 0,
       .meaning =
           "ranks of a head group; 0 = largest divisor of ranks and heads up to half the ranks"},
      {.name = "attention.unified.outer",
       .type = Type::text,
       .fallback = std::string("mesh"),
       .choices = {"ring", "mesh"},
       .meaning = "scheme between head groups"},
      {.name = "attention.double_ring.inner",
       .type = Type::integer,
       .fallback = std::int64_t{0},
       .minimum = 0,
       .meaning = "ranks of an inner ring; 0 = divisor of the ranks next to their square root"},
  };
}

std::vector<config::Key> input_keys() {
  return {
      {.name = "parallel.context",
       .type = Type::integer,
       .fallback = std::int64_t{0},
       .minimum = 0,
       .meaning = "ranks that share the sequence; 0 = all that were started"},
      {.name = "parallel.memory",
       .type = Type::size,
       .fallback = std::int64_t{0},
       .unit = "bytes",
       .minimum = 0,
       .meaning = "memory of one rank; 0 = its share of what the host has free"},
      {.name = "parallel.device",
       .type = Type::text,
       .fallback = std::string("host"),
       .choices = {"host", "cuda"},
       .meaning = "what a rank computes on: processor cores, or an NVIDIA GPU of its own"},
      {.name = "parallel.transport",
       .type = Type::text,
       .fallback = std::string("auto"),
       .choices = {"auto", "nccl", "peer", "staged"},
       .meaning = "between GPUs: NCCL, copy engines inside a host, or host memory and MPI; auto = "
                  "measures"},
      {.name = "parallel.share_device",
       .type = Type::boolean,
       .fallback = false,
       .meaning = "allow several ranks on one GPU, for tests of schemes: their times mean little"},
      {.name = "parallel.nccl_channels",
       .type = Type::integer,
       .fallback = std::int64_t{0},
       .minimum = 0,
       .meaning = "multiprocessors that one NCCL communicator may use; 0 = NCCL's choice"},
      {.name = "parallel.throttle",
       .type = Type::size,
       .fallback = std::int64_t{0},
       .unit = "bytes/s",
       .minimum = 0,
       .meaning = "slow links down to this rate, to see schemes where communication dominates; 0 = "
                  "off"},
      {.name = "input.file",
       .type = Type::text,
       .fallback = std::string(),
       .meaning = "HDF5 file with /q /k /v /do and /mask; empty = random numbers"},
      {.name = "input.seed",
       .type = Type::integer,
       .fallback = std::int64_t{1},
       .minimum = 0,
       .meaning = "seed of the random numbers; they do not depend on the ranks"},
  };
}

std::vector<config::Key> run_keys() {
  return {
      {.name = "run.warmup",
       .type = Type::integer,
       .fallback = std::int64_t{1},
       .minimum = 0,
       .meaning = "runs before timing"},
      {.name = "run.repeats",
       .type = Type::integer,
       .fallback = std::int64_t{5},
       .minimum = 1,
       .meaning = "timed runs of each scheme and pass"},
      {.name = "run.graph",
       .type = Type::boolean,
       .fallback = true,
       .meaning = "GPUs: a whole pass is one launch of a captured graph"},
      {.name = "verify.enabled",
       .type = Type::boolean,
       .fallback = true,
       .meaning = "compare with an fp64 reference: costs sequence^2 in plain loops"},
      {.name = "verify.max_ratio",
       .type = Type::real,
       .fallback = 2.5,
       .minimum = 1,
       .meaning = "largest error over that of a plain one-rank path (all but f64)"},
      {.name = "verify.max_abs",
       .type = Type::real,
       .fallback = 1e-10,
       .minimum = 0,
       .meaning = "largest absolute error (f64)"},
      {.name = "machine.file",
       .type = Type::text,
       .fallback = std::string(),
       .meaning =
           "machine model, inputs/machines/*.toml or from tessera-comm; empty = built-in host"},
      {.name = "output.tensors",
       .type = Type::boolean,
       .fallback = false,
       .meaning = "write O, LSE, dQ, dK, dV of every run to results.h5"},
      {.name = "ops.pin",
       .type = Type::texts,
       .fallback = Texts{},
       .meaning = "operator=backend, e.g. attention.forward=reference; see tessera-info"},
      {.name = "ops.deterministic",
       .type = Type::boolean,
       .fallback = false,
       .meaning = "only backends that give the same bits in every run; slower on GPUs, backward"},
      {.name = "ops.autotune",
       .type = Type::boolean,
       .fallback = false,
       .meaning = "backends are measured before a pass, the fastest of an operator runs on all "
                  "ranks; pins stay"},
  };
}

attention::MaskShape mask_shape(const Problem& p) { return {p.batch, p.sequence, p.key_sequence}; }

std::vector<std::int64_t> repeated_lengths(const config::Config& c, std::int64_t tokens) {
  std::vector<std::int64_t> out;
  const Texts& texts = c.texts("attention.document_lengths");
  for (std::size_t i = 0; tokens > 0 && !texts.empty(); i = (i + 1) % texts.size()) {
    const std::int64_t n = units::parse_size(texts[i]).value_or(0);
    if (n <= 0)
      throw c.error("attention.document_lengths", "holds a document of no tokens",
                    "give lengths of 1 or more");
    out.push_back(std::min(n, tokens));
    tokens -= out.back();
  }
  return out;
}

std::vector<std::int64_t> needed(const MaskArrays& arrays, const config::Config& c,
                                 const char* name) {
  std::vector<std::int64_t> v = arrays(name);
  if (v.empty())
    throw c.error(
        "attention.mask", fmt::format("needs /mask/{} in input.file", name),
        "make the file with inputs/data/make_attention.py --mask ..., or choose another mask");
  return v;
}

attention::Mask make_mask(const config::Config& c, const Problem& p, const MaskArrays& arrays) {
  const attention::MaskShape s = mask_shape(p);
  const std::string& kind = c.text("attention.mask");
  if (kind == "full") return attention::full_mask(s);
  if (kind == "causal" || kind == "causal_bottom_right")
    return attention::causal_mask(s, kind != "causal");
  if (kind == "window") return attention::window_mask(s, c.integer("attention.window"));
  if (kind == "block_causal") return attention::block_causal_mask(s, c.integer("attention.block"));
  if (kind == "prefix") return attention::prefix_mask(s, c.integer("attention.prefix"));
  if (kind == "documents" || kind == "documents_full") {
    std::vector<std::int64_t> lengths = repeated_lengths(c, p.batch * p.sequence);
    if (lengths.empty()) lengths = needed(arrays, c, "documents");
    return attention::document_mask(s, lengths, kind == "documents");
  }
  if (kind == "regions") {
    const auto v = needed(arrays, c, "regions");
    std::vector<Range> regions;
    for (std::size_t i = 0; i + 1 < v.size(); i += 2) regions.push_back({v[i], v[i + 1]});
    return attention::region_mask(s, regions);
  }
  const auto v = needed(arrays, c, "slices");
  std::vector<attention::AttnSlice> slices;
  for (std::size_t i = 0; i + 4 < v.size(); i += 5)
    slices.push_back({v[i], v[i + 1], v[i + 2], v[i + 3], static_cast<int>(v[i + 4])});
  return attention::slice_mask(s, slices);
}

/// Divisor of n next to its square root, the larger of two.
int middle_divisor(int n) {
  int best = 1;
  for (int d = 1; d * d <= n; ++d)
    if (n % d == 0) best = n / d;
  return best == n && n > 1 ? n : best;
}

/// Largest head group that the heads allow, at most half of the ranks so that something is left to
/// do outside it.
int default_ulysses(const Problem& p, int n) {
  int best = 1;
  for (int u = 1; u <= std::max(1, n / 2); ++u)
    if (n % u == 0 && p.query_heads % u == 0 && (p.kv_heads % u == 0 || u % p.kv_heads == 0))
      best = u;
  return best;
}

}  // namespace

config::Table attention_table() {
  std::vector<config::Key> keys = scheme_keys();
  for (auto part : {shape_keys(), mask_keys(), input_keys(), run_keys()})
    keys.insert(keys.end(), part.begin(), part.end());
  return config::Table(std::move(keys));
}

namespace {

/// Above these, bytes and pairs no longer fit 64-bit integers.
void refuse_overflow(const config::Config& c, const Problem& p) {
  const auto real = [](std::int64_t n) { return static_cast<double>(n); };
  const double rows = real(p.batch) * real(std::max(p.sequence, p.key_sequence));
  const double elements = rows * real(p.query_heads) * real(std::max(p.head_dim, p.value_dim));
  const double pairs = real(p.batch) * real(p.sequence) * real(p.key_sequence);
  if (elements > 0x1p54 || pairs > 0x1p62)
    throw c.error(
        "attention.sequence",
        fmt::format("makes tensors of {:.3g} elements and {:.3g} query-key pairs", elements, pairs),
        "at most 2^54 elements and 2^62 pairs can be counted");
}

const Texts& not_empty(const config::Config& c, const char* key) {
  const Texts& texts = c.texts(key);
  if (texts.empty()) throw c.error(key, "leaves nothing to do", "give one or more");
  return texts;
}

}  // namespace

bool mask_needs_file(const config::Config& c) {
  const std::string& kind = c.text("attention.mask");
  const bool documents =
      kind.starts_with("documents") && c.texts("attention.document_lengths").empty();
  return documents || kind == "regions" || kind == "slices";
}

Problem make_problem(const config::Config& c, const MaskArrays& arrays) {
  Problem p;
  p.batch = c.integer("attention.batch");
  p.sequence = c.integer("attention.sequence");
  p.key_sequence =
      c.integer("attention.key_sequence") ? c.integer("attention.key_sequence") : p.sequence;
  p.query_heads = c.integer("attention.query_heads");
  p.kv_heads = c.integer("attention.kv_heads");
  p.head_dim = c.integer("attention.head_dim");
  p.value_dim = c.integer("attention.value_dim") ? c.integer("attention.value_dim") : p.head_dim;
  p.dtype = dtype_named(c.text("attention.dtype")).value();
  const std::string& layout = c.text("attention.layout");
  for (Layout x : {Layout::contiguous, Layout::zigzag, Layout::striped, Layout::balanced})
    if (attention::name_of(x) == layout) p.layout = x;
  p.scale = c.real("attention.scale");
  p.softcap = c.real("attention.softcap");
  p.sink = c.boolean("attention.sink");
  refuse_overflow(c, p);
  p.mask = make_mask(c, p, arrays);
  return p;
}

std::vector<Scheme> make_schemes(const config::Config& c, const Problem& p, int n) {
  std::vector<Scheme> out;
  for (const std::string& name : not_empty(c, "attention.schemes")) {
    Scheme s;
    s.kind = attention::scheme_of(name);
    s.outer = attention::scheme_of(c.text("attention.unified.outer"));
    if (s.kind == SchemeKind::mesh || s.kind == SchemeKind::unified) {
      s.a = static_cast<int>(c.integer("attention.mesh.a"));
      s.b = static_cast<int>(c.integer("attention.mesh.b"));
    }
    if (s.kind == SchemeKind::unified) {
      const auto u = static_cast<int>(c.integer("attention.unified.ulysses"));
      s.ulysses = u ? u : default_ulysses(p, n);
      // a and b of the deck are for one kind of mesh: where they fill all ranks, that of 'mesh'.
      if (s.a * s.b == n && s.ulysses > 1) s.a = s.b = 0;
    } else if (s.kind == SchemeKind::mesh && s.a * s.b != 0 && s.a * s.b != n &&
               c.given("attention.unified.ulysses") &&
               s.a * s.b * c.integer("attention.unified.ulysses") == n) {
      s.a = s.b = 0;
    }
    if (s.kind == SchemeKind::ulysses)
      s.slices = static_cast<int>(c.integer("attention.ulysses.slices"));
    if (s.kind == SchemeKind::double_ring) {
      const auto w = static_cast<int>(c.integer("attention.double_ring.inner"));
      s.inner = w ? w : middle_divisor(n);
    }
    if (s.kind == SchemeKind::mesh && c.boolean("attention.mesh.all")) {
      for (int a = 1; a <= n; ++a) {
        if (n % a != 0) continue;
        s.a = a, s.b = n / a;
        attention::validate(p, s, n);
        out.push_back(s);
      }
      continue;
    }
    attention::validate(p, s, n);
    out.push_back(s);
  }
  return out;
}

std::vector<Pass> make_passes(const config::Config& c) {
  std::vector<Pass> out;
  for (const std::string& name : not_empty(c, "attention.passes"))
    out.push_back(name == "forward" ? Pass::forward : Pass::backward);
  return out;
}

std::string shape_text(const Problem& p) {
  std::string s = fmt::format("{} tokens", p.sequence);
  if (p.key_sequence != p.sequence) s += fmt::format(" x {} keys", p.key_sequence);
  if (p.batch > 1) s += fmt::format(", batch {}", p.batch);
  s += fmt::format(", heads {}/{}, dim {}", p.query_heads, p.kv_heads, p.head_dim);
  if (p.value_dim != p.head_dim) s += fmt::format("/{}", p.value_dim);
  return s;
}

}  // namespace tessera::drivers
