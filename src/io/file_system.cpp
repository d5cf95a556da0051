// SPDX-License-Identifier: Apache-2.0
#include "io/file_system.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "base/error.hpp"
#include "base/units.hpp"

namespace tessera::io {
namespace {

namespace fs = std::filesystem;

Error system_error(const std::string& what, int reason) {
  std::string hint;
  if (reason == ENOSPC || reason == EDQUOT || reason == EFBIG)
    hint = "free space there or choose another folder";
  if (reason == EACCES || reason == EPERM || reason == EROFS || reason == ENOTDIR ||
      reason == ENOENT)
    hint = "choose a folder that this user may write to";
  return Error(Exit::io, fmt::format("{}: {}", what, std::strerror(reason)), hint);
}

/// A file descriptor that closes itself.
class File {
 public:
  File(const std::string& path, int flags) : path_(path), fd_(open(path.c_str(), flags, 0666)) {
    if (fd_ < 0) throw system_error(fmt::format("cannot open '{}'", path), errno);
  }
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  void write_all(std::string_view text) {
    while (!text.empty()) {
      const ssize_t n = write(fd_, text.data(), text.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw system_error(fmt::format("cannot write '{}'", path_), errno);
      text.remove_prefix(static_cast<std::size_t>(n));
    }
  }
  void sync() {
    // Folders of some network file systems cannot be flushed: EINVAL says so.
    if (fsync(fd_) != 0 && errno != EINVAL)
      throw system_error(fmt::format("cannot flush '{}' to disk", path_), errno);
  }

 private:
  std::string path_;
  int fd_;
};

std::string parent_of(const std::string& path) {
  const fs::path parent = fs::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

}  // namespace

std::string temporary_name(const std::string& path) {
  for (const char* variable : {"SLURM_JOB_ID", "PBS_JOBID", "FLUX_JOB_ID"}) {
    const char* job = std::getenv(variable);
    if (job && *job) return fmt::format("{}.tmp-{}-{}", path, job, getpid());
  }
  return fmt::format("{}.tmp-{}", path, getpid());
}

void publish(const std::string& from, const std::string& to) {
  File(from, O_RDONLY).sync();
  if (std::rename(from.c_str(), to.c_str()) != 0)
    throw system_error(fmt::format("cannot rename '{}' to '{}'", from, to), errno);
  File(parent_of(to), O_RDONLY | O_DIRECTORY).sync();
}

void write_text_atomic(const std::string& path, const std::string& text) {
  const std::string temporary = temporary_name(path);
  try {
    File(temporary, O_WRONLY | O_CREAT | O_TRUNC).write_all(text);
    publish(temporary, path);
  } catch (...) {
    unlink(temporary.c_str());
    throw;
  }
}

void check_writable_folder(const std::string& path) {
  std::error_code code;
  fs::create_directories(path, code);
  if (code || !fs::is_directory(path, code))
    throw system_error(fmt::format("cannot create the folder '{}'", path),
                       code ? code.value() : ENOTDIR);
  // Permission bits do not tell the truth for root, quotas and read-only mounts: try it.
  const std::string probe = temporary_name((fs::path(path) / "probe").string());
  try {
    File file(probe, O_WRONLY | O_CREAT | O_TRUNC);
    file.write_all("probe");
    file.sync();
  } catch (const Error& e) {
    unlink(probe.c_str());
    throw Error(Exit::io, fmt::format("the folder '{}' cannot be written to", path),
                "choose another folder with --out, or free space there", e.message());
  }
  unlink(probe.c_str());
}

void reserve(const std::string& path, std::int64_t bytes) {
  const int fd = open(path.c_str(), O_WRONLY);
  if (fd < 0) throw system_error(fmt::format("cannot open '{}'", path), errno);
  const int reason = bytes > 0 && fallocate(fd, 0, 0, bytes) != 0 ? errno : 0;
  close(fd);
  if (reason == ENOSPC || reason == EDQUOT || reason == EFBIG)
    throw system_error(fmt::format("no room for {} in '{}'",
                                   units::format_bytes(static_cast<double>(bytes)), path),
                       reason);
}

std::string read_text(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY);
  if (fd < 0) throw system_error(fmt::format("cannot open '{}'", path), errno);
  std::string text, block(1 << 16, '\0');
  ssize_t n = 0;
  while ((n = read(fd, block.data(), block.size())) > 0) text.append(block, 0, n);
  const int reason = errno;
  close(fd);
  if (n < 0) throw system_error(fmt::format("cannot read '{}'", path), reason);
  return text;
}

}  // namespace tessera::io
