// SPDX-License-Identifier: Apache-2.0
// Small RAII over the HDF5 C API. Internal to io. HDF5 prints nothing itself: the innermost entry
// of its error stack goes into our Error.
#pragma once

#include <hdf5.h>

#include <string>
#include <utility>
#include <vector>

#include "base/dtype.hpp"
#include "base/error.hpp"

namespace tessera::io::hdf5 {

/// Owns an HDF5 identifier. A negative one means "nothing".
class Handle {
 public:
  using Close = herr_t (*)(hid_t);
  Handle() = default;
  Handle(hid_t id, Close close) : id_(id), close_(close) {}
  Handle(Handle&& o) noexcept : id_(std::exchange(o.id_, -1)), close_(o.close_) {}
  Handle& operator=(Handle&& o) noexcept {
    std::swap(id_, o.id_);
    std::swap(close_, o.close_);
    return *this;
  }
  ~Handle() { close(); }
  hid_t get() const { return id_; }
  explicit operator bool() const { return id_ >= 0; }
  /// False when HDF5 could not close it, for example because the last bytes did not fit the disk.
  bool close() { return id_ < 0 || close_(std::exchange(id_, -1)) >= 0; }
  /// Gives the identifier up without closing it.
  void abandon() { id_ = -1; }

 private:
  hid_t id_ = -1;
  Close close_ = nullptr;
};

/// To be called before anything else of HDF5: no printing, no clean-up at exit (see output.hpp).
void start();

/// The two innermost entries of HDF5's error stack, which is cleared.
std::string last_message();

/// Error(io): `what` with HDF5's reason, and a hint that fits the reason.
Error failure(const std::string& what);

/// `id` owned; failure(what) when it is negative.
Handle own(hid_t id, Handle::Close close, const std::string& what);

/// Throws failure(what) when status is negative.
inline void check(herr_t status, const std::string& what) {
  if (status < 0) throw failure(what);
}

/// Type of an element in memory; bf16 is a 16-bit unsigned integer, f16 a float of two bytes as
/// h5py writes it.
hid_t memory_type(DType dtype);

/// "f64", "f16", "64-bit integer", "text", ...: in words, for messages.
std::string type_words(hid_t type);

std::vector<std::int64_t> shape_of(hid_t dataset);

/// True when every part of the path `name` exists below `file`.
bool exists(hid_t file, const std::string& name);

/// Attribute as text; empty when it is missing or no text.
std::string text_attribute(hid_t object, const std::string& name);

/// File access properties: MPI-IO over `comm` (an MPI_Comm) or, with nullptr, plain POSIX.
Handle access_properties(void* comm);
/// Transfer properties, collective or not.
Handle transfer_properties(bool collective);

}  // namespace tessera::io::hdf5
