// SPDX-License-Identifier: Apache-2.0
// Rules of accesses: two steps that touch the same elements of a buffer, one of them writing, must
// be ordered; and scratch must have been written before it is read. The step list gives the order
// that is meant, the clocks say which of it is guaranteed.
#include <algorithm>

#include <fmt/format.h>

#include "plan/check_rules.hpp"
#include "plan/clocks.hpp"

namespace tessera::plan {

namespace {

struct Rect {
  Range d0, d1;
  bool empty() const { return d0.empty() || d1.empty(); }
  bool overlaps(const Rect& o) const { return d0.overlaps(o.d0) && d1.overlaps(o.d1); }
  bool covers(const Rect& o) const { return d0.covers(o.d0) && d1.covers(o.d1); }
};

/// A union of rectangles of one buffer.
class Region {
 public:
  void add(Rect rect) {
    if (rect.empty()) return;
    for (std::size_t i = 0; i < rects_.size();) {
      if (rects_[i].covers(rect)) return;
      if (!rect.covers(rects_[i]) && !joined(rect, rects_[i])) {
        ++i;
        continue;
      }
      rects_[i] = rects_.back();
      rects_.pop_back();
      i = 0;
    }
    rects_.push_back(rect);
  }

  /// Is every element of `rect` in the region? If not, `hole` is a part that is not.
  bool contains(const Rect& rect, Rect& hole) const {
    std::vector<Rect> rest;
    if (!rect.empty()) rest.push_back(rect);
    for (const Rect& have : rects_) {
      std::vector<Rect> next;
      for (const Rect& r : rest) subtract(r, have, next);
      rest.swap(next);
      if (rest.empty()) return true;
    }
    if (!rest.empty()) hole = rest.front();
    return rest.empty();
  }

 private:
  /// Grows `a` by `b` when together they are one rectangle.
  static bool joined(Rect& a, const Rect& b) {
    auto touch = [](Range x, Range y) { return x.begin <= y.end && y.begin <= x.end; };
    auto hull = [](Range x, Range y) {
      return Range{std::min(x.begin, y.begin), std::max(x.end, y.end)};
    };
    if (a.d1 == b.d1 && touch(a.d0, b.d0)) {
      a.d0 = hull(a.d0, b.d0);
      return true;
    }
    if (a.d0 == b.d0 && touch(a.d1, b.d1)) {
      a.d1 = hull(a.d1, b.d1);
      return true;
    }
    return false;
  }

  /// Appends the up to four parts of `r` outside `cut`.
  static void subtract(const Rect& r, const Rect& cut, std::vector<Rect>& out) {
    if (!r.overlaps(cut)) return out.push_back(r);
    const Range middle{std::max(r.d0.begin, cut.d0.begin), std::min(r.d0.end, cut.d0.end)};
    const Rect parts[] = {{{r.d0.begin, middle.begin}, r.d1},
                          {{middle.end, r.d0.end}, r.d1},
                          {middle, {r.d1.begin, cut.d1.begin}},
                          {middle, {cut.d1.end, r.d1.end}}};
    for (const Rect& part : parts) {
      if (!part.empty()) out.push_back(part);
    }
  }

  std::vector<Rect> rects_;
};

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
