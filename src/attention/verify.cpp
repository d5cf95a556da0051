// SPDX-License-Identifier: Apache-2.0
#include "attention/verify.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace tessera::attention {

namespace {

using Values = std::vector<double>;

void run(const ops::Registry& registry, const char* op, std::vector<TensorRef> args,
         ops::Attributes attributes = {}) {
  const ops::Call call{op, std::move(args), attributes, {}};
  for (const ops::Implementation& i : registry.list())
    if (i.op == op && i.backend == "reference") return i.run(call);
  throw std::logic_error(std::string("no reference operator ") + op);
}

/// Contiguous block of `total` rows for this rank; all blocks have the same length, the last ones
/// are filled up with padding.
Rows block_rows(std::int64_t total, const parallel::Communicator& comm) {
  const std::int64_t each = (total + comm.size() - 1) / comm.size();
  const std::int64_t begin = std::min(total, each * comm.rank());
  const std::int64_t valid = std::min(total, begin + each) - begin;
  Rows rows;
  if (valid > 0) rows.push_back({begin, 1, valid});
  if (valid < each) rows.push_back({-1, 1, each - valid});
  return rows;
}

/// Plain attention of one rank's block of query rows against all keys, in one dtype.
class Plain {
 public:
  Plain(const Problem& p, DType type, const Fill& fill, Surroundings around)
      : p_(p),
        type_(type),
        sum_type_(accumulate_type(type)),
        around_(around),
        q_rows_(block_rows(p.mask.rows(), around.comm)),
        k_rows_{{0, 1, p.mask.cols()}} {
    q_ = load(fill, "q", q_rows_, p.query_heads, p.head_dim);
    k_ = load_all(fill, "k", p.kv_heads, p.head_dim);
    v_ = load_all(fill, "v", p.kv_heads, p.value_dim);
    if (p.sink) {
      sink_ = make(sum_type_, {p.query_heads, 1, 1});
      fill("sink", {}, sink_.ref);
    }
  }

  void forward(std::map<std::string, Values>& out) {
    const std::int64_t m = count(q_rows_);
    Tensor acc = make(sum_type_, {m, p_.query_heads, p_.value_dim});
    lse_ = make(sum_type_, {p_.query_heads, m, 1});
    run(around_.registry, "attention.reset", {acc.ref, lse_.ref});
    run(around_.registry, "attention.forward", {q_.ref, k_.ref, v_.ref, acc.ref, lse_.ref},
        attributes());
    if (p_.sink) run(around_.registry, "attention.sink", {sink_.ref, acc.ref, lse_.ref});
    o_ = make(type_, {m, p_.query_heads, p_.value_dim});
    run(around_.registry, "tensor.copy", {acc.ref, o_.ref});
    out["o"] = gather_rows(o_.ref, p_.mask.rows());
    out["lse"] = gather_statistic(lse_.ref);
  }

  void backward(const Fill& fill, std::map<std::string, Values>& out) {
    const std::int64_t m = count(q_rows_), n = p_.mask.cols();
    Tensor dout = load(fill, "do", q_rows_, p_.query_heads, p_.value_dim);
    Tensor delta = make(sum_type_, {p_.query_heads, m, 1});
    run(around_.registry, "attention.delta", {o_.ref, dout.ref, delta.ref});
    Tensor dq = make(sum_type_, {m, p_.query_heads, p_.head_dim});
    Tensor dk = make(sum_type_, {n, p_.kv_heads, p_.head_dim});
    Tensor dv = make(sum_type_, {n, p_.kv_heads, p_.value_dim});
    run(around_.registry, "attention.backward",
        {q_.ref, k_.ref, v_.ref, dout.ref, lse_.ref, delta.ref, dq.ref, dk.ref, dv.ref},
        attributes());
    out["dq"] = gather_rows(rounded(dq).ref, p_.mask.rows());
    out["dk"] = sum_over_ranks(dk.ref);
    out["dv"] = sum_over_ranks(dv.ref);
    if (!p_.sink) return;
    Tensor dsink = make(sum_type_, {p_.query_heads, 1, 1});
    run(around_.registry, "attention.sink_grad", {sink_.ref, lse_.ref, delta.ref, dsink.ref});
    out["dsink"] = sum_over_ranks(dsink.ref);
  }

 private:
  Tensor make(DType type, std::array<std::int64_t, 3> shape) {
    return make_tensor(around_.budget, type, shape, "reference");
  }

  ops::Attributes attributes() {
    bands_ = p_.mask.cut(q_rows_, k_rows_);
    return {bands_, p_.scale_factor(), p_.softcap};
  }

