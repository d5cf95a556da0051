// SPDX-License-Identifier: Apache-2.0
// What the device tests share: arrays on the device, calls to one backend, and a plain 16-bit
// attention that rounds after every product as a framework without a fused kernel does: its error
// against f64 is the measure for ours.
#pragma once

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cuda/register.hpp"
#include "kernels/kokkos/register.hpp"
#include "kernels/reference/register.hpp"
#include "memory/cuda.hpp"
#include "validation/unit/kernels_support.hpp"

namespace tessera::testing {

/// A host array and its copy on the device, gaps included.
class OnDevice {
 public:
  OnDevice(Budget& budget, Array& host)
      : host_(host), buffer_(budget, bytes() + 64, "test", Space::cuda), ref_(host.ref()) {
    ref_.data = buffer_.data();
    ref_.space = Space::cuda;
    memory::copy(buffer_.data(), host.ref().data, bytes());
    memory::synchronize();
  }
  TensorRef ref() const { return ref_; }
  void fetch() {
    memory::copy(host_.ref().data, buffer_.data(), bytes());
    memory::synchronize();
  }

 private:
  std::int64_t bytes() const {
    const TensorRef r = host_.ref();
    return r.shape[0] * r.stride[0] * size_of(r.dtype);
  }
  Array& host_;
  Buffer buffer_;
  TensorRef ref_;
};

/// Runs operators of one backend on host arrays, by way of the device where it is one.
class Runner {
 public:
  explicit Runner(std::string backend) : backend_(std::move(backend)) {
    if (backend_ == "reference") {
      kernels::register_reference(registry_);
    } else {
      kernels::register_cuda(registry_, budget_);
      kernels::register_kokkos(registry_);
      if (backend_ != "cudnn") registry_.deny("cudnn");
    }
  }
  bool on_device() const { return backend_ != "reference"; }
  const ops::Registry& registry() const { return registry_; }
  Budget& budget() { return budget_; }

  /// Refuses (test failure) when the call would go to another backend than the one named; operators
  /// that it does not have go to "cuda".
  /// Where `store` is given, the partial output goes there (Attributes::store).
  void run(std::string_view op, std::vector<Array*> arrays, ops::Attributes attributes = {},
           Array* store = nullptr) {
    ops::Call call{op, {}, attributes, {}};
    if (fresh_) spoil(call, arrays);
    std::vector<OnDevice> copies;
    copies.reserve(arrays.size() + 1);
    for (Array* a : arrays) {
      if (on_device()) copies.emplace_back(budget_, *a);
      call.args.push_back(on_device() ? copies.back().ref() : a->ref());
    }
    const auto& chosen = find(call);
    ASSERT_EQ(chosen.backend, backend_of(op)) << op;
    if (store) {
      call.attributes.store = copies.emplace_back(budget_, *store).ref();
      ASSERT_TRUE(chosen.stores && chosen.stores(call, call.attributes.store)) << op;
    }
    chosen.run(call);
    if (on_device()) memory::synchronize();
    for (OnDevice& c : copies) c.fetch();
  }
  void forward(Problem& p) {
    run("attention.forward", {&p.q, &p.k, &p.v, &p.o, &p.lse}, p.attributes());
  }
  void delta(Problem& p) { run("attention.delta", {&p.o, &p.go, &p.delta}); }
  void backward(Problem& p) {
    run("attention.backward", {&p.q, &p.k, &p.v, &p.go, &p.lse, &p.delta, &p.dq, &p.dk, &p.dv},
        p.attributes());
  }
  /// The registry has `op` of this backend.
  bool offers(std::string_view op, std::string_view backend) const {
    return std::ranges::any_of(registry_.list(),
                               [&](auto& i) { return i.op == op && i.backend == backend; });
  }

  /// From now on outputs that the backend can write whole hold NaN, and it is told that they are
  /// empty.
  void use_fresh() { fresh_ = true; }
  int num_fresh() const { return num_fresh_; }
  void both(Problem& p) {
    forward(p);
    delta(p);
    backward(p);
  }

  /// Every backend that would run the call on a device.
  static std::vector<std::string> backends(std::string_view op, const std::vector<Array*>& arrays,
                                           ops::Attributes attributes = {}) {
    Runner all("cudnn");  // denies none
    std::vector<std::string> names;
    for (const auto* i : all.registry_.candidates(looked_at(op, arrays, attributes, true))) {
      names.push_back(i->backend);
    }
    return names;
  }
  static std::vector<std::string> backends(Problem& p) {
    return backends("attention.backward",
                    {&p.q, &p.k, &p.v, &p.go, &p.lse, &p.delta, &p.dq, &p.dk, &p.dv},
                    p.attributes());
  }

