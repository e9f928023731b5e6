#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs stressors in the guest, each with a network of its own, and prints a JSON line about each.

usage: inside.py LIMIT SECONDS COUNT STRESSOR..."""

import json
import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "lib"))
import limited  # noqa: E402

# What stress-ng ends with: no resources for it, not implemented
WORDS = {0: "pass", 3: "skip", 4: "skip"}


def run(name: str, limit: float, seconds: str, count: str) -> tuple[str, str]:
    command = ["stress-ng", f"--{name}", count, "--timeout", seconds, "--verify", "--no-rand-seed", "--oomable", "--temp-path", "/tmp"]
    return limited.run(command, Path("/tmp"), limit, WORDS)


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
