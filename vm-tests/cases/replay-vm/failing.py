#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Disks that fail for a while, and all states of a disk that a power cut could have left. failing.py ROUNDS STATES
"""

import sys
import threading
import time
from pathlib import Path

from remote import Clients
from nbd import FLUSH, READ, WRITE, Disk
from guest import PLACE, PORT, Guest, ctl, draw, free_port, main, wait
from replay import Server, Session

ROUNDS, STATES = (int(a) for a in sys.argv[1:3])
SIZE = 4 << 20
OPTIONS = "server_checkpoint = 256k\nsession_checkpoint = 16k\nrequest_log = 64k\n"


def prepare(name: str, sector: int) -> tuple[Disk, list[tuple[Path, int]], Path, dict[int, int]]:
    """A disk with an empty log, for a guest, its file of options and its ports."""
    addresses = [(PLACE / f"{name}.disk", sector)]
    disk = Disk(SIZE, addresses[0][0])
    config = PLACE / f"{name}-guest.conf"
    config.write_text(f"[server]\nname = {name}\nlog = /dev/vda\nlisten = 0.0.0.0:{PORT}\n{OPTIONS}")
    said = Guest("format", ["format", "/dev/vda"], addresses).end()
    assert "an empty log" in said, said
    image = disk.save(PLACE / f"{name}.image")
    assert f"sectors of {sector} bytes" in ctl("verify", image), ctl("verify", image)
    return disk, addresses, config, {PORT: free_port()}


def errors() -> None:
    """Writes, flushes and reads that fail for a while: the server ends with a message, starts again, and has lost nothing"""
    disk, addresses, config, ports = prepare("errors", 512)
    guest = Guest("errors", ["forever", config], addresses, ports).up(ports[PORT])
    clients = Clients(ports[PORT], "add", 4, 200)
    for number in range(ROUNDS):
        kinds = ({WRITE}, {FLUSH}, {WRITE, FLUSH}, {READ, WRITE})[number % 4]
        before = guest.text().count("ended with 1")
        left = draw.randrange(20)

        def failing(kind: int) -> bool:
            nonlocal left
            left -= kind in kinds
            return kind in kinds and left < 0

        disk.failing = failing
        wait("the server ends", lambda: guest.text().count("ended with 1") > before)
        time.sleep(draw.uniform(0, 1))
        disk.failing = lambda kind: False
        guest.up(ports[PORT])
        assert not clients.wrong, clients.wrong
    clients.end()
    clients.check(ports[PORT])
    guest.cut()
    text = guest.text()
    assert "the log cannot be written: Input/output error" in text, text
    assert text.count("replay: the ") + text.count("replay: /dev/vda: ") >= text.count("ended with 1") >= ROUNDS, text
    assert "ended with 1" in text and text.count("ended with") == text.count("ended with 1"), text
    print(f"# {ROUNDS} times failing, {text.count('ended with 1')} ends, {clients.all} requests", flush=True)
    disk.power(None)
    assert ": whole" in ctl("verify", disk.save(PLACE / "errors.image"))


def states() -> None:
    """The disk at each flush, on a disk of 4096-byte sectors: its log is whole, and has all that had been acknowledged by then"""
    disk, addresses, config, ports = prepare("states", 4096)
    guest = Guest("states", ["serve", "/dev/vda", "--", config], addresses, ports).up(ports[PORT])
    acknowledged, asked, images = 0, 0, list[tuple[int, bytes]]()

    def flushed() -> None:
        # Each one would be much memory: of the first ones all, then some
        if len(images) < STATES // 2 or draw.random() < 0.1:
            images.append((acknowledged, bytes(disk.stable)))

    lock = threading.Lock()
    disk.flushed = flushed
    server = Server("states", OPTIONS, size=str(SIZE))
    server.port, own = ports[PORT], server.port

    def client() -> None:
        nonlocal acknowledged, asked
        session = Session(server)
        while len(images) < STATES:
            with lock:
                asked += 1
            status, _ = session.call("add", "total 1")
            assert status == 200
            with lock:
                acknowledged += 1

    threads = [threading.Thread(target=client) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    disk.flushed = lambda: None
    guest.cut()
    server.port = own
    highest = 0
    for known, image in images[:STATES]:
        server.log.write_bytes(image)
        assert ": whole" in ctl("verify", server.log)
        server.start()
        status, text = Session(server).call("look", "total")
        total = int(text) if status == 200 else 0
        assert known <= total <= asked, (known, total, asked)
        highest = max(highest, known)
        server.kill()
    assert highest > STATES // 8, highest
    print(f"# {len(images[:STATES])} states; {highest} requests acknowledged by the last", flush=True)


main(errors, states)
