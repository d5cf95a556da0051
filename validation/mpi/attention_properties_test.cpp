// SPDX-License-Identifier: Apache-2.0
// Properties of distributed attention on real ranks (attention brief 12, numbers 3, 5, 6, 8, 12,
// 14, 15): error growth, ranks and rows without work, extreme logits, adjointness, memory,
// determinism under random delays.
#include <chrono>
#include <random>
#include <thread>

#include "attention/verify.hpp"
#include "attention_gradient.hpp"
#include "attention_rig.hpp"
#include "plan/count.hpp"

namespace tessera::test {
namespace {

const Fill random_inputs = attention::synthetic(7);

/// The first `size` ranks of the program; others hold no communicator.
std::unique_ptr<parallel::Communicator> first_ranks(int size) {
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm_split(world().handle(), world().rank() < size ? 0 : MPI_UNDEFINED, 0, &part);
  if (part == MPI_COMM_NULL) return nullptr;
  auto comm = std::make_unique<parallel::Communicator>(part, "first ranks");
  MPI_Comm_free(&part);
  return comm;
}

/// ||x - ref|| / ||ref|| of every result.
std::map<std::string, double> errors_of(const Results& x, const Results& reference) {
  std::map<std::string, double> out;
  for (const auto& [name, right] : reference) {
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < right.size(); ++i) {
      const double d = x.at(name)[i] - right[i];
      difference += d * d, norm += right[i] * right[i];
    }
    out[name] = std::sqrt(difference / norm);
  }
  return out;
}

TEST(AttentionProperties, ErrorDoesNotGrowWithRanks) {
  const int n = world().size();
  const MaskShape shape{1, 192, 192};
  for (DType type : {DType::f32, DType::bf16, DType::f16}) {
    const Problem p =
        problem(shape, attention::full_mask(shape), 8, 8, 32, 32, type, Layout::zigzag);
    Rig rig(world());
    const Reference right = attention::make_reference(p, random_inputs, rig.around(), true);
    std::map<std::string, double> two;
    if (auto pair = first_ranks(std::min(n, 2))) {
      Rig small(*pair);
      two = errors_of(small.run(p, {SchemeKind::ring}, random_inputs), right.value);
    }
    for (const Scheme& s : schemes_for(p, n)) {
      const auto all = errors_of(rig.run(p, s, random_inputs), right.value);
      // LSE is kept in f32: half an ulp per merge shows while all of it is below one ulp.
      for (const auto& [name, error] : two)
        EXPECT_LE(all.at(name), 1.5 * std::max(error, 0x1p-24))
            << name_of(type) << ", " << s.text() << ": " << name;
    }
  }
}

/// Random inputs, but NaN in rows that no visible pair touches: they must not spread.
Fill spoiled_inputs(MaskShape shape, const Visible& sees) {
  std::vector<char> queries(static_cast<std::size_t>(shape.queries)),
      keys(static_cast<std::size_t>(shape.keys));
  for (std::size_t i = 0; i < queries.size(); ++i)
    for (std::size_t j = 0; j < keys.size(); ++j)
      if (sees(static_cast<std::int64_t>(i), static_cast<std::int64_t>(j)))
        queries[i] = keys[j] = true;
  return [=](const std::string& name, const Rows& rows, const TensorRef& out) {
    random_inputs(name, rows, out);
    const std::vector<std::int64_t> global = expand(rows);
    const std::vector<char>& seen = name == "k" || name == "v" ? keys : queries;
    for (std::int64_t i = 0; i < out.shape[0]; ++i)
      if (const std::int64_t g = global[static_cast<std::size_t>(i)];
          g >= 0 && !seen[static_cast<std::size_t>(g)])
        for (std::int64_t j = 0; j < out.shape[1] * out.shape[2]; ++j)
          out.set_value(i, j / out.shape[2], j % out.shape[2], NAN);
  };
}

/// Every scheme on random inputs against the one-rank loops; rows without a pair exactly empty.
void check_sparse(MaskShape shape, std::vector<Band> bands) {
  Rig rig(world());
  Problem p = plain_problem(shape, Mask("bands", shape, bands), world().size());
  const Reference right = attention::make_reference(p, random_inputs, rig.around(), true);
  const Visible sees = [&](std::int64_t q, std::int64_t k) {
    for (const Band& b : bands) {
      const Range keys = b.keys_of(q);
      if (k >= keys.begin && k < keys.end) return true;
    }
    return false;
  };
  for (Layout layout : layouts()) {
    p.layout = layout;
    for (const Scheme& s : schemes_for(p, world().size())) {
      const Results got = rig.run(p, s, spoiled_inputs(shape, sees));
      const std::string what = fmt::format("{}, {}", s.text(), name_of(layout));
      expect_near(got, right.value, 1e-10, what);
      expect_empty_rows(p, sees, got, what);
    }
  }
}

TEST(AttentionProperties, RankWithoutWork) {
  const std::int64_t c = 6, s = c * world().size();
  check_sparse({1, s, s}, {});                                           // nobody has work
  check_sparse({1, s, s}, {{0, s - c, 0, s - c, -Band::unbounded, 0}});  // the last rank has none
  check_sparse({1, s, s}, {{0, c, 0, s}});                               // the first Q chunk only
  check_sparse({1, s, s}, {{0, s, s - c, s}});                           // the last KV chunk only
}

TEST(AttentionProperties, RowOfTilesWithoutWork) {
  const std::int64_t c = 6, s = c * world().size(), from = c * (world().size() / 2);
  // Neither the queries nor the keys of the second half of the ranks but the last row and column.
  check_sparse({1, s, s}, {{0, from, 0, from}, {s - 1, s, s - 1, s}});
  // Queries that a window leaves without keys, documents with a gap between them.
  check_sparse({1, s, s}, {{0, s / 2, 0, s / 3, -2, 0}, {s / 2 + 2, s, s / 2 + 2, s}});
}

/// Right values of one-element heads whose scores are given: softmax in fp64.
struct Scores {
  Values q, k;  ///< per row; score = q * k
  double value(std::int64_t j) const { return static_cast<double>(j % 5) - 2; }
  Fill inputs() const {
    return filled([this](const std::string& name, std::int64_t row, std::int64_t, std::int64_t) {
      return name == "q"   ? q[static_cast<std::size_t>(row)]
             : name == "k" ? k[static_cast<std::size_t>(row)]
             : name == "v" ? value(row)
                           : 1.0;
    });
  }
};

/// All schemes, all element types (the inputs are exact in every one) against right values of O,
/// LSE and dV for head width 1, scale 1, full mask, one query head per rank.
void check_scores(const Scores& x, const Values& o, const Values& lse, const Values& dv) {
  const int n = world().size();
  const auto length = std::ssize(x.q);
  const MaskShape shape{1, length, length};
  Results want;
  for (std::int64_t i = 0; i < length; ++i)
    for (int h = 0; h < n; ++h) {
      want["o"].push_back(o[static_cast<std::size_t>(i)]);
      want["dv"].push_back(dv[static_cast<std::size_t>(i)]);
    }
  for (int h = 0; h < n; ++h) want["lse"].insert(want["lse"].end(), lse.begin(), lse.end());
  for (auto [type, tolerance] : {std::pair{DType::f64, 1e-11},
                                 {DType::f32, 4e-3},
                                 {DType::bf16, 1e-2},
                                 {DType::f16, 4e-3}}) {
    Problem p = problem(shape, attention::full_mask(shape), n, n, 1, 1, type, Layout::zigzag);
    p.scale = 1;
    Rig rig(world());
    for (const Scheme& s : schemes_for(p, n)) {
      const Results got = rig.run(p, s, x.inputs());
      const std::string what = fmt::format("{}, {}", name_of(type), s.text());
      expect_near(got, want, tolerance, what);
      for (const auto& [name, values] : got)
        for (double v : values) ASSERT_TRUE(std::isfinite(v)) << what << ": " << name;
    }
  }
}

TEST(AttentionProperties, EqualLogits) {
  const std::size_t s = 40;
  for (double logit : {0.0, 1e4, -1e4}) {
    const Scores x{Values(s, logit / 100), Values(s, 100)};
    check_scores(x, Values(s, 0), Values(s, logit + std::log(40.0)), Values(s, 1));  // mean value 0
  }
}

TEST(AttentionProperties, LogitsOfBothSigns) {
  // Even keys +1e4, odd keys -1e4, turned round for odd queries: weights 1/20 and 0.
  Scores x;
  Values o;
  for (int i = 0; i < 40; ++i) {
    x.q.push_back(i % 2 == 0 ? 100 : -100), x.k.push_back(i % 2 == 0 ? 100 : -100);
    double mean = 0;
    for (int j = i % 2; j < 40; j += 2) mean += x.value(j) / 20;
    o.push_back(mean);
  }
  check_scores(x, o, Values(40, 1e4 + std::log(20.0)), Values(40, 1));
}

TEST(AttentionProperties, OnePartialDominates) {
  // The last four keys lie 1e3 above the others: all other chunks weigh e^-1000 = 0.
  Scores x{Values(40, 1), Values(40, 0)};
  Values dv(40, 0);
  double mean = 0;
  for (std::size_t j = 36; j < 40; ++j) {
    x.k[j] = 1000, dv[j] = 10;  // 40 queries share 4 keys
    mean += x.value(static_cast<std::int64_t>(j)) / 4;
  }
  check_scores(x, Values(40, mean), Values(40, 1000 + std::log(4.0)), dv);
}

TEST(AttentionProperties, OneHot) {
  // Query i sees key (7 i + 3) mod S at 1e4 and all others at 0.
  const int n = world().size();
  const std::int64_t length = 40;
  const MaskShape shape{1, length, length};
  const auto target = [=](std::int64_t i) { return (7 * i + 3) % length; };
  Problem p = problem(shape, attention::full_mask(shape), n, n, 40, 2, DType::f64, Layout::zigzag);
  p.scale = 1;
  const Fill inputs =
      filled([&](const std::string& name, std::int64_t row, std::int64_t head, std::int64_t e) {
        if (name == "q") return e == target(row) ? 1e4 : 0.0;
        if (name == "k") return e == row ? 1.0 : 0.0;
        return static_cast<double>(row * 8 + head * 2 + e);  // v and do
      });
  Results want;
  want["lse"] = Values(static_cast<std::size_t>(n * length), 1e4);
  const Values v = whole_input(p, inputs, "v"), dout = whole_input(p, inputs, "do");
  want["o"] = want["dv"] = Values(v.size());
  const std::int64_t width = n * 2;
  for (std::int64_t i = 0; i < length; ++i)
    for (std::int64_t c = 0; c < width; ++c) {
      want["o"][static_cast<std::size_t>(i * width + c)] =
          v[static_cast<std::size_t>(target(i) * width + c)];
      want["dv"][static_cast<std::size_t>(target(i) * width + c)] =
          dout[static_cast<std::size_t>(i * width + c)];
    }
  want["dq"] = Values(static_cast<std::size_t>(length * n * 40));  // a saturated softmax is flat
  Rig rig(world());
  for (const Scheme& s : schemes_for(p, n))
    expect_near(rig.run(p, s, inputs), want, 1e-10, s.text());
}

TEST(AttentionProperties, Adjoint) {
  const int n = world().size();
  const MaskShape shape{1, 21, 21}, batch{2, 19, 23};
  const std::vector<std::int64_t> lengths{2, 9, 10};
  Problem plain = plain_problem(shape, attention::document_mask(shape, lengths, true), n);
  Problem all = plain_problem(batch, attention::causal_mask(batch, true), n);
  all.sink = true, all.softcap = 1.5, all.scale = 0.9;
  Rig rig(world());
  for (const Problem& p : {plain, all})
    for (const Scheme& s : schemes_for(p, n)) check_gradients(rig, p, s, 2, p.mask.kind());
}

TEST(AttentionProperties, CountedMemoryIsThatOfThePlan) {
  const int n = world().size();
  const MaskShape shape{1, 16 * n, 16 * n};
  Problem p = plain_problem(shape, attention::causal_mask(shape, false), n, DType::bf16);
  Rig rig(world());
  for (const Scheme& s : schemes_for(p, n))
    for (Pass pass : {Pass::forward, Pass::backward}) {
      Budget budget;
      Session session(p, {world(), rig.registry(), budget});
      PreparedPass& prepared = session.prepare(s, pass, test_machine());
      session.bind(prepared);
      session.fill(random_inputs);
      session.run(prepared);
      const auto counts = plan::count(prepared.program(), 4);
      const auto planned = counts[static_cast<std::size_t>(world().rank())].peak_bytes;
      EXPECT_LE(budget.peak(), planned) << prepared.program().name;
      EXPECT_GE(budget.peak(), planned / 2) << prepared.program().name << ": the count is idle";
    }
}

TEST(AttentionProperties, RingScratchIsIndependentOfSteps) {
  for (Pass pass : {Pass::forward, Pass::backward}) {
    std::vector<std::int64_t> scratch;
    for (int n : {4, 8, 16, 32}) {
      const MaskShape shape{1, 16 * n, 16 * n};
      const Problem p =
          problem(shape, attention::full_mask(shape), 4, 4, 8, 8, DType::bf16, Layout::zigzag);
      const auto program = attention::make_program(p, {SchemeKind::ring}, n, pass, test_machine());
      for (const plan::RankCount& c : plan::count(program, 4)) scratch.push_back(c.scratch_bytes);
    }
    EXPECT_GT(scratch.front(), 0);
    EXPECT_EQ(scratch, std::vector<std::int64_t>(scratch.size(), scratch.front()))
        << attention::name_of(pass);
  }
}

Problem mixed_problem(int n, DType type) {
  const MaskShape shape{1, 53, 53};
  Problem p = plain_problem(shape, attention::window_mask(shape, 30), n, type);
  p.sink = true;
  return p;
}

TEST(AttentionProperties, TwentyRunsAgreeBitwise) {
  const int n = world().size();
  Rig rig(world());
  for (DType type : {DType::f32, DType::bf16, DType::f16})
    for (const Scheme& s : schemes_for(mixed_problem(n, type), n)) {
      const Problem p = mixed_problem(n, type);
      Job job(p, s, random_inputs, rig.around());
      job.run();
      const std::string first = job.bytes();
      for (int repeat = 1; repeat < 20; ++repeat) {
        job.run();
        ASSERT_TRUE(job.bytes() == first) << job.name() << ", repeat " << repeat;
      }
      Job again(p, s, random_inputs, rig.around());  // nothing is left over from a session
      again.run();
      EXPECT_TRUE(again.bytes() == first) << job.name() << ", second session";
    }
}

/// The Kokkos operators, each 0 to 2 ms late.
void register_late(ops::Registry& to, const ops::Registry& from, unsigned seed) {
  auto generator = std::make_shared<std::mt19937>(seed);
  for (const ops::Implementation& i : from.list()) {
    if (i.backend != "kokkos") continue;
    ops::Implementation late = i;
    late.run = [run = i.run, generator](const ops::Call& call) {
      std::this_thread::sleep_for(std::chrono::microseconds((*generator)() % 2000));
      run(call);
    };
    to.add(std::move(late));
  }
}

TEST(AttentionProperties, RandomDelaysChangeNothing) {
  const int n = world().size();
  const Problem p = mixed_problem(n, DType::f32);
  Rig rig(world());
  ops::Registry late;
  register_late(late, rig.registry(), 1 + static_cast<unsigned>(world().rank()));
  Budget budget;
  for (const Scheme& s : schemes_for(p, n)) {
    Job prompt(p, s, random_inputs, rig.around());
    prompt.run();
    Job delayed(p, s, random_inputs, {world(), late, budget});
    for (int repeat = 0; repeat < 2; ++repeat) {
      delayed.run();
      EXPECT_TRUE(delayed.bytes() == prompt.bytes()) << prompt.name() << ", repeat " << repeat;
    }
  }
}

}  // namespace
}  // namespace tessera::test
