// SPDX-License-Identifier: Apache-2.0
#include "io/finite.hpp"

#include <fmt/format.h>

#include <cmath>

#include "base/error.hpp"
#include "io/transfer.hpp"
#include "parallel/communicator.hpp"

namespace tessera::io {
namespace {

double value_at(const char* data, DType dtype, std::int64_t i) {
  switch (dtype) {
    case DType::f64:
      return reinterpret_cast<const double*>(data)[i];
    case DType::f32:
      return reinterpret_cast<const float*>(data)[i];
    case DType::bf16:
      return static_cast<double>(reinterpret_cast<const BFloat16*>(data)[i]);
    case DType::f16:
      return static_cast<double>(reinterpret_cast<const Float16*>(data)[i]);
  }
  return 0;
}

}  // namespace

void check_finite(const parallel::Communicator& comm, const std::string& name,
                  const Selection& selection, const TensorRef& t, int rank) {
  parallel::together(comm, [&] {
    for_each_run(t, rank, [&](const char* data, std::int64_t n, std::array<std::int64_t, 3> at) {
      for (std::int64_t i = 0; i < n; ++i) {
        const double x = value_at(data, t.dtype, i);
        if (std::isfinite(x)) continue;
        at[rank - 1] = i;
        std::vector<std::int64_t> index(at.begin(), at.begin() + rank);
        for (int d = 0; d < rank; ++d)
          if (d == selection.dim) {
            index[d] = selection.index(at[d]);
          } else if (selection.within[d]) {
            index[d] += selection.within[d]->begin;
          }
        throw Error(Exit::numerical,
                    fmt::format("dataset '{}' holds {} at index {}", name, x, shape_text(index)),
                    t.dtype == DType::f16
                        ? "every value must be finite, and in f16 at most 65504: correct or scale "
                          "the input, or choose attention.dtype = \"bf16\""
                        : "correct the input; every value must be finite");
      }
    });
  });
}

}  // namespace tessera::io
