#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
The power of a guest with two servers of a domain is cut while they work: their disks forget what was not flushed, in whole or
sector by sector. power.py CUTS [SECTOR]: so many cuts, and more until one has lost something.
"""

import random
import sys

from remote import Clients
from nbd import Disk
from guest import BOOT_S, PLACE, PORT, SEED, Guest, ctl, draw, free_port, main

CUTS = int(sys.argv[1])
SECTOR = int(sys.argv[2]) if len(sys.argv) > 2 else 512
SIZE = 4 << 20
CLIENTS = {"add": (4, 300), "forward": (4, 50)}     # sessions, requests each


def files() -> dict[str, str]:
    key = PLACE / "domain.key"
    key.write_text("0123456789abcdef0123456789abcdef\n")
    members = "".join(f"[member {name}]\nnumber = {i}\nurl = http://127.0.0.1:{9080 + i}\n" for i, name in enumerate(("front", "back")))
    made = {}
    for i, name in enumerate(("front", "back")):
        path = PLACE / f"{name}.conf"
        path.write_text(f"[server]\nname = {name}\nlog = /dev/vd{'ab'[i]}\nlisten = 0.0.0.0:{PORT + i}\nserver_checkpoint = 256k\n"
                        "session_checkpoint = 16k\nrequest_log = 64k\n"
                        f"[domain]\nlisten = 127.0.0.1:{9080 + i}\nkey = {key}\n{members}")
        made[name] = str(path)
    return made


def cuts() -> None:
    """Power cuts at random instants: each request that was acknowledged has been executed once, and the logs are whole"""
    made = files()
    addresses = [(PLACE / f"{name}.disk", SECTOR) for name in made]
    disks = [Disk(SIZE, address) for address, _ in addresses]
    ports = {PORT: free_port(), PORT + 1: free_port()}
    Guest("format", ["format", "/dev/vda", "/dev/vdb"], addresses).end()
    clients = [Clients(ports[PORT], method, *numbers) for method, numbers in CLIENTS.items()]
    job = ["serve", "/dev/vda", "/dev/vdb", "--", *made.values()]
    lossy = set[int]()
    number = 0
    while number < CUTS or not lossy and number < 10 * CUTS:
        number += 1
        guest = Guest("power", job, addresses, ports)
        recovering = draw.random() < 0.15
        if not recovering:
            guest.up(ports[PORT])
        disk, how = draw.choice(disks), draw.choice(("any", "write", "flush", "flush"))
        if recovering or how == "write":
            disk.go_dark(sectors=draw.randrange(1, 30 if recovering else 200))
        elif how == "flush":
            disk.go_dark(flushes=draw.randrange(100))
        disk.went.wait(BOOT_S if recovering else 5 if how != "any" else draw.uniform(0, 1.5))
        for disk in disks:
            disk.go_dark()
        guest.cut()
        for name, disk in zip(made, disks):
            before = disk.lost
            disk.power(random.Random(draw.randrange(1 << 32)) if draw.random() < 0.7 else None)
            if disk.lost > before:
                lossy.add(number)
            image = disk.save(PLACE / f"{name}.image")
            said = ctl("verify", image)
            assert ": whole" in said, said
        for client in clients:
            assert not client.wrong, f"cut {number}, seed {SEED}: {client.wrong}"
    guest = Guest("power", job, addresses, ports).up(ports[PORT])
    for client in clients:
        client.enough.set()
    for client, port in zip(clients, (ports[PORT], ports[PORT + 1])):
        client.end()
        client.check(port)
    guest.cut()
    print(f"# {number} cuts; {sum(c.all for c in clients)} requests; "
          f"{sum(disk.lost for disk in disks)} sectors lost in {len(lossy)} cuts; "
          f"{[(d.writes, d.flushes) for d in disks]} writes and flushes", flush=True)
    # Or the disk has not been what this is about
    assert lossy


main(cuts)
