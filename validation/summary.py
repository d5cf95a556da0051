#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Summary of a CTest run from its JUnit file: what failed with its output, what was skipped and
why, the slowest tests, and as last line "N passed, N failed, N skipped".

Usage: summary.py RESULTS.xml LOG SECONDS. Exit code 1 when a test failed or none was run."""
import re
import sys
import xml.etree.ElementTree as ElementTree


def reason_of(case):
    """Why a test was skipped: the first telling line of its output."""
    output = case.findtext("system-out") or ""
    told = [line.strip() for line in output.splitlines()
            if re.search(r"skip|needs|not found|missing", line, re.IGNORECASE)
            and not re.match(r"\s*(\[|Note:)", line)]
    if told:
        return told[0]
    skipped = case.find("skipped")
    return (skipped.get("message") if skipped is not None else None) or "no reason given"


def main():
    path, log, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3])
    try:
        cases = list(ElementTree.parse(path).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError) as error:
        with open(log, errors="replace") as text:
            print(text.read()[-4000:])
        print(f"no test results: {error}\n0 passed, 0 failed, 0 skipped")
        return 1
    groups = {"passed": [], "failed": [], "skipped": []}
    for case in cases:
        status = case.get("status")
        if status == "run":
            groups["passed"].append(case)
        elif case.find("skipped") is not None or status == "disabled":
            groups["skipped"].append(case)
        else:
            groups["failed"].append(case)

    for case in groups["failed"]:
        print(f"\n--- failed: {case.get('name')}")
        lines = (case.findtext("system-out") or "(no output)").splitlines()
        print("\n".join(lines[-40:]))
    if groups["skipped"]:
        print("\nskipped:")
        for case in groups["skipped"]:
            print(f"  {case.get('name')}: {reason_of(case)}")
    slowest = sorted(cases, key=lambda c: -float(c.get("time") or 0))[:5]
    print("\nslowest: " + ", ".join(f"{c.get('name')} {float(c.get('time') or 0):.1f} s"
                                    for c in slowest))
    for case in groups["failed"]:
        print(f"failed: {case.get('name')}")
    counts = {name: len(group) for name, group in groups.items()}
    print(f"{seconds} s in all; log: {log}")
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 0 if counts["failed"] == 0 and counts["passed"] > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
