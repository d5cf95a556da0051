// SPDX-License-Identifier: Apache-2.0
// Writing HDF5 on all ranks under a temporary name; `commit` makes the file visible in one step.
// All member functions are collective. Objects are created by all ranks in one order: a call that
// differs between ranks is refused instead of corrupting the file. Errors are the same Error(io)
// on all ranks.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/input.hpp"
#include "io/selection.hpp"

namespace tessera::io {

struct OutputOptions {
  Mode mode = default_mode();
  /// Read all slabs back before the file becomes visible and compare checksums. On by default:
  /// collective writes of Open MPI 4.1 return success for bytes that a full disk refused.
  bool verify = true;
  /// Take the disk space when a dataset is created, so that a full disk is an error then and not
  /// bytes lost, or a hang inside MPI, later. Off: for file systems where reserving is slow.
  bool reserve = true;
  std::int64_t call_limit = max_call_bytes;
};

class OutputFile {
 public:
  OutputFile(const parallel::Communicator& comm, const std::string& path,
             OutputOptions options = {});
  OutputFile(OutputFile&&) noexcept;
  /// Without commit the temporary file is removed. While an exception is under way nothing
  /// collective is done, since the other ranks may not know of it.
  ~OutputFile();

  /// Creates groups (with their parents) in sorted order, whatever the order given.
  void create_groups(std::vector<std::string> names);
  /// bf16 becomes a 16-bit unsigned integer with the attribute dtype = "bf16", f16 the float16 of
  /// h5py. Parents are created.
  void create_dataset(const std::string& name, DType dtype, const std::vector<std::int64_t>& shape);
  /// Writes the selected part from `data` (element type of the dataset, strides may be any that
  /// nest).
  void write_slab(const std::string& name, const Selection& selection, const TensorRef& data);

  /// Small arrays, the same on all ranks (rank 0's values are stored); created by this call.
  void write_array(const std::string& name, std::span<const double> values,
                   const std::vector<std::int64_t>& shape);
  void write_array(const std::string& name, std::span<const std::int64_t> values,
                   const std::vector<std::int64_t>& shape);

  /// Attributes of "/", a group or a dataset; rank 0's value is stored.
  void attribute(const std::string& object, const std::string& name, const std::string& text);
  void attribute(const std::string& object, const std::string& name, std::int64_t value);
  void attribute(const std::string& object, const std::string& name, double value);

  /// Closes, verifies if asked to, flushes to disk and renames. The object is spent after that.
  void commit();

  const std::string& temporary_path() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::io
