// SPDX-License-Identifier: Apache-2.0
// Rules of accesses: two steps that touch the same elements of a buffer, one of them writing, must
// be ordered; and scratch must have been written before it is read. The step list gives the order
// that is meant, the clocks say which of it is guaranteed.
#include <fmt/format.h>

#include "plan/check_rules.hpp"
#include "plan/clocks.hpp"
#include "plan/region.hpp"

namespace tessera::plan {

namespace {

struct Touch {
  std::int32_t step;
  Access access;
  Rect rect;
};

bool writes(Access access) { return access != Access::read; }
bool reads(Access access) { return access != Access::write; }

class OrderCheck {
 public:
  OrderCheck(const Graph& graph, int rank, FaultList& faults)
      : graph_(graph),
        plan_(graph.program->plans[rank]),
        rank_(rank),
        faults_(faults),
        clocks_(graph, rank),
        touches_(plan_.buffers.size()),
        written_(plan_.buffers.size()) {}

  void run() {
    if (clocks_.cyclic()) return;  // the deadlock rule reports it
    for (std::size_t s = 0; s < plan_.steps.size(); ++s) {
      const auto step = static_cast<std::int32_t>(s);
      for (const Use& use : plan_.uses(plan_.steps[s])) compare(step, use);
      for (const Use& use : plan_.uses(plan_.steps[s])) remember(step, use);
    }
  }

 private:
  static Rect rect_of(const Use& use) { return {use.d0, use.d1}; }

  void compare(std::int32_t step, const Use& use) {
    const Rect rect = rect_of(use);
    if (rect.empty()) return;
    for (const Touch& old : touches_[use.buffer]) {
      if (!writes(use.access) && !writes(old.access)) continue;
      if (!rect.overlaps(old.rect) || clocks_.ordered(old.step, step)) continue;
      report(step, use, old);
    }
    if (plan_.buffers[use.buffer].role != Role::scratch || !reads(use.access)) return;
    Rect hole;
    if (written_[use.buffer].contains(rect, hole)) return;
    faults_.add(fault::read_before_write, rank_, step, [&] {
      return fmt::format(
          "{} reads [{},{}) x [{},{}) of scratch buffer '{}', which no earlier step "
          "writes",
          describe(*graph_.program, rank_, step), hole.d0.begin, hole.d0.end, hole.d1.begin,
          hole.d1.end, plan_.buffers[use.buffer].name);
    });
  }

  void report(std::int32_t step, const Use& use, const Touch& old) {
    const bool raw = reads(use.access) && writes(old.access);
    const bool war = writes(use.access) && !writes(old.access);
    const std::string_view name = raw   ? fault::missing_wait
                                  : war ? fault::reused_early
                                        : fault::unordered_writes;
    faults_.add(name, rank_, step, [&] {
      return fmt::format(
          "{} {} [{},{}) x [{},{}) of buffer '{}', but nothing makes it wait for {}, "
          "which {} it",
          describe(*graph_.program, rank_, step), raw ? "reads" : "writes", use.d0.begin,
          use.d0.end, use.d1.begin, use.d1.end, plan_.buffers[use.buffer].name,
          describe(*graph_.program, rank_, old.step), writes(old.access) ? "writes" : "reads");
    });
  }

  /// A touch stands for older ones that it covers and follows: whoever follows it follows them.
  void remember(std::int32_t step, const Use& use) {
    const Rect rect = rect_of(use);
    if (rect.empty()) return;
    auto& touches = touches_[use.buffer];
    std::erase_if(touches, [&](const Touch& old) {
      return rect.covers(old.rect) && (writes(use.access) || !writes(old.access)) &&
             clocks_.ordered(old.step, step);
    });
    touches.push_back({step, use.access, rect});
    if (writes(use.access)) written_[use.buffer].add(rect);
  }

  const Graph& graph_;
  const Plan& plan_;
  int rank_;
  FaultList& faults_;
  Clocks clocks_;
  std::vector<std::vector<Touch>> touches_;  // per buffer
  std::vector<Region> written_;              // per buffer
};

}  // namespace

void check_order(const Graph& graph, FaultList& faults) {
  for (std::size_t r = 0; r < graph.program->plans.size(); ++r) {
    OrderCheck(graph, static_cast<int>(r), faults).run();
  }
}

}  // namespace tessera::plan
