// SPDX-License-Identifier: Apache-2.0
// Device and pinned memory and copies, with no CUDA type in sight: a stream is a `void*`. Built
// from cuda.cpp, or from cuda_none.cpp where there is no CUDA, which refuses by name.
#pragma once

#include <cstdint>
#include <string>

#include "memory/tensor_ref.hpp"

namespace tessera::memory {

/// Zero-filled memory in Space::cuda (of the current device) or Space::pinned; nullptr when there
/// is none left. Error(environment) without a device or in a build without CUDA.
void* allocate(Space space, std::int64_t bytes);
/// What `bytes` take up there: whole pages of a device, so that each allocation is one of its own
/// that another process can open.
std::int64_t footprint(Space space, std::int64_t bytes) noexcept;
void release(Space space, void* data) noexcept;
/// Zeroes memory that allocate() gave.
void clear(void* data, std::int64_t bytes);
/// Waits for the work of the device. False when that failed, and when an exception is under way:
/// the device may wait for a rank that the exception has stopped.
bool device_is_idle() noexcept;

/// Copies bytes between any two spaces, in order on `stream`. With pageable host memory the call
/// may return before or after the copy is done; synchronize() says when it is.
void copy(void* to, const void* from, std::int64_t bytes, void* stream = nullptr);
/// Waits for everything put on the stream.
void synchronize(void* stream = nullptr);

/// Devices of this process; 0 in a build without CUDA or without a driver.
int device_count() noexcept;
/// "NVIDIA H200, compute 9.0, 132 multiprocessors, 139.8 GiB", or why there is none.
std::string describe_device();

}  // namespace tessera::memory
