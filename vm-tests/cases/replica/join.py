#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""A connection whose peer has gone gets another one."""

import select
import socket

from hosts import ABANDON, ALONE, JOIN, MUTED, OFF, PRIMARY, PROMOTE, SET, Hosts, batch, equal, main, read, service, state, wait


def reboot(hosts: Hosts) -> None:
    """The primary, which has died, is here again; its peer talks to the clients of old."""
    # Without what has waited for the cable
    batch(["neigh flush all"], "muted")
    hosts.join("primary")
    hosts.call("primary", ABANDON)
    hosts.protect()


def offer(hosts: Hosts) -> socket.socket:
    """The copy that the primary makes. Offered again and again, as a manager does."""
    while not select.select([hosts.listeners["primary"]], [], [], 0.3)[0]:
        hosts.call("muted", JOIN)
    return hosts.accept("primary")


def copied(hosts: Hosts, b: socket.socket) -> socket.socket:
    a = offer(hosts)
    wait("protected", lambda: state(b)["role"] == PRIMARY)
    equal(state(a)["role"], MUTED)
    equal(state(a)["id"], state(b)["id"])
    return a


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

        a.close()
        reboot(hosts)
        a = copied(hosts, b)
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


def opened_alone() -> None:
    """A connection that was opened while its host was alone gets a copy, too: after a promotion, or when it began so"""
    for first in (PROMOTE, SET):
        with service(free=("primary", "muted")) as hosts:
            hosts.cut("primary")
            hosts.call("muted", first, ALONE if first == SET else OFF)
            equal(hosts.service("muted")["role"], "alone")
            client = hosts.connect()
            b = hosts.accept("muted")
            equal(state(b)["role"], ALONE)
            client.sendall(b"one")
            equal(read(b, 3), b"one")
            b.sendall(b"first")
            equal(read(client, 5), b"first")
            reboot(hosts)
            # Nobody talks to the client but the one that did
            before = len(hosts.capture.of("primary"))
            a = copied(hosts, b)
            client.sendall(b"two")
            equal(read(a, 3) + read(b, 3), b"twotwo")
            for s in (a, b):
                s.sendall(b"second")
            equal(read(client, 6), b"second")
            equal([s for s in hosts.capture.of("primary")[before:] if s.from_service], [])
            hosts.cut("muted")
            hosts.bury("muted")
            client.sendall(b"three")
            equal(read(a, 5), b"three")
            a.sendall(b"third")
            equal(read(client, 5), b"third")


def within_a_request() -> None:
    """A server that is still at work is not idle, however quickly the client asked; nor is one that has not been asked all"""
    with service(free=("primary", "muted")) as hosts:
        hosts.cut("primary")
        hosts.call("muted", PROMOTE)
        client = hosts.connect()
        client.sendall(b"ask")
        b = hosts.accept("muted")
        equal(read(b, 3), b"ask")
        reboot(hosts)
        for _ in range(3):
            hosts.call("muted", JOIN)
        equal(hosts.count("muted", "joins_sent"), 0)
        # Asked again before it has answered
        b.sendall(b"answer")
        client.sendall(b"more")
        equal(read(client, 6), b"answer")
        wait("it is there", lambda: b.recv(4, socket.MSG_PEEK) == b"more")
        hosts.call("muted", JOIN)
        equal(hosts.count("muted", "joins_sent"), 0)
        equal(read(b, 4), b"more")
        b.sendall(b"again")
        equal(read(client, 5), b"again")
        copied(hosts, b)


def within_an_answer() -> None:
    """A server that was not idle, though it looked so, goes on alone at once: the other one knows nothing of its answer"""
    with service(free=("primary", "muted")) as hosts:
        client, a, b = hosts.pair()
        hosts.cut("primary")
        hosts.call("muted", PROMOTE)
        client.sendall(b"ask")
        equal(read(b, 3), b"ask")
        b.sendall(b"100 continue")
        equal(read(client, 12), b"100 continue")
        a.close()
        reboot(hosts)
        a = copied(hosts, b)
        client.settimeout(1)
        b.sendall(b"the answer")
        equal(read(client, 10), b"the answer")
        equal(state(b)["role"], ALONE)
        equal(hosts.count("muted", "alone_differs"), 1)
        wait("the copy ends", lambda: not hosts.count("primary", "now_muted"))
        # Now it is idle
        client.sendall(b"ask")
        equal(read(b, 3), b"ask")
        b.sendall(b"again")
        equal(read(client, 5), b"again")
        a.close()
        a = copied(hosts, b)
        client.sendall(b"next")
        equal(read(a, 4) + read(b, 4), b"nextnext")
        for s in (a, b):
            s.sendall(b"answer")
        equal(read(client, 6), b"answer")
        equal(state(b)["role"], PRIMARY)


if __name__ == "__main__":
    main(answered_again, opened_alone, within_a_request, within_an_answer)
