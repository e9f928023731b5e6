#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""A connection that two hosts hold: the client sees one server, and goes on with the other one."""

import random
import socket
import threading
import time

from hosts import ALONE, MUTED, PORT, PRIMARY, PROMOTE, RST, V4, V6, Hosts, equal, main, read, read_all, state, wait

draw = random.Random(1)


def pair(hosts, family=V4, options=()):
    """A client's connection and the two copies of it."""
    client = hosts.connect(family, options)
    return client, hosts.listeners["primary"].accept()[0], hosts.listeners["muted"].accept()[0]


def setup(family=V4, patience=0):
    hosts = Hosts()
    hosts.protect(family, patience)
    hosts.listeners = {name: hosts.listen(name, family) for name in ("primary", "muted")}
    return hosts


def question_and_answer() -> None:
    """Both hosts get the question; the answer leaves when both have it"""
    hosts = setup()
    with hosts.capture() as captures:
        client, a, b = pair(hosts)
        equal(state(a)["role"], PRIMARY)
        equal(state(b)["role"], MUTED)
        equal(state(a)["id"], state(b)["id"])
        client.sendall(b"question")
        equal(read(a, 8), b"question")
        equal(read(b, 8), b"question")
        a.sendall(b"answer")
        client.settimeout(0.5)
        try:
            raise AssertionError(f"it came too early: {client.recv(100)!r}")
        except TimeoutError:
            pass
        equal(state(a)["unsent"], 6)
        b.sendall(b"answer")
        equal(read(client, 6), b"answer")
        equal(state(a)["unsent"], 0)
        for s in (a, b):
            s.close()
        client.settimeout(10)
        equal(client.recv(1), b"")
        client.close()
        time.sleep(0.3)
    sent = [s for s in captures["muted"].segments if s.from_service]
    equal(sent, [])
    print(hosts.status("primary"), hosts.status("muted"))
    hosts.end()


def primary_dies() -> None:
    """The primary is gone in the middle of a long answer: the muted host goes on"""
    hosts = setup()
    client, a, b = pair(hosts)
    text = draw.randbytes(3_000_000)

    def serve(s):
        try:
            assert read(s, 3) == b"GET"
            s.sendall(text)
            s.close()
        except OSError as e:
            print("# server", e)

    threads = [threading.Thread(target=serve, args=(s,), daemon=True) for s in (a, b)]
    for t in threads:
        t.start()
    client.sendall(b"GET")
    got = read(client, 1_000_000)
    hosts.cut("primary")
    start = time.monotonic()
    hosts.call("muted", PROMOTE)
    got += read(client, 1)
    print(f"# pause {1000 * (time.monotonic() - start):.1f} ms")
    got += read_all(client)
    assert got == text
    hosts.end()


def muted_dies() -> None:
    """The muted host is gone, its address moves: the primary goes on"""
    hosts = setup()
    client, a, b = pair(hosts)
    text = draw.randbytes(3_000_000)

    def serve(s):
        try:
            assert read(s, 3) == b"GET"
            s.sendall(text)
            s.close()
        except OSError as e:
            print("# server", e)

    threads = [threading.Thread(target=serve, args=(s,), daemon=True) for s in (a, b)]
    for t in threads:
        t.start()
    client.sendall(b"GET")
    got = read(client, 1_000_000)
    hosts.cut("muted")
    start = time.monotonic()
    hosts.move_address()
    hosts.call("primary", PROMOTE)
    got += read(client, 1)
    print(f"# pause {1000 * (time.monotonic() - start):.1f} ms")
    got += read_all(client)
    assert got == text
    hosts.end()


def version_six() -> None:
    """IPv6"""
    hosts = setup(V6)
    client, a, b = pair(hosts, V6)
    client.sendall(b"x")
    read(a, 1), read(b, 1)
    b.sendall(b"yy")
    a.sendall(b"yy")
    equal(read(client, 2), b"yy")
    hosts.end()


if __name__ == "__main__":
    main(question_and_answer, primary_dies, muted_dies, version_six)
