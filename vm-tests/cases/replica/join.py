#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""A connection whose peer has gone gets another one."""

from basic import pair, setup
from hosts import ABANDON, ALONE, JOIN, MUTED, PRIMARY, PROMOTE, equal, main, read, read_all, state, wait


def answered_again() -> None:
    """The muted host goes on alone; the other host comes back, gets a copy, and goes on when the first one dies"""
    hosts = setup()
    client, a, b = pair(hosts)
    client.sendall(b"one")
    read(a, 3), read(b, 3)
    a.sendall(b"first"), b.sendall(b"first")
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
    hosts.call("muted", JOIN)
    a = hosts.listeners["primary"].accept()[0]
    wait("protected", lambda: state(b)["role"] == PRIMARY)
    equal(state(a)["role"], MUTED)
    equal(state(a)["id"], state(b)["id"])
    client.sendall(b"three")
    equal(read(a, 5), b"three")
    equal(read(b, 5), b"three")
    with hosts.capture() as captures:
        a.sendall(b"third")
        b.sendall(b"third")
        equal(read(client, 5), b"third")
    equal([s for s in captures["primary"].segments if s.from_service], [])
    a.sendall(b"fourth"), b.sendall(b"fourth")
    equal(read(client, 6), b"fourth")
    hosts.cut("muted")
    hosts.move_address()
    hosts.call("primary", PROMOTE)
    client.sendall(b"five")
    equal(read(a, 4), b"five")
    a.sendall(b"fifth")
    equal(read(client, 5), b"fifth")
    a.close()
    equal(client.recv(1), b"")
    hosts.end()


main(answered_again)
