// SPDX-License-Identifier: Apache-2.0
// Backends chosen by measurement: copies of the reference operators that differ in speed, priority
// and capability. All ranks must choose alike, and measuring must not touch what a plan keeps.
#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <map>
#include <set>
#include <thread>

#include "attention/session.hpp"
#include "attention/synthetic.hpp"
#include "attention_bytes.hpp"
#include "attention_cases.hpp"
#include "exec/executor.hpp"
#include "kernels/reference/register.hpp"
#include "plan/builder.hpp"
#include "test_main.hpp"

namespace tessera::test {
namespace {

using plan::Access;
using std::chrono::milliseconds;
using Steps = std::map<std::string, int>;

constexpr std::int64_t k_rows = 4;
constexpr const char* k_op = "tensor.add";

/// tensor.add under another name.
struct Fake {
  const char* backend;
  int priority = 10;
  milliseconds sleep{0};
  std::function<bool(const ops::Call&)> able = nullptr;
  bool fails = false;
};

ops::Registry registry_of(const std::vector<Fake>& fakes) {
  ops::Registry out;
  kernels::register_reference(out);
  ops::Implementation plain;
  for (const ops::Implementation& i : out.list())
    if (i.op == k_op) plain = i;
  for (const Fake& f : fakes) {
    const auto supports = [plain, f](const ops::Call& c) {
      return plain.supports(c) && (!f.able || f.able(c));
    };
    const auto run = [plain, f](const ops::Call& c) {
      if (f.fails) throw Error(Exit::environment, "no memory for this backend");
      std::this_thread::sleep_for(f.sleep);
      plain.run(c);
    };
    out.add({k_op, f.backend, f.priority, supports, run});
  }
  out.set_autotune(true);
  return out;
}

/// Each rank adds its x and that of its neighbour; the last one adds a single row once more, and
/// the first one alone copies.
class Sums {
 public:
  explicit Sums(bool clears = true) {
    plan::Builder b(plan_);
    const int compute = b.queue(plan::QueueKind::compute, "compute");
    const int comm = b.queue(plan::QueueKind::comm, "comm");
    const auto add = [&](const char* name, plan::Role role) {
      return b.buffer({name, role, DType::f64, {k_rows, 2, 8}, false});
    };
    const int x = add("x", plan::Role::input), y = add("y", plan::Role::output);
    const auto sum = [&](plan::Use from, plan::Use to) {
      b.compute(compute, "sum", {}, {k_op, 0, 0}, {from, to});
      ++adds_;
    };
    if (clears) b.compute(compute, "clear", {}, {"tensor.zero", 0, 0}, {b.all(y, Access::write)});
    sum(b.all(x, Access::read), b.all(y, Access::update));
    if (const int n = world().size(), rank = world().rank(); n > 1) {
      const int in = add("in", plan::Role::scratch), group = b.new_group();
      const int next = (rank + 1) % n, before = (rank + n - 1) % n;
      b.send(comm, group, "move", {}, 0, next, rank, {b.all(x, Access::read)});
      b.recv(comm, group, "move", {}, 0, before, before, {b.all(in, Access::write)});
      sum(b.all(in, Access::read), b.all(y, Access::update));
    }
    if (world().rank() == world().size() - 1)
      sum(b.rows(x, Access::read, {0, 1}), b.rows(y, Access::update, {0, 1}));
    if (world().rank() == 0) {
      const int z = add("z", plan::Role::output);
      b.compute(compute, "copy", {}, {"tensor.copy", 0, 0},
                {b.all(y, Access::read), b.all(z, Access::write)});
    }
  }

  std::unique_ptr<exec::Executor> bind(const ops::Registry& registry) {
    const exec::Binding binding{[this](const plan::Buffer& b) {
                                  auto& values = tensors_[b.name];
                                  values.resize(static_cast<std::size_t>(b.elements()), 5.0);
                                  return dense(values.data(), b.dtype, b.shape);
                                },
                                {}};
    auto out = std::make_unique<exec::Executor>(plan_, binding, registry, world(), budget_);
    for (std::size_t i = 0; i < tensors_["x"].size(); ++i)
      tensors_["x"][i] = 0.1 * static_cast<double>(i) + world().rank();
    return out;
  }

  const std::vector<double>& operator[](const char* name) { return tensors_[name]; }
  int adds() const { return adds_; }

