// SPDX-License-Identifier: Apache-2.0
// Which partial outputs the last operator rounds, and what is left to copy: on small plans, each
// with one thing that forbids it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>

#include "exec/stores.hpp"
#include "plan/builder.hpp"

namespace tessera::test {
namespace {

using plan::Access;

/// A tile that updates the rows `tile` of o[10, 4, 8], then a copy of o[0, 10) to out.
struct Small {
  plan::Plan plan;
  plan::Builder b{plan};
  int compute = b.queue(plan::QueueKind::compute, "compute");
  int comm = b.queue(plan::QueueKind::comm, "comm");
  int o, lse, out, x;

  explicit Small(plan::Role role = plan::Role::scratch)
      : o(b.buffer({"o", role, DType::f32, {10, 4, 8}})),
        lse(b.buffer({"lse", plan::Role::output, DType::f32, {4, 10, 1}, true})),
        out(b.buffer({"out", plan::Role::output, DType::bf16, {12, 4, 8}})),
        x(b.buffer({"x", plan::Role::input, DType::bf16, {10, 4, 8}})) {}

  void tile(Range rows, Range heads = {0, 4}) {
    b.compute(compute, "tile", {}, {"attention.forward", 1, 1},
              {b.all(x, Access::read), b.all(x, Access::read), b.all(x, Access::read),
               b.part(o, Access::update, rows, heads), b.part(lse, Access::update, heads, rows)});
  }
  plan::Use part(int buffer, Access access, Range rows) {
    return b.part(buffer, access, rows, {0, 4});
  }
  void copy() {
    b.compute(compute, "copy", {}, {"tensor.copy", 0, 1},
              {part(o, Access::read, {0, 10}), part(out, Access::write, {2, 12})});
  }
  std::vector<exec::Store> stores(bool able = true) const {
    return exec::stores_of(plan, [=](std::int32_t, const plan::Use&) { return able; });
  }
};

TEST(ExecStores, Rows_at_an_end_are_stored_and_the_rest_is_copied) {
  struct Case {
    Range tile;
    bool stored;
    Range to, rest;  ///< in out
  };
  for (const Case& c : {Case{{0, 10}, true, {2, 12}, {12, 12}}, Case{{0, 4}, true, {2, 6}, {6, 12}},
                        Case{{7, 10}, true, {9, 12}, {2, 9}}, Case{{3, 7}, false, {}, {}}}) {
    Small s;
    s.tile({0, 10});
    s.tile(c.tile);
    s.copy();
    const auto stores = s.stores();
    ASSERT_EQ(stores.size(), c.stored ? 1U : 0U);
    if (!c.stored) continue;
    EXPECT_EQ(stores[0].last, 1);
    EXPECT_EQ(stores[0].copy, 2);
    EXPECT_EQ(stores[0].to.buffer, s.out);
    EXPECT_EQ(stores[0].to.d0, c.to);
    ASSERT_EQ(stores[0].arguments.size(), 2U);
    const auto& [from, to] = std::pair{stores[0].arguments[0], stores[0].arguments[1]};
    EXPECT_EQ(from.first, 0U);
    EXPECT_EQ(to.first, 1U);
    EXPECT_EQ(to.second.d0, c.rest);
    EXPECT_EQ(from.second.d0.size(), c.rest.size());
    EXPECT_EQ(from.second.d0.begin + 2, c.rest.begin);
    EXPECT_TRUE(s.stores(false).empty());
  }
}

TEST(ExecStores, Other_copies_of_the_rows_read_what_is_stored) {
  Small s;
  s.tile({0, 10});
  const int own = s.b.buffer({"own", plan::Role::output, DType::bf16, {3, 4, 8}});
  s.b.compute(s.compute, "copy", {}, {"tensor.copy", 0, 1},
              {s.part(s.o, Access::read, {0, 10}), s.part(s.out, Access::write, {2, 12}),
               s.part(s.o, Access::read, {4, 7}), s.b.all(own, Access::write)});
  const auto stores = s.stores();
  ASSERT_EQ(stores.size(), 1U);
  ASSERT_EQ(stores[0].arguments.size(), 3U);
  const auto& [argument, use] = stores[0].arguments[0];
  EXPECT_EQ(argument, 2U);
  EXPECT_EQ(use.buffer, s.out);
  EXPECT_EQ(use.d0, (Range{6, 9}));
  EXPECT_EQ(use.access, Access::read);
}

TEST(ExecStores, Nothing_else_may_touch_them) {
  const auto read = [](Small& s, int buffer, Range rows) {
    s.b.compute(s.compute, "reader", {}, {"reader", 0, 1}, {s.part(buffer, Access::read, rows)});
  };
  struct Case {
    const char* what;
    bool stored;
    std::function<void(Small&)> before, between, after;
  };
  const auto none = [](Small&) {};
  const std::vector<Case> cases{
      {"nothing else", true, none, none, none},
      {"the sums are read before the copy", false, none,
       [&](Small& s) {
         read(s, s.o, {3, 4});
       },
       none},
      {"the sums are read after it", false, none, none,
       [&](Small& s) {
         read(s, s.o, {3, 4});
       }},
      {"the output is read before", false, none,
       [&](Small& s) {
         read(s, s.out, {3, 4});
       },
       none},
      {"other rows of it are", true, none,
       [&](Small& s) {
         read(s, s.out, {0, 2});
       },
       none},
      {"it is sent before, and the copy waits", false,
       [](Small& s) {
         s.b.send(s.comm, -1, "send", {}, 0, 1, 0, {s.part(s.out, Access::read, {3, 4})});
       },
       none, none},
      {"it is sent after", true, none, none,
       [](Small& s) {
         s.b.send(s.comm, -1, "send", {}, 0, 1, 0, {s.part(s.out, Access::read, {3, 4})});
       }},
      {"the sums come by message", false, none,
       [](Small& s) {
         s.b.recv(s.comm, -1, "recv", {}, 0, 1, 0, {s.part(s.o, Access::write, {0, 10})});
       },
       none},
      {"a sink changes them", false, none,
       [](Small& s) {
         s.b.compute(s.compute, "sink", {}, {"attention.sink", 0, 1},
                     {s.part(s.x, Access::read, {0, 1}), s.part(s.o, Access::update, {0, 10})});
       },
       none},
      {"a tile of some heads", false, none,
       [](Small& s) {
         s.tile({0, 10}, {0, 2});
       },
       none}};
  for (const Case& c : cases) {
    Small s;
    c.before(s);
    s.tile({0, 10});
    c.between(s);
    s.copy();
    c.after(s);
    EXPECT_EQ(s.stores().size(), c.stored ? 1U : 0U) << c.what;
  }
  Small saved(plan::Role::saved);
  saved.tile({0, 10});
  saved.copy();
  EXPECT_TRUE(saved.stores().empty()) << "the caller may want the sums";
  fmt::print("{} plans\n", cases.size() + 1);
}

}  // namespace
}  // namespace tessera::test
