// SPDX-License-Identifier: Apache-2.0
// Choice of an implementation for a call: a pinned backend, else the highest priority that is not
// denied and supports the call. Refusals say everything that is needed to see why.
#include "ops/registry.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "ops/signature.hpp"

namespace tessera::ops {
namespace {

std::string describe(const TensorRef& t) {
  return fmt::format("{}[{},{},{}]", name_of(t.dtype), t.shape[0], t.shape[1], t.shape[2]);
}

std::string describe(const Call& call) {
  std::string text(call.name);
  text += '(';
  for (std::size_t i = 0; i < call.args.size(); ++i) {
    text += (i ? ", " : "") + describe(call.args[i]);
  }
  return text + ')';
}

}  // namespace

std::uint32_t fresh_bits(const Implementation& implementation, const Call& call) {
  std::uint32_t bits = 0;
  for (std::size_t i = 0; implementation.overwrites && i < call.args.size(); ++i)
    if (implementation.overwrites(call, i)) bits |= std::uint32_t{1} << i;
  return bits;
}

void Registry::add(Implementation implementation) {
  const auto lower = [](const Implementation& a, const Implementation& b) {
    return a.priority > b.priority;
  };
  const auto at =
      std::upper_bound(implementations_.begin(), implementations_.end(), implementation, lower);
  implementations_.insert(at, std::move(implementation));
}

void Registry::pin(const std::string& op, const std::string& backend) {
  const bool known = std::any_of(implementations_.begin(), implementations_.end(),
                                 [&](const auto& i) { return i.op == op && i.backend == backend; });
  if (!known) {
    throw Error(Exit::usage, fmt::format("operator {} has no backend {}", op, backend),
                "tessera-info lists the operators and their backends");
  }
  std::erase_if(pins_, [&](const auto& p) { return p.first == op; });
  pins_.emplace_back(op, backend);
}

void Registry::deny(const std::string& backend) { denied_.push_back(backend); }

const char* Registry::refusal(const Implementation& i, const Call& call) const {
  if (std::find(denied_.begin(), denied_.end(), i.backend) != denied_.end()) return "denied";
  const auto pin =
      std::find_if(pins_.begin(), pins_.end(), [&](const auto& p) { return p.first == call.name; });
  if (pin != pins_.end() && pin->second != i.backend) return "another backend is pinned";
  if (deterministic_ && !i.repeatable) return "not repeatable, as ops.deterministic asks for";
  return i.supports(call) ? nullptr : "does not support this call";
}

std::vector<const Implementation*> Registry::candidates(const Call& call) const {
  std::vector<const Implementation*> out;
  for (const Implementation& i : implementations_) {
    const bool known =
        std::any_of(out.begin(), out.end(), [&](const auto* c) { return c->backend == i.backend; });
    if (i.op == call.name && !known && !refusal(i, call)) out.push_back(&i);
  }
  return out;
}

const Implementation& Registry::choose(const Call& call) const {
  std::string asked;
  for (const Implementation& i : implementations_) {
    if (i.op != call.name) continue;
    const char* why = refusal(i, call);
    if (!why) return i;
    asked += fmt::format("{}{} ({})", asked.empty() ? "" : ", ", i.backend, why);
  }
  std::string message = fmt::format("no backend runs {}; asked: {}", describe(call),
                                    asked.empty() ? "none, the operator is unknown" : asked);
  const std::string reason = mismatch(call);
  if (!reason.empty()) message += "; " + reason;
  throw Error(Exit::environment, message, "tessera-info lists the operators and their backends");
}

}  // namespace tessera::ops