  /// A call that is looked at, not run: its memory is that of the host.
  static ops::Call looked_at(std::string_view op, const std::vector<Array*>& arrays,
                             ops::Attributes attributes, bool on_device) {
    ops::Call call{op, {}, attributes, {}};
    for (Array* a : arrays) {
      call.args.push_back(a->ref());
      if (on_device) call.args.back().space = Space::cuda;
    }
    return call;
  }

 private:
  std::string_view backend_of(std::string_view op) const {
    return offers(op, backend_) ? std::string_view(backend_) : "cuda";
  }
  const ops::Implementation& find(const ops::Call& call) const {
    for (const auto& i : registry_.list()) {
      if (i.op == call.name && i.backend == backend_of(call.name) && i.supports(call)) return i;
    }
    return registry_.choose(call);
  }
  void spoil(ops::Call& call, const std::vector<Array*>& arrays) {
    const ops::Call shapes = looked_at(call.name, arrays, call.attributes, on_device());
    call.attributes.fresh = ops::fresh_bits(find(shapes), shapes);
    for (std::size_t k = 0; k < arrays.size(); ++k) {
      if (!(call.attributes.fresh >> k & 1)) continue;
      ++num_fresh_;
      arrays[k]->each([&](auto i, auto j, auto c) {
        arrays[k]->set(std::numeric_limits<double>::quiet_NaN(), i, j, c);
      });
    }
  }

  std::string backend_;
  Budget budget_;
  ops::Registry registry_;
  bool fresh_ = false;
  int num_fresh_ = 0;
};

/// softmax(scale Q K^T) V and its gradients with every intermediate matrix rounded to T, the type
/// of Q, K, V. State must be the identity. Results are in the arrays of `p`, rounded too.
template <class T>
void plain_attention(Problem& p) {
  const std::int64_t m = p.q.shape()[0], n = p.k.shape()[0], hq = p.q.shape()[1];
  const std::int64_t group = hq / p.k.shape()[1], d = p.q.shape()[2], dv = p.v.shape()[2];
  std::vector<double> w(n), g(n), slope(n);
  const auto to_t = [](double x) { return static_cast<double>(element_cast<T>(x)); };
  const auto dot = [&](const Array& x, auto i, auto h, const Array& y, auto j, auto hy) {
    const T *a = &x.ref().at<T>(i, h), *b = &y.ref().at<T>(j, hy);
    float sum = 0;
    for (std::int64_t c = 0; c < x.shape()[2]; ++c) {
      sum += static_cast<float>(a[c]) * static_cast<float>(b[c]);
    }
    return to_t(sum);
  };
  for (std::int64_t h = 0; h < hq; ++h) {
    for (std::int64_t i = 0; i < m; ++i) {
      const std::int64_t hk = h / group;
      std::vector<std::int64_t> keys;
      for (const ops::Band& b : p.mask) {
        const Range r = b.keys_of(i);
        for (std::int64_t j = r.begin; j < r.end; ++j) keys.push_back(j);
      }
      if (keys.empty()) continue;
      double top = -infinity, sum = 0;
      for (const auto j : keys) {
        double x = to_t(p.scale * dot(p.q, i, h, p.k, j, hk));
        slope[j] = 1;
        if (p.softcap > 0) {
          const double t = to_t(std::tanh(to_t(x / p.softcap)));
          slope[j] = 1 - t * t;
          x = to_t(p.softcap * t);
        }
        w[j] = x;
        top = std::max(top, x);
      }
      for (const auto j : keys) sum += std::exp(w[j] - top);
      for (const auto j : keys) w[j] = to_t(std::exp(w[j] - top) / sum);
      p.lse.set(top + std::log(sum), h, i);
      for (std::int64_t c = 0; c < dv; ++c) {
        double o = 0;
        for (const auto j : keys) o += w[j] * p.v.get(j, hk, c);
        p.o.set(to_t(o), i, h, c);
      }
      double delta = 0;
      for (std::int64_t c = 0; c < dv; ++c) delta += p.o.get(i, h, c) * p.go.get(i, h, c);
      for (const auto j : keys) {
        const double dp = dot(p.go, i, h, p.v, j, hk);
        g[j] = to_t(w[j] * (dp - delta) * slope[j]);
        for (std::int64_t c = 0; c < dv; ++c) {
          p.dv.ref().at<float>(j, hk, c) += static_cast<float>(w[j] * p.go.get(i, h, c));
        }
        for (std::int64_t c = 0; c < d; ++c) {
          p.dk.ref().at<float>(j, hk, c) += static_cast<float>(p.scale * g[j] * p.q.get(i, h, c));
        }
      }
      for (std::int64_t c = 0; c < d; ++c) {
        double x = 0;
        for (const auto j : keys) x += g[j] * p.k.get(j, hk, c);
        p.dq.set(p.scale * x, i, h, c);
      }
    }
  }
  for (Array* x : {&p.dq, &p.dk, &p.dv}) {
    x->each([&](auto i, auto j, auto k) { x->set(to_t(x->get(i, j, k)), i, j, k); });
  }
}

}  // namespace tessera::testing
