// SPDX-License-Identifier: Apache-2.0
#include "io/hdf5.hpp"

#include <fmt/format.h>
#ifdef H5_HAVE_PARALLEL
#include <mpi.h>
#endif

#include <array>

#include "io/input.hpp"

namespace tessera::io::hdf5 {
namespace {

struct Found {
  std::array<std::string, 2> text;
};

/// HDF5 puts time, descriptor and buffer address beside what a reader needs to know.
std::string essence(const std::string& text) {
  const std::string mark = "error message = '";
  const std::size_t at = text.find(mark);
  const std::size_t detail = text.find(": time = ");
  if (at == std::string::npos || detail == std::string::npos) return text;
  const std::size_t begin = at + mark.size();
  return text.substr(0, detail) + ": " + text.substr(begin, text.find('\'', begin) - begin);
}

herr_t collect(unsigned n, const H5E_error2_t* entry, void* data) {
  if (n < 2 && entry->desc) static_cast<Found*>(data)->text[n] = essence(entry->desc);
  return 0;
}

/// binary16 as h5py writes it: HDF5 has no name of its own for it.
hid_t half_type() {
  static const hid_t type = [] {
    const hid_t half = H5Tcopy(H5T_NATIVE_FLOAT);
    check(half < 0 ? -1 : H5Tset_fields(half, 15, 10, 5, 0, 10), "no 16-bit float in HDF5");
    check(H5Tset_size(half, 2), "no 16-bit float in HDF5");
    check(H5Tset_ebias(half, 15), "no 16-bit float in HDF5");
    return half;
  }();
  return type;
}

/// binary16 of any byte order.
bool is_half(hid_t type) {
  std::size_t sign = 0, exponent = 0, exponent_bits = 0, mantissa = 0, mantissa_bits = 0;
  return H5Tget_size(type) == 2 &&
         H5Tget_fields(type, &sign, &exponent, &exponent_bits, &mantissa, &mantissa_bits) >= 0 &&
         sign == 15 && exponent == 10 && exponent_bits == 5 && mantissa == 0 &&
         mantissa_bits == 10 && H5Tget_ebias(type) == 15;
}

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

std::string hint_for(const std::string& message) {
  if (contains(message, "lock"))
    return "another process holds the file, or the file system has no locks: close the other "
           "program, or set HDF5_USE_FILE_LOCKING=FALSE if nobody writes to it";
  if (contains(message, "truncated")) return "the file is incomplete; write or copy it again";
  if (contains(message, "No space") || contains(message, "NO_SPACE") ||
      contains(message, "Quota") || contains(message, "File too large"))
    return "free space in the output folder or choose another with --out";
  return {};
}

}  // namespace

}  // namespace tessera::io::hdf5

namespace tessera::io {
void prepare() { hdf5::start(); }
}  // namespace tessera::io

namespace tessera::io::hdf5 {

void start() {
  static const bool done = [] {
    // An output that is given up by an exception leaves a file of MPI-IO open; closing it at exit
    // would be a collective call after MPI_Finalize.
    H5dont_atexit();
    H5open();
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    return true;
  }();
  static_cast<void>(done);
}

std::string last_message() {
  Found found;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, collect, &found);
  H5Eclear2(H5E_DEFAULT);
  const auto& [first, second] = found.text;
  return first.empty() ? "no reason given" : second.empty() ? first : first + " (" + second + ")";
}

Error failure(const std::string& what) {
  const std::string message = last_message();
  return Error(Exit::io, what + ": " + message, hint_for(message));
}

Handle own(hid_t id, Handle::Close close, const std::string& what) {
  if (id < 0) throw failure(what);
  return {id, close};
}

hid_t memory_type(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return H5T_NATIVE_DOUBLE;
    case DType::f32:
      return H5T_NATIVE_FLOAT;
    case DType::bf16:
      return H5T_NATIVE_UINT16;
    case DType::f16:
      return half_type();
  }
  return H5I_INVALID_HID;
}

std::string type_words(hid_t type) {
  const std::size_t bits = 8 * H5Tget_size(type);
  switch (H5Tget_class(type)) {
    case H5T_FLOAT:
      if (is_half(type)) return "f16";
      return bits == 64 ? "f64" : bits == 32 ? "f32" : fmt::format("{}-bit float", bits);
    case H5T_INTEGER:
      return fmt::format("{}-bit {}integer", bits,
                         H5Tget_sign(type) == H5T_SGN_NONE ? "unsigned " : "");
    case H5T_STRING:
      return "text";
    case H5T_COMPOUND:
      return "compound";
    default:
      return "another type";
  }
}

std::vector<std::int64_t> shape_of(hid_t dataset) {
  const Handle space = own(H5Dget_space(dataset), H5Sclose, "cannot read the shape of a dataset");
  const int rank = H5Sget_simple_extent_ndims(space.get());
  std::vector<hsize_t> dims(static_cast<std::size_t>(std::max(rank, 0)));
  if (rank > 0) H5Sget_simple_extent_dims(space.get(), dims.data(), nullptr);
  return {dims.begin(), dims.end()};
}

bool exists(hid_t file, const std::string& name) {
  // H5Lexists wants every parent to exist.
  for (std::size_t at = name.find('/', 1); at != std::string::npos; at = name.find('/', at + 1))
    if (H5Lexists(file, name.substr(0, at).c_str(), H5P_DEFAULT) <= 0) return false;
  return name == "/" || H5Lexists(file, name.c_str(), H5P_DEFAULT) > 0;
}

std::string text_attribute(hid_t object, const std::string& name) {
  if (H5Aexists(object, name.c_str()) <= 0) return {};
  const Handle attribute = own(H5Aopen(object, name.c_str(), H5P_DEFAULT), H5Aclose,
                               "cannot open attribute '" + name + "'");
  const Handle type = own(H5Aget_type(attribute.get()), H5Tclose, "attribute without type");
  if (H5Tget_class(type.get()) != H5T_STRING) return {};
  const std::string what = "cannot read attribute '" + name + "'";
  if (H5Tis_variable_str(type.get()) > 0) {
    char* text = nullptr;
    check(H5Aread(attribute.get(), type.get(), &text), what);
    std::string result = text ? text : "";
    H5free_memory(text);
    return result;
  }
  std::string text(H5Tget_size(type.get()), '\0');
  check(H5Aread(attribute.get(), type.get(), text.data()), what);
  return text.substr(0, text.find('\0'));
}

Handle access_properties(void* comm) {
  Handle list = own(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, "no HDF5 property list");
#ifdef H5_HAVE_PARALLEL
  if (comm)
    check(H5Pset_fapl_mpio(list.get(), *static_cast<MPI_Comm*>(comm), MPI_INFO_NULL),
          "HDF5 refuses this communicator");
#else
  static_cast<void>(comm);
#endif
  return list;
}

Handle transfer_properties(bool collective) {
  Handle list = own(H5Pcreate(H5P_DATASET_XFER), H5Pclose, "no HDF5 property list");
#ifdef H5_HAVE_PARALLEL
  if (collective)
    check(H5Pset_dxpl_mpio(list.get(), H5FD_MPIO_COLLECTIVE), "no collective transfers in HDF5");
#else
  static_cast<void>(collective);
#endif
  return list;
}

}  // namespace tessera::io::hdf5
