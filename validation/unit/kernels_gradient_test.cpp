// SPDX-License-Identifier: Apache-2.0
// Backward operators against central differences of the forward operators in fp64, with soft cap,
// sink, grouped heads and a mask that leaves a row empty (attention brief 1.3, 1.4).
#include <gtest/gtest.h>

#include "kernels_support.hpp"

namespace tessera::testing {
namespace {

struct Case {
  double softcap;
  bool sink;
};

/// <dO, O> after forward and, if wanted, the sink: the function whose gradient backward gives.
double loss(Problem p, const Array* sink, const Backend& b) {
  p.forward(b);
  if (sink) b.run("attention.sink", {sink->ref(), p.o.ref(), p.lse.ref()});
  double sum = 0;
  p.o.each([&](auto i, auto j, auto k) { sum += p.o.get(i, j, k) * p.go.get(i, j, k); });
  return sum;
}

/// Largest difference between `gradient` and central differences over every entry of `x`.
template <class Loss>
double difference(Array& x, const Array& gradient, Loss f) {
  const double step = 1e-5;
  double most = 0;
  x.each([&](auto i, auto j, auto k) {
    const double value = x.get(i, j, k);
    x.set(value + step, i, j, k);
    const double up = f();
    x.set(value - step, i, j, k);
    const double down = f();
    x.set(value, i, j, k);
    most = std::max(most, std::abs((up - down) / (2 * step) - gradient.get(i, j, k)));
  });
  return most;
}

void check(const Backend& b, const Case& c) {
  SCOPED_TRACE(b.name() + " softcap " + std::to_string(c.softcap) + (c.sink ? " sink" : ""));
  std::mt19937_64 rng(11);
  // Row 3 sees nothing; rows 0 to 2 see keys 0 to q + 1, and rows 4 and 5 a band and a rectangle.
  Problem p(DType::f64, {6, 7, 4, 2, 3, 2},
            {{0, 3, 0, 7, -open, 1}, {4, 6, 0, 2, -open, open}, {4, 6, 3, 7, -1, 1}});
  p.randomise(rng);
  p.scale = 0.7, p.softcap = c.softcap;
  Array sink(DType::f64, {4, 1, 1}), dsink(DType::f64, {4, 1, 1});
  sink.randomise(rng);
  const Array* z = c.sink ? &sink : nullptr;

  Problem g = p;
  g.forward(b);
  if (z) b.run("attention.sink", {sink.ref(), g.o.ref(), g.lse.ref()});
  g.make_delta(b);
  g.backward(b);
  const auto f = [&] { return loss(p, z, b); };
  EXPECT_LT(difference(p.q, g.dq, f), 1e-8);
  EXPECT_LT(difference(p.k, g.dk, f), 1e-8);
  EXPECT_LT(difference(p.v, g.dv, f), 1e-8);
  if (z) {
    b.run("attention.sink_grad", {sink.ref(), g.lse.ref(), g.delta.ref(), dsink.ref()});
    EXPECT_LT(difference(sink, dsink, f), 1e-8);
    EXPECT_GT(largest(dsink), 1e-3);
  }
}

TEST(kernels, backward_equals_finite_differences) {
  for (const char* backend : {"reference", "kokkos"}) {
    for (const Case& c : {Case{0, false}, Case{0, true}, Case{1.5, false}, Case{1.5, true}}) {
      check(Backend(backend), c);
    }
  }
}

}  // namespace
}  // namespace tessera::testing