  /// Inputs as the tested path sees them: rounded to the problem's dtype, then widened.
  Tensor load(const Fill& fill, const char* name, const Rows& rows, std::int64_t heads,
              std::int64_t dim) {
    Tensor x = make(p_.dtype, {count(rows), heads, dim});
    fill(name, rows, x.ref);
    if (type_ == p_.dtype) return x;
    Tensor wide = make(type_, x.ref.shape);
    run(around_.registry, "tensor.copy", {x.ref, wide.ref});
    return wide;
  }

  /// All rows on every rank, each rank having read its own block.
  Tensor load_all(const Fill& fill, const char* name, std::int64_t heads, std::int64_t dim) {
    const Rows mine = block_rows(p_.mask.cols(), around_.comm);
    Tensor part = load(fill, name, mine, heads, dim);
    const auto bytes = static_cast<std::size_t>(part.ref.count() * size_of(type_));
    const auto all =
        around_.comm.all_gather_bytes({static_cast<const std::byte*>(part.ref.data), bytes});
    Tensor whole = make(type_, {p_.mask.cols(), heads, dim});
    std::memcpy(whole.ref.data, all.data(),
                static_cast<std::size_t>(whole.ref.count() * size_of(type_)));
    return whole;
  }

  Tensor rounded(const Tensor& x) {
    Tensor out = make(type_, x.ref.shape);
    run(around_.registry, "tensor.copy", {x.ref, out.ref});
    return out;
  }

  Values widen(const TensorRef& t) const {
    Values out;
    out.reserve(static_cast<std::size_t>(t.count()));
    for (std::int64_t i = 0; i < t.shape[0]; ++i)
      for (std::int64_t j = 0; j < t.shape[1]; ++j)
        for (std::int64_t k = 0; k < t.shape[2]; ++k) out.push_back(t.value(i, j, k));
    return out;
  }

  Values gathered(const Values& mine) const {
    const auto bytes = around_.comm.all_gather_bytes(std::as_bytes(std::span<const double>(mine)));
    Values all(bytes.size() / sizeof(double));
    std::memcpy(all.data(), bytes.data(), bytes.size());
    return all;
  }

  Values gather_rows(const TensorRef& t, std::int64_t rows) const {
    Values all = gathered(widen(t));
    all.resize(static_cast<std::size_t>(rows * t.shape[1] * t.shape[2]));
    return all;
  }

  /// [heads, block] of every rank -> [heads, rows].
  Values gather_statistic(const TensorRef& t) const {
    const Values all = gathered(widen(t));
    const std::int64_t rows = p_.mask.rows(), block = t.shape[1];
    Values out(static_cast<std::size_t>(t.shape[0] * rows));
    for (std::int64_t h = 0; h < t.shape[0]; ++h)
      for (std::int64_t r = 0; r < rows; ++r)
        out[static_cast<std::size_t>(h * rows + r)] =
            all[static_cast<std::size_t>((r / block * t.shape[0] + h) * block + r % block)];
    return out;
  }

  Values sum_over_ranks(const TensorRef& t) const {
    Values all = widen(t);
    around_.comm.all_reduce_sum(std::span<double>(all));
    if (type_ == DType::bf16)
      for (double& x : all) x = static_cast<double>(element_cast<BFloat16>(x));
    if (type_ == DType::f16)
      for (double& x : all) x = static_cast<double>(element_cast<Float16>(x));
    return all;
  }

  const Problem& p_;
  DType type_, sum_type_;
  Surroundings around_;
  Rows q_rows_, k_rows_;
  Tensor q_, k_, v_, sink_, o_, lse_;
  std::vector<Band> bands_;
};

/// Squared and largest difference; -inf equals -inf, NaN differs from everything.
struct Sums {
  double difference = 0, max_abs = 0;
  void add(double x, double ref) {
    if (x == ref) return;
    const double d = std::abs(x - ref);
    difference += std::isfinite(d) ? d * d : std::numeric_limits<double>::infinity();
    max_abs = std::max(max_abs, std::isfinite(d) ? d : std::numeric_limits<double>::infinity());
  }
  double relative(double scale) const {
    return difference == 0 ? 0 : std::sqrt(difference) / std::max(scale, 1e-150);
  }
};

double unit_roundoff(DType t) {
  return t == DType::f64 ? 0x1p-53 : t == DType::f32 ? 0x1p-24 : t == DType::f16 ? 0x1p-11 : 0x1p-9;
}

/// Reference::scale of all tensors.
std::map<std::string, double> scales_of(const std::map<std::string, Values>& tensors) {
  std::map<std::string, double> out;
  for (const auto& [name, value] : tensors) {
    double square = 0;
    for (const double x : value) square += std::isfinite(x) ? x * x : 0;
    out[name] = std::sqrt(square);
  }
  if (!out.contains("dq")) return out;
  const double least = 1e-3 * std::max({out["dq"], out["dk"], out["dv"]});
  for (const char* name : {"dq", "dk", "dv"}) out[name] = std::max(out[name], least);
  return out;
}

}  // namespace

