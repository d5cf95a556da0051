// SPDX-License-Identifier: Apache-2.0
#include "io/file_system.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.hpp"

namespace tessera::io {
namespace {

namespace fs = std::filesystem;

class FolderTest : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder); }
  void TearDown() override { fs::remove_all(folder); }
  std::string in(const std::string& name) const { return (folder / name).string(); }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), {}));
  }
  const fs::path folder = fs::temp_directory_path() / ("tessera_io_" + std::to_string(getpid()));
};

/// Writes of this process above `bytes` fail with EFBIG, as on a full disk.
class SmallDisk {
 public:
  explicit SmallDisk(rlim_t bytes) {
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit small{bytes, old_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
  }
  ~SmallDisk() { setrlimit(RLIMIT_FSIZE, &old_); }

 private:
  rlimit old_{};
};

class io_files : public FolderTest {};

TEST_F(io_files, text_replaces_the_old_and_leaves_nothing_else) {
  write_text_atomic(in("a.json"), "old");
  write_text_atomic(in("a.json"), "new text");
  EXPECT_EQ(read_text(in("a.json")), "new text");
  EXPECT_EQ(files(), 1u);
}

TEST_F(io_files, OB_089_text_on_a_full_disk_keeps_the_old) {
  write_text_atomic(in("a.json"), "old");
  {
    const SmallDisk disk(1000);
    try {
      write_text_atomic(in("a.json"), std::string(5000, 'x'));
      ADD_FAILURE() << "no error";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Exit::io);
      EXPECT_NE(std::string(e.what()).find(in("a.json")), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find("File too large"), std::string::npos) << e.what();
    }
  }
  EXPECT_EQ(read_text(in("a.json")), "old");
  EXPECT_EQ(files(), 1u);
}

TEST_F(io_files, text_onto_a_folder_leaves_nothing) {
  fs::create_directories(in("sub/deeper"));
  EXPECT_THROW(write_text_atomic(in("sub"), "x"), Error);
  EXPECT_TRUE(fs::is_directory(in("sub")));
  EXPECT_EQ(files(), 1u);
}

TEST_F(io_files, text_into_a_missing_folder_names_it) {
  try {
    write_text_atomic(in("none/a.json"), "x");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("none/a.json"), std::string::npos) << e.what();
  }
}

TEST_F(io_files, folder_is_created_with_parents_and_probed) {
  check_writable_folder(in("a/b/c"));
  EXPECT_TRUE(fs::is_directory(in("a/b/c")));
  EXPECT_TRUE(fs::is_empty(in("a/b/c")));
  check_writable_folder(in("a/b/c"));
}

TEST_F(io_files, folder_that_is_none_or_cannot_be_written) {
  std::ofstream(in("file")) << "x";
  for (const std::string& path :
       {in("file"), in("file/sub"), std::string("/proc/tessera"), std::string("/proc")}) {
    try {
      check_writable_folder(path);
      ADD_FAILURE() << path;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Exit::io);
      EXPECT_NE(std::string(e.what()).find("'" + path + "'"), std::string::npos) << e.what();
      EXPECT_FALSE(e.hint().empty());
    }
  }
}

TEST_F(io_files, folder_on_a_full_disk_is_refused_before_the_run) {
  const SmallDisk disk(2);
  EXPECT_THROW(check_writable_folder(in("out")), Error);
  EXPECT_TRUE(fs::is_empty(in("out")));
}

TEST_F(io_files, temporary_name_carries_the_job) {
  setenv("SLURM_JOB_ID", "4711", 1);
  EXPECT_NE(temporary_name("r.h5").find("r.h5.tmp-4711-"), std::string::npos);
  unsetenv("SLURM_JOB_ID");
  EXPECT_EQ(temporary_name("r.h5"), "r.h5.tmp-" + std::to_string(getpid()));
}

}  // namespace
}  // namespace tessera::io
