// SPDX-License-Identifier: Apache-2.0
// Public bug reports about distributed attention, tried on this code: each case is named after its
// entry of the collected reports (OB-nnn) and goes through every scheme that fits, on real ranks.
#include <numbers>

#include "attention/verify.hpp"
#include "attention_gradient.hpp"
#include "attention_rig.hpp"

namespace tessera::test {
namespace {

const KeyValue index_value = [](std::int64_t j) { return static_cast<double>(j); };
const Fill random_inputs = attention::synthetic(7);

/// Fewer rows than ranks: every scheme must say so before any message.
void expect_refused(const Problem& p, int n) {
  EXPECT_TRUE(schemes_for(p, n).empty());
  try {
    attention::validate(p, {SchemeKind::ring}, n);
    ADD_FAILURE() << p.sequence << " rows were accepted on " << n << " ranks";
  } catch (const Error& e) {
    EXPECT_NE(e.message().find(fmt::format("is less than {} ranks", n)), std::string::npos);
  }
}

/// Runs every scheme that fits in every layout on mean_inputs against the closed form.
void check_means(MaskShape shape, const Mask& mask, const Visible& sees,
                 const KeyValue& value = index_value) {
  Rig rig(world());
  Problem p = plain_problem(shape, mask, world().size());
  if (std::min(shape.queries, shape.keys) < world().size())
    return expect_refused(p, world().size());
  const Results want = means(p, sees, value);
  for (Layout layout : layouts()) {
    p.layout = layout;
    for (const Scheme& s : schemes_for(p, world().size())) {
      const std::string what = fmt::format("{}, {}, {}", mask.kind(), s.text(), name_of(layout));
      const Results got = rig.run(p, s, mean_inputs(value));
      expect_near(got, want, 1e-12, what);
      expect_empty_rows(p, sees, got, what);
    }
  }
}

/// O of a row in the closed form: the number that the report gives.
double mean_of_row(MaskShape shape, const Mask& mask, const Visible& sees, std::int64_t row,
                   const KeyValue& value = index_value) {
  return means(plain_problem(shape, mask, 1), sees, value)
      .at("o")[static_cast<std::size_t>(row * 6)];
}

/// Random inputs in fp64 against the one-rank plain loops, every scheme and layout.
void check_random(Problem p, double tolerance = 1e-10) {
  Rig rig(world());
  const Reference right = attention::make_reference(p, random_inputs, rig.around(), true);
  const Results want(right.value.begin(), right.value.end());
  for (Layout layout : layouts()) {
    p.layout = layout;
    for (const Scheme& s : schemes_for(p, world().size()))
      expect_near(rig.run(p, s, random_inputs), want, tolerance,
                  fmt::format("{}, {}, {}", p.mask.kind(), s.text(), name_of(layout)));
  }
}

TEST(AttentionFieldReports, OB_001_UnevenLengthZigzag) {
  const int n = world().size();
  const MaskShape uneven{1, 29 * n + 1, 29 * n + 1};  // no multiple of n or 2n for n > 1
  check_random(plain_problem(uneven, attention::causal_mask(uneven, false), n));
  if (n != 4) return;
  const MaskShape reported{1, 2999, 2999};
  const Problem p = problem(reported, attention::causal_mask(reported, false), 2, 2, 8, 8,
                            DType::f64, Layout::zigzag);
  Rig rig(world());
  const Reference right = attention::make_reference(p, random_inputs, rig.around(), true);
  for (const Scheme& s : {Scheme{SchemeKind::ring}, Scheme{SchemeKind::mesh, 2, 2}})
    expect_near(rig.run(p, s, random_inputs), right.value, 1e-10, s.text());
}

TEST(AttentionFieldReports, OB_002_NoRowsTooMany) {
  const MaskShape s{1, 26, 26};
  const Visible all = [](auto, auto) { return true; };
  EXPECT_DOUBLE_EQ(mean_of_row(s, attention::full_mask(s), all, 25), 12.5);
  check_means(s, attention::full_mask(s), all);
}

TEST(AttentionFieldReports, OB_003_LastTokenOfOddLength) {
  const KeyValue square = [](std::int64_t j) { return static_cast<double>(j * j); };
  const Visible valid = [](std::int64_t q, std::int64_t k) { return q < 7 && k < 7; };
  const MaskShape padded{1, 8, 8}, odd{1, 7, 7};
  const std::vector<std::int64_t> seven{7};
  const Mask mask = attention::document_mask(padded, seven, false);
  EXPECT_DOUBLE_EQ(mean_of_row(padded, mask, valid, 6, square), 13.0);
  check_means(padded, mask, valid, square);
  check_means(odd, attention::full_mask(odd), valid, square);
}

/// Rows 3 and 9..11 of 12 are padding of two sequences (3 in 4, 5 in 8 rows).
bool pad_row(std::int64_t row) { return row == 3 || row >= 9; }

TEST(AttentionFieldReports, OB_004_GarbageInPadding) {
  const MaskShape padded{1, 12, 12}, packed{1, 8, 8};
  const std::vector<AttnSlice> slices{{0, 3, 0, 3, 1}, {4, 9, 4, 9, 1}};
  const std::vector<std::int64_t> lengths{3, 5};
  const int n = world().size();
  Problem p = plain_problem(padded, attention::slice_mask(padded, slices), n);
  const Problem q = plain_problem(packed, attention::document_mask(packed, lengths, true), n);
  // The file holds NaN in rows that no band touches; whoever fills must write 0 there.
  const auto touched = attention::rows_of(p.mask.bands());
  const Fill zeroed = filled(
      [&](const std::string& name, std::int64_t row, std::int64_t head, std::int64_t element) {
        const double raw =
            pad_row(row) ? NAN : std::sin(double(name[0] + 7 * row + 3 * head + element));
        bool covered = false;
        for (Range r : touched) covered = covered || (row >= r.begin && row < r.end);
        return covered ? raw : 0;
      });
  const Fill unpadded = filled(
      [](const std::string& name, std::int64_t row, std::int64_t head, std::int64_t element) {
        return std::sin(double(name[0] + 7 * (row < 3 ? row : row + 1) + 3 * head + element));
      });
  const Results want = Alone().run(q, unpadded);
  Rig rig(world());
  for (Layout layout : layouts()) {
    p.layout = layout;
    for (const Scheme& s : schemes_for(p, n)) {
      const Results got = rig.run(p, s, zeroed);
      const std::string what = fmt::format("{}, {}", s.text(), name_of(layout));
      expect_empty_rows(
          p, [](auto i, auto j) { return !pad_row(i) && !pad_row(j) && (i < 3) == (j < 3); }, got,
          what);
      Results valid;
      for (const std::string name : {"o", "dq", "dk", "dv"}) {
        const std::size_t width = got.at(name).size() / 12;
        for (std::size_t i = 0; i < got.at(name).size(); ++i)
          if (!pad_row(static_cast<std::int64_t>(i / width)))
            valid[name].push_back(got.at(name)[i]);
      }
      for (std::size_t i = 0; i < got.at("lse").size(); ++i)
        if (!pad_row(static_cast<std::int64_t>(i % 12))) valid["lse"].push_back(got.at("lse")[i]);
      expect_near(valid, want, 1e-12, what);
    }
  }
}

TEST(AttentionFieldReports, OB_005_LoadBalanceWithoutCausalMask) {
  const MaskShape s{1, 8, 8};
  const Visible all = [](auto, auto) { return true; };
  EXPECT_DOUBLE_EQ(mean_of_row(s, attention::full_mask(s), all, 0), 3.5);
  check_means(s, attention::full_mask(s), all);
}

TEST(AttentionFieldReports, OB_007_DiagonalOfUnlikeLengths) {
  for (std::int64_t f : {1, 4}) {  // the reported size, and one for more ranks
    const MaskShape late{1, 4 * f, 8 * f}, few_keys{1, 5 * f, 2 * f};
    const Visible global = [f](std::int64_t q, std::int64_t k) { return k <= q + 4 * f; };
    check_means(late, attention::causal_mask(late, true), global);
    check_means(late, attention::causal_mask(late, false), [](auto q, auto k) { return k <= q; });
    const Visible last = [f](std::int64_t q, std::int64_t k) { return k <= q - 3 * f; };
    check_means(few_keys, attention::causal_mask(few_keys, true), last);
    if (f > 1) continue;
    for (std::int64_t row = 0; row < 4; ++row)
      EXPECT_DOUBLE_EQ(mean_of_row(late, attention::causal_mask(late, true), global, row),
                       2.0 + 0.5 * static_cast<double>(row));
    EXPECT_EQ(mean_of_row(few_keys, attention::causal_mask(few_keys, true), last, 2), 0);
  }
}

TEST(AttentionFieldReports, OB_008_WindowCountsTheToken) {
  const MaskShape s{1, 16, 16};
  const Mask mask = attention::window_mask(s, 4);
  const Visible sees = [](auto q, auto k) { return k <= q && q - k < 4; };
  EXPECT_EQ(mask.area(), 58);
  EXPECT_DOUBLE_EQ(mean_of_row(s, mask, sees, 10), 8.5);
  check_means(s, mask, sees);
}

TEST(AttentionFieldReports, OB_009_MaskIsNotReplacedByCausal) {
  const MaskShape s{1, 8, 8};
  const Visible window = [](auto q, auto k) { return k <= q && q - k < 2; };
  EXPECT_DOUBLE_EQ(mean_of_row(s, attention::window_mask(s, 2), window, 7), 6.5);
  check_means(s, attention::window_mask(s, 2), window);
  const std::vector<std::int64_t> lengths{3, 5};
  const Mask documents = attention::document_mask(s, lengths, true);
  const Visible own = [](auto q, auto k) { return k <= q && (q < 3) == (k < 3); };
  EXPECT_DOUBLE_EQ(mean_of_row(s, documents, own, 3), 3.0);
  EXPECT_DOUBLE_EQ(mean_of_row(s, documents, own, 7), 5.0);
  check_means(s, documents, own);
}

TEST(AttentionFieldReports, OB_011_TilesWithoutElementMask) {
  const MaskShape s{1, 8, 8};
  const std::vector<AttnSlice> tiles{{0, 4, 0, 4, 0}, {4, 8, 4, 8, 0}};
  const Visible diagonal = [](auto q, auto k) { return q / 4 == k / 4; };
  EXPECT_DOUBLE_EQ(mean_of_row(s, attention::slice_mask(s, tiles), diagonal, 3), 1.5);
  EXPECT_DOUBLE_EQ(mean_of_row(s, attention::slice_mask(s, tiles), diagonal, 4), 5.5);
  check_means(s, attention::slice_mask(s, tiles), diagonal);
}

TEST(AttentionFieldReports, OB_013_QueriesInSeveralSlices) {
  for (std::int64_t f : {1, 4}) {
    const MaskShape s{1, 4 * f, 4 * f};
    const std::vector<AttnSlice> halves{{0, 4 * f, 0, 2 * f, 0}, {0, 4 * f, 2 * f, 4 * f, 0}};
    const Mask mask = attention::slice_mask(s, halves);
    const Visible all = [](auto, auto) { return true; };
    EXPECT_DOUBLE_EQ(mean_of_row(s, mask, all, 2), (4.0 * static_cast<double>(f) - 1) / 2);
    check_means(s, mask, all);
    Rig rig(world());
    const Problem p = plain_problem(s, mask, world().size(), DType::f32);
    for (const Scheme& scheme : schemes_for(p, world().size())) {
      Job job(p, scheme, random_inputs, rig.around());
      job.run();
      const std::string first = job.bytes();
      for (int repeat = 1; repeat < 20; ++repeat) {
        job.run();
        ASSERT_TRUE(job.bytes() == first) << job.name() << ", repeat " << repeat;
      }
    }
  }
}

TEST(AttentionFieldReports, OB_014_LengthNoMultipleOfATile) {
  const MaskShape s{1, 17, 17};
  Problem p = plain_problem(s, attention::causal_mask(s, false), world().size());
  p.softcap = 2.0;  // a score term on top of the mask
  check_random(p);
}

TEST(AttentionFieldReports, OB_015_EveryMaskAgainstAReference) {
  const MaskShape s{1, 64, 64};
  const std::vector<AttnSlice> band{{0, 8, 0, 16, 1}, {8, 56, 0, 64, 3}, {56, 64, 48, 64, 2}},
      context{{0, 16, 0, 16, 0}, {16, 32, 0, 32, 0}, {32, 48, 0, 48, 0}, {48, 64, 0, 64, 0}},
      first{{0, 64, 0, 1, 0}};
  const std::vector<std::pair<Mask, Visible>> masks{
      {attention::causal_mask(s, false), [](auto q, auto k) { return k <= q; }},
      {attention::slice_mask(s, band), [](auto q, auto k) { return std::abs(q - k) <= 8; }},
      {attention::slice_mask(s, context), [](auto q, auto k) { return k / 16 <= q / 16; }},
      {attention::slice_mask(s, first), [](auto, auto k) { return k == 0; }}};
  for (const auto& [mask, sees] : masks) {
    check_means(s, mask, sees);
    check_random(plain_problem(s, mask, world().size()));
  }
}

/// Largest |x - right| and the norms, of one tensor.
struct Distance {
  double max_abs = 0, largest = 0, relative = 0;
  Distance(const Values& x, const Values& right) {
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double d = x[i] - right[i];
      difference += d * d, norm += right[i] * right[i];
      max_abs = std::max(max_abs, std::abs(d)), largest = std::max(largest, std::abs(right[i]));
    }
    relative = std::sqrt(difference / norm);
  }
};

/// O, dQ, dK, dV in 16 bits: error against fp64 on all ranks at most 1.5 x that on one rank.
void check_growth(const Problem& p, const Fill& inputs) {
  Rig rig(world());
  const Reference right = attention::make_reference(p, inputs, rig.around(), true);
  const Results one = Alone().run(p, inputs);
  for (const Scheme& s : schemes_for(p, world().size())) {
    const Results all = rig.run(p, s, inputs);
    for (const char* name : {"o", "dq", "dk", "dv"}) {
      const Distance now(all.at(name), right.value.at(name));
      const Distance alone(one.at(name), right.value.at(name));
      EXPECT_LE(now.relative, 1.5 * alone.relative) << s.text() << ": " << name;
      EXPECT_LT(now.relative, 0.02) << s.text() << ": " << name;
    }
  }
}

TEST(AttentionFieldReports, OB_016_GradientsAgainstOneRank) {
  const MaskShape shape{1, 64, 64};
  const Mask mask = attention::causal_mask(shape, false);
  const Fill mean_loss = [](const std::string& name, const Rows& rows, const TensorRef& out) {
    if (name != "do") return random_inputs(name, rows, out);
    filled([](auto&&...) { return 0x1p-12; })(name, rows, out);  // 1 / (64 rows x 4 heads x 16)
  };
  const Problem p = problem(shape, mask, 4, 4, 16, 16, DType::f32, Layout::zigzag);
  for (const DType type : {DType::bf16, DType::f16}) {
    Problem low = p;
    low.dtype = type;
    check_growth(low, mean_loss);
  }
  Rig rig(world());
  const Reference right = attention::make_reference(p, mean_loss, rig.around(), true);
  for (const Scheme& s : schemes_for(p, world().size())) {
    const Results got = rig.run(p, s, mean_loss);
    for (const char* name : {"o", "dq", "dk", "dv"}) {
      const Distance d(got.at(name), right.value.at(name));
      EXPECT_LT(d.max_abs, 1e-5 * d.largest) << s.text() << ": " << name;
    }
  }
}

TEST(AttentionFieldReports, OB_019_ErrorDoesNotGrowWithTheRing) {
  const MaskShape s{1, 256, 256};
  for (const DType type : {DType::bf16, DType::f16})
    check_growth(problem(s, attention::full_mask(s), 2, 2, 64, 64, type, Layout::zigzag),
                 random_inputs);
}

TEST(AttentionFieldReports, OB_020_MaskedRowIsZeroNotTheMean) {
  const KeyValue one_or_three = [](std::int64_t j) { return j % 2 == 0 ? 1.0 : 3.0; };
  for (std::int64_t f : {1, 8}) {
    const MaskShape s{1, 2 * f, 2 * f};
    const std::vector<AttnSlice> slices{{0, f, 0, 2 * f, 0}};  // the rows from f on see nothing
    const Visible sees = [f](auto q, auto) { return q < f; };
    EXPECT_EQ(mean_of_row(s, attention::slice_mask(s, slices), sees, f, one_or_three), 0);
    check_means(s, attention::slice_mask(s, slices), sees, one_or_three);
  }
}

TEST(AttentionFieldReports, OB_021_MaskedRowDoesNotSpoilGradients) {
  for (std::int64_t f : {1, 4}) {
    // Keys from 2f on are padding; a window of 2f then leaves the last queries without a key.
    const MaskShape s{1, 4 * f, 4 * f};
    const std::vector<Band> bands{{0, 4 * f, 0, 2 * f, -(2 * f - 1), 0}};
    const Visible sees = [f](auto q, auto k) { return k <= q && q - k < 2 * f && k < 2 * f; };
    const int n = world().size();
    const Problem p = plain_problem(s, Mask("band", s, bands), n);
    check_means(s, p.mask, sees);
    // Without that row: one query less. Results of the others must not change.
    const MaskShape less{1, 4 * f - 1, 4 * f};
    const Problem q =
        plain_problem(less, Mask("band", less, {{0, 4 * f - 1, 0, 2 * f, -(2 * f - 1), 0}}), n);
    const Results want = Alone().run(q, random_inputs);
    Rig rig(world());
    for (const Scheme& scheme : schemes_for(p, n)) {
      Results got = rig.run(p, scheme, random_inputs);
      expect_empty_rows(p, sees, got, scheme.text());
      for (const char* name : {"o", "dq"}) got.at(name).resize(want.at(name).size());
      got.at("lse") = want.at("lse");  // other row count; covered by check_means
      expect_near(got, want, 1e-12, scheme.text());
    }
  }
}

TEST(AttentionFieldReports, OB_022_ExchangeKeepsSamplesApart) {
  const int n = world().size();
  const std::int64_t length = std::max(4, n);
  const MaskShape s{2, length, length};
  const auto number = [=](std::int64_t row, std::int64_t head) {
    return 1000.0 * static_cast<double>(row / length) + 10.0 * static_cast<double>(row % length) +
           static_cast<double>(head);
  };
  const Fill inputs = filled([&](const std::string&, std::int64_t row, std::int64_t head,
                                 std::int64_t) { return number(row, head); });
  Rig rig(world());
  for (Layout layout : layouts()) {
    // Tokens see themselves only: O = V bit for bit after the reverse exchange.
    Problem p = problem(s, attention::window_mask(s, 1), n, n, 1, 1, DType::f64, layout);
    for (const Scheme& scheme : schemes_for(p, n)) {
      Job job(p, scheme, inputs, rig.around());
      job.run();
      EXPECT_EQ(job.output(), whole_input(p, inputs, "v")) << job.name();
      if (scheme.kind != SchemeKind::ulysses || n == 1) continue;
      const TensorRef q = job.session().tensor("q.chunk");  // what the exchange delivered
      ASSERT_NE(q.data, nullptr) << job.name();
      const std::vector<std::int64_t> rows = expand(attention::query_chunk(p, job.split(), 0));
      ASSERT_EQ(q.shape[0], std::ssize(rows)) << job.name();
      for (std::int64_t i = 0; i < q.shape[0]; ++i)
        if (const std::int64_t row = rows[static_cast<std::size_t>(i)]; row >= 0) {
          EXPECT_EQ(q.value(i, 0, 0), number(row, world().rank())) << job.name() << ", row " << row;
        }
    }
  }
  EXPECT_EQ(number(length + 3, 1), 1031);
}

TEST(AttentionFieldReports, OB_023_BackwardKnowsEveryOption) {
  const int n = world().size();
  const MaskShape s{1, 8, 8};
  const std::vector<std::int64_t> lengths{3, 5};
  const Problem plain = plain_problem(s, attention::full_mask(s), n);
  std::vector<std::pair<std::string, Problem>> options(5, {"", plain});
  options[0].first = "scale 0.5", options[0].second.scale = 0.5;
  options[1].first = "softcap", options[1].second.softcap = 0.7;
  options[2].first = "window 3", options[2].second.mask = attention::window_mask(s, 3);
  options[3].first = "documents",
  options[3].second.mask = attention::document_mask(s, lengths, true);
  options[4].first = "sink", options[4].second.sink = true;
  Rig rig(world());
  for (const auto& [what, p] : options)
    for (const Scheme& scheme : schemes_for(p, n)) check_gradients(rig, p, scheme, 1, what);
}

TEST(AttentionFieldReports, OB_025_HeadSplitOfASecondModel) {
  const int n = world().size();
  const MaskShape s{1, 16, 16};
  const Mask mask = attention::causal_mask(s, false);
  const Problem three = problem(s, mask, 24, 3, 4, 4, DType::f64, Layout::zigzag),
                twelve = problem(s, mask, 24, 12, 4, 4, DType::f64, Layout::zigzag);
  if (n == 4) {
    try {
      attention::validate(three, {SchemeKind::ulysses}, n);
      ADD_FAILURE() << "3 KV heads were accepted on 4 ranks";
    } catch (const Error& e) {
      EXPECT_NE(e.message().find("kv_heads = 3"), std::string::npos) << e.what();
    }
    const auto split = attention::make_split(twelve, {SchemeKind::ulysses}, n);
    for (int inner = 0; inner < 4; ++inner)
      EXPECT_EQ(attention::heads_of(twelve, split, inner).kv, (Range{3 * inner, 3 * inner + 3}));
  }
  Rig rig(world());
  auto all = [&](const Problem& p) {
    std::vector<Results> out;
    for (const Scheme& scheme : schemes_for(p, n)) out.push_back(rig.run(p, scheme, random_inputs));
    return out;
  };
  const auto three_first = all(three), twelve_second = all(twelve);
  const auto three_second = all(three);  // after 12 heads
  EXPECT_TRUE(three_first == three_second);
  EXPECT_FALSE(three_first.empty());
  const Results want = Alone().run(twelve, random_inputs);
  for (const Results& got : twelve_second) expect_near(got, want, 1e-12, "12 heads after 3");
}

/// Rotary embedding of (x0, x1) pairs by position, one frequency.
Fill rotary(const Fill& inputs) {
  return [=](const std::string& name, const Rows& rows, const TensorRef& out) {
    inputs(name, rows, out);
    if (name != "q" && name != "k") return;
    const std::vector<std::int64_t> position = expand(rows);
    for (std::int64_t i = 0; i < out.shape[0]; ++i)
      for (std::int64_t h = 0; h < out.shape[1]; ++h) {
        const double angle = 0.3 * static_cast<double>(position[static_cast<std::size_t>(i)]);
        const double x = out.value(i, h, 0), y = out.value(i, h, 1);
        out.set_value(i, h, 0, x * std::cos(angle) - y * std::sin(angle));
        out.set_value(i, h, 1, x * std::sin(angle) + y * std::cos(angle));
      }
  };
}

TEST(AttentionFieldReports, OB_026_PositionsAreGlobal) {
  const int n = world().size();
  const MaskShape s{1, 8, 8};
  Problem p = plain_problem(s, attention::causal_mask(s, false), n);
  const Split split = attention::make_split(p, {SchemeKind::ring}, n);
  if (n == 2) {
    const std::vector<std::int64_t> outer{0, 1, 6, 7}, inner{2, 3, 4, 5};
    EXPECT_EQ(expand(attention::query_rows(p, split, 0)), outer);
    EXPECT_EQ(expand(attention::query_rows(p, split, 1)), inner);
  }
  const Fill inputs = rotary(random_inputs);
  const Results want = Alone().run(p, inputs);
  Rig rig(world());
  for (Layout layout : layouts()) {
    p.layout = layout;
    for (const Scheme& scheme : schemes_for(p, n))
      expect_near(rig.run(p, scheme, inputs), want, 1e-12, scheme.text());
  }
}

}  // namespace
}  // namespace tessera::test
