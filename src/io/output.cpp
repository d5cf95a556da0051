// SPDX-License-Identifier: Apache-2.0
#include "io/output.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iterator>

#include "io/agree.hpp"
#include "io/file_system.hpp"
#include "io/hdf5.hpp"
#include "io/transfer.hpp"

namespace tessera::io {
namespace {

using hdf5::Handle;

/// What was written where, for the comparison before the rename.
struct Written {
  std::string name;
  Selection selection;
  DType dtype;
  std::array<std::int64_t, 3> shape;
  int rank;
  std::uint64_t checksum;
};

Handle creation_properties() {
  Handle list = hdf5::own(H5Pcreate(H5P_LINK_CREATE), H5Pclose, "no HDF5 property list");
  H5Pset_create_intermediate_group(list.get(), 1);
  return list;
}

Handle create(hid_t file, const std::string& name, hid_t type,
              const std::vector<std::int64_t>& shape) {
  const std::vector<hsize_t> dims(shape.begin(), shape.end());
  const Handle space =
      hdf5::own(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr), H5Sclose,
                "no dataspace");
  const Handle list = hdf5::own(H5Pcreate(H5P_DATASET_CREATE), H5Pclose, "no HDF5 property list");
  // Every element is written by its owner; filling first would write everything twice.
  H5Pset_fill_time(list.get(), H5D_FILL_TIME_NEVER);
  const Handle parents = creation_properties();
  return hdf5::own(
      H5Dcreate2(file, name.c_str(), type, space.get(), parents.get(), list.get(), H5P_DEFAULT),
      H5Dclose, fmt::format("cannot create dataset '{}'", name));
}

/// Scalar attribute; `value` points at an element of `type`.
void write_attribute(hid_t file, const std::string& object, const std::string& name, hid_t type,
                     const void* value) {
  const std::string what = fmt::format("cannot write attribute '{}' of '{}'", name, object);
  const Handle place = hdf5::own(H5Oopen(file, object.c_str(), H5P_DEFAULT), H5Oclose, what);
  const Handle space = hdf5::own(H5Screate(H5S_SCALAR), H5Sclose, what);
  const Handle attribute =
      hdf5::own(H5Acreate2(place.get(), name.c_str(), type, space.get(), H5P_DEFAULT, H5P_DEFAULT),
                H5Aclose, what);
  hdf5::check(H5Awrite(attribute.get(), type, value), what);
}

void write_text_attribute(hid_t file, const std::string& object, const std::string& name,
                          const std::string& text) {
  const Handle type = hdf5::own(H5Tcopy(H5T_C_S1), H5Tclose, "no text type");
  H5Tset_size(type.get(), H5T_VARIABLE);
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  const char* value = text.c_str();
  write_attribute(file, object, name, type.get(), &value);
}

}  // namespace

struct OutputFile::State {
  parallel::Communicator comm;
  std::string path, temporary;
  OutputOptions options;
  Handle file;  // open between calls in collective mode only
  std::map<std::string, Handle> datasets;
  std::map<std::string, DatasetInfo> infos;
  std::vector<Written> written;
  std::int64_t reserved = 0;  // bytes of all datasets

  bool collective() const { return options.mode == Mode::collective; }
  Error error(const std::string& name, const std::string& problem) const {
    return Error(Exit::io, fmt::format("dataset '{}': {}", name, problem), {}, path);
  }
  void open(bool create_it);
  void close();
  void change(const std::function<void(hid_t)>& body);
  void reserve_for(const std::vector<std::int64_t>& shape, std::int64_t element_bytes);
  void transfer(const std::string& name, const Selection& selection, const TensorRef& data);
  void write(hid_t dataset, const DatasetInfo& info, const Selection& selection, Range part,
             const TensorRef& data);
  void write_whole(const std::string& name, hid_t type, const void* values,
                   const std::vector<std::int64_t>& shape);
  void compare();
};

void OutputFile::State::open(bool create_it) {
  MPI_Comm handle = comm.handle();
  const Handle access = hdf5::access_properties(collective() ? &handle : nullptr);
  const hid_t id = create_it
                       ? H5Fcreate(temporary.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get())
                       : H5Fopen(temporary.c_str(), H5F_ACC_RDWR, access.get());
  file = hdf5::own(id, H5Fclose, fmt::format("cannot open '{}' for writing", temporary));
}

void OutputFile::State::close() {
  bool good = true;
  for (auto& [name, dataset] : datasets) good = dataset.close() && good;
  datasets.clear();
  // A file that HDF5 fails to close crashes it in MPI_Finalize; a failed flush leaves it whole.
  if (collective()) good = good && H5Fflush(file.get(), H5F_SCOPE_GLOBAL) >= 0;
  good = good && file.close();
  if (!good) throw hdf5::failure(fmt::format("cannot complete '{}'", temporary));
}

/// A change of names, shapes or attributes: by all ranks together, or by rank 0 alone.
void OutputFile::State::change(const std::function<void(hid_t)>& body) {
  parallel::together(comm, [&] {
    if (collective()) return body(file.get());
    if (comm.rank() != 0) return;
    open(false);
    body(file.get());
    close();
  });
}

