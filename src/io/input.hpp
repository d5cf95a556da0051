// SPDX-License-Identifier: Apache-2.0
// Reading HDF5 on all ranks: each reads only what it owns. All member functions are collective
// unless stated otherwise; every failure is the same Error(io) on all ranks, naming file and
// dataset, expected and found.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/selection.hpp"

namespace tessera::io {

/// Starts HDF5. A driver calls it before MPI is initialised: started later, HDF5 closes what is
/// still open inside MPI_Finalize, and an output that could not be written (disk full) then crashes
/// or hangs the job there instead of letting it end with its message and exit code 4.
void prepare();

/// How ranks share a file.
enum class Mode : std::uint8_t {
  collective,  ///< MPI-IO, needs an HDF5 built with it
  in_turn      ///< every rank by itself: reading side by side, writing one after the other
};
/// collective when HDF5 has it; otherwise in_turn, with one note in the log.
Mode default_mode();

struct DatasetInfo {
  std::string name;
  std::vector<std::int64_t> shape;
  std::string type;            ///< in words: "f32", "bf16", "64-bit integer"
  std::optional<DType> dtype;  ///< empty when it is no type of tensors
};

class Input {
 public:
  /// Opens for reading. Errors: missing, a folder, not HDF5, truncated, locked.
  Input(const parallel::Communicator& comm, const std::string& path, Mode mode = default_mode());
  Input(Input&&) noexcept;
  Input& operator=(Input&&) noexcept;
  ~Input();

  const std::string& path() const;
  bool has(const std::string& name) const;  ///< not collective
  DatasetInfo info(const std::string& name);

  /// Error(io) unless the dataset has this shape (-1 = any extent) and a type of tensors.
  DatasetInfo require(const std::string& name, const std::vector<std::int64_t>& shape);

  /// Reads the selected part into `out`, converting element types into each other. out.shape =
  /// extents of the selection, unused trailing dimensions 1.
  void read_slab(const std::string& name, const Selection& selection, const TensorRef& out);

  /// A whole dataset of integers, in index order, on every rank.
  std::vector<std::int64_t> read_integers(const std::string& name);

  /// Attributes of "/" , a group or a dataset; empty when missing. Error(io) on another type.
  std::optional<std::string> text(const std::string& object, const std::string& name);
  std::optional<std::int64_t> integer(const std::string& object, const std::string& name);
  std::optional<double> real(const std::string& object, const std::string& name);

  /// Largest number of bytes of one call, for tests.
  void set_call_limit(std::int64_t bytes);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::io
