// SPDX-License-Identifier: Apache-2.0
// Collective agreement about failure: when one rank cannot go on, all stop with its message.
#include <fmt/format.h>

#include <array>
#include <new>
#include <optional>

#include "parallel/communicator.hpp"

namespace tessera::parallel {

namespace {

std::optional<Error> try_body(const std::function<void()>& body) {
  try {
    body();
    return std::nullopt;
  } catch (const Error& e) {
    return e;
  } catch (const std::bad_alloc&) {
    return Error(Exit::environment, "out of memory", "use more ranks or a smaller problem");
  } catch (const std::exception& e) {
    return Error(Exit::environment, fmt::format("unexpected: {}", e.what()));
  }
}

}  // namespace

void together(const Communicator& comm, const std::function<void()>& body) {
  const std::optional<Error> mine = try_body(body);
  const int first =
      static_cast<int>(comm.all_reduce_min(std::int64_t{mine ? comm.rank() : comm.size()}));
  if (first == comm.size()) return;

  std::array<std::int64_t, 1> code{mine ? static_cast<int>(mine->code()) : 0};
  std::array<std::string, 4> text;  // message, hint, where, host
  if (mine) text = {mine->message(), mine->hint(), mine->where(), host_name()};
  comm.broadcast(code, first);
  for (std::string& t : text) comm.broadcast(t, first);

  const bool same = mine && mine->message() == text[0];
  const bool alike = comm.all_reduce_min(std::int64_t{same}) == 1;
  const std::string place = alike ? "" : fmt::format("[rank {} {}] ", first, text[3]);
  throw AgreedError(static_cast<Exit>(code[0]), place + text[0], text[1], text[2]);
}

}  // namespace tessera::parallel
