// SPDX-License-Identifier: Apache-2.0
// Where Q, K, V, dO, the sink and the arrays of a mask come from: an HDF5 file or a seed.
#pragma once

#include <memory>
#include <string>

#include "attention/session.hpp"
#include "drivers/attention/deck.hpp"
#include "io/input.hpp"

namespace tessera::drivers {

class AttentionInputs {
 public:
  /// Opens input.file of the deck, if there is one. Error(io) on all ranks. Collective.
  AttentionInputs(const config::Config& config, const parallel::Communicator& comm);

  /// Arrays under /mask; empty without a file or when the file has none of that name. Collective.
  MaskArrays mask_arrays();

  /// Checks shapes and types of the datasets that the problem needs; nothing is read. Collective.
  void check(const attention::Problem& p, bool backward);

  /// Reads or makes rows. Rows that no visible pair touches become 0 whatever the file holds there;
  /// any other NaN or infinity is Error(numerical) with its index. The result refers to `p` and to
  /// this object.
  attention::Fill fill(const attention::Problem& p, int num_threads);

  /// The mask that the file was made for; empty when it does not say. Collective.
  std::string mask_kind();

  /// "file NAME" or "seed N", for reports.
  std::string source() const;

 private:
  void read(const attention::Problem& p, const std::string& name, const attention::Rows& rows,
            const TensorRef& out);

  const parallel::Communicator& comm_;
  std::int64_t seed_;
  std::shared_ptr<io::Input> file_;
};

/// `fill` that keeps the rows of each input it made last in host memory: schemes that give a rank
/// the same rows, one after the other, do not wait for them again. Collective: all ranks make them
/// anew or none does.
attention::Fill remembered(attention::Fill fill, const parallel::Communicator& comm);

}  // namespace tessera::drivers
