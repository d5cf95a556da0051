// SPDX-License-Identifier: Apache-2.0
// One problem through schemes, on host or device ranks: results against the fp64
// reference, counted bytes against the formulas, plans without faults.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "attention/synthetic.hpp"
#include "attention/verify.hpp"
#include "attention/volume.hpp"
#include "attention_cases.hpp"
#include "plan/check.hpp"

namespace tessera::test {

inline std::int64_t total(const std::vector<std::int64_t>& v) {
  std::int64_t n = 0;
  for (std::int64_t x : v) n += x;
  return n;
}

/// Runs both passes of these schemes and compares, three runs each: on a device the first
/// is launched step by step, the second captures a graph, the third launches it again. Tolerance:
/// absolute for f64, otherwise times the error of the plain path. Returns how many schemes were
/// run.
inline int run_case(const Problem& p, double tolerance, Surroundings around,
                    const std::vector<Scheme>& schemes) {
  Budget budget;
  const Surroundings host{around.comm, around.registry, budget};
  parallel::Communicator& comm = around.comm;
  const Fill inputs = synthetic(7);
  const Reference reference = make_reference(p, inputs, host, true);
  const plan::Machine machine = test_machine();
  int runs = 0;
  for (const Scheme& s : schemes) {
    Session session(p, around);
    for (Pass pass : {Pass::forward, Pass::backward}) {
      PreparedPass& prepared = session.prepare(s, pass, machine);
      const std::string what = prepared.program().name;
      for (const plan::Fault& f : plan::check(prepared.program()))
        ADD_FAILURE() << what << ": " << f.name << ": " << f.message;
      session.bind(prepared);
      session.fill(inputs);
      for (int repeat = 0; repeat < 3; ++repeat) {  // a later run must not depend on an earlier one
        comm.barrier();
        comm.reset_counters();
        session.run(prepared);
        EXPECT_EQ(total(comm.bytes_sent()),
                  formula_bytes(p, prepared.scheme(), comm.size(), pass)[comm.rank()])
            << what << ", run " << repeat;
      }
      const Errors e = compare(session, prepared, pass, reference, comm);
      if (p.dtype == DType::f64)
        EXPECT_LT(e.max_abs, tolerance) << what << ", worst " << e.worst;
      else
        EXPECT_LT(e.ratio, tolerance) << what << ", worst " << e.worst;
      ++runs;
    }
  }
  return runs;
}

}  // namespace tessera::test
