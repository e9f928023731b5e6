# SPDX-License-Identifier: GPL-2.0-or-later
"""Guests that run beside a test, for as long as it wants: what they say, signals to them, and how they ended."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import splats
import vm

BOOT_S = 300


def wait(what: str, done: Callable[[], bool], limit: float = BOOT_S) -> None:
    end = time.monotonic() + limit
    while not done():
        assert time.monotonic() < end, f"{what}: not within {limit:g} seconds"
        time.sleep(0.02)


class Guest:
    """One that does this job, with more arguments of QEMU's. `place` is for its files; `stdin`: a descriptor to feed it from."""

    def __init__(self, name: str, job: vm.Job, place: Path, console: Path, vmlinux: Path, more: list[str], memory: str = "384M",
                 cpus: int = 2, timeout: float | None = 1200, stdin: int | None = None, slow: int | None = None) -> None:
        self.name, self.pid, self.console, self.job, self.stdin = name, place / f"{name}.pid", console, job, stdin
        self.pid.unlink(missing_ok=True)
        self.said, self.errors = bytearray(), bytearray()
        self.result: vm.Result | None = None
        # Found out and compiled once, and not by several threads
        vm.init_program()
        self.machine = vm.Machine(vmlinux, console, memory, cpus, timeout=timeout, boot_timeout=BOOT_S, accel=vm.accelerator(vmlinux),
                                  # Of many short boots on a busy machine some would calibrate the other one wrongly
                                  append="clocksource=hpet tsc=unstable" if slow is None else "", slow=slow,
                                  more=["-pidfile", str(self.pid), *more])
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        try:
            self.result = vm.run(self.job, self.machine, self.hear, self.errors.extend, self.stdin)
        except Exception as error:
            self.result = vm.Result(vm.DIED, f"{type(error).__name__}: {error}")
            raise

    def hear(self, data: bytes) -> None:
        self.said += data

    def text(self) -> str:
        return (self.said + self.errors).decode(errors="replace")

    def alive(self) -> None:
        assert not self.result, f"{self.name} has ended: {self.result}\n{self.text()[-2000:]}"

    def signal(self, number: int) -> None:
        wait("its process is known", lambda: self.pid.exists() and self.pid.read_text().strip() != "")
        os.kill(int(self.pid.read_text()), number)

    def cut(self) -> None:
        """Gone, as without power"""
        if not self.result:
            self.signal(signal.SIGKILL)
        self.gone()

    def gone(self, until: str = "") -> None:
        """It dies. The kernel may complain from this line on."""
        self.thread.join(60)
        assert self.result, "QEMU does not end"
        self.complaints(died=True, until=until)

    def end(self, limit: float = 600) -> str:
        """What it has said, when its command has ended well."""
        self.thread.join(limit)
        assert self.result, f"{self.name} does not end\n{self.text()[-3000:]}"
        assert self.result.status == 0, f"{self.result}\n{self.text()[-6000:]}"
        self.complaints()
        return self.text()

    def complaints(self, died: bool = False, until: str = "") -> None:
        found = splats.scan(self.console, died, until=until)
        assert not found, f"{self.name}: {found}"
