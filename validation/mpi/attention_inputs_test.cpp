// SPDX-License-Identifier: Apache-2.0
// Tensors of the attention driver from an HDF5 file: rows that no mask band touches may hold
// anything and become 0, NaN elsewhere and wrong shapes are refused by all ranks (OB-004).
#include "attention_rig.hpp"
#include "drivers/attention/inputs.hpp"
#include "io_support.hpp"

namespace tessera::test {
namespace {

using drivers::AttentionInputs;
using io::test::Folder;
using io::test::has;
using io::test::refused;

/// Two causal sequences of 3 and 5 rows, padded to 4 and 8.
Problem padded_problem(DType type, Layout layout) {
  const MaskShape s{1, 12, 12};
  const std::vector<AttnSlice> slices{{0, 3, 0, 3, 1}, {4, 9, 4, 9, 1}};
  Problem p = plain_problem(s, attention::slice_mask(s, slices), world().size(), type);
  p.layout = layout, p.sink = true;
  return p;
}

bool padding(std::int64_t row) { return row == 3 || row >= 9; }

/// Exact in every element type.
double clean(const std::string& name, std::int64_t row, std::int64_t head, std::int64_t element) {
  return static_cast<double>((name[0] + 5 * row + 3 * head + element) % 9 - 4) / 4;
}

/// Writes q, k, v, do and sink of `p` in fp64 except the datasets in `without`.
void write_file(const std::string& path, const Problem& p, const Formula& value,
                const std::string& without = {}) {
  io::OutputFile file(world(), path);
  Budget budget;
  for (const std::string name : {"q", "k", "v", "do", "sink"}) {
    if (name == without) continue;
    const bool keys = name == "k" || name == "v", values = name == "v" || name == "do";
    std::array<std::int64_t, 3> shape{keys ? p.mask.cols() : p.mask.rows(),
                                      keys ? p.kv_heads : p.query_heads,
                                      values ? p.value_dim : p.head_dim};
    std::vector<std::int64_t> extents(shape.begin(), shape.end());
    if (name == "sink") shape = {p.query_heads, 1, 1}, extents = {p.query_heads};
    const Tensor t = make_tensor(budget, DType::f64, shape, name);
    filled(value)(name, Rows{{0, 1, shape[0]}}, t.ref);
    file.create_dataset("/" + name, DType::f64, extents);
    const Range mine{0, world().rank() == 0 ? shape[0] : 0};
    file.write_slab("/" + name, io::rows(mine), t.ref.slice(mine, {0, shape[1]}));
  }
  file.commit();
}

AttentionInputs open(const std::string& path) {
  return {config::load(drivers::attention_table(), "", {"input.file=\"" + path + "\""}), world()};
}

TEST(AttentionInputs, NanInUncoveredRows_becomes_zero) {
  const Folder folder(world());
  const std::string path = folder / "padded.h5";
  write_file(path, padded_problem(DType::f64, Layout::zigzag),
             [](const std::string& name, auto row, auto head, auto element) {
               return name != "sink" && padding(row) ? NAN : clean(name, row, head, element);
             });
  const Fill right = filled([](const std::string& name, auto row, auto head, auto element) {
    return name != "sink" && padding(row) ? 0 : clean(name, row, head, element);
  });
  Rig rig(world());
  AttentionInputs inputs = open(path);
  for (DType type : all_dtypes)
    for (Layout layout : layouts()) {
      const Problem p = padded_problem(type, layout);
      inputs.check(p, true);
      for (const Scheme& s : schemes_for(p, world().size())) {
        Job from_file(p, s, inputs.fill(p, 1), rig.around()), formula(p, s, right, rig.around());
        from_file.run(), formula.run();
        EXPECT_TRUE(from_file.bytes() == formula.bytes()) << from_file.name();
        for (const auto& [name, values] : from_file.results())
          for (double x : values) EXPECT_FALSE(std::isnan(x)) << from_file.name() << ": " << name;
      }
    }
}

/// What reading all tensors of `p` says on all ranks.
std::string refusal(const std::string& path, const Problem& p) {
  AttentionInputs inputs = open(path);
  inputs.check(p, true);
  const Fill fill = inputs.fill(p, 1);
  Rig rig(world());
  return refused(
      world(), [&] { Job(p, {SchemeKind::ring}, fill, rig.around()); }, Exit::numerical);
}

TEST(AttentionInputs, NanInCoveredRow_is_refused_with_its_index) {
  const Folder folder(world());
  const std::string path = folder / "nan.h5";
  for (const std::string bad : {"q", "k", "v", "do"})
    for (std::int64_t row : {0, 2, 4, 8}) {  // on the first, some other and the last rank
      write_file(path, padded_problem(DType::f64, Layout::zigzag),
                 [&](const std::string& name, auto r, auto head, auto element) {
                   const bool here = name == bad && r == row && head == 0 && element == 1;
                   return here ? NAN : clean(name, r, head, element);
                 });
      for (DType type : {DType::f32, DType::bf16, DType::f16}) {
        const std::string text = refusal(path, padded_problem(type, Layout::striped));
        EXPECT_TRUE(has(text, "'/" + bad + "'")) << text;
        EXPECT_TRUE(has(text, fmt::format("index [{}, 0, 1]", row))) << text;
      }
    }
}

TEST(AttentionInputs, InfinityInTheSink_is_refused) {
  const Folder folder(world());
  const std::string path = folder / "sink.h5";
  const Problem p = padded_problem(DType::f32, Layout::zigzag);
  write_file(path, p, [](const std::string& name, auto row, auto head, auto element) {
    return name == "sink" && row == 1 ? INFINITY : clean(name, row, head, element);
  });
  const std::string text = refusal(path, p);
  EXPECT_TRUE(has(text, "'/sink'") && has(text, "[1]")) << text;
}

TEST(AttentionInputs, ARowMayBeCoveredAsKeyOnly) {
  // Queries 0..3 on keys 2..11: q and do matter in rows 0..3, k and v in rows 2..11.
  const MaskShape shape{1, 12, 12};
  const Problem p = plain_problem(shape, Mask("bands", shape, {{0, 4, 2, 12}}), world().size());
  const Folder folder(world());
  const std::string path = folder / "keys.h5";
  const auto ignored = [](const std::string& name, std::int64_t row) {
    return name == "k" || name == "v" ? row < 2 : row >= 4;
  };
  write_file(path, p, [&](const std::string& name, auto row, auto head, auto element) {
    return name != "sink" && ignored(name, row) ? NAN : clean(name, row, head, element);
  });
  AttentionInputs inputs = open(path);
  Rig rig(world());
  Job job(p, {SchemeKind::ring}, inputs.fill(p, 1), rig.around());
  const Rows q = attention::query_rows(p, job.split(), world().rank());
  const std::vector<std::int64_t> global = expand(q);  // keys: the same rows
  for (const std::string name : {"q", "k", "v", "do"}) {
    const TensorRef t = job.session().tensor(name);
    for (std::int64_t i = 0; i < t.shape[0]; ++i) {
      const std::int64_t row = global[static_cast<std::size_t>(i)];
      const bool zero = row < 0 || ignored(name, row);
      EXPECT_EQ(t.value(i, 0, 1), zero ? 0 : clean(name, row, 0, 1)) << name << ", row " << row;
    }
  }
}

TEST(AttentionInputs, BatchAndUnlikeLengths_reach_the_right_rows) {
  const int n = world().size();
  const MaskShape shape{2, 7, 13};  // no multiple of 2, 3 or 4 ranks: padding in both
  Problem p = plain_problem(shape, attention::causal_mask(shape, true), n);
  const Folder folder(world());
  const std::string path = folder / "batch.h5";
  write_file(path, p, clean);
  AttentionInputs inputs = open(path);
  Rig rig(world());
  for (Layout layout : layouts()) {
    p.layout = layout;
    for (const Scheme& s : schemes_for(p, n)) {
      Job from_file(p, s, inputs.fill(p, 1), rig.around()),
          formula(p, s, filled(clean), rig.around());
      from_file.run(), formula.run();
      EXPECT_TRUE(from_file.bytes() == formula.bytes()) << from_file.name();
      for (const char* name : {"q", "k", "v", "do"}) {
        const TensorRef x = from_file.session().tensor(name), y = formula.session().tensor(name);
        ASSERT_EQ(x.shape, y.shape);
        EXPECT_EQ(std::memcmp(x.data, y.data, static_cast<std::size_t>(x.count() * 8)), 0)
            << from_file.name() << ": " << name;
      }
    }
  }
}

TEST(AttentionInputs, WrongShape_is_refused_before_reading) {
  const Folder folder(world());
  const std::string path = folder / "shape.h5";
  const Problem p = padded_problem(DType::f32, Layout::zigzag);
  write_file(path, p, clean, "do");
  AttentionInputs inputs = open(path);
  inputs.check(p, false);  // forward needs no dO
  EXPECT_TRUE(has(refused(world(), [&] { inputs.check(p, true); }), "/do"));
  Problem wide = p;
  wide.head_dim += 1;
  const std::string text = refused(world(), [&] { inputs.check(wide, false); });
  EXPECT_TRUE(has(text, "/q") && has(text, "shape.h5")) << text;
  EXPECT_TRUE(has(text, std::to_string(p.head_dim)) && has(text, std::to_string(wide.head_dim)))
      << text;
  Problem longer = p;
  longer.sequence = 13;
  EXPECT_TRUE(has(refused(world(), [&] { inputs.check(longer, false); }), "13"));
  EXPECT_TRUE(has(refused(world(), [&] { open(folder / "none.h5"); }), "none.h5"));
}

}  // namespace
}  // namespace tessera::test
