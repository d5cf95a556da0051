// SPDX-License-Identifier: Apache-2.0
// A kernel whose log-sum-exp is in base 2 is found before any result is merged (brief 12.17).
#include <gtest/gtest.h>

#include <numbers>

#include "attention/self_check.hpp"
#include "base/error.hpp"
#include "kernels/reference/register.hpp"

namespace tessera::attention {
namespace {

TEST(AttentionSelfCheck, NaturalLogarithm_is_accepted) {
  ops::Registry registry;
  kernels::register_reference(registry);
  for (DType t : all_dtypes) EXPECT_NO_THROW(check_lse(registry, t));
}

TEST(AttentionSelfCheck, Base2_is_refused_by_name) {
  ops::Registry registry;
  kernels::register_reference(registry);
  const ops::Registry plain = registry;
  registry.add({"attention.forward", "base2", 99, [](const ops::Call&) { return true; },
                [&](const ops::Call& call) {
                  plain.run(call);
                  call.args[4].at<float>(0) /= std::numbers::ln2_v<float>;
                }});
  try {
    check_lse(registry, DType::f32);
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Exit::environment);
    EXPECT_NE(e.message().find("'base2'"), std::string::npos) << e.what();
    EXPECT_NE(e.message().find("base 2"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace tessera::attention