Reference make_reference(const Problem& p, const Fill& fill, Surroundings around, bool backward) {
  Reference ref;
  Plain exact(p, DType::f64, fill, around);
  exact.forward(ref.value);
  if (backward) exact.backward(fill, ref.value);
  std::map<std::string, Values> low;
  if (p.dtype != DType::f64) {
    Plain plain(p, p.dtype, fill, around);
    plain.forward(low);
    if (backward) plain.backward(fill, low);
  }
  ref.scale = scales_of(ref.value);
  for (const auto& [name, value] : ref.value) {
    Sums s;
    if (p.dtype != DType::f64)
      for (std::size_t i = 0; i < value.size(); ++i) s.add(low[name][i], value[i]);
    ref.plain_error[name] = std::max(s.relative(ref.scale.at(name)), unit_roundoff(p.dtype));
  }
  return ref;
}

Errors compare(const Session& session, const PreparedPass& pass, Pass which, const Reference& ref,
               parallel::Communicator& comm) {
  const Problem& p = session.problem();
  const Split& split = pass.split();
  const int rank = comm.rank();
  Errors out;
  auto take = [&](const std::string& name, const Sums& mine) {
    double difference[1] = {mine.difference};
    comm.all_reduce_sum(std::span<double>(difference));
    const Sums all{difference[0], comm.all_reduce_max(mine.max_abs)};
    const double relative = all.relative(ref.scale.at(name));
    // Infinite too where the plain path overflows as well.
    const double ratio = std::isfinite(relative) ? relative / ref.plain_error.at(name) : relative;
    if (out.worst.empty() || !(ratio <= out.ratio)) out.ratio = ratio, out.worst = name;
    out.relative = std::max(out.relative, relative);
    out.max_abs = std::max(out.max_abs, all.max_abs);
  };
  auto rows_of_tensor = [&](const char* name, const Rows& rows) {
    const TensorRef t = session.tensor(name);
    const std::vector<double>& want = ref.value.at(name);
    const std::vector<std::int64_t> global = expand(rows);
    Sums s;
    for (std::int64_t i = 0; i < t.shape[0]; ++i)
      for (std::int64_t j = 0; j < t.shape[1]; ++j)
        for (std::int64_t k = 0; k < t.shape[2]; ++k) {
          const std::int64_t g = global[static_cast<std::size_t>(i)];
          const double x = t.value(i, j, k);
          if (g >= 0)
            s.add(x, want[static_cast<std::size_t>((g * t.shape[1] + j) * t.shape[2] + k)]);
          else if (x != 0)
            s.add(std::numeric_limits<double>::infinity(), 0);
        }
    take(name, s);
  };
  const Rows q = query_rows(p, split, rank), k = key_rows(p, split, rank);
  if (which == Pass::backward) {
    rows_of_tensor(name::dq, q);
    rows_of_tensor(name::dk, k);
    rows_of_tensor(name::dv, k);
    if (p.sink) {
      Sums s;
      const TensorRef t = session.tensor(name::dsink);
      for (std::int64_t h = 0; h < p.query_heads; ++h)
        s.add(t.value(h, 0, 0), ref.value.at("dsink")[static_cast<std::size_t>(h)]);
      take(name::dsink, s);
    }
    return out;
  }
  rows_of_tensor(name::o, q);
  const TensorRef lse = session.tensor(name::lse);
  const Range heads = heads_of(p, split, split.inner_of(rank)).query;
  const std::vector<std::int64_t> global = expand(query_chunk(p, split, split.outer_of(rank)));
  Sums s;
  for (std::int64_t h = 0; h < lse.shape[0]; ++h)
    for (std::int64_t i = 0; i < lse.shape[1]; ++i)
      if (const std::int64_t g = global[static_cast<std::size_t>(i)]; g >= 0)
        s.add(lse.value(h, i, 0),
              ref.value.at("lse")[static_cast<std::size_t>((heads.begin + h) * p.mask.rows() + g)]);
  take(name::lse, s);
  return out;
}

}  // namespace tessera::attention
