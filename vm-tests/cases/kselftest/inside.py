#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs selftests in the guest, each with a network of its own, and prints a JSON line about each.

usage: inside.py DIRECTORY LIMIT TARGET:TEST..."""

import json
import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "lib"))
import limited  # noqa: E402

POINT = re.compile(r"\s*(?:# )?(ok|not ok) \d+ (?:- )?(.*)")


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


def main() -> None:
    place, limit, *tests = sys.argv[1:]
    for test in tests:
        target, _, program = test.partition(":")
        start = time.monotonic()
        word, text = limited.run([f"./{program}"], Path(place) / target, float(limit), {0: "pass", 4: "skip"})
        print(json.dumps({"test": test, "word": word, "points": points(text), "tail": text[-1500:],
                          "seconds": round(time.monotonic() - start, 1)}), flush=True)


if __name__ == "__main__":
    main()
