#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs the cases of suites, in the guest or on the host, and reports each as JSON lines on stdout.

usage: cases.py SCALE SUITE-DIRECTORY [CASE...] [-- SUITE-DIRECTORY [CASE...]]... SCALE multiplies the time limits.
"""

import json
import os
import selectors
import signal
import stat
import subprocess
import sys
import time
from itertools import groupby
from pathlib import Path

LIMIT = 16 << 20    # of a case's output, in bytes
KMEMLEAK = Path("/sys/kernel/debug/kmemleak")


def tell(**event: object) -> None:
    print(json.dumps(event), flush=True)


def waiting(session: int) -> str:
    """What the session's threads wait for; in a guest those of all programs, and of the kernel those that nothing interrupts."""
    lines = []
    for task in sorted(Path("/proc").glob("[0-9]*/task/[0-9]*"), key=lambda task: int(task.name)):
        try:
            pid, _, rest = (task / "stat").read_text().partition(" (")
            name, _, rest = rest.rpartition(") ")
            state, _, _, its_session, *_ = rest.split()
            command = (task / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            if state in "ZX" or (os.environ.get("PERDURE_GUEST") != "1" and its_session != str(session)) or (not command and state != "D"):
                continue
            stack = [line.split()[-1].partition("+")[0] for line in (task / "stack").read_text().splitlines()]
        except (OSError, IndexError):   # it has ended
            continue
        lines.append(f"# {pid} {state} {(command or name)[:80]}: {' < '.join(stack[:12]) or 'runs'}\n")
    return "".join(lines)


def run(command: str, cwd: Path, limit: float) -> tuple[int, str]:
    """The exit status (128 + signal when killed) and why it was stopped, if it was."""
    process = subprocess.Popen(["/bin/sh", "-c", command], cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, start_new_session=True)
    assert process.stdout
    if os.nice(0):      # a session has a group of its own, which is as important as any other
        try:
            Path(f"/proc/{process.pid}/autogroup").write_text(str(os.nice(0)))
        except OSError:
            pass
    size, why, exited, open_ = 0, "", False, True
    try:
        deadline = time.monotonic() + limit
        watch = os.pidfd_open(process.pid)
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            selector.register(watch, selectors.EVENT_READ)
            while not (exited and not open_):
                left = deadline - time.monotonic()
                if left <= 0:
                    why = ("left processes behind that hold its output open" if exited else
                           f"did not end within {limit:g} seconds")
                    tell(text="\n" + waiting(process.pid))
                    break
                for key, _ in selector.select(left):
                    if key.fd == watch:
                        selector.unregister(watch)
                        exited = True
                        # What it left behind may hold its output open: not for long
                        deadline = min(deadline, time.monotonic() + 5)
                        continue
                    data = os.read(key.fd, 65536)
                    if not data:
                        selector.unregister(process.stdout)
                        open_ = False
                    elif size < LIMIT:
                        tell(text=data[:LIMIT - size].decode("latin-1"))
                        size += len(data)
                        if size >= LIMIT:
                            tell(text="\n(more output is not kept)\n")
        os.close(watch)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    status = process.wait()
    process.stdout.close()
    return (128 - status if status < 0 else status), why


def leaks() -> str:
    """What nothing points to any more: found by the second scan, if older than five seconds."""
    time.sleep(6)
    for _ in range(2):
        KMEMLEAK.write_text("scan")
    return KMEMLEAK.read_text(errors="replace")


def run_suite(directory: Path, names: list[str], scale: float, guest: bool) -> None:
    suite = json.loads((directory / "suite.json").read_text())
    more = 60 * float(os.environ.get("PERDURE_MINUTES", 0))
    end = time.monotonic() + suite["timeout_s"] * scale + more * len(names or suite["cases"])
    for number, case in enumerate(suite["cases"]):
        if names and case["name"] not in names:
            continue
        tell(begin=number)
        if guest:
            # For who reads the console
            Path("/dev/kmsg").write_text(f"perdure-tests: {directory.name}/{case['name']}\n")
        start = time.monotonic()
        limit = min(case["timeout_s"] * scale + more, max(1, end - start))
        status, why = run(case["run"], directory, limit)
        if guest:
            os.sync()
            try:
                os.kill(-1, signal.SIGKILL)     # all but us and process 1
            except ProcessLookupError:
                pass
        tell(end=number, status=status, why=why, seconds=time.monotonic() - start)


def open_way() -> None:
    """Lets the guest's users without privileges, some of whom are of root's group still, get to this repository, which may lie
    in root's home. Outside nothing changes."""
    top = Path(os.environ["PERDURE_TOP"])
    for place in (top, *top.parents):
        place.chmod(stat.S_IMODE(place.stat().st_mode) | stat.S_IXGRP | stat.S_IXOTH)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))     # and end what runs
    scale, *words = sys.argv[1:]
    guest = os.environ.get("PERDURE_GUEST") == "1"
    if guest:
        open_way()
    for number, (last, suite) in enumerate(groupby(words, lambda word: word == "--")):
        if not last:
            directory, *names = suite
            tell(suite=number // 2)
            run_suite(Path(directory), names, float(scale), guest)
    if guest and os.environ.get("PERDURE_PROFILE") == "debug":
        tell(leaks=leaks())
    tell(done=True)


if __name__ == "__main__":
    main()
