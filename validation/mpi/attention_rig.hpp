// SPDX-License-Identifier: Apache-2.0
// Running attention problems on real ranks with the Kokkos kernels, and right values that can be
// written down: with Q = 0 every visible key has the same weight, so that rows are plain means.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <Kokkos_Core.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "attention/session.hpp"
#include "attention_bytes.hpp"
#include "attention_cases.hpp"
#include "kernels/kokkos/register.hpp"
#include "kernels/reference/register.hpp"
#include "test_main.hpp"

namespace tessera::test {

using Values = std::vector<double>;
/// o [rows, Hq, dv], lse [Hq, rows], dq, dk, dv, dsink: whole tensors, the same on all ranks.
using Results = std::map<std::string, Values>;

/// Kokkos lives as long as the tests of the process.
class KokkosEnvironment : public ::testing::Environment {
 public:
  void SetUp() override { Kokkos::initialize(); }
  void TearDown() override { Kokkos::finalize(); }
};
inline const auto* const kokkos_environment =
    ::testing::AddGlobalTestEnvironment(new KokkosEnvironment);

/// Inputs from a formula in the global row, the head and the element; padding is 0.
using Formula = std::function<double(const std::string& name, std::int64_t row, std::int64_t head,
                                     std::int64_t element)>;
inline Fill filled(Formula value) {
  return [value](const std::string& name, const Rows& rows, const TensorRef& out) {
    std::vector<std::int64_t> global = expand(rows);
    if (rows.empty())
      for (std::int64_t i = 0; i < out.shape[0]; ++i) global.push_back(i);
    for (std::int64_t i = 0; i < out.shape[0]; ++i)
      for (std::int64_t j = 0; j < out.shape[1]; ++j)
        for (std::int64_t k = 0; k < out.shape[2]; ++k) {
          const std::int64_t row = global[static_cast<std::size_t>(i)];
          out.set_value(i, j, k, row < 0 ? 0 : value(name, row, j, k));
        }
  };
}

/// Both passes of one scheme, bound and filled; may run again and again.
class Job {
 public:
  Job(const Problem& p, const Scheme& s, const Fill& fill, Surroundings around)
      : problem_(p), around_(around), session_(p, around) {
    const plan::Machine machine = test_machine();
    forward_ = &session_.prepare(s, Pass::forward, machine);
    session_.bind(*forward_);
    backward_ = &session_.prepare(s, Pass::backward, machine);
    session_.bind(*backward_);
    session_.fill(fill);
    name_ = fmt::format("{}, {}", forward_->scheme().text(), name_of(p.layout));
  }

  void forward() { session_.run(*forward_); }
  void run() {
    session_.run(*forward_);
    session_.run(*backward_);
  }
  const std::string& name() const { return name_; }
  const Session& session() const { return session_; }
  const Split& split() const { return forward_->split(); }
  int rank() const { return around_.comm.rank(); }

  /// Bytes of this rank's results, for bitwise comparison.
  std::string bytes() const { return result_bytes(session_); }

  Values output() const { return rows_of("o", query_rows(problem_, split(), rank())); }

  /// All results. Padding rows must be 0 and every row must come from exactly one rank.
  Results results() const {
    Results out;
    const Rows q = query_rows(problem_, split(), rank()), k = key_rows(problem_, split(), rank());
    out["o"] = rows_of("o", q), out["dq"] = rows_of("dq", q);
    out["dk"] = rows_of("dk", k), out["dv"] = rows_of("dv", k);
    out["lse"] = statistic();
    if (!problem_.sink) return out;
    for (std::int64_t h = 0; h < problem_.query_heads; ++h)
      out["dsink"].push_back(session_.tensor("dsink").value(h, 0, 0));
    return out;
  }

