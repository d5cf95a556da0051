// SPDX-License-Identifier: Apache-2.0
#include "io/transfer.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <stdexcept>

namespace tessera::io {
namespace {

/// Extents of the smallest row-major box in which a tensor with these strides lies.
std::vector<hsize_t> box_of(const TensorRef& t, int rank) {
  std::vector<hsize_t> box(static_cast<std::size_t>(rank));
  std::int64_t inner = 1;  // stride of dimension d in the box
  if (t.shape[rank - 1] > 1 && t.stride[rank - 1] != 1)
    throw std::logic_error("the last dimension of a tensor for HDF5 must be contiguous");
  for (int d = rank - 1; d > 0; --d) {
    const std::int64_t outer = t.shape[d - 1] > 1 ? t.stride[d - 1] : inner * t.shape[d];
    if (inner == 0 || outer % inner != 0 || outer / inner < t.shape[d])
      throw std::logic_error("the strides of a tensor for HDF5 must nest");
    box[d] = static_cast<hsize_t>(outer / inner);
    inner = outer;
  }
  box[0] = static_cast<hsize_t>(t.shape[0]);
  return box;
}

template <class From>
void convert_run(const char* from, DType to_type, char* to, std::int64_t n) {
  const From* x = reinterpret_cast<const From*>(from);
  const auto loop = [&]<class To>(To* y) {
    for (std::int64_t i = 0; i < n; ++i) y[i] = element_cast<To>(x[i]);
  };
  switch (to_type) {
    case DType::f64:
      return loop(reinterpret_cast<double*>(to));
    case DType::f32:
      return loop(reinterpret_cast<float*>(to));
    case DType::bf16:
      return loop(reinterpret_cast<BFloat16*>(to));
    case DType::f16:
      return loop(reinterpret_cast<Float16*>(to));
  }
}

void select(hid_t space, const std::vector<std::int64_t>& shape, const Selection& selection,
            const std::vector<Slab>& slabs) {
  const std::size_t rank = shape.size();
  std::vector<hsize_t> start(rank), stride(rank, 1), count(rank, 1), block(rank);
  for (std::size_t d = 0; d < rank; ++d) {
    const Range whole{0, shape[d]};
    const Range r = d < 3 && selection.within[d] ? *selection.within[d] : whole;
    start[d] = static_cast<hsize_t>(r.begin);
    block[d] = static_cast<hsize_t>(r.size());
  }
  const auto dim = static_cast<std::size_t>(selection.dim);
  H5S_seloper_t how = H5S_SELECT_SET;
  for (const Slab& s : slabs) {
    const bool dense = s.stride == 1;
    start[dim] = static_cast<hsize_t>(s.start);
    stride[dim] = dense ? static_cast<hsize_t>(s.count) : static_cast<hsize_t>(s.stride);
    count[dim] = dense ? 1 : static_cast<hsize_t>(s.count);
    block[dim] = dense ? static_cast<hsize_t>(s.count) : 1;
    for (std::size_t d = 0; d < rank; ++d)
      if (d != dim) stride[d] = block[d];
    hdf5::check(
        H5Sselect_hyperslab(space, how, start.data(), stride.data(), count.data(), block.data()),
        "HDF5 refuses a selection");
    how = H5S_SELECT_OR;
  }
}

}  // namespace

TensorRef narrow(const TensorRef& t, int dim, Range r) {
  TensorRef part = t;
  part.data = static_cast<char*>(t.data) + r.begin * t.stride[dim] * size_of(t.dtype);
  part.shape[dim] = r.size();
  return part;
}

void for_each_run(const TensorRef& t, int rank, const Run& body) {
  if (t.count() == 0) return;
  const int last = rank - 1;
  const std::int64_t outer = last > 0 ? t.shape[0] : 1;
  const std::int64_t middle = last > 1 ? t.shape[1] : 1;
  for (std::int64_t i = 0; i < outer; ++i) {
    for (std::int64_t j = 0; j < middle; ++j) {
      std::int64_t offset = last > 0 ? i * t.stride[0] : 0;
      if (last > 1) offset += j * t.stride[1];
      body(static_cast<char*>(t.data) + offset * size_of(t.dtype), t.shape[last], {i, j, 0});
    }
  }
}

std::uint64_t checksum(const TensorRef& t, int rank) {
  std::uint64_t hash = 0x9e3779b97f4a7c15u;
  const auto mix = [&](std::uint64_t word) {
    hash = (hash ^ word) * 0xff51afd7ed558ccdu;
    hash ^= hash >> 32;
  };
  for_each_run(t, rank, [&](const char* data, std::int64_t n, const auto&) {
    std::int64_t left = n * size_of(t.dtype);
    for (; left > 0; data += 8, left -= 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, data, static_cast<std::size_t>(std::min<std::int64_t>(left, 8)));
      mix(word);
    }
  });
  return hash;
}

