// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention.hpp"

#include <algorithm>

#include "kernels/cuda/check.hpp"
#include "kernels/cuda/cut.hpp"
#include "kernels/cuda/tensor_map.hpp"
#include "ops/signature.hpp"

namespace tessera::kernels::cuda {
namespace {

using Resident = MaskCache::Resident;

constexpr std::int64_t most_rows = std::int64_t{1} << 30;  ///< positions are 32 bit in kernels
/// Entries after which a thread block gives its multiprocessor back, about half a millisecond, so
/// that kernels of other streams (those of NCCL) get their turn.
constexpr std::int64_t steps_at_most = 256;
constexpr std::int64_t cache_bytes = 24 << 20;  ///< of the L2, for streamed operands

cudaStream_t stream_of(const ops::Call& call) { return static_cast<cudaStream_t>(call.stream); }

struct Sizes {
  std::int64_t queries, keys;
  int heads, key_heads, d, dv;
};
Sizes sizes(const ops::Call& call) {
  const TensorRef &q = call.args[0], &k = call.args[1], &v = call.args[2];
  return {q.shape[0],
          k.shape[0],
          static_cast<int>(q.shape[1]),
          static_cast<int>(k.shape[1]),
          static_cast<int>(q.shape[2]),
          static_cast<int>(v.shape[2])};
}

Operands operands(const ops::Call& call) {
  const Sizes s = sizes(call);
  return {view(call.args[0]).type, s.d, s.dv};
}

bool small_enough(const ops::Call& call) {
  const Sizes s = sizes(call);
  return s.queries < most_rows && s.keys < most_rows && s.d <= 512 && s.dv <= 512;
}

/// Accumulators are read and written in pairs.
bool in_pairs(const TensorRef& t) {
  return t.stride[2] == 1 && (t.shape[0] == 1 || t.stride[0] % 2 == 0) &&
         (t.shape[1] == 1 || t.stride[1] % 2 == 0) &&
         reinterpret_cast<std::uintptr_t>(t.data) % 8 == 0;
}

/// Major version of the current device; 0 without one.
int compute_major() {
  int device = 0, major = 0;
  if (cudaGetDevice(&device) == cudaSuccess &&
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess) {
    return major;
  }
  cudaGetLastError();
  return 0;
}

int multiprocessors() {
  int device = 0, count = 0;
  check(cudaGetDevice(&device), "the current device");
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "its size");
  return count;
}

bool has_kernel(const ops::Call& call, std::initializer_list<std::size_t> operands,
                std::initializer_list<std::size_t> sums) {
  if (!mismatch(call).empty() || !on_device(call) || !small_enough(call)) return false;
  const Sizes s = sizes(call);
  return compute_major() == 9 && call.attributes.scale > 0 &&
         forward_tile(s.d, s.dv).resident > 0 &&
         std::ranges::all_of(operands, [&](auto i) { return fits_tensor_map(call.args[i]); }) &&
         std::ranges::all_of(sums, [&](auto i) { return in_pairs(call.args[i]); });
}

bool forward_supports(const ops::Call& call) {
  return call.args.size() == 5 && has_kernel(call, {0, 1, 2}, {3});
}
bool backward_supports(const ops::Call& call) {
  return call.args.size() == 9 && has_kernel(call, {0, 1, 2, 3}, {6, 7, 8});
}
bool plain_supports(const ops::Call& call) {
  return mismatch(call).empty() && on_device(call) && small_enough(call);
}

/// The lists and sizes of one kernel. Heads that run together stream at most cache_bytes: the keys
/// and values of their key heads, or the queries and gradients of their groups.
Tile tile_of(const ops::Call& call, MaskCache& masks, Resident resident, TileShape shape) {
  const Sizes s = sizes(call);
  const int group = s.heads / s.key_heads;
  const bool by_keys = resident == Resident::keys;
  const std::int64_t streamed = by_keys ? s.queries * group : s.keys;
  const std::int64_t bytes = std::max<std::int64_t>(1, streamed * (s.d + s.dv) * 2);
  const std::int64_t together = std::clamp<std::int64_t>(cache_bytes / bytes, 1, s.key_heads);
  Tile t{};
  t.tiles = masks.tiles(call.attributes.mask, s.queries, s.keys, resident, shape, call.stream);
  t.rows = static_cast<int>(s.queries);
  t.keys = static_cast<int>(s.keys);
  t.heads = s.heads;
  t.group = group;
  // Sets of like size: the blocks of a small last one would be too few for all multiprocessors.
  const auto sets = static_cast<int>((s.key_heads - 1) / together + 1);
  const int most = (s.key_heads - 1) / sets + 1;
  t.wide_sets = s.key_heads - sets * (most - 1);
  t.heads_less = by_keys ? 1 : group;
  t.heads_at_once = most * t.heads_less;
  t.scale = static_cast<float>(call.attributes.scale);
  t.softcap = static_cast<float>(call.attributes.softcap);
  const int rounds = by_keys ? group : 1;  // over the list of a block
  t.items = t.tiles.blocks * (by_keys ? s.key_heads : s.heads);
  const std::int64_t steps = std::max<std::int64_t>(1, std::int64_t{t.tiles.num_entries} * rounds);
  t.items_at_most =
      static_cast<int>(std::max<std::int64_t>(1, steps_at_most * t.tiles.blocks / steps));
  t.thread_blocks = std::min(t.items, t.items / t.items_at_most + multiprocessors());
  return t;
}

void forward(const ops::Call& call, MaskCache& masks) {
  const Sizes s = sizes(call);
  if (s.queries == 0 || s.keys == 0 || s.heads == 0) return;
  const TileShape shape = forward_tile(s.d, s.dv);
  const TensorRef &o = call.args[3], &lse = call.args[4];
  ForwardParams p{};
  p.q = tensor_map(call.args[0], shape.resident);
  p.k = tensor_map(call.args[1], shape.streamed);
  p.v = tensor_map(call.args[2], shape.streamed);
  p.tile = tile_of(call, masks, Resident::queries, shape);
  p.by_panels = fits_sum_map(o);
  if (p.by_panels) p.sums = tensor_map(o, forward_sum_rows);
  p.o = o.as<float>();
  p.lse = lse.as<float>();
  p.fresh = call.attributes.fresh != 0;
  for (int i = 0; i < 2; ++i) {
    p.o_stride[i] = o.stride[i];
    p.lse_stride[i] = lse.stride[i];
  }
  if (const TensorRef& store = call.attributes.store; store.data) {
    p.rounded = store.as<char>();
    p.rounded_out = tensor_map(store, forward_sum_rows);
    for (int i = 0; i < 2; ++i) p.rounded_stride[i] = store.stride[i];
  }
  check(launch_forward(p, operands(call), stream_of(call)), "attention.forward");
}

BackwardParams backward_params(const ops::Call& call) {
  const auto& a = call.args;
  BackwardParams p{};
  p.lse = a[4].as<float>();
  p.delta = a[5].as<float>();
  p.dq = a[6].as<float>();
  p.dk = a[7].as<float>();
  p.dv = a[8].as<float>();
  const auto fresh = [&](int argument) { return (call.attributes.fresh >> argument & 1) != 0; };
  p.fresh_dq = fresh(6), p.fresh_dk = fresh(7), p.fresh_dv = fresh(8);
  for (int i = 0; i < 2; ++i) {
    p.lse_stride[i] = a[4].stride[i];
    p.delta_stride[i] = a[5].stride[i];
    p.dq_stride[i] = a[6].stride[i];
    p.dk_stride[i] = a[7].stride[i];
    p.dv_stride[i] = a[8].stride[i];
  }
  return p;
}

/// The part of a call that depends on which side stays in a block, made by `launcher`.
void launch(const ops::Call& call, MaskCache& masks, BackwardParams& p, Resident resident,
            decltype(launch_backward)* launcher, const char* name) {
  const Sizes s = sizes(call);
  const bool by_keys = resident == Resident::keys;
  const TileShape shape = by_keys ? backward_key_tile(s.d, s.dv) : backward_query_tile(s.d, s.dv);
  const int query_rows = by_keys ? shape.streamed : shape.resident;
  const int key_rows = by_keys ? shape.resident : shape.streamed;
  p.q = tensor_map(call.args[0], query_rows);
  p.k = tensor_map(call.args[1], key_rows);
  p.v = tensor_map(call.args[2], key_rows);
  p.grad = tensor_map(call.args[3], query_rows);
  p.tile = tile_of(call, masks, resident, shape);
  check(launcher(p, operands(call), stream_of(call)), name);
}

void backward(const ops::Call& call, MaskCache& masks) {
  const Sizes s = sizes(call);
  if (s.queries == 0 || s.keys == 0 || s.heads == 0) return;
  BackwardParams p = backward_params(call);
  launch(call, masks, p, Resident::keys, launch_backward_keys, "attention.backward, dk and dv");
  launch(call, masks, p, Resident::queries, launch_backward_queries, "attention.backward, dq");
}

bool one_pass_supports(const ops::Call& call) {
  if (!backward_supports(call)) return false;
  const Sizes s = sizes(call);
  return backward_sum_rows(s.d, s.dv) > 0 && fits_sum_map(call.args[6]);
}
void one_pass_backward(const ops::Call& call, MaskCache& masks) {
  const Sizes s = sizes(call);
  if (s.queries == 0 || s.keys == 0 || s.heads == 0) return;
  BackwardParams p = backward_params(call);
  p.dq_sums = tensor_map(call.args[6], backward_sum_rows(s.d, s.dv));
  launch(call, masks, p, Resident::keys, launch_backward, "attention.backward");
}

/// Every query sees a key. Those that see one of a band are a range.
bool all_rows_see(const ops::Call& call) {
  std::vector<Range> rows;
  for (const ops::Band& b : call.attributes.mask) {
    if (b.k0 >= b.k1 || b.lo > b.hi) continue;
    rows.push_back({b.hi >= ops::Band::unbounded ? b.q0 : std::max(b.q0, b.k0 - b.hi),
                    b.lo <= -ops::Band::unbounded ? b.q1 : std::min(b.q1, b.k1 - b.lo)});
  }
  return leave_no_gap(std::move(rows), {0, call.args[0].shape[0]});
}

/// Every key is seen by a query. Those of a band are a range.
bool all_keys_are_seen(const ops::Call& call) {
  std::vector<Range> keys;
  for (const ops::Band& b : call.attributes.mask) {
    if (b.q0 >= b.q1 || b.lo > b.hi) continue;
    keys.push_back({b.lo <= -ops::Band::unbounded ? b.k0 : std::max(b.k0, b.q0 + b.lo),
                    b.hi >= ops::Band::unbounded ? b.k1 : std::min(b.k1, b.q1 + b.hi)});
  }
  return leave_no_gap(std::move(keys), {0, call.args[1].shape[0]});
}

/// Blocks of queries that see no key are not looked at, and so would not be stored.
bool forward_stores(const ops::Call& call, const TensorRef& to) {
  return to.dtype == call.args[0].dtype && fits_tensor_map(to) && all_rows_see(call);
}
bool forward_overwrites(const ops::Call& call, std::size_t argument) {
  return (argument == 3 || argument == 4) && all_rows_see(call);
}
bool backward_overwrites(const ops::Call& call, std::size_t argument) {
  if (argument == 6) return all_rows_see(call);
  return (argument == 7 || argument == 8) && all_keys_are_seen(call);
}

/// dQ is only ever added to.
bool one_pass_overwrites(const ops::Call& call, std::size_t argument) {
  return argument != 6 && backward_overwrites(call, argument);
}

void prepare_forward(const ops::Call& call, MaskCache& masks) {
  const Sizes s = sizes(call);
  tile_of(call, masks, Resident::queries, forward_tile(s.d, s.dv));
}
void prepare_one_pass(const ops::Call& call, MaskCache& masks) {
  const Sizes s = sizes(call);
  tile_of(call, masks, Resident::keys, backward_key_tile(s.d, s.dv));
}
void prepare_backward(const ops::Call& call, MaskCache& masks) {
  prepare_one_pass(call, masks);  // the lists of keys
  const Sizes s = sizes(call);
  tile_of(call, masks, Resident::queries, backward_query_tile(s.d, s.dv));
}

PlainParams plain_params(const ops::Call& call, MaskCache& masks) {
  const Sizes s = sizes(call);
  PlainParams p{};
  p.q = view(call.args[0]);
  p.k = view(call.args[1]);
  p.v = view(call.args[2]);
  const auto bands = masks.bands(call.attributes.mask, s.queries, s.keys, call.stream);
  p.bands = bands.data();
  p.num_bands = static_cast<int>(bands.size());
  p.scale = call.attributes.scale;
  p.softcap = call.attributes.softcap;
  return p;
}

void plain_forward(const ops::Call& call, MaskCache& masks) {
  PlainParams p = plain_params(call, masks);
  p.o = view(call.args[3]);
  p.lse = view(call.args[4]);
  check(launch_plain_forward(p, stream_of(call)), "attention.forward");
}

void plain_backward(const ops::Call& call, MaskCache& masks) {
  PlainParams p = plain_params(call, masks);
  const auto& a = call.args;
  p.grad = view(a[3]);
  p.lse = view(a[4]);
  p.delta = view(a[5]);
  p.dq = view(a[6]);
  p.dk = view(a[7]);
  p.dv = view(a[8]);
  check(launch_plain_backward(p, stream_of(call)), "attention.backward");
}

void prepare_plain(const ops::Call& call, MaskCache& masks) { plain_params(call, masks); }

}  // namespace

