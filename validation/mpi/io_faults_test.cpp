// SPDX-License-Identifier: Apache-2.0
// Bad input files and disks that are full: one clear error, the same on all ranks, nothing left.
#include "test_main.hpp"

#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <fstream>
#include <limits>

#include "io/file_system.hpp"
#include "io/finite.hpp"
#include "io_support.hpp"

namespace tessera::io::test {
namespace {

using tessera::test::world;
namespace fs = std::filesystem;

// As a driver does: before MPI. Without it the disk-full cases below crash in MPI_Finalize.
[[maybe_unused]] const bool prepared = (prepare(), true);

class io_faults : public Modes {
 protected:
  std::string open(const std::string& path) const {
    return refused(world(), [&] { Input(world(), path, GetParam()); });
  }
  static void put_text(const std::string& path, const std::string& text) {
    if (world().rank() == 0) std::ofstream(path, std::ios::binary) << text;
    world().barrier();
  }
  /// A good file with /q [16, 2, 4] f32, /n [3] int64 and /sink [2] f64.
  void write_good(const std::string& path) const {
    OutputFile file(world(), path, {.mode = GetParam()});
    file.create_dataset("/q", DType::f32, {16, 2, 4});
    Owned q(DType::f32, {world().rank() == 0 ? 16 : 0, 2, 4});
    const Selection s = world().rank() == 0 ? rows(Range{0, 16}) : rows(std::vector<Slab>{});
    fill<float>(s, q.ref());
    file.write_slab("/q", s, q.ref());
    file.write_array("/n", std::vector<std::int64_t>{1, 2, 3}, {3});
    file.attribute("/q", "axes", std::string("token, head, dim"));
    file.commit();
  }
};
INSTANTIATE_TEST_SUITE_P(, io_faults, testing::ValuesIn(modes()), mode_name);

TEST_P(io_faults, missing_file_folder_and_no_hdf5) {
  const Folder folder(world());
  EXPECT_TRUE(has(open(folder / "none.h5"), "none.h5': No such file"));
  EXPECT_TRUE(has(open(folder / "."), "Is a directory"));
  put_text(folder / "text.h5", "this is a text\n");
  const std::string text = open(folder / "text.h5");
  EXPECT_TRUE(has(text, "text.h5' is not an HDF5 file (15 bytes)")) << text;
  put_text(folder / "empty.h5", "");
  EXPECT_TRUE(has(open(folder / "empty.h5"), "(0 bytes)"));
}

TEST_P(io_faults, OB_089_truncated_file_is_named) {
  const Folder folder(world());
  write_good(folder / "x.h5");
  if (world().rank() == 0) fs::resize_file(folder / "x.h5", fs::file_size(folder / "x.h5") - 100);
  world().barrier();
  const std::string text = open(folder / "x.h5");
  EXPECT_TRUE(has(text, "x.h5") && has(text, "truncated")) << text;
}

TEST_P(io_faults, dataset_missing_shape_and_type) {
  const Folder folder(world());
  write_good(folder / "x.h5");
  Input input(world(), folder / "x.h5", GetParam());
  const auto text_of = [&](const std::function<void()>& body) { return refused(world(), body); };
  std::string text = text_of([&] { input.info("/k"); });
  EXPECT_TRUE(has(text, "'/k'") && has(text, "x.h5")) << text;
  text = text_of([&] { input.info("/a/b/c"); });
  EXPECT_TRUE(has(text, "'/a/b/c'")) << text;
  text = text_of([&] { input.require("/q", {32, -1, 4}); });
  EXPECT_TRUE(has(text, "'/q': expected shape [32, *, 4], found [16, 2, 4]")) << text;
  text = text_of([&] { input.require("/q", {16, 2}); });
  EXPECT_TRUE(has(text, "expected shape [16, 2], found [16, 2, 4]")) << text;
  text = text_of([&] { input.require("/n", {3}); });
  EXPECT_TRUE(has(text, "'/n': expected f64, f32, bf16 or f16, found 64-bit integer")) << text;
  text = text_of([&] { input.read_integers("/q"); });
  EXPECT_TRUE(has(text, "'/q': expected integers, found f32")) << text;
  text = text_of([&] { input.integer("/q", "axes"); });
  EXPECT_TRUE(has(text, "'axes' of '/q'") && has(text, "found text")) << text;
  const Owned out(DType::f32, {4, 2, 4});
  text = text_of([&] { input.read_slab("/q", rows(Range{14, 18}), out.ref()); });
  EXPECT_TRUE(has(text, "index 17 of dimension 0")) << text;
  text = text_of([&] { input.read_slab("/q", rows(Range{0, 5}), out.ref()); });
  EXPECT_TRUE(has(text, "[5, 2, 4]") && has(text, "[4, 2, 4]")) << text;
  // After all these refusals the file still reads.
  input.read_slab("/q", rows(Range{12, 16}), out.ref());
  EXPECT_EQ(wrong<float>(rows(Range{12, 16}), out.ref()), 0);
}

TEST_P(io_faults, OB_090_file_missing_on_one_rank_stops_all) {
  const Folder folder(world());
  write_good(folder / "x.h5");
  const int bad = world().size() - 1;
  const std::string text = refused(world(), [&] {
    Input(world(), world().rank() == bad ? folder / "gone.h5" : folder / "x.h5", GetParam());
  });
  EXPECT_TRUE(has(text, "gone.h5")) << text;
  EXPECT_EQ(has(text, "[rank " + std::to_string(bad) + " "), world().size() > 1) << text;
}

TEST_P(io_faults, not_finite_is_named_with_its_global_index) {
  const int last = world().size() - 1;
  const Selection s = rows({{world().rank(), world().size(), 4}});  // striped
  const Owned t(DType::f32, {4, 2, 3});
  check_finite(world(), "/q", s, t.ref(), 3);
  if (world().rank() == last) t.ref().at<float>(2, 1, 2) = std::numeric_limits<float>::quiet_NaN();
  const std::string text = refused(
      world(), [&] { check_finite(world(), "/q", s, t.ref(), 3); }, Exit::numerical);
  const auto at = std::to_string(last + 2 * world().size());
  EXPECT_TRUE(has(text, "'/q' holds nan at index [" + at + ", 1, 2]")) << text;
}

TEST_P(io_faults, output_folder_missing_or_target_a_folder) {
  const Folder folder(world());
  std::string text =
      refused(world(), [&] { OutputFile(world(), folder / "none/x.h5", {.mode = GetParam()}); });
  EXPECT_TRUE(has(text, "none/x.h5") && has(text, "No such file")) << text;
  text = refused(world(), [&] { OutputFile(world(), folder / ".", {.mode = GetParam()}); });
  EXPECT_TRUE(has(text, "it is a folder")) << text;
  EXPECT_EQ(folder.files(), 0);
}

/// Whether disk space is reserved first. Without that, collective writes of Open MPI 4.1 lose bytes
/// silently or hang on a full disk, so there is nothing of ours to test then; ranks taking turns
/// get the error of the write itself.
std::vector<bool> reservations(Mode mode) {
  return mode == Mode::collective ? std::vector{true} : std::vector{true, false};
}

/// Writes 4 MiB per rank into a file that may not hold them; the error must name the file.
void write_too_much(const std::string& path, Mode mode, bool reserve) {
  const std::int64_t n = 1 << 19;
  const std::string text = refused(world(), [&] {
    OutputFile file(world(), path, {.mode = mode, .reserve = reserve});
    const Owned data(DType::f64, {n, 1, 1});
    // Not zero: what a full disk cut off reads back as zero.
    fill<double>(rows(Range{n * world().rank(), n * (world().rank() + 1)}), data.ref());
    file.create_dataset("/x", DType::f64, {n * world().size()});
    file.write_slab("/x", rows(Range{n * world().rank(), n * (world().rank() + 1)}), data.ref());
    file.commit();
  });
  if (world().rank() == 0) std::cout << text << "\n";
  EXPECT_TRUE(has(text, "x.h5")) << text;
}

TEST_P(io_faults, disk_full_by_a_file_size_limit) {
  const Folder folder(world());
  signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  const rlimit small{1 << 20, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  for (const bool reserve : reservations(GetParam()))
    write_too_much(folder / "x.h5", GetParam(), reserve);
  setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_EQ(folder.files(), 0);
}

TEST_P(io_faults, disk_full_on_a_small_file_system) {
  const Folder folder(world());
  std::int64_t mounted = 0;
  if (world().rank() == 0) {
    fs::create_directories(folder / "small");
    mounted = mount("tmpfs", (folder / "small").c_str(), "tmpfs", 0, "size=1m") == 0;
  }
  if (world().all_reduce_max(mounted) == 0) GTEST_SKIP() << "mounting is not permitted here";
  for (const bool reserve : reservations(GetParam()))
    write_too_much(folder / "small/x.h5", GetParam(), reserve);
  world().barrier();
  if (world().rank() == 0) {
    EXPECT_TRUE(fs::is_empty(folder / "small"));
    EXPECT_EQ(umount2((folder / "small").c_str(), MNT_DETACH), 0);
  }
}

}  // namespace
}  // namespace tessera::io::test
