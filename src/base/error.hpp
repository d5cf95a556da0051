// SPDX-License-Identifier: Apache-2.0
// The one exception type of Tessera and the exit codes that job scripts read.
// An Error says what happened with its values, where, and what to try; only `main` catches it.
#pragma once

#include <exception>
#include <string>

namespace tessera {

/// Process exit codes (architecture section 4). A batch script may branch on them.
enum class Exit : int {
  ok = 0,
  invalid = 1,        ///< the run finished but validation failed
  usage = 2,          ///< command line or deck is wrong
  environment = 3,    ///< machine lacks something: devices, MPI launch, libraries
  io = 4,             ///< a file could not be read or written
  communication = 5,  ///< MPI or NCCL reported an error, or a rank disappeared
  watchdog = 6,       ///< no progress within the time given
  numerical = 7,      ///< NaN or infinity where none may be
  requeue = 75,       ///< stopped on request, start again to go on
  skipped = 77        ///< nothing was run; CTest counts it as skipped
};

/// What went wrong, where, and what to try. `where` and `hint` may be empty.
class Error : public std::exception {
 public:
  Error(Exit code, std::string message, std::string hint = {}, std::string where = {});

  const char* what() const noexcept override { return text_.c_str(); }
  Exit code() const noexcept { return code_; }
  const std::string& message() const noexcept { return message_; }
  const std::string& hint() const noexcept { return hint_; }
  const std::string& where() const noexcept { return where_; }

 private:
  Exit code_;
  std::string message_, hint_, where_;
  std::string text_;  // "message\n  at: where\n  try: hint", as printed
};

}  // namespace tessera
