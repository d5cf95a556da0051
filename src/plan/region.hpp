// SPDX-License-Identifier: Apache-2.0
// Parts of a buffer: which of its elements the steps of a plan have written so far.
#pragma once

#include <algorithm>
#include <vector>

#include "base/range.hpp"

namespace tessera::plan {

/// Elements of the first two dimensions of a buffer.
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

}  // namespace tessera::plan