namespace {

std::int64_t elements(const std::vector<std::int64_t>& shape) {
  std::int64_t n = 1;
  for (const std::int64_t extent : shape) n *= extent;
  return n;
}

}  // namespace

void OutputFile::State::reserve_for(const std::vector<std::int64_t>& shape,
                                    std::int64_t element_bytes) {
  if (!options.reserve) return;
  reserved += elements(shape) * element_bytes;
  parallel::together(comm, [&] {
    if (comm.rank() == 0) reserve(temporary, reserved);
  });
}

OutputFile::OutputFile(const parallel::Communicator& comm, const std::string& path,
                       OutputOptions options) {
  hdf5::start();
  std::string temporary = temporary_name(path);
  comm.broadcast(temporary, 0);
  state_ = std::make_unique<State>(State{comm, path, temporary, options, {}, {}, {}, {}, 0});
  agree(comm, "create", path);
  try {
    parallel::together(comm, [&] {
      if (std::filesystem::is_directory(path))
        throw Error(Exit::io, fmt::format("cannot write '{}': it is a folder", path));
      if (comm.rank() != 0) return;
      const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
      if (fd < 0)
        throw Error(Exit::io,
                    fmt::format("cannot create '{}': {}", temporary, std::strerror(errno)),
                    "choose another folder with --out");
      ::close(fd);
    });
    parallel::together(comm, [&] {
      if (!state_->collective() && comm.rank() != 0) return;
      state_->open(true);
      if (!state_->collective()) state_->close();
    });
  } catch (...) {
    unlink(temporary.c_str());
    throw;
  }
}

OutputFile::OutputFile(OutputFile&&) noexcept = default;

OutputFile::~OutputFile() {
  if (!state_ || state_->temporary.empty()) return;
  if (std::uncaught_exceptions() > 0) {
    for (auto& [name, dataset] : state_->datasets) dataset.abandon();
    state_->file.abandon();
  }
  state_->datasets.clear();
  state_->file.close();
  unlink(state_->temporary.c_str());
}

const std::string& OutputFile::temporary_path() const { return state_->temporary; }

void OutputFile::create_groups(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  agree(state_->comm, "create groups", fmt::format("{}", fmt::join(names, ", ")));
  state_->change([&](hid_t file) {
    const Handle parents = creation_properties();
    for (const std::string& name : names) {
      if (hdf5::exists(file, name)) continue;
      hdf5::own(H5Gcreate2(file, name.c_str(), parents.get(), H5P_DEFAULT, H5P_DEFAULT), H5Gclose,
                fmt::format("cannot create group '{}'", name));
    }
  });
}

void OutputFile::create_dataset(const std::string& name, DType dtype,
                                const std::vector<std::int64_t>& shape) {
  agree(state_->comm, fmt::format("create {} {} dataset", name_of(dtype), shape_text(shape)), name);
  if (shape.empty() || shape.size() > 3) throw std::logic_error("datasets have 1 to 3 dimensions");
  state_->reserve_for(shape, size_of(dtype));
  state_->change([&](hid_t file) {
    Handle dataset = create(file, name, hdf5::memory_type(dtype), shape);
    if (dtype == DType::bf16) write_text_attribute(file, name, "dtype", "bf16");
    if (state_->collective()) state_->datasets[name] = std::move(dataset);
  });
  state_->infos[name] = {name, shape, std::string(name_of(dtype)), dtype};
}

void OutputFile::State::write(hid_t dataset, const DatasetInfo& info, const Selection& selection,
                              Range part, const TensorRef& data) {
  const TensorRef from = narrow(data, selection.dim, part);
  const Spaces spaces = make_spaces(info.shape, selection, part, from);
  const Handle how = hdf5::transfer_properties(collective());
  hdf5::check(H5Dwrite(dataset, hdf5::memory_type(data.dtype), spaces.memory.get(),
                       spaces.file.get(), how.get(), from.data),
              fmt::format("cannot write dataset '{}' of '{}'", info.name, path));
}

void OutputFile::State::transfer(const std::string& name, const Selection& selection,
                                 const TensorRef& data) {
  const DatasetInfo& info = infos.at(name);
  // HDF5 gives an empty dataset no address and fails to write nothing to it.
  if (elements(info.shape) == 0) return;
  const std::int64_t count = selection.count();
  const std::int64_t each = data.count() / std::max<std::int64_t>(1, count) * size_of(data.dtype);
  const std::vector<Range> calls = calls_of(comm, count, each, options.call_limit);
  if (collective()) {
    for (const Range part : calls)
      parallel::together(comm,
                         [&] { write(datasets.at(name).get(), info, selection, part, data); });
    return;
  }
  for (int turn = 0; turn < comm.size(); ++turn) {
    parallel::together(comm, [&] {
      if (turn != comm.rank() || data.count() == 0) return;
      open(false);
      {
        const Handle dataset = hdf5::own(H5Dopen2(file.get(), name.c_str(), H5P_DEFAULT), H5Dclose,
                                         fmt::format("cannot open dataset '{}'", name));
        for (const Range part : calls) write(dataset.get(), info, selection, part, data);
      }
      close();
    });
  }
}

