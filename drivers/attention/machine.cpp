// SPDX-License-Identifier: Apache-2.0
#include "drivers/attention/machine.hpp"

#include "drivers/common/machine_file.hpp"

namespace tessera::drivers {

plan::Machine load_machine(const std::string& path) {
  return path.empty() ? parse_machine(built_in_machine, "built-in host") : read_machine(path);
}

}  // namespace tessera::drivers
