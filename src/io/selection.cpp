// SPDX-License-Identifier: Apache-2.0
#include "io/selection.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <stdexcept>

#include "parallel/communicator.hpp"

namespace tessera::io {

std::int64_t Selection::count() const {
  std::int64_t n = 0;
  for (const Slab& s : slabs) n += s.count;
  return n;
}

std::int64_t Selection::index(std::int64_t i) const {
  for (const Slab& s : slabs) {
    if (i < s.count) return s.start + i * s.stride;
    i -= s.count;
  }
  throw std::logic_error("index beyond a selection");
}

std::vector<Slab> cut(const std::vector<Slab>& slabs, Range part) {
  std::vector<Slab> result;
  std::int64_t first = 0;
  for (const Slab& s : slabs) {
    const Range mine{std::max(part.begin - first, std::int64_t{0}),
                     std::min(part.end - first, s.count)};
    first += s.count;
    if (mine.empty()) continue;
    const Slab piece{s.start + mine.begin * s.stride, mine.size() == 1 ? 1 : s.stride, mine.size()};
    if (!result.empty()) {
      // A run that goes on with the same stride is one regular hyperslab, which HDF5 reads much
      // faster than a union.
      Slab& before = result.back();
      const std::int64_t step = piece.start - before.last();
      const bool fits = (before.count == 1 || before.stride == step) &&
                        (piece.count == 1 || piece.stride == step);
      if (fits) {
        before = {before.start, step, before.count + piece.count};
        continue;
      }
    }
    result.push_back(piece);
  }
  return result;
}

std::vector<Range> calls_of(const parallel::Communicator& comm, std::int64_t count,
                            std::int64_t bytes_each, std::int64_t limit) {
  const std::int64_t each =
      std::max<std::int64_t>(1, limit / std::max<std::int64_t>(1, bytes_each));
  std::vector<Range> calls;
  std::int64_t done = 0;
  for (const std::int64_t n : parallel::pieces(count, each)) {
    calls.push_back({done, done + n});
    done += n;
  }
  const std::int64_t most = comm.all_reduce_max(static_cast<std::int64_t>(calls.size()));
  calls.resize(static_cast<std::size_t>(most), Range{count, count});
  return calls;
}

std::string misfit(const Selection& selection, const std::vector<std::int64_t>& shape) {
  const int rank = static_cast<int>(shape.size());
  if (selection.dim < 0 || selection.dim >= rank)
    return fmt::format("it has no dimension {}", selection.dim);
  std::int64_t last = -1;
  for (const Slab& s : selection.slabs) {
    if (s.count == 0) continue;
    if (s.count < 0 || s.stride < 1 || s.start <= last)
      throw std::logic_error("slabs not ascending");
    last = s.last();
  }
  if (last >= shape[selection.dim])
    return fmt::format("index {} of dimension {} was asked for", last, selection.dim);
  for (int d = 0; d < rank && d < 3; ++d) {
    const auto& within = selection.within[d];
    if (within && d != selection.dim && (within->begin < 0 || within->end > shape[d]))
      return fmt::format("range [{}, {}) of dimension {} was asked for", within->begin, within->end,
                         d);
  }
  return {};
}

std::vector<std::int64_t> extents(const Selection& selection,
                                  const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> result = shape;
  for (std::size_t d = 0; d < shape.size() && d < 3; ++d)
    if (selection.within[d]) result[d] = std::max<std::int64_t>(0, selection.within[d]->size());
  result[selection.dim] = selection.count();
  return result;
}

}  // namespace tessera::io
