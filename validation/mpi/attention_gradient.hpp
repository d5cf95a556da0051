// SPDX-License-Identifier: Apache-2.0
// Adjointness by central differences in fp64: <dO, J x> = <J^T dO, x> for a random direction x of
// every input, where J x comes from two forward passes and J^T dO from the backward pass.
#pragma once

#include "attention/synthetic.hpp"
#include "attention_rig.hpp"

namespace tessera::test {

/// A whole input as one dense tensor.
inline Values whole_input(const Problem& p, const Fill& fill, const std::string& name) {
  const bool keys = name == "k" || name == "v", values = name == "v" || name == "do";
  const std::int64_t rows = keys ? p.mask.cols() : p.mask.rows();
  std::array<std::int64_t, 3> shape{rows, keys ? p.kv_heads : p.query_heads,
                                    values ? p.value_dim : p.head_dim};
  if (name == "sink") shape = {p.query_heads, 1, 1};
  Values out(static_cast<std::size_t>(shape[0] * shape[1] * shape[2]));
  fill(name, name == "sink" ? Rows{} : Rows{{0, 1, rows}}, dense(out.data(), DType::f64, shape));
  return out;
}

inline double dot(const Values& x, const Values& y) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}

/// `base` with step * direction added to q, k, v and the sink.
inline Fill moved(const Fill& base, const Fill& direction, double step) {
  return [=](const std::string& name, const Rows& rows, const TensorRef& out) {
    base(name, rows, out);
    if (name == "do") return;
    Values space(static_cast<std::size_t>(out.count()));
    const TensorRef x = dense(space.data(), DType::f64, out.shape);
    direction(name, rows, x);
    for (std::int64_t i = 0; i < out.shape[0]; ++i)
      for (std::int64_t j = 0; j < out.shape[1]; ++j)
        for (std::int64_t k = 0; k < out.shape[2]; ++k)
          out.set_value(i, j, k, out.value(i, j, k) + step * x.at<double>(i, j, k));
  };
}

/// dQ, dK, dV and dsink of one scheme, `directions` random directions in all inputs together.
/// p.dtype must be f64; a step of 1e-5 leaves errors of about 1e-9.
inline void check_gradients(Rig& rig, const Problem& p, const Scheme& s, int directions,
                            const std::string& what) {
  constexpr double step = 1e-5;
  const Fill base = attention::synthetic(11);
  const Results at = rig.run(p, s, base);
  const Values dout = whole_input(p, base, "do");
  for (int d = 0; d < directions; ++d) {
    const Fill direction = attention::synthetic(12 + static_cast<std::uint64_t>(d));
    const double up = dot(rig.forward(p, s, moved(base, direction, step)), dout);
    const double down = dot(rig.forward(p, s, moved(base, direction, -step)), dout);
    const double forward = (up - down) / (2 * step);
    double backward = 0;
    for (const std::string input : {"q", "k", "v", "sink"})
      if (input != "sink" || p.sink)
        backward += dot(at.at("d" + input), whole_input(p, direction, input));
    EXPECT_NEAR(forward, backward, 1e-7 * std::max(1.0, std::abs(forward)))
        << what << ", " << s.text() << ": derivative along direction " << d;
  }
}

}  // namespace tessera::test
