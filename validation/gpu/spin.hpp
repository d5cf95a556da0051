// SPDX-License-Identifier: Apache-2.0
// A kernel that does nothing for a while.
#pragma once

#include <cstdint>

namespace tessera::test {

void spin(std::int64_t ns, void* stream);

}  // namespace tessera::test
