#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The core in the simulator: simulate.py SEEDS [FIRST, or others each time]. replay-simulate -v -s SEED repeats one that fails."""

import subprocess
import sys
import time

from replay import PROGRAMS, main

SEEDS = int(sys.argv[1])
FIRST = int(sys.argv[2]) if len(sys.argv) > 2 else int(time.time())


def seeds() -> None:
    """Servers that crash at every step: no request is lost or executed twice, and nothing is left an orphan"""
    half = (SEEDS + 1) // 2
    runs = [subprocess.Popen([PROGRAMS / "replay-simulate", "-s", str(FIRST + i * half), "-n", str(half)], stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for i in range(2)]
    said = [run.communicate()[0] for run in runs]
    print("".join(f"# {line}\n" for text in said for line in text.splitlines()[-20:]), end="", flush=True)
    assert not any(run.returncode for run in runs)
    # Calls that give up have to be among it
    assert SEEDS < 1000 or not any(" 0 timeouts" in text for text in said)


main(seeds)
