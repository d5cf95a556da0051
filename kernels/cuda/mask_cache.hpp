// SPDX-License-Identifier: Apache-2.0
// Mask lists on the device, made once for each mask, shape and kind of kernel and kept for as long
// as the registry lives, so that a pass only looks them up. A mask is known by what is in it: a
// span at the same address with other bands is another mask.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "kernels/cuda/mask_index.hpp"
#include "memory/buffer.hpp"

namespace tessera::kernels::cuda {

class MaskCache {
 public:
  /// Device memory is taken from the budget, which must outlive the cache.
  explicit MaskCache(Budget& budget) : budget_(budget) {}

  enum class Resident { queries, keys };
  /// Lists of blocks of shape.resident rows of the resident side by shape.streamed of the other, of
  /// a mask of queries x keys. Built on the first call, which waits for the upload. Each stream has
  /// lists of its own: kernels draw work by counters in them, which launches may share one after
  /// the other only.
  TileList tiles(std::span<const ops::Band> mask, std::int64_t queries, std::int64_t keys,
                 Resident resident, TileShape shape, void* stream);
  /// The bands themselves, rows being queries.
  std::span<const TileBand> bands(std::span<const ops::Band> mask, std::int64_t queries,
                                  std::int64_t keys, void* stream);

 private:
  struct Key {
    std::int64_t queries, keys;
    int kind, resident, streamed;
    void* stream;
    auto operator<=>(const Key&) const = default;
  };
  struct Item {
    Key key;
    std::vector<ops::Band> mask;
    Buffer buffer;
    TileList list{};
    int count = 0;  ///< bands, for bands()
  };
  template <class Build>
  const Item& find(std::span<const ops::Band> mask, const Key& key, Build build);

  Budget& budget_;
  std::mutex mutex_;
  std::multimap<std::uint64_t, Item> items_;  // by hash
};

}  // namespace tessera::kernels::cuda
