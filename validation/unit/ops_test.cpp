// SPDX-License-Identifier: Apache-2.0
// The operator registry: who is chosen, who is refused, and what the refusal says.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "ops/registry.hpp"
#include "ops/signature.hpp"

namespace tessera::ops {
namespace {

Implementation make(const char* op, const char* backend, int priority, bool able = true) {
  return {op, backend, priority, [able](const Call&) { return able; }, [](const Call&) {}};
}

Call zero_call() { return {"tensor.zero", {dense(nullptr, DType::bf16, {2, 3, 4})}, {}, {}}; }

Error refusal(const Registry& r, const Call& call) {
  try {
    r.choose(call);
  } catch (const Error& e) {
    return e;
  }
  return Error(Exit::ok, "chosen");
}

TEST(ops, highest_priority_that_supports_the_call_is_chosen) {
  Registry r;
  r.add(make("tensor.zero", "reference", 0));
  r.add(make("tensor.zero", "cuda", 20, false));
  r.add(make("tensor.zero", "kokkos", 10));
  r.add(make("tensor.copy", "cuda", 30));
  EXPECT_EQ(r.choose(zero_call()).backend, "kokkos");
  EXPECT_EQ(r.list().size(), 4u);
  EXPECT_EQ(r.list().front().priority, 30);
}

TEST(ops, pinned_backend_wins_over_priority_and_last_pin_counts) {
  Registry r;
  r.add(make("tensor.zero", "reference", 0));
  r.add(make("tensor.zero", "kokkos", 10));
  r.pin("tensor.zero", "reference");
  EXPECT_EQ(r.choose(zero_call()).backend, "reference");
  r.pin("tensor.zero", "kokkos");
  EXPECT_EQ(r.choose(zero_call()).backend, "kokkos");
}

TEST(ops, pin_of_an_unknown_pair_is_a_usage_error) {
  Registry r;
  r.add(make("tensor.zero", "kokkos", 10));
  try {
    r.pin("tensor.zero", "kokos");
    FAIL() << "a pin that can never hold was accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Exit::usage);
    EXPECT_NE(e.message().find("kokos"), std::string::npos);
  }
}

TEST(ops, denied_backend_is_not_used_for_any_operator) {
  Registry r;
  r.add(make("tensor.zero", "reference", 0));
  r.add(make("tensor.zero", "kokkos", 10));
  r.deny("kokkos");
  EXPECT_EQ(r.choose(zero_call()).backend, "reference");
}

std::vector<std::string> names_of(const std::vector<const Implementation*>& list) {
  std::vector<std::string> out;
  for (const Implementation* i : list) out.push_back(i->backend);
  return out;
}

TEST(ops, candidates_are_all_that_support_the_call_by_priority_each_backend_once) {
  using Names = std::vector<std::string>;
  Registry r;
  r.add(make("tensor.zero", "reference", 0));
  r.add(make("tensor.zero", "cudnn", 30, false));
  r.add(make("tensor.zero", "cudnn", 15));
  r.add(make("tensor.zero", "cudnn", 5));
  r.add(make("tensor.zero", "cuda", 20));
  r.add(make("tensor.zero", "kokkos", 10, false));
  r.add(make("tensor.copy", "other", 40));
  const auto all = r.candidates(zero_call());
  EXPECT_EQ(names_of(all), (Names{"cuda", "cudnn", "reference"}));
  EXPECT_EQ(all[1]->priority, 15) << "the best entry of the backend that supports the call";
  r.deny("cuda");
  EXPECT_EQ(names_of(r.candidates(zero_call())), (Names{"cudnn", "reference"}));
  r.pin("tensor.zero", "reference");
  EXPECT_EQ(names_of(r.candidates(zero_call())), Names{"reference"});
  r.deny("reference");
  EXPECT_TRUE(r.candidates(zero_call()).empty());
  EXPECT_TRUE(r.candidates({"tensor.add", {}, {}, {}}).empty()) << "an unknown operator";
}

TEST(ops, deterministic_leaves_out_what_is_not_repeatable_even_where_it_is_pinned) {
  Registry r;
  r.add(make("tensor.zero", "reference", 0));
  r.add(make("tensor.zero", "cuda", 20));
  Implementation fast = make("tensor.zero", "cuda-fast", 30);
  fast.repeatable = false;
  r.add(fast);
  EXPECT_EQ(r.choose(zero_call()).backend, "cuda-fast");
  r.set_deterministic(true);
  EXPECT_EQ(r.choose(zero_call()).backend, "cuda");
  EXPECT_EQ(names_of(r.candidates(zero_call())), (std::vector<std::string>{"cuda", "reference"}));
  r.pin("tensor.zero", "cuda-fast");
  EXPECT_TRUE(r.candidates(zero_call()).empty());
  const Error e = refusal(r, zero_call());
  EXPECT_EQ(e.code(), Exit::environment);
  EXPECT_NE(e.message().find("cuda-fast (not repeatable, as ops.deterministic asks for)"),
            std::string::npos)
      << e.message();
}

TEST(ops, first_candidate_is_the_one_that_is_chosen) {
  Registry r;
  r.add(make("tensor.zero", "reference", 0));
  r.add(make("tensor.zero", "kokkos", 10));
  r.add(make("tensor.zero", "cuda", 20, false));
  EXPECT_EQ(r.candidates(zero_call()).front(), &r.choose(zero_call()));
  r.pin("tensor.zero", "reference");
  EXPECT_EQ(r.candidates(zero_call()).front(), &r.choose(zero_call()));
}

TEST(ops, refusal_names_dtypes_shapes_and_every_backend_asked) {
  Registry r;
  r.add(make("tensor.zero", "reference", 0));
  r.add(make("tensor.zero", "kokkos", 10, false));
  r.add(make("tensor.zero", "cuda", 20));
  r.pin("tensor.zero", "kokkos");
  r.deny("cuda");
  const Error e = refusal(r, zero_call());
  EXPECT_EQ(e.code(), Exit::environment);
  for (const char* part : {"tensor.zero(bf16[2,3,4])", "cuda (denied)", "kokkos (does not support",
                           "reference (another backend is pinned)"}) {
    EXPECT_NE(e.message().find(part), std::string::npos) << part << " not in: " << e.message();
  }
}

TEST(ops, unknown_operator_is_refused_by_name) {
  const Error e = refusal(Registry{}, {"attention.fwd", {}, {}, {}});
  EXPECT_EQ(e.code(), Exit::environment);
  EXPECT_NE(e.message().find("attention.fwd"), std::string::npos);
  EXPECT_NE(e.message().find("unknown"), std::string::npos);
}

TEST(ops, signature_names_the_argument_that_does_not_fit) {
  const TensorRef q = dense(nullptr, DType::f32, {4, 3, 8}),
                  k = dense(nullptr, DType::f32, {6, 3, 8});
  const TensorRef o = q, lse = dense(nullptr, DType::f32, {3, 4, 1});
  EXPECT_EQ(mismatch({"attention.forward", {q, k, k, o, lse}, {}, {}}), "");
  const TensorRef short_lse = dense(nullptr, DType::f32, {3, 3, 1});
  EXPECT_EQ(mismatch({"attention.forward", {q, k, k, o, short_lse}, {}, {}}),
            "argument 4 is f32[3,3,1], expected f32[3,4,1]");
  const TensorRef two = dense(nullptr, DType::f32, {6, 2, 8});
  EXPECT_EQ(mismatch({"attention.forward", {q, two, two, o, lse}, {}, {}}),
            "query heads are not a multiple of key heads");
  EXPECT_EQ(mismatch({"attention.forward", {q}, {}, {}}), "1 arguments given, 5 expected");
}

TEST(ops, tensor_operators_take_any_number_of_pairs) {
  const TensorRef x = dense(nullptr, DType::f32, {4, 3, 8}),
                  y = dense(nullptr, DType::bf16, {4, 3, 8}),
                  other = dense(nullptr, DType::f32, {4, 2, 8});
  for (const char* op : {"tensor.copy", "tensor.add"}) {
    EXPECT_EQ(mismatch({op, {x, y}, {}, {}}), "");
    EXPECT_EQ(mismatch({op, {x, y, other, other, y, x}, {}, {}}), "");
    EXPECT_EQ(mismatch({op, {x, y, x, other}, {}, {}}),
              "argument 3 is f32[4,2,8], expected f32[4,3,8]");
    for (const std::vector<TensorRef>& odd : {std::vector<TensorRef>{}, {x}, {x, y, x}})
      EXPECT_EQ(mismatch({op, odd, {}, {}}), "arguments come in pairs x, y, one pair at least");
  }
  EXPECT_EQ(mismatch({"tensor.zero", {x, y, other}, {}, {}}), "");
  EXPECT_EQ(mismatch({"tensor.zero", {}, {}, {}}), "no arguments given, 1 or more expected");
}

TEST(ops, a_sum_has_terms_of_one_type_and_shape) {
  const TensorRef x = dense(nullptr, DType::f32, {4, 3, 8}),
                  y = dense(nullptr, DType::bf16, {4, 3, 8}),
                  other = dense(nullptr, DType::f32, {4, 2, 8});
  EXPECT_EQ(mismatch({"tensor.sum", {x, y}, {}, {}}), "");
  EXPECT_EQ(mismatch({"tensor.sum", std::vector(max_terms + 1, x), {}, {}}), "");
  EXPECT_EQ(mismatch({"tensor.sum", {x, y, y}, {}, {}}),
            "argument 1 is bf16[4,3,8], expected f32[4,3,8]");
  EXPECT_EQ(mismatch({"tensor.sum", {x, x, other}, {}, {}}),
            "argument 2 is f32[4,2,8], expected f32[4,3,8]");
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, max_terms + 2})
    EXPECT_EQ(mismatch({"tensor.sum", std::vector(count, x), {}, {}}),
              "a sum has 1 to 64 terms and the result");
}

}  // namespace
}  // namespace tessera::ops
