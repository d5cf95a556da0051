// SPDX-License-Identifier: Apache-2.0
// Files that appear complete or not at all, and folders that results go to. Calls of one rank.
#pragma once

#include <cstdint>
#include <string>

namespace tessera::io {

/// Writes `text` under a temporary name beside `path`, flushes it to disk and renames it. When
/// anything fails the old file stays as it was and nothing is left behind; Error(io).
void write_text_atomic(const std::string& path, const std::string& text);

/// Creates the folder with its parents and writes, reads and removes a small file in it. Error(io)
/// naming the folder and the reason.
void check_writable_folder(const std::string& path);

/// "<path>.tmp-<job>": job number of Slurm, PBS or Flux, otherwise the process number.
std::string temporary_name(const std::string& path);

/// Flushes `from` to disk and gives it the name `to`, in one step for every reader.
void publish(const std::string& from, const std::string& to);

/// Takes `bytes` of disk for the file now, so that a full disk shows before the data are written.
/// Error(io) when they are not there; does nothing on a file system that cannot reserve.
void reserve(const std::string& path, std::int64_t bytes);

/// The whole file; Error(io) naming it.
std::string read_text(const std::string& path);

}  // namespace tessera::io
