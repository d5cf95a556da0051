// SPDX-License-Identifier: Apache-2.0
#include "io/input.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/log.hpp"
#include "io/agree.hpp"
#include "io/hdf5.hpp"
#include "io/transfer.hpp"
#include "parallel/communicator.hpp"

namespace tessera::io {
namespace {

// Converted data passes through a buffer of this size at most.
constexpr std::int64_t staging_bytes = std::int64_t{64} << 20;

constexpr std::int64_t sample_bytes = 4096, num_samples = 16;

/// Size and samples of the contents from begin to end, as one number.
std::int64_t fingerprint(int fd, std::int64_t size) {
  std::string text(static_cast<std::size_t>(sample_bytes * num_samples), '\0');
  for (std::int64_t i = 0; i < num_samples; ++i) {
    const std::int64_t at = std::max<std::int64_t>(0, size - sample_bytes) * i / (num_samples - 1);
    // The real reading reports what cannot be read.
    if (pread(fd, text.data() + i * sample_bytes, sample_bytes, at) < 0) break;
  }
  return static_cast<std::int64_t>(std::hash<std::string>{}(text + std::to_string(size)) >> 1);
}

/// Names what is wrong with a path before HDF5 answers in its own words. Returns the fingerprint.
std::int64_t check_is_hdf5(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY);
  struct stat status {};
  const bool good = fd >= 0 && fstat(fd, &status) == 0;
  const int reason = !good ? errno : S_ISDIR(status.st_mode) ? EISDIR : 0;
  const std::int64_t print = reason == 0 ? fingerprint(fd, status.st_size) : 0;
  if (fd >= 0) close(fd);
  if (reason != 0)
    throw Error(Exit::io, fmt::format("cannot read '{}': {}", path, std::strerror(reason)),
                "inputs/data/make_attention.py writes an input file");
  const htri_t is = H5Fis_hdf5(path.c_str());
  // Below 0 it could not be opened, by a lock for example: the real opening says why.
  if (is == 0)
    throw Error(Exit::io, fmt::format("'{}' is not an HDF5 file ({} bytes)", path, status.st_size),
                "inputs/data/make_attention.py writes an input file");
  hdf5::last_message();
  return print;
}

/// One name can be another file on another host or in another working directory. HDF5 would mix the
/// two without a word: what describes the data from rank 0, the data from each rank's own file.
void check_same_file(const parallel::Communicator& comm, const std::string& path,
                     std::int64_t fingerprint) {
  const std::vector<std::int64_t> all = comm.all_gather(fingerprint);
  const auto other = std::find_if(all.begin(), all.end(), [&](auto f) { return f != all[0]; });
  if (other == all.end()) return;
  const auto rank = static_cast<int>(other - all.begin());
  std::string host = parallel::host_name();
  comm.broadcast(host, rank);
  throw parallel::AgreedError(
      Exit::io,
      fmt::format("'{}' is another file on rank {} ({}) than on rank 0", path, rank, host),
      "put it on a file system that all hosts share and give its full path");
}

}  // namespace

Mode default_mode() {
#ifdef H5_HAVE_PARALLEL
  return Mode::collective;
#else
  static const bool noted = [] {
    log::info(std::string("this HDF5 has no MPI-IO: ranks write one after the other"));
    return true;
  }();
  static_cast<void>(noted);
  return Mode::in_turn;
#endif
}

struct Input::State {
  parallel::Communicator comm;
  std::string path;
  Mode mode;
  hdf5::Handle file, transfer;
  std::int64_t limit = max_call_bytes;
  struct Open {
    hdf5::Handle dataset;
    DatasetInfo info;
  };
  std::map<std::string, Open> datasets;

  Error error(const std::string& name, const std::string& problem, const std::string& hint) const {
    return Error(Exit::io, fmt::format("dataset '{}': {}", name, problem), hint, path);
  }
  Open& open(const std::string& name);
  void read(Open& d, const Selection& selection, Range part, const TensorRef& out);
};

Input::Input(const parallel::Communicator& comm, const std::string& path, Mode mode) {
  hdf5::start();
  state_ = std::make_unique<State>(State{comm, path, mode, {}, {}, max_call_bytes, {}});
  std::int64_t fingerprint = 0;
  parallel::together(comm, [&] { fingerprint = check_is_hdf5(path); });
  check_same_file(comm, path, fingerprint);
  parallel::together(comm, [&] {
    MPI_Comm handle = comm.handle();
    const auto access = hdf5::access_properties(mode == Mode::collective ? &handle : nullptr);
    state_->file = hdf5::own(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get()), H5Fclose,
                             fmt::format("cannot open '{}'", path));
    state_->transfer = hdf5::transfer_properties(mode == Mode::collective);
  });
}