bool on_device(const ops::Call& call) {
  return std::ranges::all_of(call.args, [](auto& t) { return t.space == Space::cuda; });
}

View view(const TensorRef& t) {
  const Element type = t.dtype == DType::f64   ? Element::f64
                       : t.dtype == DType::f32 ? Element::f32
                       : t.dtype == DType::f16 ? Element::f16
                                               : Element::bf16;
  return {
      t.data, type, {t.shape[0], t.shape[1], t.shape[2]}, {t.stride[0], t.stride[1], t.stride[2]}};
}

std::optional<Box> box_of(const ops::Call& call) {
  if (call.attributes.mask.size() != 1) return {};
  ops::Band b = call.attributes.mask[0];
  const std::int64_t m = call.args[0].shape[0], n = call.args[1].shape[0];
  if (b.q0 < 0 || b.q0 >= b.q1 || b.q1 > m || b.k0 < 0 || b.k0 >= b.k1 || b.k1 > n) return {};
  const Range queries{b.q0, b.q1}, keys{b.k0, b.k1};
  Box box{call.args, b};
  const auto cut = [&](std::initializer_list<std::size_t> which, auto f) {
    for (std::size_t i : which) {
      if (i < box.args.size()) box.args[i] = f(box.args[i]);
    }
  };
  // q o, or q do dq; statistics [head, token]; k v, or k v dk dv.
  cut({0, 3, 6}, [&](const TensorRef& t) { return t.slice(queries, {0, t.shape[1]}); });
  cut({4, 5}, [&](const TensorRef& t) { return t.slice({0, t.shape[0]}, queries); });
  cut({1, 2, 7, 8}, [&](const TensorRef& t) { return t.slice(keys, {0, t.shape[1]}); });
  if (b.lo > -ops::Band::unbounded) box.band.lo += b.q0 - b.k0;
  if (b.hi < ops::Band::unbounded) box.band.hi += b.q0 - b.k0;
  box.band.q0 = 0, box.band.q1 = queries.size();
  box.band.k0 = 0, box.band.k1 = keys.size();
  return box;
}

