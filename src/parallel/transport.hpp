// SPDX-License-Identifier: Apache-2.0
// How messages between device buffers travel: put on a stream like any other device work, so that
// a whole pass can be one graph and the host synchronises nothing inside it. Three ways: NCCL,
// peer (copy engines between processes of a host), staged (through host memory and MPI).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.hpp"
#include "memory/buffer.hpp"
#include "parallel/communicator.hpp"

namespace tessera::parallel {

/// A contiguous piece of device memory that goes to or comes from another rank.
struct Message {
  enum class Kind : std::uint8_t { send, recv, all_reduce };
  Kind kind = Kind::send;
  void* data = nullptr;
  std::int64_t count = 0;    ///< elements; may be 0
  DType dtype = DType::f32;  ///< all_reduce sums f32 or f64 over all ranks of the communicator
  int peer = -1;             ///< send, recv: rank of the communicator
  std::int64_t tag = 0;      ///< the k-th send matches the k-th recv of equal (from, to, tag)
  int axis = 0;              ///< what the bytes are counted on
  std::int64_t bytes() const { return count * size_of(dtype); }
};

/// Messages that start and complete together, on one comm queue. Queues are numbered alike on all
/// ranks; units of one queue are started in the order of the list.
struct MessageUnit {
  int queue = 0;
  std::vector<Message> messages;
};

/// The messages of one plan, ready to be put on streams again and again.
class Route {
 public:
  virtual ~Route() = default;
  /// Puts a unit on its stream and counts its sent bytes. May be called during capture.
  virtual void start(std::size_t unit, void* stream) = 0;
  /// Called by the host again and again while it waits for a run: moves what the host has to move,
  /// asks for asynchronous errors. Error(communication).
  virtual void progress() {}
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string_view name() const = 0;
  /// A unit may start only when the one before, of whatever queue, has ended; and all ranks start
  /// units in an order that they can all keep.
  virtual bool one_at_a_time() const { return false; }
  /// Collective over the ranks of the communicator; buffers must outlive the route, which takes
  /// what memory it needs from the budget.
  virtual std::unique_ptr<Route> open(std::vector<MessageUnit> units, Budget& budget) = 0;
};

struct TransportOptions {
  /// nccl, peer, staged; auto: nccl or peer, whichever is faster here, else staged.
  std::string name = "auto";
  bool shared_device = false;  ///< some device has several ranks: Device::shared
  int nccl_channels = 0;  ///< multiprocessors each NCCL communicator may use; 0 = NCCL's choice
};

/// Collective; all ranks get the same kind. Error(environment) naming why a transport that was
/// asked for does not work here. `comm` must outlive the transport and counts its bytes.
std::unique_ptr<Transport> make_transport(Communicator& comm, const TransportOptions& options);

// The three; each is Error(environment) where it cannot work. Collective.
std::unique_ptr<Transport> make_nccl(Communicator& comm, int channels);
std::unique_ptr<Transport> make_peer(Communicator& comm);
std::unique_ptr<Transport> make_staged(Communicator& comm);

/// `inner` over slower links: a unit is held back until its bytes, sent or received whichever are
/// more, would have passed a link of `bytes_per_s`. For measuring schemes where communication
/// dominates; no multiprocessor is used for waiting.
std::unique_ptr<Transport> make_throttled(std::unique_ptr<Transport> inner, double bytes_per_s);

}  // namespace tessera::parallel
