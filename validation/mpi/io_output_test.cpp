// SPDX-License-Identifier: Apache-2.0
// Output files: one order of creation on all ranks, visible only when complete, attributes.
#include "test_main.hpp"

#include <sys/file.h>

#include <cstring>
#include <fstream>

#include "io/file_system.hpp"
#include "io_support.hpp"

namespace tessera::io::test {
namespace {

using tessera::test::world;
namespace fs = std::filesystem;

class io_output : public Modes {
 protected:
  OutputOptions options(bool verify = true) const { return {.mode = GetParam(), .verify = verify}; }
  /// Writes /x = [size] with element r = base + r.
  void write_one(const std::string& path, double base, bool verify = true) const {
    OutputFile file(world(), path, options(verify));
    put(file, base);
    file.commit();
  }
  static void put(OutputFile& file, double base) {
    double x = base + world().rank();
    file.create_dataset("/x", DType::f64, {world().size()});
    file.write_slab("/x", rows({{world().rank(), 1, 1}}), dense(&x, DType::f64, {1, 1, 1}));
  }
  static double first_of(Input& input) {
    double x = 0;
    input.read_slab("/x", rows(Range{0, 1}), dense(&x, DType::f64, {1, 1, 1}));
    return x;
  }
};
INSTANTIATE_TEST_SUITE_P(, io_output, testing::ValuesIn(modes()), mode_name);

TEST_P(io_output, OB_094_one_dataset_per_rank_created_by_all) {
  const Folder folder(world());
  OutputFile file(world(), folder / "x.h5", options());
  for (int r = 0; r < world().size(); ++r)
    file.create_dataset("/r" + std::to_string(r), DType::f64, {1});
  for (int r = 0; r < world().size(); ++r) {
    double x = r;
    const bool mine = r == world().rank();
    file.write_slab("/r" + std::to_string(r), mine ? rows(Range{0, 1}) : rows(std::vector<Slab>{}),
                    dense(&x, DType::f64, {mine ? 1 : 0, 1, 1}));
  }
  file.commit();
  Input input(world(), folder / "x.h5", GetParam());
  for (int r = 0; r < world().size(); ++r) {
    double x = -1;
    input.read_slab("/r" + std::to_string(r), rows(Range{0, 1}), dense(&x, DType::f64, {1, 1, 1}));
    EXPECT_EQ(x, r);
  }
}

TEST_P(io_output, OB_094_name_per_rank_is_refused) {
  if (world().size() == 1) GTEST_SKIP() << "needs two ranks";
  const Folder folder(world());
  {
    OutputFile file(world(), folder / "x.h5", options());
    const std::string text = refused(world(), [&] {
      file.create_dataset("/r" + std::to_string(world().rank()), DType::f64, {1});
    });
    EXPECT_TRUE(has(text, "'/r0'") && has(text, "'/r1'")) << text;
  }
  EXPECT_EQ(folder.files(), 0);
}

TEST_P(io_output, OB_095_order_of_creation_is_fixed_or_refused) {
  const Folder folder(world());
  OutputFile file(world(), folder / "x.h5", options());
  const bool odd = world().rank() % 2 == 1;
  file.create_groups(odd ? std::vector<std::string>{"/b", "/a"}
                         : std::vector<std::string>{"/a", "/b"});
  if (world().size() > 1) {
    const std::string text =
        refused(world(), [&] { file.attribute(odd ? "/b" : "/a", "n", std::int64_t{1}); });
    EXPECT_TRUE(has(text, "write attribute n '/a'") && has(text, "'/b'")) << text;
  }
  put(file, 5);
  file.commit();
  Input input(world(), folder / "x.h5", GetParam());
  EXPECT_TRUE(input.has("/a") && input.has("/b"));
  EXPECT_EQ(first_of(input), 5);
}

TEST_P(io_output, OB_096_verify_finds_changed_bytes_and_names_the_ranks) {
  const Folder folder(world());
  {
    OutputFile file(world(), folder / "x.h5", options(true));
    put(file, 1234.5);
    world().barrier();
    const int victim = world().size() - 1;
    if (world().rank() == 0) {
      // The value stands once in the file: change its last byte, as a faulty MPI-IO layer would.
      const double x = 1234.5 + victim;
      std::string text = read_text(file.temporary_path());
      const std::size_t at = text.find(std::string(reinterpret_cast<const char*>(&x), sizeof x));
      ASSERT_NE(at, std::string::npos);
      std::fstream raw(file.temporary_path(), std::ios::in | std::ios::out | std::ios::binary);
      raw.seekp(static_cast<std::streamoff>(at + 7));
      raw.put('\x41');
    }
    world().barrier();
    const std::string text = refused(world(), [&] { file.commit(); });
    EXPECT_TRUE(has(text, "dataset '/x': what ranks " + std::to_string(victim) + " wrote")) << text;
  }
  EXPECT_EQ(folder.files(), 0);
}

TEST_P(io_output, OB_098_reader_of_the_old_file_keeps_it) {
  const Folder folder(world());
  write_one(folder / "x.h5", 1, true);
  Input reader(world(), folder / "x.h5", GetParam());
  EXPECT_EQ(first_of(reader), 1);
  write_one(folder / "x.h5", 2, true);
  EXPECT_EQ(first_of(reader), 1);
  Input again(world(), folder / "x.h5", GetParam());
  EXPECT_EQ(first_of(again), 2);
  EXPECT_EQ(folder.files(), 1);
}

TEST_P(io_output, OB_098_locked_file_is_named_with_the_setting) {
  if (GetParam() == Mode::collective) GTEST_SKIP() << "HDF5 takes no locks through MPI-IO";
  const Folder folder(world());
  write_one(folder / "x.h5", 1);
  int fd = -1;
  if (world().rank() == 0) {
    fd = open((folder / "x.h5").c_str(), O_RDWR);
    ASSERT_EQ(flock(fd, LOCK_EX | LOCK_NB), 0);
  }
  world().barrier();
  const std::string text = refused(world(), [&] { Input(world(), folder / "x.h5", GetParam()); });
  EXPECT_TRUE(has(text, "x.h5") && has(text, "HDF5_USE_FILE_LOCKING")) << text;
  if (fd >= 0) close(fd);
}

TEST_P(io_output, OB_089_without_commit_the_old_file_stays_alone) {
  const Folder folder(world());
  write_one(folder / "x.h5", 1);
  {
    OutputFile file(world(), folder / "x.h5", options());
    put(file, 2);
  }
  EXPECT_EQ(folder.files(), 1);
  try {
    OutputFile file(world(), folder / "x.h5", options());
    put(file, 3);
    throw Error(Exit::numerical, "in the middle");
  } catch (const Error&) {
  }
  EXPECT_EQ(folder.files(), 1);
  Input input(world(), folder / "x.h5", GetParam());
  EXPECT_EQ(first_of(input), 1);
}

TEST_P(io_output, OB_090_one_rank_with_a_bad_part_stops_all) {
  const Folder folder(world());
  const int bad = world().size() - 1;
  std::string text;
  {
    OutputFile file(world(), folder / "x.h5", options());
    file.create_dataset("/x", DType::f64, {world().size()});
    const std::int64_t at = world().rank() == bad ? world().size() + 3 : world().rank();
    double x = 0;
    text = refused(world(), [&] {
      file.write_slab("/x", rows({{at, 1, 1}}), dense(&x, DType::f64, {1, 1, 1}));
    });
  }
  EXPECT_TRUE(has(text, "'/x'") && has(text, "x.h5")) << text;
  EXPECT_EQ(has(text, "[rank " + std::to_string(bad) + " "), world().size() > 1) << text;
  EXPECT_EQ(folder.files(), 0);
}

TEST_P(io_output, attributes_and_arrays_come_back) {
  const Folder folder(world());
  const std::string long_text(100000, 'y');
  {
    OutputFile file(world(), folder / "x.h5", options());
    file.create_groups({"/steps/forward"});
    file.create_dataset("/o", DType::bf16, {4, 2});
    file.attribute("/", "schema", std::string("tessera.results"));
    file.attribute("/", "deck", long_text);
    file.attribute("/", "rank", std::int64_t{7} + world().rank());  // rank 0's value counts
    file.attribute("/o", "scale", 0.125);
    file.attribute("/steps/forward", "unit", std::string("s"));
    file.write_array("/steps/forward/seconds", std::vector<double>{1.5, 2.5, 3.5, 4.5}, {2, 2});
    file.write_array("/steps/bytes", std::vector<std::int64_t>{std::int64_t{1} << 40, 3}, {2});
    std::vector<BFloat16> o(8, BFloat16(1.5f));
    const bool mine = world().rank() == 0;
    file.write_slab("/o", mine ? rows(Range{0, 4}) : rows(std::vector<Slab>{}),
                    dense(o.data(), DType::bf16, {mine ? 4 : 0, 2, 1}));
    file.commit();
  }
  Input input(world(), folder / "x.h5", GetParam());
  EXPECT_EQ(input.text("/", "schema"), "tessera.results");
  EXPECT_EQ(input.text("/", "deck"), long_text);
  EXPECT_EQ(input.integer("/", "rank"), 7);
  EXPECT_EQ(input.real("/o", "scale"), 0.125);
  EXPECT_EQ(input.text("/o", "dtype"), "bf16");
  EXPECT_EQ(input.text("/steps/forward", "unit"), "s");
  EXPECT_EQ(input.text("/steps", "unit"), std::nullopt);
  EXPECT_EQ(input.integer("/none", "unit"), std::nullopt);
  EXPECT_EQ(input.read_integers("/steps/bytes"),
            (std::vector<std::int64_t>{std::int64_t{1} << 40, 3}));
  std::vector<double> seconds(4);
  input.read_slab("/steps/forward/seconds", rows(Range{0, 2}),
                  dense(seconds.data(), DType::f64, {2, 2, 1}));
  EXPECT_EQ(seconds, (std::vector<double>{1.5, 2.5, 3.5, 4.5}));
  EXPECT_EQ(input.info("/o").type, "bf16");
}

}  // namespace
}  // namespace tessera::io::test
