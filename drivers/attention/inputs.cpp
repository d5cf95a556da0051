// SPDX-License-Identifier: Apache-2.0
#include "drivers/attention/inputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "attention/synthetic.hpp"
#include "io/finite.hpp"

namespace tessera::drivers {

using attention::Rows;
using attention::Segment;

namespace {

/// Valid rows as slabs of the dataset; padding is left out.
std::vector<io::Slab> slabs_of(const Rows& rows) {
  std::vector<io::Slab> out;
  for (const Segment& s : rows)
    if (!s.padding()) out.push_back({s.start, s.stride, s.count});
  return out;
}

bool covered(const std::vector<Range>& ranges, std::int64_t row) {
  auto it = std::upper_bound(ranges.begin(), ranges.end(), row,
                             [](std::int64_t r, Range x) { return r < x.begin; });
  return it != ranges.begin() && row < std::prev(it)->end;
}

std::int64_t row_bytes(const TensorRef& t) { return t.shape[1] * t.shape[2] * size_of(t.dtype); }

char* row(const TensorRef& t, std::int64_t i) { return t.as<char>() + i * row_bytes(t); }

}  // namespace

AttentionInputs::AttentionInputs(const config::Config& config, const parallel::Communicator& comm)
    : comm_(comm), seed_(config.integer("input.seed")) {
  if (const std::string& path = config.text("input.file"); !path.empty())
    file_ = std::make_shared<io::Input>(comm, path);
}

MaskArrays AttentionInputs::mask_arrays() {
  return [this](const std::string& name) {
    const std::string dataset = "/mask/" + name;
    if (!file_ || !file_->has(dataset)) return std::vector<std::int64_t>{};
    return file_->read_integers(dataset);
  };
}

void AttentionInputs::check(const attention::Problem& p, bool backward) {
  if (!file_) return;
  const std::int64_t q = p.batch * p.sequence, k = p.batch * p.key_sequence;
  file_->require("/q", {q, p.query_heads, p.head_dim});
  file_->require("/k", {k, p.kv_heads, p.head_dim});
  file_->require("/v", {k, p.kv_heads, p.value_dim});
  if (backward) file_->require("/do", {q, p.query_heads, p.value_dim});
  if (p.sink) file_->require("/sink", {p.query_heads});
}

attention::Fill AttentionInputs::fill(const attention::Problem& p, int num_threads) {
  if (!file_) return attention::synthetic(static_cast<std::uint64_t>(seed_), num_threads);
  return [this, &p](const std::string& name, const Rows& rows, const TensorRef& out) {
    read(p, name, rows, out);
  };
}

void AttentionInputs::read(const attention::Problem& p, const std::string& name, const Rows& rows,
                           const TensorRef& out) {
  const std::string dataset = "/" + name;
  if (rows.empty()) {  // the sink: one value per head, whole on every rank
    const io::Selection whole = io::rows(Range{0, out.shape[0]});
    file_->read_slab(dataset, whole, out);
    return io::check_finite(comm_, dataset, whole, out, 1);
  }
  const io::Selection selection = io::rows(slabs_of(rows));
  std::vector<char> space(static_cast<std::size_t>(selection.count() * row_bytes(out)) + 1);
  const TensorRef packed =
      dense(space.data(), out.dtype, {selection.count(), out.shape[1], out.shape[2]});
  file_->read_slab(dataset, selection, packed);

  const bool keys = name == "k" || name == "v";
  const auto& bands = p.mask.bands();
  const std::vector<Range> used = keys ? attention::columns(bands) : attention::rows_of(bands);
  for (std::int64_t i = 0; i < packed.shape[0]; ++i)
    if (!covered(used, selection.index(i)))
      std::memset(row(packed, i), 0, static_cast<std::size_t>(row_bytes(packed)));
  io::check_finite(comm_, dataset, selection, packed, 3);

  std::int64_t at = 0, from = 0;
  for (const Segment& s : rows) {
    const auto bytes = static_cast<std::size_t>(s.count * row_bytes(out));
    if (s.padding())
      std::memset(row(out, at), 0, bytes);
    else
      std::memcpy(row(out, at), row(packed, from), bytes), from += s.count;
    at += s.count;
  }
}

attention::Fill remembered(attention::Fill fill, const parallel::Communicator& comm) {
  struct Kept {
    Rows rows;
    std::array<std::int64_t, 3> shape{};
    DType dtype{};
    std::vector<char> bytes;
  };
  const auto kept = std::make_shared<std::map<std::string, Kept>>();
  return [fill = std::move(fill), kept, &comm](const std::string& name, const Rows& rows,
                                               const TensorRef& out) {
    Kept& k = (*kept)[name];
    const bool have =
        k.rows == rows && k.shape == out.shape && k.dtype == out.dtype && !k.bytes.empty();
    if (comm.all_reduce_min(std::int64_t{have}) == 0) {
      fill(name, rows, out);
      k = {rows, out.shape, out.dtype,
           std::vector<char>(out.as<char>(), out.as<char>() + out.count() * size_of(out.dtype))};
      return;
    }
    std::memcpy(out.data, k.bytes.data(), k.bytes.size());
  };
}

std::string AttentionInputs::mask_kind() {
  if (!file_ || !file_->has("/mask")) return {};
  return file_->text("/mask", "kind").value_or("");
}

std::string AttentionInputs::source() const {
  return file_ ? fmt::format("file {}", file_->path()) : fmt::format("seed {}", seed_);
}

}  // namespace tessera::drivers
