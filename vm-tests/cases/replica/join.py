#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""A connection whose peer has gone gets another one."""

import select
import socket
import time

from hosts import (ABANDON, ALONE, BUSY, GATE, JOIN, LEAVE, MUTED, OFF, PRIMARY, PROMOTE, SET, UNGATED, V4, Hosts, batch, equal, main, nft, read,
                   service, state, sysctl, wait)

OFFERS = 128            # at a time
# The reports of a host, but not what it passes on
LOST = ("add table ip lost\nadd chain ip lost out { type filter hook output priority 0; }\n"
        f"add rule ip lost out ip daddr {V4.service} tcp option @254,16,16 0x5252 drop")


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


def asked_once(hosts: Hosts) -> tuple[socket.socket, ...]:
    """A connection that both have, and that is idle."""
    client, a, b = hosts.pair()
    client.sendall(b"one")
    equal(read(a, 3) + read(b, 3), b"oneone")
    for s in (a, b):
        s.sendall(b"first")
    equal(read(client, 5), b"first")
    # The last acknowledgment has come
    wait("idle", lambda: not a.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[24:28].strip(b"\0"))
    return client, a, b


def answered_again() -> None:
    """The muted host goes on alone; the other host comes back, gets a copy, and goes on when the first one dies"""
    with service(free=("primary", "muted")) as hosts:
        client, a, b = asked_once(hosts)
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


def alone(hosts: Hosts) -> tuple[socket.socket, socket.socket]:
    """A connection that is idle, and its host, the muted one, alone. The other one is here again."""
    hosts.cut("primary")
    hosts.call("muted", PROMOTE)
    client = hosts.connect()
    b = hosts.accept("muted")
    client.sendall(b"one")
    equal(read(b, 3), b"one")
    b.sendall(b"first")
    equal(read(client, 5), b"first")
    reboot(hosts)
    return client, b


def refused(s: socket.socket) -> None:
    """Nothing of the copy's has come; the connection is known to nobody."""
    try:
        s.sendall(b"?")
        raise AssertionError(f"it came: {s.recv(100)!r}")
    except ConnectionResetError:
        pass


def speaks_first() -> None:
    """The copy's server greets, as to a new client: the greeting reaches nobody, and no other copy is made"""
    with service(free=("primary", "muted")) as hosts:
        client, b = alone(hosts)
        a = copied(hosts, b)
        a.sendall(b"220 welcome")
        wait("alone", lambda: state(b)["role"] == ALONE)
        equal(hosts.count("muted", "alone_differs"), 1)
        wait("the copy ends", lambda: not hosts.count("primary", "now_muted"))
        for _ in range(3):
            hosts.call("muted", JOIN)
        equal(hosts.count("muted", "joins_sent"), 1)
        client.sendall(b"two")
        equal(read(b, 3), b"two")
        b.sendall(b"second")
        equal(read(client, 6), b"second")
    # Its peer dies before it hears of that
    with service(free=("primary", "muted"), resets=True) as hosts:
        client, b = alone(hosts)
        a = copied(hosts, b)
        hosts.cut("muted")
        a.sendall(b"220 welcome")
        hosts.bury("muted")
        equal(hosts.count("primary", "abandoned"), 1)
        equal(hosts.count("primary", "promoted"), 0)
        refused(client)
    # Or its peer's server resets the connection
    with service(free=("primary", "muted"), resets=True) as hosts:
        client, b = alone(hosts)
        a = copied(hosts, b)
        nft("primary", LOST)
        a.sendall(b"220 welcome")
        client.sendall(b"two")
        equal(read(a, 3), b"two")
        b.close()
        wait("the copy ends", lambda: hosts.count("primary", "abandoned") == 1)
        nft("primary", "delete table ip lost")
        refused(client)


def deferred() -> None:
    """A listener that waits for data gets the copy before there is any"""
    with service(free=("primary", "muted")) as hosts:
        hosts.listeners["primary"].setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 30)
        client, b = alone(hosts)
        a = copied(hosts, b)
        client.sendall(b"two")
        equal(read(a, 3) + read(b, 3), b"twotwo")


