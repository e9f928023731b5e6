#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""with_points.py SUITE...: other suites are as ever when functions that all programs call have rescue points."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "rescue"))
from httpd import RESCUECTL  # noqa: E402

CASES = Path(__file__).resolve().parents[1]
# They compute, open, read and close, and are called by each program; not as often as malloc(), with which nothing would come to an end.
# The instructions that they begin with need no page of their own, with which a process could not be checkpointed.
FUNCTIONS = ("fclose", "getenv", "snprintf", "qsort_r", "setlocale")
LIBC = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if re.search(r"/libc\.so\.6$", line))
# Their tests of huge pages: a process that has entered a point gets none
WITHOUT = {"tracker/tracker": "huge|not_collapsed", "no_fault/memory": "huge_pages*"}
# A case whose programs enter the points less often says nothing of them
FEW = 10


def entered() -> dict[str, int]:
    """Each point's calls. rescuectl would call the functions itself."""
    points = [dict(word.split("=", 1) for word in line.split()) for line in Path("/proc/rescue").read_text().splitlines()]
    return {point["name"]: int(point["entered"]) for point in points if point["id"] != "0"}


def run(place: Path, case: dict[str, Any]) -> tuple[bool, str]:
    tests = WITHOUT.get(f"{place.name}/{case['name']}")
    done = subprocess.run(case["run"] + (f" -t '!({tests})'" if tests else ""), shell=True, cwd=place, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=5 * case["timeout_s"])
    return done.returncode == 0 and not re.search(r"^not ok", done.stdout, re.M), done.stdout


def main() -> int:
    cases = [(CASES / suite, case) for suite in sys.argv[1:] for case in json.loads((CASES / suite / "suite.json").read_text())["cases"]]
    print(f"KTAP version 1\n1..{len(cases) + 1}", flush=True)
    for name in FUNCTIONS:
        done = subprocess.run([RESCUECTL, "add", LIBC, name, "--value", "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        print(f"# {name}: {done.stdout.strip() or 'a point'}", flush=True)
    failed = 0
    try:
        first = entered()
        for number, (place, case) in enumerate(cases, 1):
            before = sum(entered().values())
            good, text = run(place, case)
            calls = sum(entered().values()) - before
            tests = re.findall(r"^ok .*", text, re.M)
            skipped = bool(tests) and all("# SKIP" in test for test in tests)
            if good and calls < FEW and not skipped:
                good, text = False, f"{text}\nit entered the points {calls} times only"
            failed += not good
            if not good:
                print("".join(f"# {line}\n" for line in text.splitlines()[-60:]), end="")
            print(f"# {calls} calls\n{'ok' if good else 'not ok'} {number} {place.name}/{case['name']}"
                  f"{' # SKIP' if good and skipped else ''}", flush=True)
        counts = {name: n - first.get(name, 0) for name, n in entered().items()}
        print(f"# calls: {counts}")
        good = set(counts) == set(FUNCTIONS) and all(n > 20 for n in counts.values())
        print(f"{'ok' if good else 'not ok'} {len(cases) + 1} the points were there")
    finally:
        # Another case of this suite adds them, too
        for name in FUNCTIONS:
            subprocess.run([RESCUECTL, "remove", name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return 1 if failed or not good else 0


if __name__ == "__main__":
    sys.exit(main())
