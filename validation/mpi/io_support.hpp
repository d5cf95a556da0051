// SPDX-License-Identifier: Apache-2.0
// What the io tests share: a folder common to all ranks, tensors filled from global indices, and
// the modes to run in.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "io/input.hpp"
#include "io/output.hpp"
#include "memory/buffer.hpp"
#include "parallel/communicator.hpp"

namespace tessera::io::test {

using parallel::Communicator;

/// A folder of this job, removed at the end.
class Folder {
 public:
  explicit Folder(const Communicator& comm) : comm_(comm) {
    std::string name =
        (std::filesystem::temp_directory_path() / ("tessera_io_mpi_" + std::to_string(getpid())))
            .string();
    comm.broadcast(name, 0);
    path_ = name;
    if (comm.rank() == 0) std::filesystem::create_directories(path_);
    comm.barrier();
  }
  ~Folder() {
    comm_.barrier();
    if (comm_.rank() == 0) std::filesystem::remove_all(path_);
    comm_.barrier();
  }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  /// Number of entries, the same on all ranks.
  std::int64_t files() const {
    comm_.barrier();
    const auto n = std::distance(std::filesystem::directory_iterator(path_), {});
    comm_.barrier();
    return n;
  }

 private:
  const Communicator& comm_;
  std::filesystem::path path_;
};

/// A tensor with the budget that it counts on.
struct Owned {
  explicit Owned(DType dtype, std::array<std::int64_t, 3> shape)
      : budget(std::make_unique<Budget>()), tensor(make_tensor(*budget, dtype, shape, "test")) {}
  std::unique_ptr<Budget> budget;
  Tensor tensor;
  const TensorRef& ref() const { return tensor.ref; }
};

/// Value of element (i, j, k) of a dataset: exact in every element type and different for all.
inline double value(std::int64_t i, std::int64_t j, std::int64_t k) {
  return static_cast<double>(i * 1009 + j * 31 + k);
}

/// Sets t, the part of a dataset that `s` selects, to value(global index).
template <class T>
void fill(const Selection& s, const TensorRef& t) {
  for (std::int64_t i = 0; i < t.shape[0]; ++i)
    for (std::int64_t j = 0; j < t.shape[1]; ++j)
      for (std::int64_t k = 0; k < t.shape[2]; ++k) {
        std::array<std::int64_t, 3> at{i, j, k};
        for (int d = 0; d < 3; ++d)
          if (d == s.dim) {
            at[d] = s.index(at[d]);
          } else if (s.within[d]) {
            at[d] += s.within[d]->begin;
          }
        t.at<T>(i, j, k) = static_cast<T>(value(at[0], at[1], at[2]));
      }
}

/// Number of elements of t that differ from value(global index).
template <class T>
std::int64_t wrong(const Selection& s, const TensorRef& t) {
  Owned right(dtype_of<T>, t.shape);
  fill<T>(s, right.ref());
  std::int64_t n = 0;
  for (std::int64_t i = 0; i < t.shape[0]; ++i)
    for (std::int64_t j = 0; j < t.shape[1]; ++j)
      for (std::int64_t k = 0; k < t.shape[2]; ++k)
        n += std::memcmp(&t.at<T>(i, j, k), &right.ref().at<T>(i, j, k), sizeof(T)) != 0;
  return n;
}

/// Runs what must fail with Error(io) on every rank with the same text; returns that text.
inline std::string refused(const Communicator& comm, const std::function<void()>& body,
                           Exit code = Exit::io) {
  std::string text;
  try {
    body();
    ADD_FAILURE() << "no error on rank " << comm.rank();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    text = e.what();
  }
  std::string first = text;
  comm.broadcast(first, 0);
  EXPECT_EQ(text, first);
  return text;
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Tests that run with MPI-IO and with ranks taking turns.
class Modes : public testing::TestWithParam<Mode> {};
inline std::string mode_name(const testing::TestParamInfo<Mode>& info) {
  return info.param == Mode::collective ? "collective" : "in_turn";
}
inline std::vector<Mode> modes() {
  return default_mode() == Mode::collective ? std::vector{Mode::collective, Mode::in_turn}
                                            : std::vector{Mode::in_turn};
}

}  // namespace tessera::io::test
