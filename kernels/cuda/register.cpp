// SPDX-License-Identifier: Apache-2.0
// Names of the CUDA operators.
#include "kernels/cuda/register.hpp"

#include "kernels/cuda/attention.hpp"
#include "kernels/cuda/check.hpp"
#include "kernels/cuda/cudnn.hpp"
#include "kernels/cuda/cut.hpp"
#include "ops/signature.hpp"

namespace tessera::kernels {
namespace {

using cuda::View;
using Args = const std::vector<TensorRef>&;

View arg(Args a, std::size_t i) { return cuda::view(a[i]); }
cuda::State state(Args a, std::size_t i) { return {arg(a, i), arg(a, i + 1)}; }
static_assert(cuda::most_terms == ops::max_terms);

std::vector<View> views(Args a) {
  std::vector<View> out;
  for (const TensorRef& t : a) out.push_back(cuda::view(t));
  return out;
}
std::vector<cuda::Pair> pairs(Args a) {
  std::vector<cuda::Pair> out;
  for (std::size_t i = 0; i < a.size(); i += 2) out.push_back({arg(a, i), arg(a, i + 1)});
  return out;
}

bool supports(const ops::Call& call) { return mismatch(call).empty() && cuda::on_device(call); }

void merge(const ops::Call& call) {
  const TensorRef& store = call.attributes.store;
  const cuda::State in = state(call.args, 0), acc = state(call.args, 2);
  cuda::check(cuda::launch_merge(in, acc, store.data ? cuda::view(store) : acc.o,
                                 static_cast<cudaStream_t>(call.stream)),
              "attention.merge");
}
bool merge_stores(const ops::Call& call, const TensorRef& to) {
  return call.args[0].dtype == DType::f32 && (to.dtype == DType::bf16 || to.dtype == DType::f16);
}

}  // namespace

void register_cuda(ops::Registry& registry, Budget& budget) {
  const auto add = [&](const char* op, auto launch) {
    const auto run = [op, launch](const ops::Call& call) {
      cuda::check(launch(call.args, static_cast<cudaStream_t>(call.stream)), op);
    };
    registry.add({op, "cuda", 20, supports, run, nullptr, nullptr, nullptr, cuda::cut_by_heads});
  };
  registry.add({"attention.merge", "cuda", 20, supports, merge, nullptr, nullptr, merge_stores,
                cuda::cut_by_heads});
  add("attention.delta", [](Args a, cudaStream_t s) {
    return cuda::launch_delta(arg(a, 0), arg(a, 1), arg(a, 2), s);
  });
  add("attention.sink",
      [](Args a, cudaStream_t s) { return cuda::launch_sink(arg(a, 0), state(a, 1), s); });
  add("attention.sink_grad", [](Args a, cudaStream_t s) {
    return cuda::launch_sink_grad(arg(a, 0), arg(a, 1), arg(a, 2), arg(a, 3), s);
  });
  add("attention.reset", [](Args a, cudaStream_t s) { return cuda::launch_reset(state(a, 0), s); });
  add("tensor.zero", [](Args a, cudaStream_t s) { return cuda::launch_zero(views(a), s); });
  add("tensor.copy", [](Args a, cudaStream_t s) { return cuda::launch_copy(pairs(a), s); });
  add("tensor.add", [](Args a, cudaStream_t s) { return cuda::launch_add(pairs(a), s); });
  add("tensor.sum", [](Args a, cudaStream_t s) {
    const auto all = views(a);
    return cuda::launch_sum(std::span(all).first(all.size() - 1), all.back(), s);
  });
  cuda::add_cudnn(registry, budget);
  cuda::add_attention(registry, std::make_shared<cuda::MaskCache>(budget));
}

}  // namespace tessera::kernels
