// SPDX-License-Identifier: Apache-2.0
// Clearing steps that the executor leaves out: the next operator is told that its outputs are empty
// and writes them whole; and rows of copies: the last operator rounds what it leaves. The results
// keep their bits from run to run, whatever scratch holds.
#include <fmt/format.h>

#include <map>
#include <set>

#include "attention/session.hpp"
#include "attention/synthetic.hpp"
#include "attention_bytes.hpp"
#include "attention_cases.hpp"
#include "kernels/reference/register.hpp"
#include "test_main.hpp"

namespace tessera::test {
namespace {

/// The reference operators; those of attention write outputs that they are told are empty, where
/// `able` says that they can: they clear them first, as nobody else does. Where `storing`, partial
/// outputs are stored on demand, and NaN is left in their place.
struct Fakes {
  ops::Registry registry;
  int clearings = 0, fresh = 0, stored = 0;
  std::int64_t copied = 0;  ///< numbers

  explicit Fakes(std::function<bool(const ops::Call&, std::size_t)> able, bool storing = false) {
    ops::Registry reference;
    kernels::register_reference(reference);
    for (ops::Implementation i : reference.list()) {
      const bool clears = i.op == "tensor.zero" || i.op == "attention.reset";
      const bool tile = i.op == "attention.forward" || i.op == "attention.backward";
      i.run = [this, clears, run = i.run](const ops::Call& call) {
        clearings += clears;
        for (std::size_t k = 0; k < call.args.size(); ++k)
          if (call.attributes.fresh >> k & 1) clear(call, k);
        run(call);
        store(call);
        for (std::size_t k = 0; call.name == "tensor.copy" && k < call.args.size(); k += 2)
          copied += call.args[k].count();
      };
      if (tile) i.overwrites = able;
      if (storing && ops::partial_output(i.op) > 0)
        i.stores = [](const ops::Call& call, const TensorRef& to) {
          return to.shape == call.args[ops::partial_output(call.name)].shape;
        };
      registry.add(std::move(i));
    }
  }
  Fakes(const Fakes&) = delete;
  Fakes& operator=(const Fakes&) = delete;

