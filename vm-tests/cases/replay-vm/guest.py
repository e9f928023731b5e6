# SPDX-License-Identifier: GPL-2.0-or-later
"""Guests for the tests of libreplay: disks that the test serves, a network to the host, and an end without a warning."""

import os
import random
import socket
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "replay"))
from replay import CTL, LOAD, PLACE, SERVICE, ctl, equal, free_port, main  # noqa: E402,F401
from points import BUILD, VMLINUX  # noqa: E402
import guests  # noqa: E402
import vm  # noqa: E402
from guests import BOOT_S, wait  # noqa: E402,F401

HERE = Path(__file__).resolve().parent
PORT = 8080     # of the server in the guest
SEED = int(os.environ.get("REPLAY_SEED") or random.SystemRandom().randrange(1 << 32))

draw = random.Random(SEED)
print(f"# seed {SEED}", flush=True)


def answers(port: int) -> bool:
    """Somebody answers as a replay server that has recovered does."""
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as s:
            s.settimeout(5)
            s.sendall(b"POST /none HTTP/1.1\r\nHost: x\r\nIdempotency-Key: up?\r\nContent-Length: 0\r\n\r\n")
            return s.recv(64).startswith(b"HTTP/1.1 400")
    except OSError:
        return False


class Guest(guests.Guest):
    """One that runs inside.sh with these arguments. `disks`: sockets of disks, each a /dev/vdX with sectors of this size."""

    def __init__(self, name: str, job: list[object], disks: list[tuple[Path, int]] | None = None, ports: dict[int, int] | None = None,
                 memory: str = "384M", timeout: float = 1200) -> None:
        forward = "".join(f",hostfwd=tcp:127.0.0.1:{outer}-:{inner}" for inner, outer in (ports or {}).items())
        more = ["-netdev", f"user,id=net{forward}", "-device", "virtio-net-pci,netdev=net"]
        for i, (address, sector) in enumerate(disks or []):
            more += ["-drive", f"driver=raw,file.driver=nbd,file.server.type=unix,file.server.path={vm.value(address)},"
                               f"if=none,id=disk{i},cache.writeback=on,cache.direct=on",
                     "-device", f"virtio-blk-pci,drive=disk{i},write-cache=on,logical_block_size={sector},physical_block_size={sector}"]
        super().__init__(name, vm.Job([str(HERE / "inside.sh"), *(str(a) for a in job)], "/",
                                      vm.environment(PERDURE_GUEST="1", SERVICE=str(SERVICE), CTL=str(CTL))),
                         PLACE, BUILD / "log" / "test" / f"replay-vm-{Path(sys.argv[0]).stem}-{name}.console", VMLINUX, more,
                         memory, timeout=timeout)

    def up(self, port: int) -> "Guest":
        def there() -> bool:
            self.alive()
            return answers(port)

        wait(f"{self.name} serves", there)
        return self

    def exit(self) -> None:
        """For a program that runs itself in the guest: what that says and ends with is what this one does."""
        self.thread.join()
        print(self.text(), end="", flush=True)
        self.complaints()
        assert self.result
        sys.exit(self.result.status)
