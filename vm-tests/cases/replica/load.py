#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Many connections, many deaths: --connections at once, one death; --far GiB after one; --pauses measured; --kills at random instants."""

import argparse
import hashlib
import random
import resource
import selectors
import socket
import statistics
import threading
import time
from contextlib import suppress

from clients import Client, accept_all, text_of
from hosts import ABANDON, NAMES, PROMOTE, SO_SNDBUFFORCE, V4, V6, Hosts, batch, equal, main, read, read_all, service, wait

LENGTH = 4000


class Crowd:
    """One end of many connections: what comes is handed to a function, which says what to send."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.stop = False
        self.thread = threading.Thread(target=self.run, daemon=True)

    def add_listener(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        self.selector.register(listener, selectors.EVENT_READ, None)

    def run(self) -> None:
        while not self.stop:
            for key, _ in self.selector.select(0.2):
                if key.data is None:
                    with suppress(OSError):
                        s, _ = key.fileobj.accept()     # type: ignore[union-attr]
                        self.selector.register(s, selectors.EVENT_READ, s)
                    continue
                try:
                    request = key.data.recv(4)
                    if request:
                        key.data.sendall(text_of(int.from_bytes(request, "big"), LENGTH))
                except OSError:
                    request = b""
                if not request:
                    self.selector.unregister(key.data)
                    key.data.close()


def many() -> None:
    """Thousands of connections at once, all promoted together, each with an answer before and one after"""
    with service() as hosts:
        crowds = [Crowd() for _ in hosts.listeners]
        for crowd, listener in zip(crowds, hosts.listeners.values(), strict=True):
            crowd.add_listener(listener)
            crowd.thread.start()
        start = time.monotonic()
        clients = [hosts.connect() for _ in range(options.connections)]
        for number, client in enumerate(clients):
            client.sendall(number.to_bytes(4, "big"))
        for number, client in enumerate(clients):
            assert read(client, LENGTH) == text_of(number, LENGTH), number
        equal(hosts.count("muted", "now_muted"), options.connections)
        print(f"# {options.connections} connections and answers: {time.monotonic() - start:.1f} s", flush=True)
        # Half of them have asked when the primary dies
        for number, client in enumerate(clients[::2]):
            client.sendall((number + 7).to_bytes(4, "big"))
        hosts.cut("primary")
        start = time.monotonic()
        hosts.call("muted", PROMOTE)
        print(f"# PROMOTE of all of them: {1000 * (time.monotonic() - start):.0f} ms", flush=True)
        equal(hosts.count("muted", "promoted"), options.connections)
        for number, client in enumerate(clients[1::2]):
            client.sendall((number + 7).to_bytes(4, "big"))
        for half in clients[::2], clients[1::2]:
            for number, client in enumerate(half):
                assert read(client, LENGTH) == text_of(number + 7, LENGTH), number
        for crowd in crowds:
            crowd.stop = True
            crowd.thread.join()
        for client in clients:
            client.close()


def far() -> None:
    """More after a takeover than sequence numbers tell apart"""
    with service(free=("primary", "muted")) as hosts:
        client, _, b = hosts.pair()
        hosts.capture.snap(0)
        batch([f"link set {name} gso_max_segs 65535" for name in NAMES])
        batch(["link set lan gso_max_segs 65535"], "muted")
        hosts.cut("primary")
        hosts.call("muted", PROMOTE)
        text = random.Random(1).randbytes(1 << 20) * 64
        digests = []

        def get() -> None:
            digest, length = hashlib.sha1(), 0
            while part := client.recv(1 << 20):
                digest.update(part)
                length += len(part)
                # All of it is acknowledged now and then, and the next byte waits for nothing
                if length % len(text) == 0:
                    client.sendall(b"+")
            digests.append(digest.digest())

        thread = threading.Thread(target=get)
        thread.start()
        want = hashlib.sha1()
        for _ in range(options.far * (1 << 30) // len(text)):
            b.sendall(text)
            want.update(text)
            equal(b.recv(1), b"+")
        b.close()
        thread.join()
        equal(digests, [want.digest()])


def pauses() -> None:
    """The pause that a client sees: from PROMOTE to the next byte"""
    took = []
    with service(free=("primary", "muted")) as hosts:
        for listener in hosts.listeners.values():
            listener.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 4 << 20)
        text = random.Random(1).randbytes(400_000)
        for _ in range(options.pauses):
            client = hosts.connect(options=((socket.SOL_SOCKET, socket.SO_RCVBUF, 16384),))
            port = client.getsockname()[1]
            a, b = hosts.accept("primary", port), hosts.accept("muted", port)
            for s in (a, b):
                s.sendall(text)
            got = read(client, 50_000)
            hosts.cut("primary")
            client.settimeout(0.03)
            with suppress(TimeoutError):
                while True:
                    got += client.recv(1 << 20)
            client.settimeout(20)
            hosts.capture.drain()
            start = time.monotonic()
            hosts.call("muted", PROMOTE)
            got += client.recv(1 << 20)
            took.append(1000 * (time.monotonic() - start))
            b.close()
            got += read_all(client)
            assert got == text, "the client got something else"
            client.close()
            hosts.join("primary")
            hosts.call("primary", ABANDON)
            a.close()
            wait("over", lambda: not hosts.count("muted", "now_alone"))
            hosts.protect()
    took.sort()
    print(f"# PROMOTE to the next byte, {len(took)} times: p50 {statistics.median(took):.1f} ms, "
          f"p99 {took[int(len(took) * 0.99)]:.1f} ms, longest {took[-1]:.1f} ms")
    assert statistics.median(took) < 200, "far too long"


def kills() -> None:
    """Either host dies at random instants, under connections that always want something"""
    rng = random.Random(options.seed)
    end = time.monotonic() + options.minutes * 60 if options.minutes else None
    number = 0
    while number < options.kills and not (end and time.monotonic() > end):
        victim = rng.choice(("primary", "muted"))
        family = rng.choice((V4, V6))
        delay = rng.random() * 0.6
        number += 1
        try:
            with service(family) as hosts:
                accept_all(hosts)
                clients = [Client(f"client {n}", how=rng.choice((b"", b"cork", b"nodelay")), size=rng.choice((10, 5000, 150_000)))
                           for n in range(6)]
                started, go = threading.Semaphore(0), threading.Event()
                go.set()
                begin = threading.Barrier(len(clients) + 1)

                def work(client: Client, wait: float, hosts: Hosts = hosts, begin: threading.Barrier = begin) -> None:
                    begin.wait()
                    time.sleep(wait)
                    try:
                        client.connect(hosts, family)
                    except OSError as e:
                        client.error = repr(e)
                        return
                    client.work(started, go)

                threads = [threading.Thread(target=work, args=(client, rng.random() * 0.2)) for client in clients]
                for thread in threads:
                    thread.start()
                begin.wait()
                time.sleep(delay)
                hosts.cut(victim)
                time.sleep(rng.random() * 0.1)
                hosts.bury(victim)
                if rng.random() < 0.5:
                    time.sleep(rng.random() * 0.3)
                    hosts.join(victim)
                for thread in threads:
                    thread.join()
                failed = [f"{client.name}: {client.error}" for client in clients if client.error]
                assert not failed, "\n".join(failed)
        except Exception as e:
            raise AssertionError(f"kill {number} ({victim} after {delay:.3f} s, --seed {options.seed}): {e}") from e
    print(f"# {number} kills, 6 connections each")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--connections", type=int, default=0)
    parser.add_argument("--far", type=int, default=0)
    parser.add_argument("--pauses", type=int, default=0)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (20_000, 20_000))
    main(*[f for f, wanted in ((many, options.connections), (far, options.far), (pauses, options.pauses), (kills, options.kills)) if wanted])
