#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""In a guest whose TMPDIR is on NFS: the tests of frem, and what only a network can do."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "frem"))
import roundtrip  # noqa: E402
from roundtrip import Target, case, frem, wait  # noqa: E402


def net(state: str) -> None:
    subprocess.run(["ip", "link", "set", "lo", state], check=True)


def loads(pid: int) -> bool:
    return "state: loading\n" in Path(f"/proc/{pid}/lazy_loader").read_text()


def unreachable(place: Path, meanwhile: Callable[[int], None]) -> tuple[Target, int, str]:
    """Restores a process of 128 MB, and takes the network away while it is loaded; how frem ended."""
    target = Target(place, megabytes=128)
    frem("checkpoint", str(target.pid), "--dir", str(place / "c"), "--window", "1", "--kill")
    target.process.wait()
    subprocess.run(["sync"], check=True)
    Path("/proc/sys/vm/drop_caches").write_text("3\n")      # or there is nothing to ask the server for
    restore = subprocess.Popen(["frem", "restore", "--dir", str(place / "c"), "--json"], stdout=subprocess.PIPE, text=True)
    wait("it runs", lambda: os.path.exists(f"/proc/{target.pid}") and loads(target.pid))
    net("down")
    try:
        meanwhile(target.pid)
    finally:
        net("up")
    out, _ = restore.communicate(timeout=300)
    return target, restore.returncode, out


@case
def server_out_of_reach(place: Path) -> None:
    """the network is gone for six seconds while a process is loaded: it waits, and loses nothing"""
    def meanwhile(pid: int) -> None:
        time.sleep(6)
        assert loads(pid), "it was loaded without a network"

    target, status, out = unreachable(place, meanwhile)
    loader = json.loads(out.splitlines()[-1])["loader"]
    assert status == 0 and loader["state"] == "complete" and loader["missing"] == 0, (status, out)
    target.check()
    target.end()


@case
def killed_out_of_reach(place: Path) -> None:
    """a process that waits for a server that cannot be reached can be killed"""
    def meanwhile(pid: int) -> None:
        time.sleep(3)
        os.kill(pid, signal.SIGKILL)
        wait("it is gone", lambda: not os.path.exists(f"/proc/{pid}"))

    _, status, out = unreachable(place, meanwhile)
    assert status == 0 and json.loads(out.splitlines()[-1])["loader"]["missing"], (status, out)


if __name__ == "__main__":
    roundtrip.main()