void OutputFile::write_slab(const std::string& name, const Selection& selection,
                            const TensorRef& data) {
  State& s = *state_;
  agree(s.comm, "write", name);
  int rank = 0;
  parallel::together(s.comm, [&] {
    const auto info = s.infos.find(name);
    if (info == s.infos.end()) throw s.error(name, "written before it was created");
    const auto& shape = info->second.shape;
    rank = static_cast<int>(shape.size());
    std::string problem = misfit(selection, shape);
    if (problem.empty()) problem = memory_misfit(data, extents(selection, shape));
    if (problem.empty() && data.dtype != *info->second.dtype)
      problem = fmt::format("it holds {}, the data are {}", info->second.type, name_of(data.dtype));
    if (!problem.empty())
      throw s.error(name, fmt::format("shape {}, but {}", shape_text(shape), problem));
  });
  s.transfer(name, selection, data);
  if (s.options.verify)
    s.written.push_back({name, selection, data.dtype, data.shape, rank, checksum(data, rank)});
}

void OutputFile::State::write_whole(const std::string& name, hid_t type, const void* values,
                                    const std::vector<std::int64_t>& shape) {
  agree(comm, "write " + shape_text(shape), name);
  reserve_for(shape, 8);
  change([&](hid_t where) {
    const Handle dataset = create(where, name, type, shape);
    const Handle space = hdf5::own(H5Dget_space(dataset.get()), H5Sclose, "no dataspace");
    if (elements(shape) == 0) return;
    if (comm.rank() != 0) H5Sselect_none(space.get());
    const Handle how = hdf5::transfer_properties(collective());
    hdf5::check(H5Dwrite(dataset.get(), type, space.get(), space.get(), how.get(), values),
                fmt::format("cannot write dataset '{}' of '{}'", name, path));
  });
}

void OutputFile::write_array(const std::string& name, std::span<const double> values,
                             const std::vector<std::int64_t>& shape) {
  if (std::ssize(values) != elements(shape))
    throw std::logic_error("array and shape differ: " + name);
  state_->write_whole(name, H5T_NATIVE_DOUBLE, values.data(), shape);
}

void OutputFile::write_array(const std::string& name, std::span<const std::int64_t> values,
                             const std::vector<std::int64_t>& shape) {
  if (std::ssize(values) != elements(shape))
    throw std::logic_error("array and shape differ: " + name);
  state_->write_whole(name, H5T_NATIVE_INT64, values.data(), shape);
}

void OutputFile::attribute(const std::string& object, const std::string& name,
                           const std::string& text) {
  agree(state_->comm, "write attribute " + name, object);
  std::string value = text;
  state_->comm.broadcast(value, 0);
  state_->change([&](hid_t file) { write_text_attribute(file, object, name, value); });
}

void OutputFile::attribute(const std::string& object, const std::string& name, std::int64_t value) {
  agree(state_->comm, "write attribute " + name, object);
  std::array<std::int64_t, 1> shared{value};
  state_->comm.broadcast(shared, 0);
  state_->change(
      [&](hid_t file) { write_attribute(file, object, name, H5T_NATIVE_INT64, shared.data()); });
}

void OutputFile::attribute(const std::string& object, const std::string& name, double value) {
  agree(state_->comm, "write attribute " + name, object);
  std::array<std::int64_t, 1> shared{std::bit_cast<std::int64_t>(value)};
  state_->comm.broadcast(shared, 0);
  const double same = std::bit_cast<double>(shared[0]);
  state_->change(
      [&](hid_t file) { write_attribute(file, object, name, H5T_NATIVE_DOUBLE, &same); });
}

/// Reads back what this rank wrote. MPI libraries have stored wrong bytes without an error.
void OutputFile::State::compare() {
  Input input(comm, temporary, options.mode);
  for (const Written& w : written) {
    std::int64_t count = size_of(w.dtype);
    for (const std::int64_t extent : w.shape) count *= extent;
    std::vector<std::byte> space(static_cast<std::size_t>(count));
    const TensorRef back = dense(space.data(), w.dtype, w.shape);
    input.read_slab(w.name, w.selection, back);
    const auto good = comm.all_gather(std::int64_t{checksum(back, w.rank) == w.checksum});
    std::vector<std::int64_t> bad;
    for (std::size_t r = 0; r < good.size(); ++r)
      if (!good[r]) bad.push_back(static_cast<std::int64_t>(r));
    if (!bad.empty())
      throw parallel::AgreedError(
          Exit::io,
          fmt::format("dataset '{}': what ranks {} wrote reads back differently", w.name,
                      fmt::join(bad, ", ")),
          "the MPI-IO layer stored wrong bytes; try another one (Open MPI: "
          "OMPI_MCA_io=romio321) or another file system",
          path);
  }
}

void OutputFile::commit() {
  State& s = *state_;
  parallel::together(s.comm, [&] { s.close(); });
  if (s.options.verify) s.compare();
  parallel::together(s.comm, [&] {
    if (s.comm.rank() == 0) publish(s.temporary, s.path);
  });
  s.temporary.clear();
}

}  // namespace tessera::io
