// SPDX-License-Identifier: Apache-2.0
// One attention tile with its tensors, filled with fixed numbers: a call that can be run again.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "memory/buffer.hpp"
#include "ops/registry.hpp"

namespace tessera::drivers {

/// Numbers in [-1, 1) that look random, in host or device memory: timing must not profit from
/// zeros.
void fill(const TensorRef& x);

class Tile {
 public:
  /// tokens x tokens cells, all visible, `heads` query heads over half as many KV heads.
  Tile(bool forward, DType dtype, std::int64_t tokens, int heads, int head_dim,
       Space space = Space::host);
  Tile(const Tile&) = delete;
  Tile& operator=(const Tile&) = delete;
  void run(const ops::Registry& registry, const std::function<void()>& progress = {});
  /// On a device queue, which keeps what the operator prepares for it.
  void prepare(const ops::Registry& registry, void* stream);
  void run_on(const ops::Registry& registry, void* stream);
  /// Name of the backend that runs it; Error(environment) when none does.
  std::string backend(const ops::Registry& registry) const;
  double flops() const { return flops_; }

 private:
  Budget budget_;
  std::vector<Tensor> tensors_;
  ops::Band mask_;
  ops::Call call_;
  double flops_ = 0;
};

}  // namespace tessera::drivers