def some_at_a_time() -> None:
    """So many idle connections are offered at once, and those that are busy keep none of them waiting"""
    with service(free=("primary", "muted")) as hosts:
        hosts.cut("primary")
        hosts.call("muted", PROMOTE)
        clients = [hosts.connect() for _ in range(2 * OFFERS + 44)]
        servers = [hosts.accept("muted", client.getsockname()[1]) for client in clients]
        busy = clients[:OFFERS + 22]
        for client in busy:
            client.sendall(b"ask")
        for s in servers[:len(busy)]:
            equal(read(s, 3), b"ask")
        reboot(hosts)
        offered = [0]
        while offered[-1] < len(clients) - len(busy) and len(offered) < 10:
            hosts.call("muted", JOIN)
            offered.append(hosts.count("muted", "joins_sent"))
        print(f"# offered: {offered}")
        equal(offered[-1], len(clients) - len(busy))
        assert len(offered) - 1 <= 4, "too many calls"
        wait("copies", lambda: hosts.count("muted", "now_primary") == len(clients) - len(busy))
        for s in servers[:len(busy)]:
            s.sendall(b"answer")
        for client in busy:
            equal(read(client, 6), b"answer")
        before = hosts.count("muted", "joins_sent")
        hosts.call("muted", JOIN)
        equal(hosts.count("muted", "joins_sent") - before, OFFERS)
        hosts.call("muted", JOIN)
        equal(hosts.count("muted", "joins_sent") - before, len(busy))
        wait("the rest", lambda: not hosts.count("muted", "now_alone"))


def unconfirmed() -> None:
    """A copy of which its peer has not heard is one when it says the same; or ends, and the next one is as good as any"""
    for again in (False, True):
        with service(free=("primary", "muted")) as hosts:
            client, b = alone(hosts)
            nft("primary", LOST)
            a = offer(hosts)
            equal((state(a)["role"], state(b)["role"]), (MUTED, ALONE))
            client.sendall(b"two")
            equal(read(b, 3) + read(a, 3), b"twotwo")
            b.sendall(b"second")
            equal(read(client, 6), b"second")
            if again:
                hosts.call("muted", JOIN)
            nft("primary", "delete table ip lost")
            a.sendall(b"second")
            if again:
                wait("the copy ends", lambda: not hosts.count("primary", "now_muted"))
                equal(state(b)["role"], ALONE)
                a.close()
                a = copied(hosts, b)
            wait("protected", lambda: state(b)["role"] == PRIMARY)
            client.sendall(b"three")
            equal(read(a, 5) + read(b, 5), b"threethree")
            for s in (a, b):
                s.sendall(b"third")
            equal(read(client, 5), b"third")


def left() -> None:
    """One that a server has left gets no copy, until its server says that a request may have one"""
    for asks in ("primary", "muted"):
        with service() as hosts:
            _, a, b = asked_once(hosts)
            hosts.call(asks, LEAVE, on=a if asks == "primary" else b)
            wait("alone", lambda: state(a)["role"] == ALONE)
            equal(state(a)["flags"], BUSY)
            for flags in (None, UNGATED | BUSY, BUSY):
                if flags:
                    hosts.call("primary", GATE, on=a, flags=flags)
                hosts.call("primary", JOIN)
                equal(hosts.count("primary", "joins_sent"), 0)
            hosts.call("primary", GATE, on=a)
            hosts.call("primary", JOIN)
            equal(state(hosts.accept("muted"))["role"], MUTED)
            wait("protected", lambda: state(a)["role"] == PRIMARY)


