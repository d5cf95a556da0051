// SPDX-License-Identifier: Apache-2.0
// The argument lists documented in ops/call.hpp as a check, shared by every backend's supports().
#pragma once

#include <string>

#include "ops/call.hpp"

namespace tessera::ops {

/// Empty when the call fits the documented signature of its operator; otherwise one clause that
/// names the first argument that does not fit: "argument 1 is f32[4,3,8], expected f32[4,2,8]".
std::string mismatch(const Call& call);

/// Every argument lies in host memory with unit stride along its third dimension.
bool on_host(const Call& call);

}  // namespace tessera::ops
