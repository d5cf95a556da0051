// SPDX-License-Identifier: Apache-2.0
// One HDF5 transfer between a selection and a strided tensor, and what goes with it: conversion of
// element types and checksums. Internal to io.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "io/hdf5.hpp"
#include "io/selection.hpp"

namespace tessera::io {

/// Part [r.begin, r.end) of dimension `dim` of t.
TensorRef narrow(const TensorRef& t, int dim, Range r);

/// Calls body(first element, number of elements, index of the first) for every contiguous run of a
/// tensor with `rank` used dimensions, in index order.
using Run = std::function<void(char*, std::int64_t, std::array<std::int64_t, 3>)>;
void for_each_run(const TensorRef& t, int rank, const Run& body);

/// Order-dependent 64-bit checksum of all elements, independent of strides.
std::uint64_t checksum(const TensorRef& t, int rank);

/// dst <- src of another element type; both in host memory, the same shape.
void convert(const TensorRef& src, const TensorRef& dst, int rank);

/// Dataspace of the file with the part `part` of the selection, and of the memory it goes to. Both
/// select nothing when the part is empty.
struct Spaces {
  hdf5::Handle file, memory;
};
Spaces make_spaces(const std::vector<std::int64_t>& shape, const Selection& selection, Range part,
                   const TensorRef& memory);

/// "[4096, 8, 128]"; a negative extent (any) is "*".
std::string shape_text(const std::vector<std::int64_t>& shape);

/// Why t cannot hold `extents`, empty when it can. Throws std::logic_error when its strides do not
/// nest (HDF5 needs a box in memory).
std::string memory_misfit(const TensorRef& t, const std::vector<std::int64_t>& extents);

}  // namespace tessera::io
