// SPDX-License-Identifier: Apache-2.0
// The order of device work comes from events and words alone: with random delays before every
// compute step and every transfer, on every stream, results keep their bits (attention brief 12,
// test 12), and a missing wait that is put in on purpose is noticed by this test.
#include "../mpi/attention_bytes.hpp"
#include "../mpi/attention_cases.hpp"
#include "attention/synthetic.hpp"
#include "rig.hpp"
#include "spin.hpp"

namespace tessera::test {
namespace {

/// Up to 60 us, a different time at every call; the rank and a counter decide.
void delay(void* stream) {
  static std::uint64_t state = 88172645463325252ull + static_cast<std::uint64_t>(rig().comm.rank());
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  if (state % 3 == 0) return;
  spin(static_cast<std::int64_t>(state % 60000), stream);
}

class DelayedRoute : public parallel::Route {
 public:
  explicit DelayedRoute(std::unique_ptr<parallel::Route> inner) : inner_(std::move(inner)) {}
  void start(std::size_t unit, void* stream) override {
    delay(stream);
    inner_->start(unit, stream);
    delay(stream);
  }
  void progress() override { inner_->progress(); }

 private:
  std::unique_ptr<parallel::Route> inner_;
};

class Delayed : public parallel::Transport {
 public:
  explicit Delayed(std::unique_ptr<parallel::Transport> inner) : inner_(std::move(inner)) {}
  std::string_view name() const override { return inner_->name(); }
  std::unique_ptr<parallel::Route> open(std::vector<parallel::MessageUnit> units,
                                        Budget& budget) override {
    return std::make_unique<DelayedRoute>(inner_->open(std::move(units), budget));
  }

 private:
  std::unique_ptr<parallel::Transport> inner_;
};

/// The CUDA operators, each after a delay on its stream.
ops::Registry delayed_operators(Budget& budget) {
  ops::Registry plain, out;
  out.set_deterministic(true);
  kernels::register_cuda(plain, budget);
  for (ops::Implementation i : plain.list()) {
    i.run = [run = i.run](const ops::Call& call) {
      delay(call.stream);
      run(call);
    };
    out.add(std::move(i));
  }
  return out;
}

TEST(gpu_delays, ManyPassesKeepTheirBits) {
  const int n = rig().comm.size();
  const MaskShape shape{1, 256, 256};
  const int heads = n % 9 == 0 ? 18 : 8;
  const Problem p =
      problem(shape, causal_mask(shape, false), heads, heads, 64, 64, DType::bf16, Layout::zigzag);
  Budget budget;
  ops::Registry plain;
  kernels::register_cuda(plain, budget);
  plain.set_deterministic(true);
  const ops::Registry slow = delayed_operators(budget);
  const auto transport = rig().transport("peer");
  Delayed delayed(rig().transport("peer"));
  const auto schemes = schemes_for(p, n);
  // Ranks that share a device take turns on it: a pass of nine takes a tenth of a second.
  const int wanted = n <= 4 ? 1000 : 300;
  const int repeats = wanted / (2 * static_cast<int>(schemes.size())) + 1;
  int passes = 0;
  for (const Scheme& s : schemes) {
    std::string want;
    for (const bool with_delays : {false, true}) {
      exec::DeviceRun run{.transport = with_delays ? &delayed : transport.get(), .graph = false};
      if (with_delays) run.two_lanes_from = 0;  // each lane is slow by turns
      Session session(p, {rig().comm, with_delays ? slow : plain, budget, nullptr, &run});
      PreparedPass* prepared[2];
      for (const Pass pass : {Pass::forward, Pass::backward}) {
        const bool back = pass == Pass::backward;
        prepared[back] = &session.prepare(s, pass, test_machine());
        session.bind(*prepared[back]);
      }
      session.fill(synthetic(11));
      for (int i = 0; i < (with_delays ? repeats : 1); ++i) {
        for (PreparedPass* pass : prepared) session.run(*pass), passes += with_delays;
        if (i % 8 != 0 && i + 1 != repeats && with_delays) continue;
        const std::string got = result_bytes(session);
        if (!with_delays) want = got;
        EXPECT_TRUE(got == want) << prepared[0]->program().name << ", run " << i;
      }
    }
  }
  say("{} passes with random delays on every stream: bits unchanged", passes);
}

/// What the test above would see: the same plan without its waits between queues gives other bits.
TEST(gpu_delays, AMissingWaitIsSeen) {
  const int n = rig().comm.size();
  if (n == 1) GTEST_SKIP() << "one rank has no transfers";
  const MaskShape shape{1, 256 * n, 256 * n};
  const Problem p = problem(shape, full_mask(shape), 1, 1, 64, 64, DType::bf16, Layout::contiguous);
  Budget budget;
  ops::Registry registry;
  kernels::register_cuda(registry, budget);
  registry.set_deterministic(true);
  Delayed delayed(rig().transport("peer"));
  exec::DeviceRun run{.transport = &delayed, .graph = false};
  const plan::Program program =
      make_program(p, {SchemeKind::ring}, n, Pass::forward, test_machine());
  plan::Plan plan = program.plans[static_cast<std::size_t>(rig().comm.rank())];
  for (plan::Step& s : plan.steps)
    if (!plan::is_comm(s.kind)) s.num_after = 0;  // tiles no longer wait for what arrives
  std::map<std::string, Tensor> tensors;
  const ops::Band all{0, 256, 0, 256};
  exec::Binding binding;
  binding.external = [&](const plan::Buffer& b) {
    auto [at, made] = tensors.try_emplace(b.name);
    if (made) at->second = make_tensor(budget, b.dtype, b.shape, b.name, Space::cuda);
    return at->second.ref;
  };
  binding.attributes = [&](const plan::Step&) { return ops::Attributes{{&all, 1}, 0.125, 0}; };
  const auto output = [&](const plan::Plan& which) {
    exec::Executor executor(which, binding, registry, rig().comm, budget, nullptr, &run);
    for (const char* name : {"q", "k", "v"}) {
      const Tensor& t = tensors.at(name);
      Budget scratch;
      const Tensor host = make_tensor(scratch, t.ref.dtype, t.ref.shape, name);
      synthetic(5)(name, {{rig().comm.rank() * 256, 1, 256}}, host.ref);
      memory::copy(t.ref.data, host.ref.data, host.buffer.bytes());
      memory::synchronize();
    }
    executor.run();
    const Tensor& o = tensors.at("o");
    std::string bytes(static_cast<std::size_t>(o.buffer.bytes()), '\0');
    memory::copy(bytes.data(), o.ref.data, o.buffer.bytes());
    memory::synchronize();
    return bytes;
  };
  const std::string right = output(program.plans[static_cast<std::size_t>(rig().comm.rank())]);
  const bool differs = output(plan) != right;
  EXPECT_EQ(rig().comm.all_reduce_max(std::int64_t{differs}), 1)
      << "a pass without waits gave the right bits";
  say("tiles that do not wait for their keys: other bits, as they must be");
}

}  // namespace
}  // namespace tessera::test
