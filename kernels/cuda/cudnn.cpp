// SPDX-License-Identifier: Apache-2.0
// The library is opened at run time (NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING), so that programs start
// where it is missing. cuDNN's backward wants the output O, of which it needs rowsum(O * dO) only;
// the operator is given that sum, Delta, and hands over O' = dO Delta / |dO|^2, which has it.
#include "kernels/cuda/cudnn.hpp"

#include <cudnn_frontend.h>
#include <dlfcn.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "kernels/cuda/attention.hpp"
#include "kernels/cuda/check.hpp"
#include "kernels/cuda/tensor_map.hpp"
#include "ops/signature.hpp"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}

namespace tessera::kernels::cuda {
namespace {

namespace fe = cudnn_frontend;
namespace graph = cudnn_frontend::graph;
using TensorPtr = std::shared_ptr<graph::Tensor_attributes>;

/// Visible pairs of a backward tile from which cuDNN is faster than our two kernels (perf/results,
/// H200, 32 heads of 128): level at 2,048 x 2,048, 0.96 to 1.16 times our rate at 4,096, 1.2 times
/// above.
constexpr std::int64_t faster_from = std::int64_t{1} << 24;

void check(fe::error_t status, const char* what) {
  if (status.is_good()) return;
  throw Error(Exit::environment, std::string(what) + ": cuDNN: " + status.get_message(),
              "pin the operator to backend cuda");
}

bool open_library() {
  static const bool opened = [] {
    fe::cudnn_dlhandle = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
    return fe::cudnn_dlhandle != nullptr;
  }();
  return opened;
}

/// The masks that cuDNN has: everything, or the lower left of the diagonal from the first corner.
struct Diagonal {
  bool causal = false;
  int left = 0;  ///< keys that a row sees, itself counted; 0: all of them
};
std::optional<Diagonal> diagonal_of(const ops::Band& b) {
  const std::int64_t m = b.q1, n = b.k1;
  const bool open_left = b.lo <= -(m - 1), open_right = b.hi >= n - 1;
  if (open_left && open_right) return Diagonal{};
  if (m != n || b.hi != 0 || b.lo > 0) return {};
  return Diagonal{true, open_left ? 0 : static_cast<int>(1 - b.lo)};
}

/// A call as cuDNN gets it: the box of its band, so that a tile of which a part is visible is work
/// on that part, and tiles of like parts share a plan.
struct Job {
  std::vector<TensorRef> args;
  Diagonal diagonal;
  double scale;
  void* stream;
  std::uint32_t fresh;  ///< Attributes::fresh
};
std::optional<Job> job_of(const ops::Call& call) {
  auto box = box_of(call);
  const auto diagonal = box ? diagonal_of(box->band) : std::nullopt;
  if (!diagonal) return {};
  return Job{std::move(box->args), *diagonal, call.attributes.scale, call.stream,
             call.attributes.fresh};
}

/// Visible (query, key) pairs.
std::int64_t pairs(const Job& job) {
  const std::int64_t m = job.args[0].shape[0], n = job.args[1].shape[0];
  if (!job.diagonal.causal) return m * n;
  const std::int64_t left =
      job.diagonal.left > 0 ? std::min<std::int64_t>(job.diagonal.left, m) : m;
  return m * left - left * (left - 1) / 2;
}

bool head_sizes_fit(std::int64_t d, std::int64_t dv) {
  return (d == dv && d % 8 == 0 && d <= 256) || (d == 192 && dv == 128);
}

/// cuDNN 9.19 takes larger strides without a word and reads the wrong elements (OB-027).
bool offsets_fit(const TensorRef& t) {
  std::int64_t last = 0;
  for (int d = 0; d < 3; ++d) last += (t.shape[d] - 1) * t.stride[d];
  return last <= std::numeric_limits<std::int32_t>::max();
}

/// `operands` of the arguments are read by cuDNN itself: 16 bits, aligned as for the copy engine.
bool supports(const ops::Call& call, std::size_t operands) {
  if (!mismatch(call).empty() || !on_device(call) || call.attributes.softcap != 0) return false;
  const auto job = job_of(call);
  if (!job) return false;
  for (std::size_t i = 0; i < operands; ++i) {
    if (!fits_tensor_map(job->args[i]) || !offsets_fit(job->args[i])) return false;
  }
  const TensorRef &q = job->args[0], &v = job->args[2];
  return q.shape[0] > 1 && v.shape[0] > 1 && head_sizes_fit(q.shape[2], v.shape[2]);
}

bool forward_supports(const ops::Call& call) { return supports(call, 3); }
bool backward_supports(const ops::Call& call) { return supports(call, 4); }

/// Our one-pass kernel goes on from what gradients hold, where those of cuDNN are added by another
/// pass: backward of the ring on two H200 at 131,072 tokens reached 485 TFLOP/s with cuDNN and 505
/// with it, though a whole problem in one call takes cuDNN 4 % less time. Where query heads share a
/// key head, it is slow.
bool backward_is_faster(const ops::Call& call) {
  if (!backward_supports(call)) return false;
  const TensorRef &q = call.args[0], &k = call.args[1], &v = call.args[2];
  const bool one_pass =
      q.shape[1] == k.shape[1] && fits_tensor_map(q) && fits_sum_map(call.args[6]) &&
      backward_sum_rows(static_cast<int>(q.shape[2]), static_cast<int>(v.shape[2])) > 0;
  return !one_pass && pairs(*job_of(call)) >= faster_from;
}

enum Uid : std::int64_t {
  uid_q = 1,
  uid_k,
  uid_v,
  uid_o,
  uid_stats,
  uid_grad,
  uid_dq,
  uid_dk,
  uid_dv
};

/// A graph with everything that its execution needs.
struct Plan {
  graph::Graph graph;
  std::vector<Tensor> scratch;  ///< forward: o, stats; backward: o, stats, dq, dk, dv
  Buffer workspace;
};

class Plans {
 public:
  explicit Plans(Budget& budget) : budget_(budget) {}
  ~Plans() {
    // Destroying waits for the device, see memory::release.
    if (handle_ && std::uncaught_exceptions() == 0) fe::detail::destroy_handle(handle_);
  }
  Plans(const Plans&) = delete;
  Plans& operator=(const Plans&) = delete;