 private:
  plan::Plan plan_;
  Budget budget_;
  std::map<std::string, std::vector<double>> tensors_;
  int adds_ = 0;
};

/// Who runs tensor.add on this rank, which must be one backend; the sum must be the right one.
std::string chosen(const ops::Registry& registry) {
  Sums sums;
  const auto executor = sums.bind(registry);
  const exec::Measured run = executor->run();
  EXPECT_EQ(*run.backends, executor->backends());
  const int n = world().size(), rank = world().rank(), before = (rank + n - 1) % n;
  for (std::size_t i = 0; i < sums["y"].size(); ++i) {
    const double own = 0.1 * static_cast<double>(i) + rank,
                 other = 0.1 * static_cast<double>(i) + before;
    double expected = n > 1 ? own + other : own;
    if (rank == n - 1 && i < 16) expected += own;
    EXPECT_EQ(sums["y"][i], expected) << i;
  }
  EXPECT_EQ(executor->backends().contains("tensor.copy"), rank == 0);
  const Steps& steps = executor->backends().at(k_op);
  EXPECT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps.begin()->second, sums.adds());
  return steps.begin()->first;
}

TEST(ExecTune, TheFasterBackendWinsOverTheOneOfHigherPriority) {
  ops::Registry registry = registry_of({{"slow", 30, milliseconds(20)}, {"fast", 20}});
  EXPECT_EQ(chosen(registry), "fast");
  registry.set_autotune(false);
  EXPECT_EQ(chosen(registry), "slow");
}

TEST(ExecTune, TheSumOverRanksDecidesForAll) {
  const milliseconds uneven(world().rank() == 0 ? 0 : 60);
  const ops::Registry registry =
      registry_of({{"even", 20, milliseconds(20)}, {"uneven", 30, uneven}});
  EXPECT_EQ(chosen(registry), world().size() == 1 ? "uneven" : "even");
}

TEST(ExecTune, ABackendThatTheShapesOfOneRankExcludeIsChosenNowhere) {
  const auto whole = [](const ops::Call& c) { return c.args[0].shape[0] == k_rows; };
  EXPECT_EQ(chosen(registry_of({{"picky", 30, milliseconds(0), whole},
                                {"slow", 20, milliseconds(10)},
                                {"slower", 25, milliseconds(30)}})),
            "slow");
}

TEST(ExecTune, ABackendThatOneRankLacksIsChosenNowhere) {
  std::vector<Fake> fakes{{"slow", 20, milliseconds(10)}};
  if (world().rank() != 0 || world().size() == 1) fakes.push_back({"local", 30});
  EXPECT_EQ(chosen(registry_of(fakes)), world().size() == 1 ? "local" : "slow");
}

TEST(ExecTune, PinsAndDenialsWin) {
  ops::Registry registry = registry_of({{"slow", 30, milliseconds(20)}, {"fast", 20}});
  registry.deny("fast");
  EXPECT_EQ(chosen(registry), "slow");
  registry = registry_of({{"slow", 30, milliseconds(20)}, {"fast", 20}});
  registry.pin(k_op, "slow");
  EXPECT_EQ(chosen(registry), "slow");
}

TEST(ExecTune, FallbacksCompeteOnlyWhereNothingElseIsLeft) {
  EXPECT_EQ(chosen(registry_of({{"slow", 10, milliseconds(10)}, {"plain", 5}})), "slow");
  EXPECT_EQ(chosen(registry_of({{"plain", 5, milliseconds(10)}})), "reference");
}

TEST(ExecTune, ABackendThatFailsIsNotChosen) {
  const bool here = world().rank() == world().size() - 1;
  const ops::Registry registry =
      registry_of({{"broken", 30, milliseconds(0), nullptr, here}, {"slow", 20, milliseconds(10)}});
  EXPECT_EQ(chosen(registry), "slow");
}

TEST(ExecTune, WhatAPlanSumsIntoWithoutClearingItIsKept) {
  const ops::Registry registry = registry_of({{"slow", 30, milliseconds(10)}, {"fast", 20}});
  Sums sums(false);
  const auto executor = sums.bind(registry);
  EXPECT_EQ(sums["y"], std::vector<double>(sums["y"].size(), 5.0));
  EXPECT_EQ(executor->backends().at(k_op), (Steps{{"slow", sums.adds()}}))
      << "nothing was measured";
}

/// All operators twice, the second time with a mark left by each run.
ops::Registry twins(std::set<std::string>& was_run) {
  ops::Registry plain, out;
  kernels::register_reference(plain);
  for (ops::Implementation i : plain.list()) {
    i.backend = "first", i.priority = 20;
    out.add(i);
    i.backend = "second", i.priority = 10;
    i.run = [&was_run, run = i.run](const ops::Call& c) {
      was_run.emplace(c.name);
      run(c);
    };
    out.add(i);
  }
  return out;
}

/// Both passes of a scheme; the bytes of all results. A tuned one must measure every operator of
/// the plan before it runs, and leave what forward made as it was.
std::string results(const Problem& p, const Scheme& s, bool tuned) {
  std::set<std::string> was_run;
  ops::Registry registry = twins(was_run);
  registry.set_autotune(tuned);
  Budget budget;
  Session session(p, {world(), registry, budget});
  for (Pass pass : {Pass::forward, Pass::backward}) {
    PreparedPass& prepared = session.prepare(s, pass, test_machine());
    const std::vector<const char*> kept{"q", "k", "v", "o", "lse", "sink"};
    const std::string before = result_bytes(session, kept);
    was_run.clear();
    session.bind(prepared);
    const std::set<std::string> measured = was_run;
    if (pass == Pass::backward) {
      EXPECT_GT(before.size(), 0u);
      EXPECT_TRUE(result_bytes(session, kept) == before) << prepared.program().name;
    }
    session.fill(synthetic(7));
    for (const auto& [op, steps] : *session.run(prepared).backends) {
      EXPECT_EQ(measured.contains(op), tuned) << prepared.program().name << ": " << op;
      EXPECT_EQ(steps.size(), 1u) << op;
    }
  }
  return result_bytes(session);
}

TEST(ExecTune, SchemesGiveTheSameBitsAsWithoutIt) {
  const MaskShape shape{1, 53, 53};
  Problem p = problem(shape, causal_mask(shape, false), 12, 6, 8, 4, DType::f32, Layout::zigzag);
  p.sink = true;
  const std::vector<Scheme> schemes = kinds_for(p, world().size());
  EXPECT_GE(schemes.size(), 6u);
  for (const Scheme& s : schemes) {
    const std::string plain = results(p, s, false);
    EXPECT_GT(plain.size(), 1000u);
    EXPECT_TRUE(results(p, s, true) == plain) << s.text();
  }
}

}  // namespace
}  // namespace tessera::test