Input::Input(Input&&) noexcept = default;
Input& Input::operator=(Input&&) noexcept = default;

Input::~Input() {
  if (!state_) return;
  state_->datasets.clear();
  // Closing is collective under MPI-IO, but an exception may be known to this rank alone.
  if (state_->mode == Mode::collective && std::uncaught_exceptions() > 0) state_->file.abandon();
}

const std::string& Input::path() const { return state_->path; }
void Input::set_call_limit(std::int64_t bytes) { state_->limit = bytes; }
bool Input::has(const std::string& name) const {
  const bool found = hdf5::exists(state_->file.get(), name);
  hdf5::last_message();
  return found;
}

Input::State::Open& Input::State::open(const std::string& name) {
  const auto known = datasets.find(name);
  if (known != datasets.end()) return known->second;
  if (!hdf5::exists(file.get(), name))
    throw error(name, "not in the file", "h5ls -r lists what is there");
  Open d{hdf5::own(H5Dopen2(file.get(), name.c_str(), H5P_DEFAULT), H5Dclose,
                   fmt::format("cannot open dataset '{}' of '{}'", name, path)),
         {}};
  const auto type = hdf5::own(H5Dget_type(d.dataset.get()), H5Tclose, "dataset without type");
  d.info = {name, hdf5::shape_of(d.dataset.get()), hdf5::type_words(type.get()), std::nullopt};
  if (d.info.type == "f64") d.info.dtype = DType::f64;
  if (d.info.type == "f32") d.info.dtype = DType::f32;
  if (d.info.type == "f16") d.info.dtype = DType::f16;
  if (d.info.type == "16-bit unsigned integer" &&
      hdf5::text_attribute(d.dataset.get(), "dtype") == "bf16") {
    d.info.dtype = DType::bf16;
    d.info.type = "bf16";
  }
  return datasets.emplace(name, std::move(d)).first->second;
}

DatasetInfo Input::info(const std::string& name) {
  agree(state_->comm, "look at", name);
  DatasetInfo result;
  parallel::together(state_->comm, [&] { result = state_->open(name).info; });
  return result;
}

DatasetInfo Input::require(const std::string& name, const std::vector<std::int64_t>& shape) {
  const DatasetInfo found = info(name);
  parallel::together(state_->comm, [&] {
    if (!found.dtype)
      throw state_->error(name, "expected f64, f32, bf16 or f16, found " + found.type,
                          "bf16 is a 16-bit unsigned integer with attribute dtype = \"bf16\"");
    bool same = shape.size() == found.shape.size();
    for (std::size_t d = 0; same && d < shape.size(); ++d)
      same = shape[d] < 0 || shape[d] == found.shape[d];
    if (same) return;
    throw state_->error(
        name,
        fmt::format("expected shape {}, found {}", shape_text(shape), shape_text(found.shape)),
        "make the input again for this deck, or change the sizes in the deck");
  });
  return found;
}

void Input::State::read(Open& d, const Selection& selection, Range part, const TensorRef& out) {
  const int rank = static_cast<int>(d.info.shape.size());
  const TensorRef to = narrow(out, selection.dim, part);
  TensorRef stage = to;
  std::vector<std::byte> space;
  if (*d.info.dtype != out.dtype) {
    space.resize(static_cast<std::size_t>(to.count() * size_of(*d.info.dtype)));
    stage = dense(space.data(), *d.info.dtype, to.shape);
  }
  const Spaces spaces = make_spaces(d.info.shape, selection, part, stage);
  hdf5::check(H5Dread(d.dataset.get(), hdf5::memory_type(*d.info.dtype), spaces.memory.get(),
                      spaces.file.get(), transfer.get(), stage.data),
              fmt::format("cannot read dataset '{}' of '{}'", d.info.name, path));
  if (*d.info.dtype != out.dtype) convert(stage, to, rank);
}

