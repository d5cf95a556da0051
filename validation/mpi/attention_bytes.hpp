// SPDX-License-Identifier: Apache-2.0
// Results of a session for bitwise comparison.
#pragma once

#include <string>
#include <vector>

#include "attention/session.hpp"

namespace tessera::test {

/// This rank's bytes of these tensors, one after the other; those that are not there add nothing.
inline std::string result_bytes(const attention::Session& session,
                                const std::vector<const char*>& names = {"o", "lse", "dq", "dk",
                                                                         "dv", "dsink"}) {
  std::string out;
  for (const char* name : names)
    if (const TensorRef t = session.tensor(name); t.data)
      out.append(t.as<char>(), static_cast<std::size_t>(t.count() * size_of(t.dtype)));
  return out;
}

}  // namespace tessera::test
