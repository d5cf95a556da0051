// SPDX-License-Identifier: Apache-2.0
// What forward and backward on the host share: block sizes, packing of one head, heads in parallel.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <span>
#include <thread>

#include "kernels/kokkos/mask.hpp"
#include "ops/call.hpp"
#include "ops/visit.hpp"

namespace tessera::kernels::portable {

template <class A>
inline constexpr A minus_infinity = -std::numeric_limits<A>::infinity();

/// Blocks chosen by measurement (perf/bench_tile): the score block stays in a 1 MiB L2 next to the
/// operands that BLAS packs.
template <class A>
struct Blocks {
  static constexpr std::int64_t rows = 256;
  static constexpr Cut cut{1024 / sizeof(A), 32};
  static constexpr std::int64_t stride = cut.keys + 16;  // off the power of two: no set conflicts
};

/// Calls the caller's progress function, on the caller's own thread only.
class Progress {
 public:
  explicit Progress(const ops::Call& call) : call_(call), owner_(std::this_thread::get_id()) {}
  void operator()() const {
    if (call_.progress && std::this_thread::get_id() == owner_) call_.progress();
  }

 private:
  const ops::Call& call_;
  std::thread::id owner_;
};

/// Rows [rows) of one head as a dense matrix of A. Rows outside `visible` become 0: nobody sees
/// them, but a matrix product multiplies them by 0, and what they hold may be NaN (OB-004).
template <class T, class A>
void pack(const TensorRef& x, std::int64_t head, Range rows, std::span<const Range> visible,
          A* out) {
  const std::int64_t dim = x.shape[2];
  std::int64_t done = rows.begin;
  const auto zero_until = [&](std::int64_t end) {
    if (end > done)
      std::fill(out + (done - rows.begin) * dim, out + (end - rows.begin) * dim, A(0));
  };
  for (const Range& r : visible) {
    zero_until(r.begin);
    for (std::int64_t i = r.begin; i < r.end; ++i) {
      const T* from = &x.at<T>(i, head);
      A* to = out + (i - rows.begin) * dim;
      for (std::int64_t c = 0; c < dim; ++c) to[c] = static_cast<A>(from[c]);
    }
    done = r.end;
  }
  zero_until(rows.end);
}

/// f(first row, end row) over blocks of queries.
template <class F>
void every_block(std::int64_t rows, std::int64_t block, F f) {
  for (std::int64_t b = 0; b < rows; b += block) f(Range{b, std::min(b + block, rows)});
}

/// f(key head) in parallel on the host; heads write disjoint outputs, so the order is free.
void every_key_head(const char* label, std::int64_t heads,
                    const std::function<void(std::int64_t)>& f);

}  // namespace tessera::kernels::portable
