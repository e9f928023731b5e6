#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""A connection whose peer has gone gets another one."""

import select
import socket

from hosts import ABANDON, ALONE, JOIN, MUTED, PRIMARY, PROMOTE, equal, main, read, service, state, wait


def answered_again() -> None:
    """The muted host goes on alone; the other host comes back, gets a copy, and goes on when the first one dies"""
    with service(free=("primary", "muted")) as hosts:
        client, a, b = hosts.pair()
        client.sendall(b"one")
        equal(read(a, 3) + read(b, 3), b"oneone")
        for s in (a, b):
            s.sendall(b"first")
        equal(read(client, 5), b"first")

        hosts.cut("primary")
        hosts.call("muted", PROMOTE)
        client.sendall(b"two")
        equal(read(b, 3), b"two")
        b.sendall(b"second")
        equal(read(client, 6), b"second")
        equal(state(b)["role"], ALONE)

        # As after a reboot
        a.close()
        hosts.join("primary")
        hosts.call("primary", ABANDON)
        hosts.protect()
        # Again and again, as its manager does
        listener = hosts.listeners["primary"]
        copied: list[socket.socket] = []
        while not copied:
            hosts.call("muted", JOIN)
            copied = select.select([listener], [], [], 0.3)[0]
        a = hosts.accept("primary")
        wait("protected", lambda: state(b)["role"] == PRIMARY)
        equal(state(a)["role"], MUTED)
        equal(state(a)["id"], state(b)["id"])
        client.sendall(b"three")
        equal(read(a, 5), b"three")
        equal(read(b, 5), b"three")
        before = len(hosts.capture.of("primary"))
        for s in (a, b):
            s.sendall(b"third")
        equal(read(client, 5), b"third")
        equal([s for s in hosts.capture.of("primary")[before:] if s.from_service], [])
        for s in (a, b):
            s.sendall(b"fourth")
        equal(read(client, 6), b"fourth")
        hosts.cut("muted")
        hosts.bury("muted")
        client.sendall(b"five")
        equal(read(a, 4), b"five")
        a.sendall(b"fifth")
        equal(read(client, 5), b"fifth")
        a.close()
        equal(client.recv(1), b"")


if __name__ == "__main__":
    main(answered_again)
