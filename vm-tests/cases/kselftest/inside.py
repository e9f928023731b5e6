#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs selftests in the guest, each with a network of its own, and prints a JSON line about each.

usage: inside.py DIRECTORY LIMIT TARGET:TEST..."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

POINT = re.compile(r"\s*(?:# )?(ok|not ok) \d+ (?:- )?(.*)")
NETWORK = "ip link set lo up 2>/dev/null; exec \"$0\""


def points(text: str) -> dict[str, str]:
    """Name of each result: pass, fail or skip. Numbers that a name carries are no part of it."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if match := POINT.match(line):
            name, _, rest = match[2].partition("#")
            name = re.sub(r"\d{4,}|0x[0-9a-f]+", "N", name.strip())
            word = "skip" if rest.strip().upper().startswith("SKIP") else "pass" if match[1] == "ok" else "fail"
            found[name] = word if found.get(name, word) == word else "fail"
    return found


def run(directory: Path, program: str, limit: float) -> tuple[str, str]:
    command = ["unshare", "-n", "sh", "-c", NETWORK, f"./{program}"]
    with open("/tmp/selftest.log", "w+b") as log:
        process = subprocess.Popen(command, cwd=directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                   start_new_session=True)
        try:
            status = process.wait(limit)
            word = {0: "pass", 4: "skip"}.get(status, "fail")
        except subprocess.TimeoutExpired:
            word = "late"
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        log.seek(0)
        return word, log.read(1 << 20).decode(errors="replace")


def main() -> None:
    place, limit, *tests = sys.argv[1:]
    for test in tests:
        target, _, program = test.partition(":")
        start = time.monotonic()
        word, text = run(Path(place) / target, program, float(limit))
        print(json.dumps({"test": test, "word": word, "points": points(text), "tail": text[-1500:],
                          "seconds": round(time.monotonic() - start, 1)}), flush=True)


if __name__ == "__main__":
    main()
