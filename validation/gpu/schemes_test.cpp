// SPDX-License-Identifier: Apache-2.0
// Every scheme on GPU ranks, each with its own device or all sharing one (attention brief 12, tests
// 2 to 7, 11, 14, 15): results against fp64, counted bytes against the formulas, the same bits from
// run to run, for every transport, memory that does not grow.
#include "../mpi/attention_bytes.hpp"
#include "../mpi/attention_runs.hpp"
#include "rig.hpp"

namespace tessera::test {
namespace {

/// Every scheme through these transports, or one of each kind by copy engines; returns how many
/// runs were compared.
int run_on_devices(const Problem& p, double tolerance,
                   const std::vector<std::string>& transports = {}) {
  int runs = 0;
  const int n = rig().comm.size();
  const bool all = !transports.empty();
  for (const std::string& name : all ? transports : std::vector<std::string>{"peer"}) {
    SCOPED_TRACE(name);
    const auto transport = rig().transport(name);
    // Tiles here are short, and would all be whole.
    exec::DeviceRun run{.transport = transport.get(), .two_lanes_from = 0};
    runs += run_case(p, tolerance, rig().around(run), all ? schemes_for(p, n) : kinds_for(p, n));
  }
  return runs;
}

int heads() { return rig().comm.size() % 9 == 0 ? 18 : 8; }

Problem causal(std::int64_t n, DType type, int d, int dv, Layout layout = Layout::zigzag) {
  const MaskShape s{1, n, n};
  return problem(s, causal_mask(s, false), heads(), heads(), d, dv, type, layout);
}

TEST(gpu_schemes, PlainKernels_f64_f32) {
  int runs = run_on_devices(causal(53, DType::f64, 4, 4), 1e-10, rig().transports());
  runs += run_on_devices(causal(130, DType::f32, 16, 16), 2.0);
  say("f64 below 1e-10, f32 below 2 x plain: {} runs", runs);
}

TEST(gpu_schemes, Causal_bf16) {
  const int runs = run_on_devices(causal(600, DType::bf16, 64, 64), 2.0, rig().transports());
  say("600 tokens, zigzag, d 64: {} runs, error below 2 x plain", runs);
}

/// By cuDNN, whose partial outputs and gradients are of 16 bits, or by the plain kernels.
TEST(gpu_schemes, Causal_f16) {
  const int runs = run_on_devices(causal(600, DType::f16, 64, 64), 2.5);
  say("600 tokens in f16, zigzag, d 64: {} runs, error below 2.5 x plain", runs);
}

TEST(gpu_schemes, Masks_bf16) {
  const MaskShape s{1, 512, 512};
  const std::int64_t c = 512 / rig().comm.size();
  std::vector<std::int64_t> docs;
  std::int64_t left = 512;
  for (const std::int64_t length : {std::int64_t{1}, c - 1, c, c + 1, std::int64_t{70}, left}) {
    docs.push_back(std::min(length, left));
    left -= docs.back();
    if (left == 0) break;
  }
  const std::vector<Range> regions{{40, 110}, {300, 450}};
  const std::vector<AttnSlice> slices{
      {0, 90, 0, 120, 0}, {90, 300, 30, 400, 1}, {300, 410, 200, 350, 2}, {300, 410, 400, 512, 3}};
  const std::vector<Mask> masks{full_mask(s),
                                window_mask(s, 1),
                                window_mask(s, c),
                                window_mask(s, 2 * c + 1),
                                document_mask(s, docs, true),
                                document_mask(s, docs, false),
                                prefix_mask(s, 170),
                                region_mask(s, regions),
                                slice_mask(s, slices)};
  int runs = 0;
  // Many ranks on one device are time-sliced: every other mask there.
  const std::size_t stride = rig().device.ranks_on_device > 4 ? 2 : 1;
  for (std::size_t i = 0; i < masks.size(); i += stride)
    for (const Layout layout : {Layout::zigzag, Layout::balanced})
      runs +=
          run_on_devices(problem(s, masks[i], heads(), heads(), 64, 64, DType::bf16, layout), 2.5);
  say("{} masks x 2 layouts: {} runs", (masks.size() + stride - 1) / stride, runs);
}

TEST(gpu_schemes, HeadsAndDims_bf16) {
  const MaskShape s{1, 320, 320};
  int runs = 0;
  const int n = heads();
  for (const auto& [hq, hk, d, dv] : std::vector<std::array<int, 4>>{
           {2 * n, n, 128, 128}, {4 * n, n / 8 + 1, 64, 64}, {n, n, 192, 128}, {n, n, 256, 256}})
    if (hq % hk == 0)
      runs += run_on_devices(
          problem(s, causal_mask(s, false), hq, hk, d, dv, DType::bf16, Layout::zigzag), 2.0);
  const MaskShape cross{2, 96, 260};
  Problem p = problem(cross, causal_mask(cross, true), n, n, 64, 64, DType::bf16, Layout::zigzag);
  runs += run_on_devices(p, 2.0);
  p.sink = true, p.softcap = 20;
  runs += run_on_devices(p, 4.0);  // dsink is one sum over all rows, mostly of terms that cancel
  say("GQA, 192/128, 256, batch 2 of 96 x 260, sink and softcap: {} runs", runs);
}

TEST(gpu_schemes, SameBits_20Runs_AllTransports) {
  Budget budget;
  ops::Registry registry;
  kernels::register_cuda(registry, budget);
  registry.set_deterministic(true);
  const Problem p = causal(640, DType::bf16, 128, 128);
  int runs = 0;
  const int n = rig().comm.size();
  for (const Scheme& s : n > 4 ? kinds_for(p, n) : schemes_for(p, n)) {
    std::string first;
    for (const std::string& name : rig().transports())
      for (const bool graph : {false, true}) {
        const auto transport = rig().transport(name);
        exec::DeviceRun run{.transport = transport.get(), .graph = graph};
        if (graph) run.two_lanes_from = 0;
        Session session(p, {rig().comm, registry, budget, nullptr, &run});
        PreparedPass* passes[2];
        for (const Pass pass : {Pass::forward, Pass::backward}) {
          passes[pass == Pass::backward] = &session.prepare(s, pass, test_machine());
          session.bind(*passes[pass == Pass::backward]);
        }
        session.fill(synthetic(3));
        for (int i = 0; i < 20 / (2 * static_cast<int>(rig().transports().size())) + 1; ++i) {
          for (PreparedPass* pass : passes) session.run(*pass);
          const std::string bytes = result_bytes(session);
          if (first.empty()) first = bytes;
          EXPECT_TRUE(bytes == first)
              << passes[0]->program().name << " by " << name << ", run " << i;
          ++runs;
        }
      }
  }
  say("{} runs with the same bits within each scheme, step by step and as graphs of two lanes",
      runs);
}

TEST(gpu_schemes_memory, DoesNotGrow) {
  const Problem p = causal(512, DType::bf16, 64, 64);
  const auto transport = rig().transport("peer");
  exec::DeviceRun run{.transport = transport.get(), .graph = true};
  const auto all_schemes = [&] {
    for (const Scheme& s : kinds_for(p, rig().comm.size())) {
      Session session(p, rig().around(run));
      for (const Pass pass : {Pass::forward, Pass::backward}) {
        PreparedPass& prepared = session.prepare(s, pass, test_machine());
        session.bind(prepared);
        session.fill(synthetic(1));
        for (int i = 0; i < 3; ++i) session.run(prepared);
        session.release(prepared);
      }
    }
    rig().comm.barrier();
  };
  all_schemes();
  const std::int64_t in_use = rig().budget.in_use(), free = memory::device_memory()[0];
  all_schemes();
  EXPECT_EQ(rig().budget.in_use(), in_use);
  rig().comm.barrier();
  const std::int64_t lost = free - memory::device_memory()[0];
  EXPECT_LE(lost, std::int64_t{64} << 20) << "device memory lost in a second round";
  say("second round of all kinds of schemes: budget {} B as before, {} B of the device lost",
      in_use, lost);
}

TEST(gpu_schemes, PlanAndBudgetAgreeOnMemory) {
  const Problem p = causal(4096, DType::bf16, 64, 64);
  const auto transport = rig().transport("peer");
  exec::DeviceRun run{.transport = transport.get(), .graph = true};
  for (const Scheme& s : schemes_for(p, rig().comm.size())) {
    Session session(p, rig().around(run));
    PreparedPass& prepared = session.prepare(s, Pass::forward, test_machine());
    const std::int64_t before = rig().budget.in_use();
    session.bind(prepared);
    std::int64_t plan = 0;
    for (const plan::Buffer& b :
         prepared.program().plans[static_cast<std::size_t>(rig().comm.rank())].buffers)
      plan += b.bytes();
    const std::int64_t taken = rig().budget.in_use() - before;
    // Above the plan: whole pages, words of transfers, tables of masks and what cuDNN works in.
    EXPECT_GE(taken, plan) << prepared.program().name;
    EXPECT_LE(static_cast<double>(taken), 1.1 * static_cast<double>(plan) + 128e6)
        << prepared.program().name;
  }
}

}  // namespace
}  // namespace tessera::test
