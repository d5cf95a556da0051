// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/mask_cache.hpp"

#include <algorithm>
#include <cstring>

#include "memory/cuda.hpp"

namespace tessera::kernels::cuda {
namespace {

/// FNV-1a over the words of the bands.
std::uint64_t hash(std::span<const ops::Band> mask) {
  std::uint64_t h = 14695981039346656037ull;
  for (const ops::Band& b : mask) {
    for (const std::int64_t x : {b.q0, b.q1, b.k0, b.k1, b.lo, b.hi}) {
      h = (h ^ static_cast<std::uint64_t>(x)) * 1099511628211ull;
    }
  }
  return h;
}

/// Vectors one after the other, each from a multiple of 16 bytes on.
class Image {
 public:
  template <class T>
  std::size_t add(const std::vector<T>& x) {
    const std::size_t at = (bytes_.size() + 15) / 16 * 16;
    bytes_.resize(at + x.size() * sizeof(T));
    if (!x.empty()) std::memcpy(bytes_.data() + at, x.data(), x.size() * sizeof(T));
    return at;
  }
  Buffer upload(Budget& budget, void* stream) const {
    const auto size = static_cast<std::int64_t>(bytes_.size());
    Buffer buffer(budget, size, "attention.mask", Space::cuda);
    memory::copy(buffer.data(), bytes_.data(), size, stream);
    memory::synchronize(stream);
    return buffer;
  }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace

template <class Build>
const MaskCache::Item& MaskCache::find(std::span<const ops::Band> mask, const Key& key,
                                       Build build) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t h = hash(mask);
  const auto [first, last] = items_.equal_range(h);
  const auto known = std::find_if(first, last, [&](const auto& entry) {
    return entry.second.key == key && std::ranges::equal(entry.second.mask, mask);
  });
  if (known != last) return known->second;
  Item item = build();
  item.key = key;
  item.mask.assign(mask.begin(), mask.end());
  return items_.emplace(h, std::move(item))->second;
}

TileList MaskCache::tiles(std::span<const ops::Band> mask, std::int64_t queries, std::int64_t keys,
                          Resident resident, TileShape shape, void* stream) {
  const bool by_keys = resident == Resident::keys;
  const Key key{queries, keys, by_keys ? 1 : 0, shape.resident, shape.streamed, stream};
  const auto build = [&] {
    std::vector<TileBand> bands = narrow(mask, queries, keys);
    if (by_keys) bands = transposed(std::move(bands));
    const TileIndex index = index_tiles(bands, static_cast<int>(by_keys ? keys : queries),
                                        static_cast<int>(by_keys ? queries : keys), shape.resident,
                                        shape.streamed, by_keys);
    Image image;
    const std::size_t rows = image.add(index.rows), begin = image.add(index.begin);
    const std::size_t entries = image.add(index.entries), list = image.add(index.bands);
    const std::size_t drawn = image.add(std::vector<int>{0, 0});
    Item item;
    item.buffer = image.upload(budget_, stream);
    auto* data = static_cast<std::byte*>(item.buffer.data());
    item.list = {reinterpret_cast<const TileRows*>(data + rows),
                 reinterpret_cast<const int*>(data + begin),
                 reinterpret_cast<const TileEntry*>(data + entries),
                 reinterpret_cast<const TileBand*>(data + list),
                 reinterpret_cast<int*>(data + drawn),
                 static_cast<int>(index.rows.size()),
                 static_cast<int>(index.entries.size())};
    return item;
  };
  return find(mask, key, build).list;
}

std::span<const TileBand> MaskCache::bands(std::span<const ops::Band> mask, std::int64_t queries,
                                           std::int64_t keys, void* stream) {
  const auto build = [&] {
    const std::vector<TileBand> bands = narrow(mask, queries, keys);
    Image image;
    image.add(bands);
    Item item;
    item.buffer = image.upload(budget_, stream);
    item.list.bands = static_cast<const TileBand*>(item.buffer.data());
    item.count = static_cast<int>(bands.size());
    return item;
  };
  const Item& item = find(mask, {queries, keys, 2, 0, 0, nullptr}, build);
  return {item.list.bands, static_cast<std::size_t>(item.count)};
}

}  // namespace tessera::kernels::cuda
