# SPDX-License-Identifier: GPL-2.0-or-later
"""Judges what a test case printed (KTAP) and how it ended."""

import re
from dataclasses import dataclass, field

SKIPPED = (4, 77)   # exit statuses: kselftest's and automake's

VERSION = re.compile(r"(K?TAP) version \d+\s*$")
PLAN = re.compile(r"1\.\.(\d+)\s*(?:# *SKIP\b.*)?$", re.IGNORECASE)
POINT = re.compile(r"(ok|not ok)(?: (\d+))?(?: +-)?(?: ([^#]*))?(?:# *(.*))?$")


@dataclass
class Verdict:
    passed: int = 0
    skipped: int = 0
    failed: list[str] = field(default_factory=list)     # one line each

    @property
    def word(self) -> str:
        return "FAIL" if self.failed else "ok" if self.passed else "skip"

    def counts(self) -> str:
        parts = ((self.passed, "passed"), (len(self.failed), "failed"), (self.skipped, "skipped"))
        return ", ".join(f"{n} {word}" for n, word in parts if n or word != "skipped")


def is_ktap(text: str) -> bool:
    return any(VERSION.match(line) for line in text.splitlines())


def judge(text: str, status: int) -> Verdict:
    """`status` is an exit status, 128 + signal when killed. Nested results count through their parent's."""
    verdict = Verdict()
    if not is_ktap(text):
        if status in SKIPPED:
            verdict.skipped = 1
        elif status:
            verdict.failed.append(f"exit status {status}")
        else:
            verdict.passed = 1
        return verdict

    plan = None
    numbers: list[int] = []
    versions = 0
    for line in text.splitlines():
        if VERSION.match(line):
            versions += 1
        elif line.startswith("Bail out!"):
            verdict.failed.append(line.strip())
        elif found := PLAN.match(line):
            if plan is not None:
                verdict.failed.append("more than one plan")
            plan = int(found[1])
        elif found := POINT.match(line):
            word, number, name, rest = found.groups()
            label = f"{number or '?'} {(name or '').strip()}".strip() + (f" # {rest}" if rest else "")
            numbers.append(int(number or 0))
            if word == "not ok":
                verdict.failed.append(label)
            elif re.match(r"SKIP\b", rest or "", re.IGNORECASE):
                verdict.skipped += 1
            elif re.match(r"(TODO|XFAIL)\b", rest or "", re.IGNORECASE):
                verdict.failed.append(f"{label} (a test that need not pass is no test)")
            else:
                verdict.passed += 1
    if versions > 1:
        verdict.failed.append("more than one KTAP version line")
    if plan is None:
        verdict.failed.append("no plan")
    elif len(numbers) != plan:
        verdict.failed.append(f"{len(numbers)} results of {plan} planned")
    elif numbers != list(range(1, plan + 1)):
        verdict.failed.append("the results are not numbered 1, 2, 3 …")
    if plan == 0:
        verdict.skipped += 1
    if status and not verdict.failed and not (status in SKIPPED and not verdict.passed):
        verdict.failed.append(f"exit status {status}")
    return verdict
