// SPDX-License-Identifier: Apache-2.0
// Every way in which ranks share a dataset, written and read back, compared element by element.
#include "test_main.hpp"

#include "io_support.hpp"

namespace tessera::io::test {
namespace {

using tessera::test::world;

enum class Layout { contiguous, zigzag, striped };

/// Rows of `rank` of a sequence of `n` tokens per batch entry, n divisible by 2 * size.
Selection layout_rows(Layout layout, int rank, int size, std::int64_t n, int batch) {
  std::vector<Slab> slabs;
  for (std::int64_t b = 0; b < batch * n; b += n) {
    const std::int64_t half = n / (2 * size);
    switch (layout) {
      case Layout::contiguous:
        slabs.push_back({b + rank * 2 * half, 1, 2 * half});
        break;
      case Layout::striped:
        slabs.push_back({b + rank, size, n / size});
        break;
      case Layout::zigzag:
        slabs.push_back({b + rank * half, 1, half});
        slabs.push_back({b + (2 * size - 1 - rank) * half, 1, half});
        break;
    }
  }
  return rows(slabs);
}

/// Rows first..first+count of this rank, where rank r has counts[r % counts.size()].
Selection uneven_rows(const std::vector<std::int64_t>& counts, std::int64_t* total) {
  std::int64_t first = 0, all = 0;
  for (int r = 0; r < world().size(); ++r) {
    const std::int64_t n = counts[static_cast<std::size_t>(r) % counts.size()];
    if (r < world().rank()) first += n;
    all += n;
  }
  *total = all;
  const std::int64_t mine = counts[static_cast<std::size_t>(world().rank()) % counts.size()];
  return mine > 0 ? rows({{first, 1, mine}}) : rows(std::vector<Slab>{});
}

template <class T>
void write(const std::string& path, Mode mode, const std::vector<std::int64_t>& shape,
           const Selection& s, OutputOptions options = {}) {
  options.mode = mode;
  std::array<std::int64_t, 3> local{1, 1, 1};
  const auto part = extents(s, shape);
  std::copy(part.begin(), part.end(), local.begin());
  const Owned data(dtype_of<T>, local);
  fill<T>(s, data.ref());
  OutputFile file(world(), path, options);
  file.create_dataset("/x", dtype_of<T>, shape);
  file.write_slab("/x", s, data.ref());
  file.commit();
}

template <class T>
std::int64_t wrong_on_read(const std::string& path, Mode mode,
                           const std::vector<std::int64_t>& shape, const Selection& s,
                           std::int64_t limit = max_call_bytes) {
  std::array<std::int64_t, 3> local{1, 1, 1};
  const auto part = extents(s, shape);
  std::copy(part.begin(), part.end(), local.begin());
  const Owned data(dtype_of<T>, local);
  Input input(world(), path, mode);
  input.set_call_limit(limit);
  input.read_slab("/x", s, data.ref());
  return wrong<T>(s, data.ref());
}

class io_slabs : public Modes {};
INSTANTIATE_TEST_SUITE_P(, io_slabs, testing::ValuesIn(modes()), mode_name);

TEST_P(io_slabs, layouts_written_by_one_read_by_another) {
  const Folder folder(world());
  const std::int64_t n = 12 * world().size();
  const std::vector<std::int64_t> shape{2 * n, 3, 5};
  const std::vector<Layout> layouts{Layout::contiguous, Layout::zigzag, Layout::striped};
  for (const Layout from : layouts) {
    write<float>(folder / "x.h5", GetParam(), shape,
                 layout_rows(from, world().rank(), world().size(), n, 2));
    for (const Layout to : layouts)
      EXPECT_EQ(wrong_on_read<float>(folder / "x.h5", GetParam(), shape,
                                     layout_rows(to, world().rank(), world().size(), n, 2)),
                0);
  }
}

TEST_P(io_slabs, OB_092_ranks_with_nothing_take_part) {
  const Folder folder(world());
  std::int64_t total = 0, other_total = 0;
  const Selection s = uneven_rows({3, 0, 2, 0}, &total);
  write<double>(folder / "x.h5", GetParam(), {total, 4}, s);
  const std::int64_t stored = Input(world(), folder / "x.h5", GetParam()).info("/x").shape[0];
  if (world().rank() == 0) std::cout << "rows in the file: " << stored << "\n";
  EXPECT_EQ(stored, total);
  // Other distributions: uneven ones as far as they fit, and everything on the last rank.
  Selection other = uneven_rows({0, 3, 0, 2}, &other_total);
  if (other_total > stored) other = rows(std::vector<Slab>{});
  EXPECT_EQ(wrong_on_read<double>(folder / "x.h5", GetParam(), {stored, 4}, other), 0);
  const bool last = world().rank() == world().size() - 1;
  const Selection all = last ? rows(Range{0, stored}) : rows(std::vector<Slab>{});
  EXPECT_EQ(wrong_on_read<double>(folder / "x.h5", GetParam(), {stored, 4}, all), 0);
}

TEST_P(io_slabs, OB_093_blocks_of_a_grid_and_uneven_rows) {
  const Folder folder(world());
  Selection block = rows(std::vector<Slab>{});
  if (world().size() >= 4) {
    const int r = world().rank();
    if (r < 4) {
      block = rows({{r / 2 * 5, 1, 5}});
      block.within[1] = Range{r % 2 * 5, r % 2 * 5 + 5};
    }
  } else {
    const std::int64_t first = (10 * world().rank() + world().size() - 1) / world().size();
    const std::int64_t end = (10 * (world().rank() + 1) + world().size() - 1) / world().size();
    block = rows(Range{first, end});  // 4, 3, 3 on three ranks
  }
  write<double>(folder / "x.h5", GetParam(), {10, 10}, block);
  EXPECT_EQ(wrong_on_read<double>(folder / "x.h5", GetParam(), {10, 10}, rows(Range{0, 10})), 0);
}

TEST_P(io_slabs, OB_096_strided_rows_read_back_equal) {
  const Folder folder(world());
  const std::int64_t n = 1000;
  const Selection s = rows({{world().rank(), world().size(),
                             (n - world().rank() + world().size() - 1) / world().size()}});
  write<float>(folder / "x.h5", GetParam(), {n, 7}, s, {.verify = true});
  EXPECT_EQ(wrong_on_read<float>(folder / "x.h5", GetParam(), {n, 7}, rows(Range{0, n})), 0);
}

TEST(io_slabs_calls, OB_097_same_number_of_calls_on_all_ranks) {
  const std::vector<std::int64_t> bytes{2500, 0, 999};
  const std::int64_t mine = bytes[static_cast<std::size_t>(world().rank()) % 3];
  const std::vector<Range> calls = calls_of(world(), mine, 1, 1000);
  ASSERT_EQ(calls.size(), 3u);
  const std::vector<std::vector<std::int64_t>> sizes{{1000, 1000, 500}, {0, 0, 0}, {999, 0, 0}};
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_EQ(calls[i].size(), sizes[static_cast<std::size_t>(world().rank()) % 3][i]);
  // A row is never cut: 300-byte rows go three to a call, a row above the limit alone.
  EXPECT_EQ(calls_of(world(), 7, 300, 1000).size(), 3u);
  EXPECT_EQ(calls_of(world(), 4, 3000, 1000).size(), 4u);
}

TEST_P(io_slabs, OB_097_small_calls_give_the_same_file) {
  const Folder folder(world());
  std::int64_t total = 0;
  const Selection s = uneven_rows({25, 0, 10}, &total);
  write<float>(folder / "x.h5", GetParam(), {total, 2, 3}, s, {.call_limit = 100});
  EXPECT_EQ(wrong_on_read<float>(folder / "x.h5", GetParam(), {total, 2, 3}, s, 64), 0);
  EXPECT_EQ(wrong_on_read<double>(folder / "x.h5", GetParam(), {total, 2, 3}, s, 64), 0);
}

TEST_P(io_slabs, statistics_are_cut_along_the_second_dimension) {
  const Folder folder(world());
  const std::int64_t n = 8 * world().size();
  Selection s = layout_rows(Layout::zigzag, world().rank(), world().size(), n, 1);
  s.dim = 1;
  write<float>(folder / "x.h5", GetParam(), {6, n}, s, {.call_limit = 50});
  EXPECT_EQ(wrong_on_read<float>(folder / "x.h5", GetParam(), {6, n}, s, 50), 0);
  EXPECT_EQ(wrong_on_read<float>(folder / "x.h5", GetParam(), {6, n}, rows(Range{0, 6})), 0);
}

TEST_P(io_slabs, heads_go_into_a_strided_tensor_and_nothing_else_is_touched) {
  const Folder folder(world());
  const std::int64_t n = 4 * world().size();
  const Range mine{4 * world().rank(), 4 * world().rank() + 4};
  write<float>(folder / "x.h5", GetParam(), {n, 6, 8}, rows(mine));
  Selection s = rows(mine);
  s.within[1] = Range{2, 5};
  const Owned wide(DType::f32, {4, 7, 8});
  const TensorRef part = wide.ref().slice({0, 4}, {3, 6});
  Input input(world(), folder / "x.h5", GetParam());
  input.read_slab("/x", s, part);
  EXPECT_EQ(wrong<float>(s, part), 0);
  double outside = 0;
  for (std::int64_t i = 0; i < 4; ++i)
    for (const std::int64_t j : {0, 1, 2, 6})
      for (std::int64_t k = 0; k < 8; ++k) outside += std::abs(wide.ref().at<float>(i, j, k));
  EXPECT_EQ(outside, 0);
  // And out of a strided tensor into a file.
  OutputFile file(world(), folder / "y.h5", {.mode = GetParam()});
  file.create_dataset("/x", DType::f32, {n, 6, 8});
  file.write_slab("/x", s, part);
  s.within[1] = Range{0, 2};
  file.write_slab("/x", s, dense(wide.ref().data, DType::f32, {4, 2, 8}));
  s.within[1] = Range{5, 6};
  file.write_slab("/x", s, dense(wide.ref().data, DType::f32, {4, 1, 8}));
  file.commit();
  s.within[1] = Range{2, 5};
  EXPECT_EQ(wrong_on_read<float>(folder / "y.h5", GetParam(), {n, 6, 8}, s), 0);
}

template <class Stored>
void conversions(const std::string& path, Mode mode) {
  const std::vector<std::int64_t> shape{3 * world().size(), 2, 2};
  const Selection s = rows(Range{3 * world().rank(), 3 * world().rank() + 3});
  write<Stored>(path, mode, shape, s);
  Input input(world(), path, mode);
  EXPECT_EQ(input.info("/x").dtype, dtype_of<Stored>);
  const Owned stored(dtype_of<Stored>, {3, 2, 2}), d(DType::f64, {3, 2, 2}),
      f(DType::f32, {3, 2, 2}), b(DType::bf16, {3, 2, 2}), h(DType::f16, {3, 2, 2});
  fill<Stored>(s, stored.ref());
  for (const Owned* out : {&d, &f, &b, &h}) input.read_slab("/x", s, out->ref());
  for (std::int64_t i = 0; i < 12; ++i) {
    const Stored x = stored.ref().as<Stored>()[i];
    EXPECT_EQ(d.ref().as<double>()[i], static_cast<double>(x));
    EXPECT_EQ(f.ref().as<float>()[i], static_cast<float>(x));
    EXPECT_EQ(b.ref().as<BFloat16>()[i].bits, BFloat16(static_cast<float>(x)).bits);
    EXPECT_EQ(h.ref().as<Float16>()[i].bits, Float16(static_cast<float>(x)).bits);
  }
}

TEST_P(io_slabs, element_types_convert_into_each_other) {
  const Folder folder(world());
  conversions<double>(folder / "d.h5", GetParam());
  conversions<float>(folder / "f.h5", GetParam());
  conversions<BFloat16>(folder / "b.h5", GetParam());
  conversions<Float16>(folder / "h.h5", GetParam());
}

TEST_P(io_slabs, one_dimension_and_no_rows_at_all) {
  const Folder folder(world());
  const Selection mine = rows(Range{2 * world().rank(), 2 * world().rank() + 2});
  write<float>(folder / "x.h5", GetParam(), {2 * world().size()}, mine);
  EXPECT_EQ(wrong_on_read<float>(folder / "x.h5", GetParam(), {2 * world().size()}, mine), 0);
  write<float>(folder / "y.h5", GetParam(), {0, 4}, rows(std::vector<Slab>{}));
  EXPECT_EQ(wrong_on_read<float>(folder / "y.h5", GetParam(), {0, 4}, rows(std::vector<Slab>{})),
            0);
}

}  // namespace
}  // namespace tessera::io::test