 private:
  void store(const ops::Call& call) {
    const TensorRef& to = call.attributes.store;
    if (!to.data) return;
    ++stored;
    const TensorRef& from = call.args[ops::partial_output(call.name)];
    for (std::int64_t i = 0; i < to.shape[0]; ++i)
      for (std::int64_t j = 0; j < to.shape[1]; ++j)
        for (std::int64_t e = 0; e < to.shape[2]; ++e) {
          to.set_value(i, j, e, from.value(i, j, e));
          from.set_value(i, j, e, NAN);
        }
  }
  void clear(const ops::Call& call, std::size_t k) {
    ++fresh;
    const TensorRef& t = call.args[k];
    const bool lse = call.name == "attention.forward" && k == 4;
    for (std::int64_t i = 0; i < t.shape[0]; ++i)
      for (std::int64_t j = 0; j < t.shape[1]; ++j)
        for (std::int64_t e = 0; e < t.shape[2]; ++e) t.set_value(i, j, e, lse ? -INFINITY : 0);
  }
};

std::string results(const Problem& p, const Scheme& s, Fakes& fakes) {
  Budget budget;
  Session session(p, {world(), fakes.registry, budget});
  PreparedPass* passes[2];
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    passes[pass == Pass::backward] = &session.prepare(s, pass, test_machine());
    session.bind(*passes[pass == Pass::backward]);
  }
  session.fill(synthetic(2));
  std::string out;
  for (int run = 0; run < 2; ++run) {  // the second finds what the first left in scratch
    for (PreparedPass* pass : passes) session.run(*pass);
    const std::string bytes = result_bytes(session);
    if (run == 1) {
      EXPECT_EQ(bytes, out) << "second run of " << passes[0]->program().name;
    }
    out = bytes;
  }
  return out;
}

TEST(exec_fuse, results_keep_their_bits_with_fewer_clearings) {
  const MaskShape shape{1, 53, 53};
  int fused = 0, schemes = 0;
  for (const Mask& mask : {causal_mask(shape, false), window_mask(shape, 9), full_mask(shape)}) {
    const Problem p = problem(shape, mask, 12, 6, 4, 4, DType::f64, Layout::zigzag);
    for (const Scheme& s : schemes_for(p, world().size())) {
      Fakes plain(nullptr), all([](const ops::Call&, std::size_t k) { return k != 0; }),
          only_keys([](const ops::Call&c, std::size_t k) {
            return c.name == "attention.backward" && k >= 7;
          });
      const std::string want = results(p, s, plain);
      EXPECT_EQ(results(p, s, all), want) << s.text();
      EXPECT_EQ(results(p, s, only_keys), want) << s.text();
      EXPECT_EQ(plain.fresh, 0);
      // o and lse are cleared by one step, and so are dk and dv; dq has its own.
      EXPECT_EQ(2 * (plain.clearings - only_keys.clearings), only_keys.fresh) << s.text();
      EXPECT_LE(plain.clearings - all.clearings, all.fresh) << s.text();
      EXPECT_GE(2 * (plain.clearings - all.clearings), all.fresh) << s.text();
      fused += plain.clearings - all.clearings;
      ++schemes;
    }
  }
  EXPECT_GT(fused, 0);
  if (world().rank() == 0)
    fmt::print("{} schemes and masks, two runs each: {} clearings left out\n", schemes, fused);
}

TEST(exec_fuse, last_operators_round_outputs_to_the_same_bits) {
  const MaskShape shape{1, 56, 56};
  std::int64_t before = 0, after = 0;
  int stored = 0, schemes = 0;
  for (const Layout layout : {Layout::zigzag, Layout::contiguous}) {
    for (const Mask& mask : {causal_mask(shape, false), window_mask(shape, 9), full_mask(shape)}) {
      Problem p = problem(shape, mask, 12, 6, 8, 8, DType::bf16, layout);
      for (const bool sink : {false, true}) {
        p.sink = sink;
        for (const Scheme& s : schemes_for(p, world().size())) {
          Fakes plain(nullptr), storing(nullptr, true),
              all([](const ops::Call&, std::size_t k) { return k != 0; }, true);
          const std::string want = results(p, s, plain);
          EXPECT_EQ(results(p, s, storing), want) << s.text();
          EXPECT_EQ(results(p, s, all), want) << s.text();
          EXPECT_EQ(plain.stored, 0);
          EXPECT_LE(storing.copied, plain.copied) << s.text();
          EXPECT_EQ(storing.stored > 0, storing.copied < plain.copied) << s.text();
          EXPECT_TRUE(!sink || storing.stored == 0) << s.text() << ": the sink comes last";
          before += plain.copied, after += storing.copied, stored += storing.stored;
          ++schemes;
        }
      }
    }
  }
  EXPECT_GT(stored, 0);
  if (world().rank() == 0)
    fmt::print("{} schemes and masks, two runs each: {} outputs stored, {} of {} numbers copied\n",
               schemes, stored, after, before);
}

/// A step that clears two buffers runs unless the next one writes both.
TEST(exec_fuse, half_of_a_step_is_not_enough) {
  const MaskShape shape{1, 24, 24};
  const Problem p = problem(shape, full_mask(shape), 12, 6, 4, 4, DType::f64, Layout::contiguous);
  Fakes plain(nullptr), halves([](const ops::Call&c, std::size_t k) {
    return c.name == "attention.forward" ? k == 3 : k == 7;
  });
  EXPECT_EQ(results(p, {SchemeKind::ring}, halves), results(p, {SchemeKind::ring}, plain));
  EXPECT_EQ(halves.fresh, 0);
  EXPECT_EQ(halves.clearings, plain.clearings);
}

}  // namespace
}  // namespace tessera::test