 private:
  Values rows_of(const char* name, const Rows& rows) const {
    const TensorRef t = session_.tensor(name);
    const bool keys = std::string_view(name) == "dk" || std::string_view(name) == "dv";
    const std::int64_t total = keys ? problem_.mask.cols() : problem_.mask.rows();
    const std::int64_t width = t.shape[1] * t.shape[2];
    Values all(static_cast<std::size_t>(total * width)), owners(static_cast<std::size_t>(total));
    const std::vector<std::int64_t> global = expand(rows);
    for (std::int64_t i = 0; i < t.shape[0]; ++i) {
      const std::int64_t g = global[static_cast<std::size_t>(i)];
      if (g >= 0) owners[static_cast<std::size_t>(g)] += 1;
      for (std::int64_t c = 0; c < width; ++c) {
        const double x = t.value(i, c / t.shape[2], c % t.shape[2]);
        if (g >= 0)
          all[static_cast<std::size_t>(g * width + c)] = x;
        else
          EXPECT_EQ(x, 0) << name_ << ": padding of " << name;
      }
    }
    around_.comm.all_reduce_sum(std::span<double>(all));
    around_.comm.all_reduce_sum(std::span<double>(owners));
    EXPECT_EQ(owners, Values(owners.size(), 1.0)) << name_ << ": owners of rows of " << name;
    return all;
  }

  Values statistic() const {
    const TensorRef t = session_.tensor("lse");
    const std::int64_t rows = problem_.mask.rows();
    Values all(static_cast<std::size_t>(problem_.query_heads * rows));
    const std::int64_t first = heads_of(problem_, split(), split().inner_of(rank())).query.begin;
    const auto global = expand(query_chunk(problem_, split(), split().outer_of(rank())));
    for (std::int64_t h = 0; h < t.shape[0]; ++h)
      for (std::int64_t i = 0; i < t.shape[1]; ++i)
        if (const std::int64_t g = global[static_cast<std::size_t>(i)]; g >= 0)
          all[static_cast<std::size_t>((first + h) * rows + g)] = t.value(h, i, 0);
    around_.comm.all_reduce_sum(std::span<double>(all));
    return all;
  }

  Problem problem_;
  Surroundings around_;
  Session session_;
  PreparedPass *forward_ = nullptr, *backward_ = nullptr;
  std::string name_;
};

/// Kernels and a budget on a communicator.
class Rig {
 public:
  explicit Rig(parallel::Communicator& comm) : comm_(comm) {
    kernels::register_reference(registry_);
    kernels::register_kokkos(registry_);
  }
  Surroundings around() { return {comm_, registry_, budget_}; }
  parallel::Communicator& comm() { return comm_; }
  const ops::Registry& registry() const { return registry_; }

  Results run(const Problem& p, const Scheme& s, const Fill& fill) {
    Job job(p, s, fill, around());
    job.run();
    return job.results();
  }
  Values forward(const Problem& p, const Scheme& s, const Fill& fill) {
    Job job(p, s, fill, around());
    job.forward();
    return job.output();
  }

 private:
  parallel::Communicator& comm_;
  ops::Registry registry_;
  Budget budget_;
};

/// The plain, unsplit calculation: every rank by itself.
class Alone {
 public:
  Alone() : comm_(MPI_COMM_SELF, "alone"), rig_(comm_) {}
  Rig& rig() { return rig_; }
  Results run(const Problem& p, const Fill& fill) { return rig_.run(p, {SchemeKind::ring}, fill); }

 private:
  parallel::Communicator comm_;
  Rig rig_;
};

/// All layouts; without the striped one where many ranks share few cores.
inline std::vector<Layout> layouts() {
  if (world().size() > 4) return {Layout::contiguous, Layout::zigzag};
  return {Layout::contiguous, Layout::zigzag, Layout::striped};
}

/// 2 query heads and 1 key head per rank, so that every scheme fits.
inline Problem plain_problem(MaskShape shape, Mask mask, int n, DType type = DType::f64) {
  return problem(shape, std::move(mask), 2 * n, n, 2, 3, type, Layout::zigzag);
}

/// Every value within tolerance * max(1, |want|); infinities and NaN only where wanted.
inline void expect_near(const Results& got, const Results& want, double tolerance,
                        const std::string& what) {
  for (const auto& [name, right] : want) {
    const Values& x = got.at(name);
    ASSERT_EQ(x.size(), right.size()) << what << ": " << name;
    std::size_t bad = 0, first = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const bool ok = x[i] == right[i] ||
                      std::abs(x[i] - right[i]) <= tolerance * std::max(1.0, std::abs(right[i]));
      if (!ok && bad++ == 0) first = i;
    }
    if (bad > 0)
      ADD_FAILURE() << what << ": " << name << ": " << bad << " of " << x.size()
                    << " wrong, first at " << first << ": " << x[first] << " instead of "
                    << right[first];
  }
}