void add_attention(ops::Registry& registry, std::shared_ptr<MaskCache> masks) {
  const auto add = [&](const char* op, const char* backend, int priority, auto supports, auto run,
                       auto prepare, bool (*overwrites)(const ops::Call&, std::size_t) = nullptr,
                       bool (*stores)(const ops::Call&, const TensorRef&) = nullptr,
                       bool repeatable = true) {
    registry.add({op, backend, priority, supports,
                  [masks, run](const ops::Call& call) { run(call, *masks); },
                  [masks, prepare](const ops::Call& call) { prepare(call, *masks); }, overwrites,
                  stores, cut_by_heads, repeatable});
  };
  add("attention.forward", "cuda", 20, forward_supports, forward, prepare_forward,
      forward_overwrites, forward_stores);
  add("attention.backward", "cuda-one-pass", 25, one_pass_supports, one_pass_backward,
      prepare_one_pass, one_pass_overwrites, nullptr, false);
  add("attention.backward", "cuda", 20, backward_supports, backward, prepare_backward,
      backward_overwrites);
  add("attention.forward", "cuda-plain", 5, plain_supports, plain_forward, prepare_plain);
  add("attention.backward", "cuda-plain", 5, plain_supports, plain_backward, prepare_plain);
}

}  // namespace tessera::kernels::cuda
