#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs stressors in the guest, each with a network of its own, and prints a JSON line about each.

usage: inside.py LIMIT SECONDS COUNT STRESSOR..."""

import json
import os
import re
import signal
import subprocess
import sys
import time

# What stress-ng ends with: no resources for it, not implemented
WORDS = {0: "pass", 3: "skip", 4: "skip"}
NETWORK = 'ip link set lo up 2>/dev/null; exec "$@"'


def run(name: str, limit: float, seconds: str, count: str) -> tuple[str, str]:
    command = ["unshare", "-n", "sh", "-c", NETWORK, "sh", "stress-ng", f"--{name}", count, "--timeout", seconds, "--verify",
               "--no-rand-seed", "--oomable", "--temp-path", "/tmp"]
    with open("/tmp/stress.log", "w+b") as log:
        process = subprocess.Popen(command, cwd="/tmp", stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        try:
            word = WORDS.get(process.wait(limit), "fail")
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
    limit, seconds, count, *names = sys.argv[1:]
    for name in names:
        start = time.monotonic()
        word, text = run(name, float(limit), seconds, count)
        # Some skip themselves and end well
        if word == "pass" and re.search(r"skipped: \d+: ", text):
            word = "skip"
        print(json.dumps({"test": name, "word": word, "points": {}, "tail": text[-1500:],
                          "seconds": round(time.monotonic() - start, 1)}), flush=True)


if __name__ == "__main__":
    main()
