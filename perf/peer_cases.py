# SPDX-License-Identifier: Apache-2.0
"""Which cases of a report of torch_peers are done, so that a run whose process was ended by a case
(an illegal memory access in a library ends all ranks) goes on behind it."""

NAMES = ("method", "tokens", "mask", "kv_heads")


def key_of(case):
    return tuple(case[name] for name in NAMES)


def go_on(report, before):
    """`report`, which has no results yet, takes over those of the run `before`; the case in which
    that run ended is noted as a failure."""
    report["links"] = before.get("links", [])
    report["results"] = list(before.get("results", []))
    ended_in = before.get("running")
    if ended_in:
        report["results"].append({**ended_in, "error": "the process ended in this case"})


def is_done(report, case):
    return any(key_of(r) == key_of(case) for r in report["results"])
