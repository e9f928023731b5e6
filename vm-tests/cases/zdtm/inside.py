#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs tests of CRIU's in the guest, and prints a JSON line about each. usage: inside.py TESTS.json"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

LIMIT_S = 60


class Failure(Exception):
    pass


def wait(what: str, check) -> None:
    end = time.monotonic() + LIMIT_S
    while not check():
        if time.monotonic() > end:
            raise Failure(f"{what}: not within {LIMIT_S} s")
        time.sleep(0.02)


def call(*command: str) -> str:
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        raise Failure(f"{command[1]}: not within {LIMIT_S} s") from None
    if done.returncode:
        raise Failure(f"{command[1]}: {' '.join((done.stderr + done.stdout).split())[:300]}")
    return done.stdout


def session(leader: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if int((path / "stat").read_text().rpartition(")")[2].split()[3]) == leader:
                found.append(int(path.name))
        except (OSError, IndexError):
            pass
    return found


def run(test: dict, *how: str) -> dict:
    """The test tells by its output whether it found everything as it was."""
    place = Path("/tmp/zdtm") / test["name"]
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    place.chmod(0o1777)     # frem restores nothing from where others can exchange it
    pidfile, outfile = place / "pid", place / "out"
    with (place / "said").open("wb") as said:
        started = subprocess.run([test["program"], f"--pidfile={pidfile}", f"--outfile={outfile}"], cwd=place,
                                 stdin=subprocess.DEVNULL, stdout=said, stderr=said, timeout=LIMIT_S, start_new_session=True)
    if started.returncode:
        raise Failure(f"the test does not start: {(place / 'said').read_text()[-200:]}")
    pid = int(pidfile.read_text())
    try:
        call("frem", "checkpoint", str(pid), "--dir", str(place / "c"), "--window", "0.1", "--", *test["options"])
        # They go on after that: what counts is the restored ones
        for one in session(pid):
            os.kill(one, signal.SIGKILL)
        wait("they are gone", lambda: not session(pid))
        told = json.loads(call("frem", "restore", "--dir", str(place / "c"), "--json", *how, "--", *test["again"]))
        os.kill(pid, signal.SIGTERM)
        wait("the verdict", outfile.exists)
        if "PASS" not in outfile.read_text(errors="replace"):
            raise Failure(" ".join(outfile.read_text(errors="replace").split())[-300:])
        return {"mode": told["mode"], "faults": told.get("loader", {}).get("faults", 0)}
    finally:
        for one in session(pid):
            try:
                os.kill(one, signal.SIGKILL)
            except ProcessLookupError:
                pass
        shutil.rmtree(place / "c", ignore_errors=True)


def main() -> None:
    os.environ["ZDTM_UID"] = os.environ["ZDTM_GID"] = "0"
    for number, test in enumerate(json.loads(Path(sys.argv[1]).read_text())):
        begin = time.monotonic()
        entry = {"name": test["name"], "frem": "pass"}
        try:
            # The paper's way and ours in turn
            entry |= run(test, *(["--preload"] if number % 2 else []))
        except (Failure, OSError, subprocess.SubprocessError) as e:
            entry["frem"] = str(e)
            entry["criu"] = "pass"
            try:
                run(test, "--plain")
            except (Failure, OSError, subprocess.SubprocessError) as other:
                entry["criu"] = str(other)
        print(json.dumps(entry | {"seconds": round(time.monotonic() - begin, 1)}), flush=True)


if __name__ == "__main__":
    main()