  Plan& forward(const Job& job) { return find(job, false); }
  Plan& backward(const Job& job) { return find(job, true); }
  cudnnHandle_t handle(void* stream) {
    if (!handle_ && fe::detail::create_handle(&handle_) != CUDNN_STATUS_SUCCESS) {
      throw Error(Exit::environment, "cuDNN could not be initialised on this device");
    }
    fe::detail::set_stream(handle_, static_cast<cudaStream_t>(stream));
    return handle_;
  }

 private:
  Plan& find(const Job& job, bool backward);
  std::unique_ptr<Plan> build(const Job& job, bool backward);

  Budget& budget_;
  std::mutex mutex_;
  cudnnHandle_t handle_ = nullptr;
  std::map<std::vector<std::int64_t>, std::unique_ptr<Plan>> plans_;
};

fe::DataType_t type_of(const TensorRef& t) {
  return t.dtype == DType::f16 ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16;
}

/// [token, head, d] as cuDNN's [1, head, token, d].
graph::Tensor_attributes describe(const TensorRef& t, Uid uid) {
  return graph::Tensor_attributes()
      .set_uid(uid)
      .set_dim({1, t.shape[1], t.shape[0], t.shape[2]})
      .set_stride({t.shape[0] * t.stride[0], t.stride[1], t.stride[0], 1})
      .set_data_type(type_of(t));
}
/// [head, token] as [1, head, token, 1].
graph::Tensor_attributes describe_statistics(const TensorRef& t, Uid uid) {
  return graph::Tensor_attributes()
      .set_uid(uid)
      .set_dim({1, t.shape[0], t.shape[1], 1})
      .set_stride({t.shape[0] * t.stride[0], t.stride[0], t.stride[1], 1})
      .set_data_type(fe::DataType_t::FLOAT);
}
void is_output(const TensorPtr& tensor, const graph::Tensor_attributes& like) {
  tensor->set_output(true)
      .set_uid(like.get_uid())
      .set_dim(like.get_dim())
      .set_stride(like.get_stride())
      .set_data_type(like.get_data_type());
}

/// Mask and scale, the same for both directions.
template <class Options>
Options options_of(const Job& job) {
  Options o;
  o.set_attn_scale(static_cast<float>(job.scale));
  if (job.diagonal.causal) {
    o.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT);
    o.set_diagonal_band_right_bound(0);
  }
  if (job.diagonal.left > 0) o.set_diagonal_band_left_bound(job.diagonal.left);
  return o;
}

void describe_forward(const Job& job, Plan& plan) {
  const auto& a = job.args;
  const TensorPtr q = plan.graph.tensor(describe(a[0], uid_q));
  const TensorPtr k = plan.graph.tensor(describe(a[1], uid_k));
  const TensorPtr v = plan.graph.tensor(describe(a[2], uid_v));
  auto options = options_of<graph::SDPA_attributes>(job);
  options.set_name("attention.forward").set_generate_stats(true);
  const auto [o, stats] = plan.graph.sdpa(q, k, v, options);
  is_output(o, describe(plan.scratch[0].ref, uid_o));
  is_output(stats, describe_statistics(plan.scratch[1].ref, uid_stats));
}

void describe_backward(const Job& job, Plan& plan) {
  const auto& a = job.args;
  const TensorPtr q = plan.graph.tensor(describe(a[0], uid_q));
  const TensorPtr k = plan.graph.tensor(describe(a[1], uid_k));
  const TensorPtr v = plan.graph.tensor(describe(a[2], uid_v));
  const TensorPtr grad = plan.graph.tensor(describe(a[3], uid_grad));
  const TensorPtr o = plan.graph.tensor(describe(plan.scratch[0].ref, uid_o));
  const TensorPtr stats = plan.graph.tensor(describe_statistics(plan.scratch[1].ref, uid_stats));
  auto options = options_of<graph::SDPA_backward_attributes>(job);
  options.set_name("attention.backward");
  const auto [dq, dk, dv] = plan.graph.sdpa_backward(q, k, v, o, grad, stats, options);
  is_output(dq, describe(plan.scratch[2].ref, uid_dq));
  is_output(dk, describe(plan.scratch[3].ref, uid_dk));
  is_output(dv, describe(plan.scratch[4].ref, uid_dv));
}

std::unique_ptr<Plan> Plans::build(const Job& job, bool backward) {
  auto plan = std::make_unique<Plan>();
  const auto& a = job.args;
  const auto scratch = [&](DType t, std::array<std::int64_t, 3> shape) {
    plan->scratch.push_back(make_tensor(budget_, t, shape, "attention.cudnn", Space::cuda));
  };
  scratch(a[0].dtype, {a[0].shape[0], a[0].shape[1], a[2].shape[2]});
  scratch(DType::f32, {a[0].shape[1], a[0].shape[0], 1});
  if (backward) {
    for (std::size_t i = 0; i < 3; ++i) scratch(a[0].dtype, a[i].shape);
  }
  plan->graph.set_io_data_type(type_of(a[0]))
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  backward ? describe_backward(job, *plan) : describe_forward(job, *plan);
  check(plan->graph.build(handle(job.stream), {fe::HeurMode_t::A}), "a plan for attention");
  std::int64_t size = 0;
  check(plan->graph.get_workspace_size(size), "the workspace of attention");
  plan->workspace = Buffer(budget_, size, "attention.cudnn", Space::cuda);
  return plan;
}

Plan& Plans::find(const Job& job, bool backward) {
  const std::lock_guard lock(mutex_);
  std::vector<std::int64_t> key{backward, static_cast<std::int64_t>(job.args[0].dtype),
                                job.diagonal.causal, job.diagonal.left,
                                std::bit_cast<std::int64_t>(job.scale)};
  for (std::size_t i = 0; i < (backward ? 4u : 3u); ++i) {
    const TensorRef& t = job.args[i];
    key.insert(key.end(), {t.shape[0], t.shape[1], t.shape[2], t.stride[0], t.stride[1]});
  }
  auto& plan = plans_[key];
  if (!plan) plan = build(job, backward);
  return *plan;
}

cudaStream_t stream_of(const Job& job) { return static_cast<cudaStream_t>(job.stream); }

void forward(const Job& job, Plans& plans) {
  Plan& plan = plans.forward(job);
  const auto& a = job.args;
  std::unordered_map<std::int64_t, void*> pack{{uid_q, a[0].data},
                                               {uid_k, a[1].data},
                                               {uid_v, a[2].data},
                                               {uid_o, plan.scratch[0].ref.data},
                                               {uid_stats, plan.scratch[1].ref.data}};
  check(plan.graph.execute(plans.handle(job.stream), pack, plan.workspace.data()),
        "attention.forward");
  cuda::check(launch_merge({view(plan.scratch[0].ref), view(plan.scratch[1].ref)},
                           {view(a[3]), view(a[4])}, view(a[3]), stream_of(job)),
              "attention.forward, merge");
}

void backward(const Job& job, Plans& plans) {
  Plan& plan = plans.backward(job);
  const auto& a = job.args;
  const auto& s = plan.scratch;
  cudaStream_t stream = stream_of(job);
  cuda::check(launch_output_of_delta(view(a[3]), view(a[5]), view(s[0].ref), stream),
              "attention.backward, output of Delta");
  const Pair statistics{view(a[4]), view(s[1].ref)};
  cuda::check(launch_copy({&statistics, 1}, stream), "attention.backward, statistics");
  std::unordered_map<std::int64_t, void*> pack{
      {uid_q, a[0].data},      {uid_k, a[1].data},      {uid_v, a[2].data},
      {uid_grad, a[3].data},   {uid_o, s[0].ref.data},  {uid_stats, s[1].ref.data},
      {uid_dq, s[2].ref.data}, {uid_dk, s[3].ref.data}, {uid_dv, s[4].ref.data}};
  check(plan.graph.execute(plans.handle(job.stream), pack, plan.workspace.data()),
        "attention.backward");
  std::vector<Pair> sums, writes;
  for (std::size_t i = 0; i < 3; ++i) {
    const bool fresh = job.fresh >> (6 + i) & 1;
    (fresh ? writes : sums).push_back({view(s[2 + i].ref), view(a[6 + i])});
  }
  cuda::check(launch_add(sums, stream), "attention.backward, sum of gradients");
  cuda::check(launch_copy(writes, stream), "attention.backward, gradients");
}

/// A gradient is written whole when the box has all of its rows.
bool backward_overwrites(const ops::Call& call, std::size_t argument) {
  if (argument < 6) return false;
  const auto job = job_of(call);
  return job && job->args[argument].shape[0] == call.args[argument].shape[0];
}

}  // namespace

