// SPDX-License-Identifier: Apache-2.0
#include "drivers/common/command_line.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "base/suggest.hpp"

namespace tessera::drivers {

namespace {

void collect_names(const CLI::App& app, std::vector<std::string>& names) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (const CLI::App* child : app.get_subcommands({})) {
    names.push_back(child->get_name());
    collect_names(*child, names);
  }
}

/// The first argument that nothing took.
Error unknown_argument(const CLI::App& app) {
  const std::vector<std::string> rest = app.remaining(true);
  const std::string full = rest.empty() ? "" : rest.front();
  const std::string name = full.substr(0, full.find('='));
  std::vector<std::string> names;
  collect_names(app, names);
  const std::string near = nearest(name, names);
  return Error(Exit::usage, fmt::format("unknown argument '{}'", name),
               near.empty() ? "--help lists all options" : fmt::format("did you mean '{}'?", near));
}

}  // namespace

std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv, bool speaks) {
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::CallForHelp&) {
    if (speaks) std::fputs(app.help().c_str(), stdout);
  } catch (const CLI::CallForVersion& e) {
    if (speaks) std::printf("%s\n", e.what());
  } catch (const CLI::ExtrasError&) {
    throw unknown_argument(app);
  } catch (const CLI::ParseError& e) {
    throw Error(Exit::usage, e.what(), "--help lists all options");
  }
  return 0;
}

std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv,
                                      const parallel::Communicator& world) {
  const std::string mine = fmt::format("{}", fmt::join(argv + 1, argv + argc, " "));
  std::string first = mine;
  world.broadcast(first, 0);
  parallel::together(world, [&] {
    if (mine != first)
      throw Error(Exit::usage,
                  fmt::format("this rank was started with other arguments than rank 0\n"
                              "  here:   {}\n  rank 0: {}",
                              mine, first),
                  "give all ranks the same command line");
  });
  std::optional<int> done;
  parallel::together(world, [&] { done = parse_command_line(app, argc, argv, world.rank() == 0); });
  return done;
}

}  // namespace tessera::drivers
