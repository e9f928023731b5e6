#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Prints the results of the kernel's KUnit tests, found in its log. usage: kunit.py SUITE...: those that must be there."""

import os
import re
import sys

POINT = re.compile(r"( *)(ok|not ok) (\d+) ([^ #]+)(?: *# *(.*))?$")
PLAN = re.compile(r"( *)1\.\.(\d+)$")


def kernel_log() -> list[str]:
    """From its first line on: a log that has lost some is no proof."""
    fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    lines: list[str] = []
    first = None
    while True:
        try:
            record = os.read(fd, 8192).decode(errors="replace")
        except BlockingIOError:
            break
        head, _, text = record.partition(";")
        if first is None:
            first = head.split(",")[1]
        lines.append(text.split("\n", 1)[0])
    if first != "0":
        sys.exit("the kernel's log has lost its beginning")
    return lines


def main() -> None:
    wanted = sys.argv[1:]
    results: list[tuple[bool, str]] = []
    cases: list[tuple[bool, str]] = []
    planned = count = 0
    said: set[str] = set()
    complaints: list[str] = []
    for line in kernel_log():
        if line.lstrip().startswith("# ") and "KTAP" not in line:
            complaints.append(line.strip())
        if found := PLAN.match(line):
            if found[1]:
                planned, cases, complaints = int(found[2]), [], []
        elif found := POINT.match(line):
            indent, word, _, name, rest = found.groups()
            good = word == "ok" and not (rest or "").upper().startswith("SKIP")
            if len(indent) == 4:
                if not good:
                    print("\n".join(complaints[-20:]))
                complaints = []
                cases.append((good, name))
            elif not indent:
                results += [(ok, f"{name}.{case}") for ok, case in cases]
                results.append((good and len(cases) == planned > 0, f"{name}: {len(cases)} of {planned} tests"))
                said.add(name)
                count += len(cases)
                cases, planned = [], 0
    results += [(False, f"{name} said nothing") for name in wanted if name not in said]
    results.append((count > 0, f"{len(said)} suites, {count} tests"))
    print(f"KTAP version 1\n1..{len(results)}")
    for number, (ok, name) in enumerate(results, 1):
        print(f"{'ok' if ok else 'not ok'} {number} {name}")
    sys.exit(not all(ok for ok, _ in results))


if __name__ == "__main__":
    main()
