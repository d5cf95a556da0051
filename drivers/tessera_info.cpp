// SPDX-License-Identifier: Apache-2.0
// tessera-info: what this build and this machine are: versions, cores, operators. Starts no ranks.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <hdf5.h>

#include <Kokkos_Core.hpp>
#include <map>
#include <nlohmann/json.hpp>

#include "base/version.hpp"
#include "drivers/common/command_line.hpp"
#include "drivers/common/main.hpp"
#include "kernels/kokkos/register.hpp"
#include "kernels/reference/register.hpp"

namespace {

using namespace tessera;
using nlohmann::ordered_json;

std::string mpi_library() {
  // Both calls are permitted before MPI_Init. The first line is the library and its version.
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0, major = 0, minor = 0;
  MPI_Get_library_version(text, &length);
  MPI_Get_version(&major, &minor);
  std::string line(text, length);
  line = line.substr(0, line.find_first_of("\n,"));
  return fmt::format("{} (MPI {}.{})", line, major, minor);
}

std::string hdf5_library() {
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
#ifdef H5_HAVE_PARALLEL
  const char* parallel = "parallel: yes";
#else
  const char* parallel = "parallel: no, ranks write in turn";
#endif
  return fmt::format("{}.{}.{} ({})", major, minor, release, parallel);
}

std::string kokkos_library() {
  std::vector<std::string> spaces{Kokkos::DefaultExecutionSpace::name()};
  const std::string host = Kokkos::DefaultHostExecutionSpace::name();
  if (host != spaces[0]) spaces.push_back(host);
  return fmt::format("{}.{}.{} (execution spaces: {})", KOKKOS_VERSION / 10000,
                     KOKKOS_VERSION / 100 % 100, KOKKOS_VERSION % 100, fmt::join(spaces, ", "));
}

std::map<std::string, std::vector<std::string>> operators() {
  ops::Registry registry;
  kernels::register_reference(registry);
  kernels::register_kokkos(registry);
  std::map<std::string, std::vector<std::string>> by_name;
  for (const ops::Implementation& i : registry.list()) by_name[i.op].push_back(i.backend);
  return by_name;
}

ordered_json describe() {
  const BuildInfo& build = build_info();
  ordered_json info;
  info["tessera"] = build.version;
  info["git"] = build.git_hash + (build.dirty ? " (modified)" : "");
  info["compiler"] = fmt::format("{}, {}", build.compiler, build.build_type);
  info["mpi"] = mpi_library();
  info["hdf5"] = hdf5_library();
  info["kokkos"] = kokkos_library();
  info["devices"] = "none: this build has no GPU backend";
  info["host"] = parallel::host_name();
  info["cores"] = parallel::usable_cores();
  info["operators"] = operators();
  return info;
}

int body(int argc, char** argv) {
  bool as_json = false;
  CLI::App app("Versions, host and operators of this build.", "tessera-info");
  app.add_flag("--json", as_json, "print JSON");
  app.set_version_flag("--version", version_line());
  if (const auto done = drivers::parse_command_line(app, argc, argv, true)) return *done;
  const ordered_json info = describe();
  if (as_json) {
    fmt::print("{}\n", info.dump(2));
    return 0;
  }
  for (const auto& [key, value] : info.items()) {
    if (value.is_string()) fmt::print("{:<10} {}\n", key, value.get<std::string>());
    if (value.is_number()) fmt::print("{:<10} {}\n", key, value.get<int>());
  }
  fmt::print("\noperators, backends by priority\n");
  for (const auto& [op, backends] : info["operators"].items()) {
    fmt::print("  {:<22} {}\n", op, fmt::join(backends.get<std::vector<std::string>>(), ", "));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return tessera::drivers::guarded_serial_main([&] { return body(argc, argv); });
}
