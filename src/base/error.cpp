// SPDX-License-Identifier: Apache-2.0
#include "base/error.hpp"

#include <utility>

namespace tessera {

Error::Error(Exit code, std::string message, std::string hint, std::string where)
    : code_(code), message_(std::move(message)), hint_(std::move(hint)), where_(std::move(where)) {
  text_ = message_;
  if (!where_.empty()) text_ += "\n  at: " + where_;
  if (!hint_.empty()) text_ += "\n  try: " + hint_;
}

}  // namespace tessera
