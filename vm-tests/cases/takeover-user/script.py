#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The script that keepalived calls, with a network and a takeoverctl that are as we say."""

import subprocess
import tempfile
import time
from contextlib import contextmanager
from collections.abc import Iterator
from pathlib import Path

from takeover import TOP, equal, main

TEXT = (TOP / "userspace/takeover/examples/takeover.sh").read_text()
STATUS = "web backup epoch alone x\nold primary epoch protected x\nlate backup epoch promoting x\n"


class Script:
    """keepalived's side of it."""

    def __init__(self, place: Path) -> None:
        self.network, self.told, self.place = place / "network", place / "told", place
        self.told.touch()
        (place / "takeover.sh").write_text(TEXT.replace("DIRECTORY=/run/takeover", f"DIRECTORY={place}"))
        (place / "status").write_text(STATUS)
        for name, text in ("ping", f"exec test -e {self.network}"), \
                          ("takeoverctl", f"case $1 in status) cat {place}/status ;; *) echo \"$*\" >>{self.told} ;; esac"):
            (place / name).write_text(f"#!/bin/sh\n{text}\n")
            (place / name).chmod(0o755)
        self.running: list[subprocess.Popen[bytes]] = []

    def becomes(self, state: str) -> None:
        self.running.append(subprocess.Popen(["sh", str(self.place / "takeover.sh"), "INSTANCE", "peer", state],
                                             env={"PATH": f"{self.place}:/usr/sbin:/usr/bin:/sbin:/bin"}))

    def ends(self) -> list[str]:
        for process in self.running:
            equal(process.wait(20), 0)
        return self.told.read_text().splitlines()


@contextmanager
def script() -> Iterator[Script]:
    with tempfile.TemporaryDirectory() as place:
        s = Script(Path(place))
        try:
            yield s
        finally:
            for process in s.running:
                process.kill()
                process.wait()


def dead() -> None:
    """The other host is dead, and this one has the network: it goes on at once"""
    with script() as s:
        s.network.touch()
        start = time.monotonic()
        s.becomes("MASTER")
        equal(s.ends(), ["promote all"])
        assert time.monotonic() - start < 1, "it hesitated"


def back() -> None:
    """The other host is back: what this one has alone is protected"""
    with script() as s:
        s.becomes("BACKUP")
        equal(s.ends(), ["protect web", "protect late"])


def cut() -> None:
    """This host had lost the network: it goes on only if it does not hear the other one when it has it again"""
    for heard in (True, False):
        with script() as s:
            s.becomes("MASTER")
            time.sleep(0.5)
            equal(s.told.read_text(), "")
            s.network.touch()
            time.sleep(1)
            equal(s.told.read_text(), "")
            if heard:
                (s.place / "status").write_text("web primary epoch protected x\n")
                s.becomes("BACKUP")
            equal(s.ends(), [] if heard else ["promote all"])


def again() -> None:
    """It loses the network once more before it has gone on"""
    with script() as s:
        s.becomes("MASTER")
        time.sleep(0.5)
        s.network.touch()
        time.sleep(0.5)
        s.network.unlink()
        time.sleep(3)
        equal(s.told.read_text(), "")
        s.becomes("BACKUP")
        equal(s.ends(), ["protect web", "protect late"])


if __name__ == "__main__":
    main(dead, back, cut, again)
