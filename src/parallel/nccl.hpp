// SPDX-License-Identifier: Apache-2.0
// What this build and this machine have of NCCL, for banners and reports. The transport itself is
// make_nccl() of transport.hpp. Built from nccl.cpp, or from nccl_none.cpp without nccl.h.
#pragma once

#include <string>

namespace tessera::parallel {

/// "2.28.9" of the library that would be used, or why there is none. Never throws.
std::string describe_nccl();

}  // namespace tessera::parallel