void convert(const TensorRef& src, const TensorRef& dst, int rank) {
  for_each_run(src, rank, [&](const char* from, std::int64_t n, const auto& at) {
    std::int64_t offset = 0;
    if (rank > 1) offset += at[0] * dst.stride[0];
    if (rank > 2) offset += at[1] * dst.stride[1];
    char* to = static_cast<char*>(dst.data) + offset * size_of(dst.dtype);
    switch (src.dtype) {
      case DType::f64:
        return convert_run<double>(from, dst.dtype, to, n);
      case DType::f32:
        return convert_run<float>(from, dst.dtype, to, n);
      case DType::bf16:
        return convert_run<BFloat16>(from, dst.dtype, to, n);
      case DType::f16:
        return convert_run<Float16>(from, dst.dtype, to, n);
    }
  });
}

Spaces make_spaces(const std::vector<std::int64_t>& shape, const Selection& selection, Range part,
                   const TensorRef& memory) {
  const int rank = static_cast<int>(shape.size());
  const std::vector<hsize_t> dims(shape.begin(), shape.end());
  Spaces spaces;
  spaces.file = hdf5::own(H5Screate_simple(rank, dims.data(), nullptr), H5Sclose, "no dataspace");
  if (part.empty() || memory.count() == 0) {
    const hsize_t one = 1;
    spaces.memory = hdf5::own(H5Screate_simple(1, &one, nullptr), H5Sclose, "no dataspace");
    H5Sselect_none(spaces.memory.get());
    H5Sselect_none(spaces.file.get());
    return spaces;
  }
  select(spaces.file.get(), shape, selection, cut(selection.slabs, part));
  const std::vector<hsize_t> box = box_of(memory, rank);
  spaces.memory = hdf5::own(H5Screate_simple(rank, box.data(), nullptr), H5Sclose, "no dataspace");
  const std::vector<hsize_t> start(static_cast<std::size_t>(rank), 0);
  const std::vector<hsize_t> count(memory.shape.begin(), memory.shape.begin() + rank);
  hdf5::check(H5Sselect_hyperslab(spaces.memory.get(), H5S_SELECT_SET, start.data(), nullptr,
                                  count.data(), nullptr),
              "HDF5 refuses a selection in memory");
  return spaces;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::vector<std::string> text;
  for (const std::int64_t extent : shape)
    text.push_back(extent < 0 ? std::string(1, '*') : fmt::format("{}", extent));
  return fmt::format("[{}]", fmt::join(text, ", "));
}

std::string memory_misfit(const TensorRef& t, const std::vector<std::int64_t>& extents) {
  const int rank = static_cast<int>(extents.size());
  if (rank < 1 || rank > 3) return fmt::format("it has {} dimensions, 1 to 3 are possible", rank);
  for (int d = 0; d < 3; ++d)
    if (t.shape[d] != (d < rank ? extents[d] : 1))
      return fmt::format("the selected part is {}, the tensor in memory {}", shape_text(extents),
                         shape_text({t.shape.begin(), t.shape.end()}));
  if (t.count() > 0) box_of(t, rank);
  return {};
}

}  // namespace tessera::io
