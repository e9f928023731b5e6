#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The script that keepalived calls, with a network and a takeoverctl that are as we say."""

import subprocess
import tempfile
import time
from contextlib import contextmanager
from collections.abc import Iterator
from pathlib import Path
from shutil import which as find

from takeover import TOP, equal, main, wait

TEXT = (TOP / "userspace/takeover/examples/takeover.sh").read_text()
MARK = "127.0.0.3"
STATUS = "web backup epoch alone x\nold primary epoch protected x\nlate backup epoch promoting x\n"


def which(name: str) -> str:
    path = find(name)
    assert path, f"{name} is not there"
    return path


class Script:
    """keepalived's side of it."""

    def __init__(self, place: Path) -> None:
        self.network, self.mark, self.told, self.place = place / "network", place / "mark", place / "told", place
        self.logged = place / "logged"
        self.path = f"{place}:/usr/sbin:/usr/bin:/sbin:/bin"
        self.told.touch()
        self.logged.touch()
        (place / "takeover.sh").write_text(TEXT.replace("DIRECTORY=/run/takeover", f"DIRECTORY={place}"))
        (place / "status").write_text(STATUS)
        for name, text in ("ping", f"for at; do :; done; exec test -e {self.network} -a $at = 192.0.2.1"), \
                          ("logger", f"echo \"$*\" >>{self.logged}"), \
                          ("ip", f"test \"$*\" != '-o address show to {MARK}' || cat {self.mark} 2>/dev/null"), \
                          ("takeoverctl", f"case $1 in status) exec cat {place}/status ;; protect) sed -i \"/^$2 /d\" {place}/status ;; esac; "
                           f"echo \"$*\" >>{self.told}; at={place}/status-$(sed -n \\$= {self.told}); "
                           "if test $1 = promote -a -e $at; then echo it is down >&2; exit $(cat $at); fi"):
            (place / name).write_text(f"#!/bin/sh\n{text}\n")
            (place / name).chmod(0o755)
        self.running: list[subprocess.Popen[bytes]] = []

    def becomes(self, state: str) -> None:
        """The address first, as keepalived does it."""
        if state == "MASTER":
            self.mark.write_text("an address")
        else:
            self.mark.unlink(missing_ok=True)
        self.says(state)

    def says(self, state: str) -> None:
        self.running.append(subprocess.Popen([which("sh"), str(self.place / "takeover.sh"), MARK, "INSTANCE", "peer", state, "100"],
                                             env={"PATH": self.path}))

    def without_ping(self) -> None:
        """A host that has no such program, though the machine that this runs on may have it."""
        (self.place / "ping").rename(self.place / "none")
        for name in "sh", "flock", "sleep", "cat", "sed", "test":
            (self.place / name).symlink_to(which(name))
        self.path = str(self.place)

    def promotes(self, *statuses: int) -> None:
        """What becomes of takeoverctl's first promotions; later ones succeed."""
        for number, status in enumerate(statuses, 1):
            (self.place / f"status-{number}").write_text(str(status))

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


def gateway() -> None:
    """Why it waits is in the log, once, and that it goes on"""
    with script() as s:
        s.becomes("MASTER")
        time.sleep(2)
        s.network.touch()
        equal(s.ends(), ["promote all"])
        first, second = s.logged.read_text().splitlines()
        assert "daemon.err " in first and "192.0.2.1: not promoted until" in first, first
        assert "reaches GATEWAY, 192.0.2.1, again" in second, second
    with script() as s:
        s.network.touch()
        s.becomes("MASTER")
        equal(s.ends(), ["promote all"])
        equal(s.logged.read_text(), "")


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


def overtaken() -> None:
    """The script of a death begins after that of the return: nobody is promoted, for nobody would protect it again"""
    with script() as s:
        s.network.touch()
        s.becomes("BACKUP")
        equal(s.ends(), ["protect web", "protect late"])
        s.says("MASTER")
        equal(s.ends(), ["protect web", "protect late"])


def stopped() -> None:
    """keepalived stops: nothing is done, whatever it leaves behind"""
    with script() as s:
        s.network.touch()
        s.becomes("MASTER")
        equal(s.ends(), ["promote all"])
        for state in "FAULT", "STOP":
            s.says(state)
        equal(s.ends(), ["promote all"])


def refused() -> None:
    """takeoverd is down: it is asked until it answers, for keepalived calls once, and the log says so once"""
    with script() as s:
        s.network.touch()
        s.promotes(1, 2)
        s.becomes("MASTER")
        equal(s.ends(), ["promote all"] * 3)
        said, = s.logged.read_text().splitlines()
        assert "daemon.err " in said and "not promoted" in said and "it is down" in said, said
    # Not by a host whose peer has been promoted
    with script() as s:
        s.network.touch()
        s.promotes(1, 3)
        s.becomes("MASTER")
        equal(s.ends(), ["promote all"] * 2)
    # Nor when the other one is back
    with script() as s:
        s.network.touch()
        s.promotes(*[1] * 50)
        s.becomes("MASTER")
        wait("it has been tried twice", lambda: s.told.exists() and s.told.read_text().count("promote all") >= 2)
        s.becomes("BACKUP")
        told = s.ends()
        assert 2 <= told.count("promote all") < 20, told
        equal(told[-2:], ["protect web", "protect late"])


def no_ping() -> None:
    """Without ping nobody is promoted: what has to be installed is in the log as soon as keepalived starts"""
    with script() as s:
        s.without_ping()
        s.network.touch()
        s.becomes("BACKUP")
        equal(s.ends(), ["protect web", "protect late"])
        said, = s.logged.read_text().splitlines()
        assert "daemon.err " in said and "install iputils-ping" in said, said
        s.becomes("MASTER")
        wait("it says so again", lambda: len(s.logged.read_text().splitlines()) == 2)
        time.sleep(1)
        equal(len(s.told.read_text().splitlines()), 2)
        first, second = s.logged.read_text().splitlines()
        assert "install iputils-ping" in second and "does not reach" not in second, second
        (s.place / "none").rename(s.place / "ping")
        equal(s.ends()[2:], ["promote all"])


if __name__ == "__main__":
    main(dead, back, cut, gateway, again, overtaken, stopped, refused, no_ping)
