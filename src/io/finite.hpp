// SPDX-License-Identifier: Apache-2.0
// Refuses NaN and infinity in what was read, naming dataset and index.
#pragma once

#include <string>

#include "io/selection.hpp"

namespace tessera::io {

/// Collective. Error(numerical) on all ranks when any holds a value that is not finite: names the
/// dataset, the value and its index in the dataset. `rank` = number of used dimensions of `t`.
void check_finite(const parallel::Communicator& comm, const std::string& name,
                  const Selection& selection, const TensorRef& t, int rank);

}  // namespace tessera::io