using Visible = std::function<bool(std::int64_t q, std::int64_t k)>;
using KeyValue = std::function<double(std::int64_t k)>;

/// Q = 0, K[j] = V[j] = value(j), dO = 1.
inline Fill mean_inputs(KeyValue value) {
  return filled([value](const std::string& name, std::int64_t row, std::int64_t, std::int64_t) {
    return name == "q" ? 0.0 : name == "do" ? 1.0 : value(row);
  });
}

/// Results for mean_inputs by sums over visible keys: O = mean, LSE = ln count, dV = sum of
/// weights, dQ = scale * dv * variance, dK = 0. Rows without a key: 0 and -inf.
inline Results means(const Problem& p, const Visible& sees, const KeyValue& value) {
  const std::int64_t m = p.mask.rows(), n = p.mask.cols(), hq = p.query_heads, hk = p.kv_heads;
  Results out;
  Values& o = out["o"];
  Values& dq = out["dq"];
  Values log_count, weight(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < m; ++i) {
    double count = 0, mean = 0, variance = 0;
    for (std::int64_t j = 0; j < n; ++j)
      if (sees(i, j)) count += 1, mean += value(j);
    if (count > 0) mean /= count;
    for (std::int64_t j = 0; j < n; ++j)
      if (sees(i, j)) {
        variance += (value(j) - mean) * value(j) / count;
        weight[static_cast<std::size_t>(j)] += 1 / count;
      }
    o.insert(o.end(), static_cast<std::size_t>(hq * p.value_dim), mean);
    const double slope = p.scale_factor() * static_cast<double>(p.value_dim) * variance;
    dq.insert(dq.end(), static_cast<std::size_t>(hq * p.head_dim), slope);
    log_count.push_back(std::log(count));
  }
  for (std::int64_t h = 0; h < hq; ++h)
    out["lse"].insert(out["lse"].end(), log_count.begin(), log_count.end());
  const double group = static_cast<double>(hq / hk);
  for (double w : weight)
    out["dv"].insert(out["dv"].end(), static_cast<std::size_t>(hk * p.value_dim), group * w);
  out["dk"] = Values(static_cast<std::size_t>(n * hk * p.head_dim));
  return out;
}

/// Rows that no pair touches: exactly 0, LSE -inf; on both sides.
inline void expect_empty_rows(const Problem& p, const Visible& sees, const Results& got,
                              const std::string& what) {
  const std::int64_t m = p.mask.rows(), n = p.mask.cols();
  auto zero = [&](const char* name, std::int64_t row, std::int64_t width) {
    for (std::int64_t c = 0; c < width; ++c)
      EXPECT_EQ(got.at(name)[static_cast<std::size_t>(row * width + c)], 0)
          << what << ": " << name << " of row " << row << ", which sees nothing";
  };
  std::vector<bool> used(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < m; ++i) {
    bool any = false;
    for (std::int64_t j = 0; j < n; ++j)
      if (sees(i, j)) any = true, used[static_cast<std::size_t>(j)] = true;
    if (any) continue;
    zero("o", i, p.query_heads * p.value_dim), zero("dq", i, p.query_heads * p.head_dim);
    for (std::int64_t h = 0; h < p.query_heads; ++h)
      EXPECT_EQ(got.at("lse")[static_cast<std::size_t>(h * m + i)], -INFINITY) << what;
  }
  for (std::int64_t j = 0; j < n; ++j)
    if (!used[static_cast<std::size_t>(j)])
      zero("dk", j, p.kv_heads * p.head_dim), zero("dv", j, p.kv_heads * p.value_dim);
}

}  // namespace tessera::test
