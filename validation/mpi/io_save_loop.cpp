// SPDX-License-Identifier: Apache-2.0
// Saves generation after generation into one file until it is killed ("loop FILE"), or checks that
// the file is one complete generation ("check FILE"): every element and the attribute agree.
// Driven by io_kill.sh.
#include <cstdio>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "io/output.hpp"
#include "parallel/communicator.hpp"

namespace {

using namespace tessera;

constexpr std::int64_t rows_each = 1 << 15;

void save(const parallel::Communicator& comm, const std::string& path, std::int64_t generation) {
  std::vector<double> data(rows_each, static_cast<double>(generation));
  const std::int64_t first = rows_each * comm.rank();
  io::OutputFile file(comm, path);
  file.attribute("/", "generation", generation);
  file.create_dataset("/x", DType::f64, {rows_each * comm.size()});
  file.write_slab("/x", io::rows(Range{first, first + rows_each}),
                  dense(data.data(), DType::f64, {rows_each, 1, 1}));
  file.commit();
}

int check(const parallel::Communicator& comm, const std::string& path) {
  io::Input input(comm, path);
  const std::int64_t generation = input.integer("/", "generation").value_or(-1);
  const std::int64_t n = input.info("/x").shape.at(0);
  std::vector<double> data(static_cast<std::size_t>(n));
  input.read_slab("/x", io::rows(Range{0, n}), dense(data.data(), DType::f64, {n, 1, 1}));
  for (const double x : data)
    if (x != static_cast<double>(generation)) return 1;
  std::printf("generation %lld is complete, %lld elements\n", static_cast<long long>(generation),
              static_cast<long long>(n));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  io::prepare();
  const parallel::World guard(argc, argv);
  const parallel::Communicator comm(MPI_COMM_WORLD, "save");
  const std::string what = argc == 3 ? argv[1] : "";
  try {
    if (what == "check") return check(comm, argv[2]);
    for (std::int64_t generation = 1; what == "loop"; ++generation) save(comm, argv[2], generation);
  } catch (const Error& e) {
    if (comm.rank() == 0) std::fprintf(stderr, "%s\n", e.what());
    return static_cast<int>(e.code());
  }
  return 2;
}
