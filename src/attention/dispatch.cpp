// SPDX-License-Identifier: Apache-2.0
#include "attention/dispatch.hpp"

#include <algorithm>
#include <numeric>
#include <queue>

namespace tessera::attention {

std::vector<std::int32_t> dispatch(const std::vector<std::int64_t>& work, int chunks) {
  std::vector<std::int32_t> order(work.size()), owner(work.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return work[a] > work[b]; });
  using Load = std::pair<std::int64_t, std::int32_t>;  // ties go to the lower chunk on all ranks
  std::priority_queue<Load, std::vector<Load>, std::greater<>> lightest;
  for (int c = 0; c < chunks; ++c) lightest.push({0, c});
  std::vector<std::size_t> room(static_cast<std::size_t>(chunks), work.size() / chunks);
  for (std::int32_t piece : order) {
    const auto [load, chunk] = lightest.top();
    lightest.pop();
    owner[static_cast<std::size_t>(piece)] = chunk;
    if (--room[static_cast<std::size_t>(chunk)] > 0) lightest.push({load + work[piece], chunk});
  }
  return owner;
}

std::vector<std::int64_t> piece_work(const Mask& mask, std::int64_t batch, std::int64_t sequence,
                                     std::int64_t padded_sequence, std::int64_t per_item) {
  std::vector<std::int64_t> out;
  const Rows keys{{0, 1, mask.cols()}};
  const std::int64_t size = padded_sequence / per_item;
  for (std::int64_t piece = 0; piece < batch * per_item; ++piece) {
    const std::int64_t at = piece % per_item * size;
    const std::int64_t valid = std::clamp(sequence - at, std::int64_t{0}, size);
    out.push_back(mask.area({{piece / per_item * sequence + at, 1, valid}}, keys));
  }
  return out;
}

}  // namespace tessera::attention
