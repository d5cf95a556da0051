// SPDX-License-Identifier: Apache-2.0
// Comparison with an fp64 reference that is computed by plain loops over the whole key sequence,
// each rank a block of query rows. Errors are given as a ratio: error of the tested path over the
// error of the same plain loops in the tested dtype (architecture section 4).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "attention/session.hpp"

namespace tessera::attention {

/// fp64 results over all packed rows: o [queries, Hq, dv], lse [Hq, queries], dq, dk, dv, dsink.
struct Reference {
  std::map<std::string, std::vector<double>> value;
  std::map<std::string, double> plain_error;  ///< ||plain - fp64|| / scale in the tested dtype
  /// ||fp64||; of dQ, dK and dV at least a thousandth of the largest of the three, since one of
  /// them may vanish (a window of one key has dQ = dK = 0) and rounding is of the size of the
  /// others.
  std::map<std::string, double> scale;
};

/// Needs a registry in which backend "reference" was added. Memory: a few copies of all tensors in
/// fp64 per rank. Collective.
Reference make_reference(const Problem& p, const Fill& fill, Surroundings around, bool backward);

struct Errors {
  double ratio = 0;     ///< largest over the tensors of the pass
  double max_abs = 0;   ///< largest absolute difference
  double relative = 0;  ///< largest ||x - ref|| / scale
  std::string worst;    ///< tensor with the largest ratio
};

/// All ranks get the same numbers. NaN anywhere, or padding rows that are not 0, give infinity.
Errors compare(const Session& session, const PreparedPass& pass, Pass which, const Reference& ref,
               parallel::Communicator& comm);

}  // namespace tessera::attention