std::string describe_cudnn() {
  if (!open_library()) return "no cuDNN: libcudnn.so.9 was not found";
  const std::size_t v = fe::detail::get_backend_version();
  return "cuDNN " + std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." +
         std::to_string(v % 100);
}

void add_cudnn(ops::Registry& registry, Budget& budget) {
  if (!open_library()) return;
  const auto plans = std::make_shared<Plans>(budget);
  const auto add = [&](const char* op, int priority, bool (*supports)(const ops::Call&), auto run,
                       auto prepare, bool (*overwrites)(const ops::Call&, std::size_t) = nullptr,
                       bool repeatable = true) {
    registry.add({op, "cudnn", priority, supports,
                  [=](const ops::Call& c) { run(*job_of(c), *plans); },
                  [=](const ops::Call& c) { prepare(*job_of(c), *plans); }, overwrites, nullptr,
                  nullptr, repeatable});
  };
  const auto prepare_forward = [](const Job& job, Plans& p) { p.forward(job); };
  const auto prepare_backward = [](const Job& job, Plans& p) { p.backward(job); };
  add("attention.forward", 15, forward_supports, forward, prepare_forward);
  // cuDNN is not asked for its slower algorithm that adds in one order.
  add("attention.backward", 30, backward_is_faster, backward, prepare_backward, backward_overwrites,
      false);
  add("attention.backward", 15, backward_supports, backward, prepare_backward, backward_overwrites,
      false);
}

}  // namespace tessera::kernels::cuda
