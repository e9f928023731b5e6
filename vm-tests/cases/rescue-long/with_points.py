#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""with_points.py SUITE...: other suites are as ever when functions that all programs call have rescue points."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "rescue"))
from httpd import RESCUECTL  # noqa: E402

CASES = Path(__file__).resolve().parents[1]
# They compute, open, read and close, and are called by each program; not as often as malloc(), with which nothing would come to an end.
# The instructions that they begin with need no page of their own, with which a process could not be checkpointed.
FUNCTIONS = ("fclose", "getenv", "snprintf", "qsort_r", "setlocale")
LIBC = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if re.search(r"/libc\.so\.6$", line))


def main() -> int:
    cases = [(CASES / suite, case) for suite in sys.argv[1:] for case in json.loads((CASES / suite / "suite.json").read_text())["cases"]]
    print(f"KTAP version 1\n1..{len(cases) + 1}", flush=True)
    added = []
    for name in FUNCTIONS:
        done = subprocess.run([RESCUECTL, "add", LIBC, name, "--value", "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        print(f"# {name}: {done.stdout.strip() or 'a point'}", flush=True)
        added += [name] if not done.returncode else []
    failed = 0
    for number, (place, case) in enumerate(cases, 1):
        done = subprocess.run(case["run"], shell=True, cwd=place, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, errors="replace", timeout=5 * case["timeout_s"])
        good = done.returncode == 0 and not re.search(r"^not ok", done.stdout, re.M)
        failed += not good
        if not good:
            print("".join(f"# {line}\n" for line in done.stdout.splitlines()[-60:]), end="")
        print(f"{'ok' if good else 'not ok'} {number} {place.name}/{case['name']}", flush=True)
    counts = json.loads(subprocess.run([RESCUECTL, "list", "--json"], stdout=subprocess.PIPE, check=True).stdout)
    entered = {point["name"]: point["entered"] for point in counts if point["name"] in added}
    print(f"# calls: {entered}")
    good = len(entered) == len(FUNCTIONS) and all(n > 20 for n in entered.values())
    print(f"{'ok' if good else 'not ok'} {len(cases) + 1} the points were there")
    return 1 if failed or not good else 0


if __name__ == "__main__":
    sys.exit(main())
