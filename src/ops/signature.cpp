// SPDX-License-Identifier: Apache-2.0
// Shapes and element types that each operator of ops/call.hpp asks for.
#include "ops/signature.hpp"

#include <fmt/format.h>

#include <array>

namespace tessera::ops {
namespace {

using Shape = std::array<std::int64_t, 3>;

/// Collects the first complaint about a call; later checks are skipped once there is one.
class Check {
 public:
  explicit Check(const Call& call) : call_(call) {}

  bool count(std::size_t n) {
    if (call_.args.size() == n) return true;
    error_ = fmt::format("{} arguments given, {} expected", call_.args.size(), n);
    return false;
  }
  void arg(std::size_t i, DType dtype, Shape shape) {
    const TensorRef& t = call_.args[i];
    if (!error_.empty() || (t.dtype == dtype && t.shape == shape)) return;
    error_ = fmt::format("argument {} is {}[{},{},{}], expected {}[{},{},{}]", i, name_of(t.dtype),
                         t.shape[0], t.shape[1], t.shape[2], name_of(dtype), shape[0], shape[1],
                         shape[2]);
  }
  void that(bool ok, const char* complaint) {
    if (error_.empty() && !ok) error_ = complaint;
  }
  const TensorRef& operator[](std::size_t i) const { return call_.args[i]; }
  std::size_t size() const { return call_.args.size(); }
  const std::string& error() const { return error_; }

 private:
  const Call& call_;
  std::string error_;
};

void check_qkv(Check& c) {
  const auto [m, hq, d] = c[0].shape;
  const auto [n, hk, dv] = c[2].shape;
  c.arg(1, c[0].dtype, {n, hk, d});
  c.arg(2, c[0].dtype, {n, hk, dv});
  c.that(hk > 0 && hq % hk == 0, "query heads are not a multiple of key heads");
}

void check_forward(Check& c) {
  if (!c.count(5)) return;
  check_qkv(c);
  const DType a = accumulate_type(c[0].dtype);
  const auto [m, hq, d] = c[0].shape;
  c.arg(3, a, {m, hq, c[2].shape[2]});
  c.arg(4, a, {hq, m, 1});
}

void check_backward(Check& c) {
  if (!c.count(9)) return;
  check_qkv(c);
  const DType t = c[0].dtype, a = accumulate_type(t);
  const auto [m, hq, d] = c[0].shape;
  const auto [n, hk, dv] = c[2].shape;
  c.arg(3, t, {m, hq, dv});
  c.arg(4, a, {hq, m, 1});
  c.arg(5, a, {hq, m, 1});
  c.arg(6, a, {m, hq, d});
  c.arg(7, a, {n, hk, d});
  c.arg(8, a, {n, hk, dv});
}

/// `o[m,H,dv] lse[H,m]` at arguments i and i + 1, in the accumulate type a.
void check_state(Check& c, std::size_t i, DType a) {
  const auto [m, h, dv] = c[i].shape;
  c.arg(i, a, {m, h, dv});
  c.arg(i + 1, a, {h, m, 1});
  c.that(a == accumulate_type(a), "statistics and partial outputs are kept in f64 or f32");
}

void check_merge(Check& c) {
  if (!c.count(4)) return;
  check_state(c, 0, c[0].dtype);
  check_state(c, 2, c[0].dtype);
  c.arg(2, c[0].dtype, c[0].shape);
}

void check_delta(Check& c) {
  if (!c.count(3)) return;
  const auto [m, h, dv] = c[0].shape;
  const DType a = accumulate_type(c[0].dtype);
  c.arg(1, c[1].dtype, {m, h, dv});
  c.that(accumulate_type(c[1].dtype) == a, "o and do accumulate in different types");
  c.arg(2, a, {h, m, 1});
}

void check_sink(Check& c) {
  if (!c.count(3)) return;
  c.arg(0, c[1].dtype, {c[1].shape[1], 1, 1});
  check_state(c, 1, c[1].dtype);
}

void check_sink_grad(Check& c) {
  if (!c.count(4)) return;
  const DType a = c[1].dtype;
  const auto [h, m, one] = c[1].shape;
  c.that(a == accumulate_type(a), "statistics are kept in f64 or f32");
  c.arg(0, a, {h, 1, 1});
  c.arg(1, a, {h, m, 1});
  c.arg(2, a, {h, m, 1});
  c.arg(3, a, {h, 1, 1});
}

void check_reset(Check& c) {
  if (c.count(2)) check_state(c, 0, c[0].dtype);
}

void check_zero(Check& c) { c.that(c.size() > 0, "no arguments given, 1 or more expected"); }

void check_pairs(Check& c) {
  c.that(c.size() > 0 && c.size() % 2 == 0, "arguments come in pairs x, y, one pair at least");
  for (std::size_t i = 0; i + 1 < c.size(); i += 2) c.arg(i + 1, c[i + 1].dtype, c[i].shape);
}

void check_sum(Check& c) {
  c.that(c.size() >= 2 && c.size() <= max_terms + 1, "a sum has 1 to 64 terms and the result");
  if (c.size() < 2) return;
  const std::size_t y = c.size() - 1;
  for (std::size_t i = 1; i < y; ++i) c.arg(i, c[0].dtype, c[0].shape);
  c.arg(y, c[y].dtype, c[0].shape);
}
static_assert(max_terms == 64, "check_sum names it");

struct Signature {
  std::string_view name;
  void (*check)(Check&);
};

constexpr std::array<Signature, 11> signatures{{{"attention.forward", check_forward},
                                                {"attention.backward", check_backward},
                                                {"attention.merge", check_merge},
                                                {"attention.delta", check_delta},
                                                {"attention.sink", check_sink},
                                                {"attention.sink_grad", check_sink_grad},
                                                {"attention.reset", check_reset},
                                                {"tensor.zero", check_zero},
                                                {"tensor.copy", check_pairs},
                                                {"tensor.add", check_pairs},
                                                {"tensor.sum", check_sum}}};

}  // namespace

std::string mismatch(const Call& call) {
  for (const Signature& s : signatures) {
    if (s.name != call.name) continue;
    Check check(call);
    s.check(check);
    return check.error();
  }
  return "no signature is known for this operator";
}

bool on_host(const Call& call) {
  for (const TensorRef& t : call.args) {
    if (t.space == Space::cuda) return false;
    if (t.shape[2] > 1 && t.stride[2] != 1) return false;
  }
  return true;
}

}  // namespace tessera::ops