void Input::read_slab(const std::string& name, const Selection& selection, const TensorRef& out) {
  State& s = *state_;
  agree(s.comm, "read", name);
  State::Open* d = nullptr;
  std::int64_t each = 0;  // bytes of one index along dim
  parallel::together(s.comm, [&] {
    d = &s.open(name);
    if (!d->info.dtype)
      throw s.error(name, "expected f64, f32, bf16 or f16, found " + d->info.type,
                    "bf16 is a 16-bit unsigned integer with attribute dtype = \"bf16\"");
    std::string problem = misfit(selection, d->info.shape);
    if (problem.empty()) problem = memory_misfit(out, extents(selection, d->info.shape));
    if (!problem.empty())
      throw s.error(name, fmt::format("shape {}, but {}", shape_text(d->info.shape), problem),
                    "make the input again for this deck, or change the sizes in the deck");
    const std::int64_t count = std::max<std::int64_t>(1, selection.count());
    each = out.count() / count * size_of(*d->info.dtype);
  });
  const auto& shape = d->info.shape;
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return;
  const std::int64_t limit =
      *d->info.dtype == out.dtype ? s.limit : std::min(s.limit, staging_bytes);
  for (const Range part : calls_of(s.comm, selection.count(), each, limit))
    parallel::together(s.comm, [&] { s.read(*d, selection, part, out); });
}

std::vector<std::int64_t> Input::read_integers(const std::string& name) {
  State& s = *state_;
  agree(s.comm, "read", name);
  std::vector<std::int64_t> values;
  State::Open* d = nullptr;
  parallel::together(s.comm, [&] {
    d = &s.open(name);
    if (d->info.type.find("integer") == std::string::npos)
      throw s.error(name, "expected integers, found " + d->info.type, "store it as int64");
    std::int64_t count = 1;
    for (const std::int64_t extent : d->info.shape) count *= extent;
    values.resize(static_cast<std::size_t>(count));
  });
  if (values.empty()) return values;
  parallel::together(s.comm, [&] {
    hdf5::check(H5Dread(d->dataset.get(), H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, s.transfer.get(),
                        values.data()),
                fmt::format("cannot read dataset '{}' of '{}'", name, s.path));
  });
  return values;
}

namespace {

/// One number of an attribute whose class is one of `classes`; empty when there is none.
template <class T>
std::optional<T> number(hid_t file, const std::string& object, const std::string& name, hid_t type,
                        std::initializer_list<H5T_class_t> classes, const std::string& path) {
  if (!hdf5::exists(file, object) ||
      H5Aexists_by_name(file, object.c_str(), name.c_str(), H5P_DEFAULT) <= 0)
    return std::nullopt;
  const std::string what = fmt::format("attribute '{}' of '{}' in '{}'", name, object, path);
  const auto attribute =
      hdf5::own(H5Aopen_by_name(file, object.c_str(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT),
                H5Aclose, "cannot open " + what);
  const auto stored = hdf5::own(H5Aget_type(attribute.get()), H5Tclose, what + " has no type");
  const auto space = hdf5::own(H5Aget_space(attribute.get()), H5Sclose, what + " has no shape");
  const bool fits =
      std::find(classes.begin(), classes.end(), H5Tget_class(stored.get())) != classes.end() &&
      H5Sget_simple_extent_npoints(space.get()) == 1;
  if (!fits)
    throw Error(Exit::io, fmt::format("{}: expected one number, found {}", what,
                                      hdf5::type_words(stored.get())));
  T value{};
  hdf5::check(H5Aread(attribute.get(), type, &value), "cannot read " + what);
  return value;
}

}  // namespace

std::optional<std::int64_t> Input::integer(const std::string& object, const std::string& name) {
  std::optional<std::int64_t> value;
  parallel::together(state_->comm, [&] {
    value = number<std::int64_t>(state_->file.get(), object, name, H5T_NATIVE_INT64, {H5T_INTEGER},
                                 state_->path);
  });
  return value;
}

std::optional<double> Input::real(const std::string& object, const std::string& name) {
  std::optional<double> value;
  parallel::together(state_->comm, [&] {
    value = number<double>(state_->file.get(), object, name, H5T_NATIVE_DOUBLE,
                           {H5T_INTEGER, H5T_FLOAT}, state_->path);
  });
  return value;
}

std::optional<std::string> Input::text(const std::string& object, const std::string& name) {
  std::optional<std::string> value;
  parallel::together(state_->comm, [&] {
    if (!hdf5::exists(state_->file.get(), object)) return;
    const auto place = hdf5::own(H5Oopen(state_->file.get(), object.c_str(), H5P_DEFAULT), H5Oclose,
                                 fmt::format("cannot open '{}' in '{}'", object, state_->path));
    if (H5Aexists(place.get(), name.c_str()) > 0) value = hdf5::text_attribute(place.get(), name);
  });
  return value;
}

}  // namespace tessera::io
