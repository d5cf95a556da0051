// SPDX-License-Identifier: Apache-2.0
#include "attention/layout.hpp"

#include <algorithm>

namespace tessera::attention {

std::string_view name_of(Layout layout) {
  switch (layout) {
    case Layout::contiguous:
      return "contiguous";
    case Layout::zigzag:
      return "zigzag";
    case Layout::striped:
      return "striped";
    case Layout::balanced:
      break;
  }
  return "balanced";
}

std::int64_t count(const Rows& rows) {
  std::int64_t n = 0;
  for (const Segment& s : rows) n += s.count;
  return n;
}

std::int64_t count_valid(const Rows& rows) {
  std::int64_t n = 0;
  for (const Segment& s : rows) n += s.padding() ? 0 : s.count;
  return n;
}

namespace {

/// Adds a segment, joining it to the last one where the two form one progression.
void push(Rows& rows, Segment s) {
  if (s.count <= 0) return;
  if (!rows.empty()) {
    Segment& last = rows.back();
    const bool both_padding = last.padding() && s.padding();
    const bool goes_on = !last.padding() && !s.padding() && last.stride == s.stride &&
                         last.start + last.stride * last.count == s.start;
    if (both_padding || goes_on) {
      last.count += s.count;
      return;
    }
  }
  rows.push_back(s);
}

/// Positions [begin, end) of one batch item that starts at global row `base`; what lies beyond
/// `sequence` is padding.
void push_positions(Rows& rows, std::int64_t base, std::int64_t sequence, Range p) {
  const std::int64_t valid = std::clamp(sequence - p.begin, std::int64_t{0}, p.size());
  push(rows, {base + p.begin, 1, valid});
  push(rows, {-1, 1, p.size() - valid});
}

}  // namespace

void append(Rows& to, const Rows& more) {
  for (const Segment& s : more) push(to, s);
}

Rows slice(const Rows& rows, Range range) {
  Rows out;
  std::int64_t at = 0;
  for (const Segment& s : rows) {
    const std::int64_t b = std::max(range.begin - at, std::int64_t{0});
    const std::int64_t e = std::min(range.end - at, s.count);
    if (b < e) push(out, {s.padding() ? -1 : s.start + b * s.stride, s.stride, e - b});
    at += s.count;
  }
  return out;
}

Rows slice(const Rows& rows, const std::vector<Range>& ranges) {
  Rows out;
  for (const Range& r : ranges) append(out, slice(rows, r));
  return out;
}

std::vector<std::int64_t> expand(const Rows& rows) {
  std::vector<std::int64_t> out;
  for (const Segment& s : rows)
    for (std::int64_t i = 0; i < s.count; ++i)
      out.push_back(s.padding() ? -1 : s.start + i * s.stride);
  return out;
}

std::int64_t padding_multiple(Layout layout, int n) {
  if (layout == Layout::balanced) return pieces_per_chunk * n;
  return layout == Layout::zigzag ? 2 * std::int64_t{n} : n;
}

std::int64_t padded(std::int64_t sequence, std::int64_t multiple) {
  return (sequence + multiple - 1) / multiple * multiple;
}

Rows chunk_rows(Layout layout, int n, int i, std::int64_t batch, std::int64_t sequence,
                std::int64_t padded_sequence) {
  Rows rows;
  const std::int64_t c = padded_sequence / n;
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t base = b * sequence;
    if (layout == Layout::contiguous) {
      push_positions(rows, base, sequence, {i * c, (i + 1) * c});
    } else if (layout == Layout::zigzag) {
      const std::int64_t h = c / 2, last = 2 * std::int64_t{n} - 1 - i;
      push_positions(rows, base, sequence, {i * h, (i + 1) * h});
      push_positions(rows, base, sequence, {last * h, (last + 1) * h});
    } else {
      const std::int64_t valid = i < sequence ? (sequence - i + n - 1) / n : 0;
      push(rows, {base + i, n, std::min(valid, c)});
      push(rows, {-1, 1, c - std::min(valid, c)});
    }
  }
  return rows;
}

Rows piece_rows(const std::vector<std::int32_t>& owner, int i, std::int64_t batch,
                std::int64_t sequence, std::int64_t padded_sequence) {
  Rows rows;
  const std::int64_t per_item = std::ssize(owner) / batch, size = padded_sequence / per_item;
  for (std::int64_t piece = 0; piece < std::ssize(owner); ++piece) {
    if (owner[static_cast<std::size_t>(piece)] != i) continue;
    const std::int64_t at = piece % per_item * size;
    push_positions(rows, piece / per_item * sequence, sequence, {at, at + size});
  }
  return rows;
}

}  // namespace tessera::attention
