#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
A log on a network block device: its host dies, or hangs, another one takes it over, and clients go on. A host that wakes up when
another one serves cannot write, and says so. takeover.py ROUNDS
"""

import re
import signal
import socket
import sys
import threading
import time
from contextlib import suppress

from guest import HERE, PLACE, PORT, SERVICE, Guest, ctl, draw, free_port, main, wait
from nbd import Disk
from remote import Clients, ask

ROUNDS = int(sys.argv[1])
SIZE = 8 << 20


class Address:
    """That which clients know. It belongs to one host at a time."""

    def __init__(self) -> None:
        self.target: int | None = None
        self.open: list[socket.socket] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        threading.Thread(target=self.accept, daemon=True).start()

    def move(self, target: int | None) -> None:
        self.target = target
        for s in self.open:
            with suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
        self.open.clear()

    def accept(self) -> None:
        while True:
            client, _ = self.listener.accept()
            try:
                server = socket.create_connection(("127.0.0.1", self.target or 0), 5)
                server.settimeout(None)
            except OSError:
                client.close()
                continue
            self.open += [client, server]
            for pair in (client, server), (server, client):
                threading.Thread(target=self.pump, args=pair, daemon=True).start()

    def pump(self, source: socket.socket, to: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                to.sendall(data)
        for s in source, to:
            with suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)


class Host:
    def __init__(self, name: str, disk: Disk) -> None:
        config = PLACE / f"{name}.conf"
        config.write_text(f"[server]\nname = shop\nlog = /dev/nbd0\nlisten = 0.0.0.0:{PORT}\nserver_checkpoint = 256k\n"
                          "session_checkpoint = 16k\n")
        self.port = free_port()
        self.guest = Guest(name, [sys.executable, HERE / "attach.py", disk.port, SERVICE, config], ports={PORT: self.port})


def disk_with_log() -> Disk:
    log = PLACE / "shop.log"
    ctl("format", log, "--size", str(SIZE), "--force")
    disk = Disk(SIZE)
    disk.stable[:] = log.read_bytes()
    return disk


def taken_over() -> None:
    """A host dies, or hangs and wakes up too late: what was acknowledged is there on the next one, and only that one writes"""
    disk, address = disk_with_log(), Address()
    host = Host("host0", disk)
    host.guest.up(host.port)
    address.move(host.port)
    clients = Clients(address.port, "add", 6, 200)
    for number in range(1, 2 * ROUNDS + 1):
        time.sleep(draw.uniform(1, 5))
        old, dies = host, number % 2
        host.guest.signal(signal.SIGKILL if dies else signal.SIGSTOP)
        if dies:
            old.guest.cut()
        else:
            # While it has the disk, nobody else gets it
            refused = disk.refused
            other = Guest("too-soon", [sys.executable, HERE / "attach.py", disk.port, "true"])
            other.thread.join(300)
            assert other.result and other.result.status and disk.refused == refused + 1, (other.result, other.text())
        address.move(None)
        disk.fence()
        host = Host(f"host{number}", disk)
        host.guest.up(host.port)
        address.move(host.port)
        if dies:
            continue
        # The one that hung goes on in the middle of what it did
        holder, writes = disk.holder, disk.writes
        old.guest.signal(signal.SIGCONT)
        answers = [ask(old.port, "add", "lie 1", 20) for _ in range(3)]
        assert not any(answer.startswith("200") for answer in answers), answers
        old.guest.thread.join(300)
        assert old.guest.result and old.guest.result.status == 1, (old.guest.result, old.guest.text())
        # Whichever it wants first; the anchor is part of it
        assert re.search(r"ended: the log('s anchor)? cannot be (written|read).*: Input/output error", old.guest.text()), old.guest.text()
        wait("the other host goes on", lambda: disk.writes > writes)
        assert disk.holder is holder, "the other host has lost its disk"
        assert ask(host.port, "look", "lie").startswith("404")
    clients.end()
    clients.check(address.port)
    host.guest.cut()
    disk.power(None)
    said = ctl("verify", disk.save(PLACE / "shop.image"))
    assert ": whole" in said, said
    print(f"# {2 * ROUNDS} hosts gone, {clients.all} requests", flush=True)


main(taken_over)
