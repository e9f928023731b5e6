# SPDX-License-Identifier: GPL-2.0-or-later
"""Guests for the tests of libreplay: disks that the test serves, a network to the host, and an end without a warning."""

import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "replay"))
from replay import CTL, LOAD, PLACE, SERVICE, ctl, equal, free_port, main  # noqa: E402,F401
from points import BUILD, VMLINUX  # noqa: E402
import splats  # noqa: E402
import vm  # noqa: E402

HERE = Path(__file__).resolve().parent
PORT = 8080     # of the server in the guest
SEED = int(os.environ.get("REPLAY_SEED") or random.SystemRandom().randrange(1 << 32))
BOOT_S = 300

draw = random.Random(SEED)
print(f"# seed {SEED}", flush=True)


def wait(what: str, done: Callable[[], bool], limit: float = BOOT_S) -> None:
    end = time.monotonic() + limit
    while not done():
        assert time.monotonic() < end, f"{what}: not within {limit:g} seconds"
        time.sleep(0.02)


def answers(port: int) -> bool:
    """Somebody answers as a replay server that has recovered does."""
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as s:
            s.settimeout(5)
            s.sendall(b"POST /none HTTP/1.1\r\nHost: x\r\nIdempotency-Key: up?\r\nContent-Length: 0\r\n\r\n")
            return s.recv(64).startswith(b"HTTP/1.1 400")
    except OSError:
        return False


class Guest:
    """One that runs inside.sh with these arguments. `disks`: sockets of disks, each a /dev/vdX with sectors of this size."""

    def __init__(self, name: str, job: list[object], disks: list[tuple[Path, int]] | None = None, ports: dict[int, int] | None = None,
                 memory: str = "384M", timeout: float = 1200) -> None:
        self.name, self.pid = name, PLACE / f"{name}.pid"
        self.pid.unlink(missing_ok=True)
        self.console = BUILD / "log" / "test" / f"replay-vm-{Path(sys.argv[0]).stem}-{name}.console"
        self.said, self.errors = bytearray(), bytearray()
        self.result: vm.Result | None = None
        forward = "".join(f",hostfwd=tcp:127.0.0.1:{outer}-:{inner}" for inner, outer in (ports or {}).items())
        more = ["-pidfile", str(self.pid), "-netdev", f"user,id=net{forward}", "-device", "virtio-net-pci,netdev=net"]
        for i, (address, sector) in enumerate(disks or []):
            more += ["-drive", f"driver=raw,file.driver=nbd,file.server.type=unix,file.server.path={vm.value(address)},"
                               f"if=none,id=disk{i},cache.writeback=on,cache.direct=on",
                     "-device", f"virtio-blk-pci,drive=disk{i},write-cache=on,logical_block_size={sector},physical_block_size={sector}"]
        self.job = vm.Job([str(HERE / "inside.sh"), *(str(a) for a in job)], "/",
                          vm.environment(PERDURE_GUEST="1", SERVICE=str(SERVICE), CTL=str(CTL)))
        self.machine = vm.Machine(VMLINUX, self.console, memory=memory, timeout=timeout, boot_timeout=BOOT_S, more=more,
                                  # Of many short boots on a busy machine some would calibrate the other one wrongly
                                  append="clocksource=hpet tsc=unstable")
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        self.result = vm.run(self.job, self.machine, self.said.extend, self.errors.extend)

    def text(self) -> str:
        return (self.said + self.errors).decode(errors="replace")

    def alive(self) -> None:
        assert not self.result, f"{self.name} has ended: {self.result}\n{self.text()[-2000:]}"

    def up(self, port: int) -> "Guest":
        def there() -> bool:
            self.alive()
            return answers(port)

        wait(f"{self.name} serves", there)
        return self

    def says(self, text: str, limit: float = BOOT_S) -> None:
        def there() -> bool:
            if text in self.text():
                return True
            self.alive()
            return False

        wait(f"{self.name} says {text!r}", there, limit)

    def signal(self, number: int) -> None:
        wait("its process is known", lambda: self.pid.exists() and self.pid.read_text().strip() != "")
        os.kill(int(self.pid.read_text()), number)

    def cut(self) -> None:
        """Gone, as without power"""
        if not self.result:
            self.signal(signal.SIGKILL)
        self.thread.join(60)
        assert self.result, "QEMU does not end"
        self.complaints(died=True)

    def end(self, limit: float = 600) -> str:
        """What it has said, when its command has ended well."""
        self.thread.join(limit)
        assert self.result, f"{self.name} does not end\n{self.text()[-3000:]}"
        assert self.result.status == 0, f"{self.result}\n{self.text()[-6000:]}"
        self.complaints()
        return self.text()

    def exit(self) -> None:
        """For a program that runs itself in the guest: what that says and ends with is what this one does."""
        self.thread.join()
        print(self.text(), end="", flush=True)
        self.complaints()
        assert self.result
        sys.exit(self.result.status)

    def complaints(self, died: bool = False) -> None:
        found = splats.scan(self.console, died)
        assert not found, found