def busy() -> None:
    """One whose server is in the midst of a request gets no copy, whichever host it was on and however idle it looks, until that is over"""
    with service() as hosts:
        _, a, b = asked_once(hosts)
        hosts.call("primary", GATE, on=a, flags=BUSY)
        equal((state(a)["role"], state(a)["flags"]), (PRIMARY, BUSY))
        b.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        b.close()
        wait("alone", lambda: state(a)["role"] == ALONE)
        hosts.call("primary", JOIN)
        equal(hosts.count("primary", "joins_sent"), 0)
        hosts.call("primary", GATE, on=a)
        hosts.call("primary", JOIN)
        equal(state(hosts.accept("muted"))["flags"], 0)
        wait("protected", lambda: state(a)["role"] == PRIMARY)
    with service(free=("primary", "muted")) as hosts:
        _, a, b = asked_once(hosts)
        hosts.call("muted", GATE, on=b, flags=BUSY)
        hosts.cut("primary")
        hosts.call("muted", PROMOTE)
        reboot(hosts)
        for _ in range(3):
            hosts.call("muted", JOIN)
        equal(hosts.count("muted", "joins_sent"), 0)
        hosts.call("muted", GATE, on=b)
        a = copied(hosts, b)
    # It becomes so while a copy is under way
    with service(free=("primary", "muted")) as hosts:
        _, b = alone(hosts)
        nft("primary", LOST)
        a = offer(hosts)
        hosts.call("muted", GATE, on=b, flags=BUSY)
        nft("primary", "delete table ip lost")
        a.sendall(b"reported")
        wait("the copy ends", lambda: not hosts.count("primary", "now_muted"))
        equal((state(b)["role"], state(b)["flags"]), (ALONE, BUSY))


def gate_of_the_next() -> None:
    """What one copy was not to be waited for, the next one is"""
    with service() as hosts:
        client, a, b = asked_once(hosts)
        hosts.call("primary", GATE, on=a, flags=UNGATED)
        b.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        b.close()
        wait("alone", lambda: state(a)["role"] == ALONE)
        hosts.call("primary", JOIN)
        b = hosts.accept("muted")
        wait("protected", lambda: state(a)["role"] == PRIMARY)
        equal(state(a)["flags"], 0)
        client.sendall(b"two")
        equal(read(a, 3) + read(b, 3), b"twotwo")
        a.sendall(b"second")
        wait("it waits", lambda: state(a)["unsent"] == 6)
        b.sendall(b"second")
        equal(read(client, 6), b"second")


def ended_idle() -> None:
    """A copy whose server has ended it is none: it is given up after the service's patience, and the next one is one"""
    with service(patience=500) as hosts:
        client, a, b = asked_once(hosts)
        b.close()
        start = time.monotonic()
        while state(a)["role"] == PRIMARY:
            hosts.call("primary", JOIN)
            assert time.monotonic() < start + 10, "it counts as a copy"
            time.sleep(0.05)
        assert time.monotonic() > start + 0.4
        equal((state(a)["role"], hosts.count("primary", "joins_sent")), (ALONE, 0))
        hosts.call("primary", JOIN)
        b = hosts.accept("muted")
        wait("protected", lambda: state(a)["role"] == PRIMARY)
        client.sendall(b"two")
        equal(read(a, 3) + read(b, 3), b"twotwo")


def not_sent() -> None:
    """A host's limit of what is not sent does not count for a muted server, all of whose answer is not"""
    with service() as hosts:
        sysctl("muted", tcp_notsent_lowat=16384)
        client, a, b = asked_once(hosts)
        client.sendall(b"two")
        equal(read(a, 3) + read(b, 3), b"twotwo")
        b.setblocking(False)
        equal(b.send(bytes(40000)), 40000)
        equal(b.send(bytes(40000)), 40000)
        a.sendall(bytes(80000))
        equal(read(client, 80000), bytes(80000))
        hosts.cut("primary")
        hosts.bury("primary")
        equal(b.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT), 0)


def ends_alone() -> None:
    """A connection that its host has alone ends as any other one, also when this host is muted again"""
    with service(free=("muted",)) as hosts:
        client, a, b = asked_once(hosts)
        hosts.cut("primary")
        hosts.call("muted", PROMOTE)
        client.sendall(b"two")
        equal(read(b, 3), b"two")
        a.close()
        reboot(hosts)
        equal(state(b)["role"], ALONE)
        port = client.getsockname()[1]
        # The server first: what it leaves behind has no socket when the client ends its side
        b.close()
        equal(client.recv(1), b"")
        time.sleep(0.2)
        client.close()
        wait("the client's end is acknowledged", lambda: hosts.free(port), 3)


if __name__ == "__main__":
    main(left, busy, gate_of_the_next, ended_idle, ends_alone, not_sent, answered_again, opened_alone, within_a_request, within_an_answer, speaks_first, deferred, some_at_a_time, unconfirmed)
