#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""./build.sh test on suites that are made to fail (vm-tests/selftest)."""

import json
import re
import subprocess
import tempfile
from pathlib import Path

from points import TOP, VMLINUX, equal, main

SUITES = TOP / "vm-tests" / "selftest"


def test(*arguments: str, cases: Path = SUITES) -> tuple[int, str]:
    done = subprocess.run([str(TOP / "vm-tests" / "run"), "test", "--cases", str(cases), "--vmlinux", str(VMLINUX),
                           *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def last(text: str) -> str:
    return text.splitlines()[-1]


def good() -> None:
    """A suite that passes: status 0, the last line counts"""
    status, text = test("good")
    equal((status, last(text)), (0, "4 passed, 0 failed, 2 skipped"))


def one_case() -> None:
    """One case of it"""
    status, text = test("good/status")
    equal((status, last(text)), (0, "2 passed, 0 failed"))


def bad() -> None:
    """Each failing case is one failure, its reason is told, the others still run"""
    status, text = test("bad")
    equal((status, last(text)), (1, "3 passed, 7 failed"))
    for reason in ("status: exit status 1", "signal: exit status 139", "short-plan: 1 results of 2 planned",
                   "disagree: exit status 3", "hang: did not end within 1 seconds",
                   "behind: left processes behind", "missing: exit status 127"):
        assert reason in text, f"{reason} is not in:\n{text}"
    assert "| before" in text, text
    assert re.search(r"\| # \d+ S sleep 100: .*nanosleep", text), f"what hangs is not told:\n{text}"


def splat() -> None:
    """A splat fails the suite whose cases pass, and is quoted"""
    status, text = test("splat")
    equal((status, last(text)), (1, "1 passed, 1 failed"))
    assert re.search(r"FAIL splat/kernel-log  the kernel complains .*Call Trace", text), text


def dies() -> None:
    """A guest that dies fails the case that ran, and those that did not; its output so far is shown"""
    status, text = test("dies")
    equal((status, last(text).split(",")[0]), (1, "1 passed"))
    for reason in ("crash: the guest died without a verdict", "1 cases did not run", "| last words", "Kernel panic"):
        assert reason in text, f"{reason} is not in:\n{text}"


def hangs() -> None:
    """The time limit of a suite holds, whatever its cases allow themselves"""
    status, text = test("hangs")
    equal((status, last(text)), (1, "1 passed, 2 failed"))


def names() -> None:
    """A suite that is not there: one line that lists them, status 2"""
    status, text = test("nope")
    equal((status, text), (2, "test: no such suite: nope; there are bad, dies, good, hangs, many, splat, twice\n"))


def one_kernel() -> None:
    """A kernel that is given runs a suite once, however many profiles that lists"""
    status, text = test("twice")
    equal((status, last(text)), (0, "2 passed, 0 failed"))
    assert "twice (perdure-vm)" in text and "perdure-debug" not in text, text
    assert "Slowest" not in text, text


def slowest() -> None:
    """The end says which cases were the slowest, when there are many, and where the rest of the time went"""
    status, text = test("many")
    equal((status, last(text)), (0, "33 passed, 0 failed"))
    shown = re.findall(r"^ +([\d.]+) s  (\S+) \(perdure-vm\)$", text, re.M)
    equal((len(shown), shown[0][1]), (30, "many/slow"))
    equal(shown, sorted(shown, key=lambda line: -float(line[0])))
    assert re.search(r"^1 runs in \d+ s: \d+ in cases, 0 for kernels, \d+ for guests to begin and end$", text, re.M), text


def beside() -> None:
    """Suites that run beside the others are told, and count as any; named, they are suites as any; what goes by the clock is last"""
    suite = {"doc": "", "where": "host", "kernel": "perdure", "profiles": ["vm"], "timeout_s": 60}
    with tempfile.TemporaryDirectory() as place:
        alone, aside = "sleep 1", f'sleep 2; touch {place}/over; test "$(nice)" != 19 || exit 3'
        for name, more, run in (("alone", {}, alone), ("aside", {"beside": True}, aside), ("a-clock", {"last": True}, f"test -e {place}/over")):
            (Path(place) / name).mkdir()
            cases = [{"name": "case", "run": run, "timeout_s": 20}, {"name": "good", "run": "true", "timeout_s": 20}]
            (Path(place) / name / "suite.json").write_text(json.dumps(suite | more | {"cases": cases}))
        status, text = test(cases=Path(place))
        equal((status, last(text)), (1, "8 passed, 1 failed"))
        for line in "beside the others: aside/case, aside/good", "  FAIL aside/case", "  aside (host) case: exit status 3":
            assert line in text, f"{line} is not in:\n{text}"
        status, text = test("aside/good", cases=Path(place))
        equal((status, last(text), "beside" in text), (0, "2 passed, 0 failed", False))


def nothing() -> None:
    """That nothing ran is a failure"""
    status, text = test("good", "--profile", "debug")
    equal((status, last(text)), (1, "0 passed, 1 failed"))


main(good, one_case, bad, splat, dies, hangs, names, one_kernel, slowest, beside, nothing)
