// SPDX-License-Identifier: Apache-2.0
// tessera-info: what this build and this machine are: versions, cores, devices, operators, and
// which backend a call would get. Starts no ranks.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <hdf5.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "base/version.hpp"
#include "drivers/common/command_line.hpp"
#include "drivers/common/main.hpp"
#include "kernels/cuda/cudnn.hpp"
#include "kernels/cuda/register.hpp"
#include "kernels/cuda/version.hpp"
#include "kernels/kokkos/register.hpp"
#include "kernels/kokkos/runtime.hpp"
#include "kernels/reference/register.hpp"
#include "memory/cuda.hpp"
#include "memory/stream.hpp"
#include "parallel/nccl.hpp"

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

/// Devices as this process numbers them, or the reason why there is none.
ordered_json devices() {
  const int count = memory::device_count();
  if (count == 0) return "none: " + memory::describe_device();
  ordered_json list = ordered_json::array();
  for (int device = 0; device < count; ++device) {
    memory::use_device(device);
    list.push_back({{"number", device},
                    {"name", memory::describe_device()},
                    {"uuid", memory::device_uuid(device)}});
  }
  memory::use_device(0);
  return list;
}

void register_all(ops::Registry& registry, Budget& budget) {
  kernels::register_reference(registry);
  kernels::register_kokkos(registry);
  kernels::register_cuda(registry, budget);
}

ordered_json operators(const ops::Registry& registry) {
  std::map<std::string, ordered_json> by_name;
  for (const ops::Implementation& i : registry.list())
    by_name[i.op].push_back(
        {{"backend", i.backend}, {"priority", i.priority}, {"repeatable", i.repeatable}});
  return by_name;
}

ordered_json describe(const ops::Registry& registry) {
  const BuildInfo& build = build_info();
  ordered_json info;
  info["tessera"] = build.version;
  info["git"] = build.git_hash + (build.dirty ? " (modified)" : "");
  info["compiler"] = fmt::format("{}, {}", build.compiler, build.build_type);
  info["mpi"] = mpi_library();
  info["hdf5"] = hdf5_library();
  info["kokkos"] = kernels::kokkos_version();
  info["cuda"] = kernels::cuda::describe_cuda();
  info["cudnn"] = kernels::cuda::describe_cudnn();
  info["nccl"] = parallel::describe_nccl();
  info["devices"] = devices();
  info["host"] = parallel::host_name();
  info["cores"] = parallel::usable_cores();
  info["operators"] = operators(registry);
  return info;
}

void print(const ordered_json& info) {
  for (const auto& [key, value] : info.items()) {
    if (value.is_string()) fmt::print("{:<10} {}\n", key, value.get<std::string>());
    if (value.is_number()) fmt::print("{:<10} {}\n", key, value.get<int>());
    if (key != "devices" || !value.is_array()) continue;
    for (const ordered_json& d : value)
      fmt::print("{:<10} {}, {}\n", fmt::format("device {}", d["number"].get<int>()),
                 d["name"].get<std::string>(), d["uuid"].get<std::string>());
  }
  fmt::print("\noperators, backends by priority; *: not with ops.deterministic\n");
  for (const auto& [op, backends] : info["operators"].items()) {
    std::vector<std::string> words;
    for (const ordered_json& b : backends)
      words.push_back(fmt::format("{} {}{}", b["backend"].get<std::string>(),
                                  b["priority"].get<int>(),
                                  b["repeatable"].get<bool>() ? "" : "*"));
    fmt::print("  {:<22} {}\n", op, fmt::join(words, ", "));
  }
}

/// A causal attention tile in the words of --call.
struct TileCall {
  std::string op, type, place;
  std::int64_t tokens = 0, heads = 0, kv_heads = 0, dim = 0;

  explicit TileCall(const std::string& text) {
    std::istringstream words(text);
    words >> op >> type >> tokens >> heads >> kv_heads >> dim >> place;
    const bool forward = op == "attention.forward", backward = op == "attention.backward";
    if (!words || !(forward || backward) || !dtype_named(type) ||
        (place != "host" && place != "cuda") || std::min({tokens, heads, kv_heads, dim}) < 1)
      throw Error(Exit::usage, fmt::format("--call '{}' describes no call", text),
                  "write operator, type, tokens, query heads, KV heads, head dimension and place: "
                  "\"attention.forward bf16 4096 32 32 128 cuda\"; attention.forward or "
                  "attention.backward; f64, f32, bf16 or f16; host or cuda");
  }

  /// The backend that would run it; Error(environment) when none would.
  std::string backend(const ops::Registry& registry) const {
    const DType t = dtype_named(type).value(), a = accumulate_type(t);
    const Space space = place == "cuda" ? Space::cuda : Space::host;
    if (space == Space::cuda && memory::device_count() == 0)
      throw Error(Exit::environment,
                  fmt::format("nothing runs '{}' here: {}", op, memory::describe_device()),
                  "ask on a machine with a GPU, or for host");
    // Only looked at, never read: the choice depends on sizes, not on contents.
    const auto rows = [&](DType type, std::int64_t h) {
      return dense(nullptr, type, {tokens, h, dim}, space);
    };
    const TensorRef statistic = dense(nullptr, a, {heads, tokens, 1}, space);
    const ops::Band causal{.q0 = 0, .q1 = tokens, .k0 = 0, .k1 = tokens, .hi = 0};
    ops::Call call;
    call.name = op;
    call.args = {rows(t, heads), rows(t, kv_heads), rows(t, kv_heads)};
    call.attributes.mask = {&causal, 1};
    std::vector<TensorRef> rest{rows(a, heads), statistic};
    if (op == "attention.backward")
      rest = {rows(t, heads), statistic,         statistic,
              rows(a, heads), rows(a, kv_heads), rows(a, kv_heads)};
    call.args.insert(call.args.end(), rest.begin(), rest.end());
    return registry.choose(call).backend;
  }
};

int body(int argc, char** argv) {
  bool as_json = false;
  std::string call;
  CLI::App app("Versions, host, devices and operators of this build.", "tessera-info");
  app.add_flag("--json", as_json, "print JSON");
  app.add_option("--call", call,
                 "print the backend of one causal tile instead: \"attention.forward bf16 4096 32 "
                 "32 128 cuda\"");
  app.set_version_flag("--version", version_line());
  if (const auto done = drivers::parse_command_line(app, argc, argv, true)) return *done;
  Budget budget;
  ops::Registry registry;
  register_all(registry, budget);
  if (!call.empty()) {
    const std::string backend = TileCall(call).backend(registry);
    fmt::print("{}\n", as_json ? ordered_json{{"call", call}, {"backend", backend}}.dump(2)
                               : fmt::format("{}: {}", call, backend));
    return 0;
  }
  const ordered_json info = describe(registry);
  if (as_json)
    fmt::print("{}\n", info.dump(2));
  else
    print(info);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return tessera::drivers::guarded_serial_main([&] { return body(argc, argv); });
}
