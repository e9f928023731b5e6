#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""One of the hosts dies at each point of a connection. Its client notices nothing, nor when the dead host comes back."""

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

from hosts import FAMILIES, PORT, SO_SNDBUFFORCE, V4, Family, Hosts, equal, main, nft, read, service, wait

REQUEST = 3000      # bytes: some segments
ANSWER = 200_000    # more than the client's buffer

draw = random.Random(1)


class Run:
    """A connection that goes on to a point where it stops until a host has died."""

    def __init__(self, hosts: Hosts, family: Family, port: int) -> None:
        self.hosts, self.family, self.port = hosts, family, port
        self.dead: str | None = None
        self.sides: dict[str, socket.socket] = {}
        self.client: socket.socket

    @property
    def alive(self) -> list[str]:
        return [name for name in ("primary", "muted") if name != self.dead]

    def start(self, wait: bool = True) -> None:
        self.client = self.hosts.connect(self.family, ((socket.SOL_SOCKET, socket.SO_RCVBUF, 32768),), self.port, wait)

    def connected(self) -> None:
        """After a start that did not wait"""
        self.client.settimeout(20)
        wait("connected", lambda: not self.client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
             and self.client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) == b"\1")

    def accept(self) -> None:
        for name in self.alive:
            if name not in self.sides:
                self.sides[name] = self.hosts.accept(name, self.port)

    def ask(self, data: bytes) -> None:
        self.client.sendall(data)

    def hear(self, length: int) -> None:
        for name in self.alive:
            equal(len(read(self.sides[name], length)), length)

    def answer(self, data: bytes, names: tuple[str, ...] = ("primary", "muted")) -> None:
        for name in names:
            if name != self.dead:
                self.sides[name].sendall(data)

    def get(self, data: bytes) -> None:
        assert read(self.client, len(data)) == data, "the client got something else"

    def close(self, name: str) -> None:
        if name != self.dead:
            self.sides[name].close()

    def lost(self, host: str) -> None:
        """What the client sends from now on does not come to this host."""
        nft(host, f"add table inet lost\nadd chain inet lost in {{ type filter hook prerouting priority -250; }}\n"
                  f"add rule inet lost in tcp sport {self.port} tcp dport {PORT} tcp flags & (syn|ack|fin|rst) != 0 drop")


Script = Callable[[Run], Iterator[None]]


def syn(run: Run) -> Iterator[None]:
    """The SYN is on its way"""
    yield
    run.start(wait=False)
    run.connected()
    yield from dialogue(run)


def half_open(run: Run) -> Iterator[None]:
    """The client has the SYN-ACK, the hosts do not have its answer"""
    for name in ("primary", "muted"):
        nft(name, f"add table inet half\nadd chain inet half in {{ type filter hook prerouting priority -250; }}\n"
                  f"add rule inet half in tcp sport {run.port} tcp flags & (syn|ack) == ack drop")
    run.start()
    yield
    for name in ("primary", "muted"):
        nft(name, "delete table inet half")
    yield from dialogue(run)


def dialogue(run: Run, stop: str = "", first: str = "primary") -> Iterator[None]:
    """A request and an answer, two more at once, and the end, which the client begins."""
    second = "muted" if first == "primary" else "primary"
    question, text, more = (random.Random(run.port + n).randbytes(size) for n, size in enumerate((REQUEST, ANSWER, 5000)))
    if not hasattr(run, "client"):
        run.start()
    run.accept()
    if stop == "accepted":
        yield
    run.ask(question[:1000])
    run.hear(1000)
    if stop == "within the request":
        yield
    if stop == "only one has the request":
        run.lost(second)
    run.ask(question[1000:])
    if stop == "only one has the request":
        equal(len(read(run.sides[first], 2000)), 2000)
        yield
        nft(second, "delete table inet lost")
        if run.dead == first:
            run.hear(2000)
    else:
        run.hear(2000)
    if stop == "before the answer":
        yield
    run.answer(text[:100_000], (first,))
    if stop == "half of it by one":
        yield
    run.answer(text[100_000:], (first,))
    if stop == "written by one":
        yield
    run.answer(text, (second,))
    if stop == "written by both":
        yield
    run.get(text[:70_000])
    if stop == "within the answer":
        yield
    run.get(text[70_000:])
    if stop == "idle":
        yield
        time.sleep(0.1)
    # Two requests at once
    run.ask(question[:200])
    run.hear(100)
    run.answer(more, (first,))
    if stop == "second of two, the first answered by one":
        yield
    run.answer(more, (second,))
    run.hear(100)
    run.answer(more)
    run.get(more * 2)
    if stop == "client has all":
        yield


def ends_by_client(run: Run, stop: str, first: str) -> Iterator[None]:
    second = "muted" if first == "primary" else "primary"
    yield from dialogue(run)
    run.client.shutdown(socket.SHUT_WR)
    for name in run.alive:
        equal(run.sides[name].recv(1), b"")
    if stop == "client's FIN":
        yield
    run.answer(b"the rest")
    run.close(first)
    if stop == "closed by one":
        yield
    run.close(second)
    if stop == "closed by both":
        yield
    run.get(b"the rest")
    equal(run.client.recv(1), b"")
    if stop == "over":
        yield


def ends_by_server(run: Run, stop: str, first: str) -> Iterator[None]:
    second = "muted" if first == "primary" else "primary"
    yield from dialogue(run)
    run.answer(b"the rest")
    run.close(first)
    if stop == "FIN of one":
        yield
    run.close(second)
    if stop == "FIN of both":
        yield
    run.get(b"the rest")
    equal(run.client.recv(1), b"")
    if stop == "client has the FIN":
        yield
    run.client.close()
    if stop == "TIME_WAIT":
        time.sleep(0.1)
        yield


def scripts() -> dict[str, Script]:
    found: dict[str, Script] = {"SYN": syn, "SYN-ACK": half_open}
    for stop in ("accepted", "within the request", "before the answer", "written by both", "within the answer", "idle",
                 "client has all"):
        found[stop] = partial(dialogue, stop=stop)
    for first in ("primary", "muted"):
        for stop in ("only one has the request", "half of it by one", "written by one", "second of two, the first answered by one"):
            found[f"{stop}: {first}"] = partial(dialogue, stop=stop, first=first)
        for stop in ("client's FIN", "closed by one", "closed by both", "over"):
            found[f"{stop}: {first}"] = partial(ends_by_client, stop=stop, first=first)
        for stop in ("FIN of one", "FIN of both", "client has the FIN", "TIME_WAIT"):
            found[f"{stop}: {first}"] = partial(ends_by_server, stop=stop, first=first)
    return found


def all_points(family: Family, victim: str, kind: type[Run] = Run) -> None:
    failures: list[str] = []
    with service(family) as hosts:
        buffers = (socket.SOL_SOCKET, SO_SNDBUFFORCE, 1 << 20)
        for listener in hosts.listeners.values():
            listener.setsockopt(*buffers)
        runs = []
        for number, (name, script) in enumerate(scripts().items()):
            run = kind(hosts, family, 5001 + number)
            steps = script(run)
            try:
                next(steps)
            except Exception as e:
                raise AssertionError(f"{name}: before anybody dies: {e!r}") from e
            runs.append((name, run, steps))
        hosts.cut(victim)
        for _, run, _ in runs:
            run.dead = victim
        # Some go on before it is noticed
        threads = [threading.Thread(target=go_on, args=(name, steps, failures)) for name, _, steps in runs]
        for number, thread in enumerate(threads):
            thread.start()
            if number == len(threads) // 2:
                hosts.bury(victim)
        # It comes back, believing that nothing has happened, and its server writes and closes
        time.sleep(0.2)
        hosts.join(victim)
        for _, run, _ in runs:
            if s := run.sides.get(victim):
                with suppress(OSError):
                    s.settimeout(0)
                    s.send(b"nonsense")
                    s.close()
        for thread in threads:
            thread.join()
        assert not failures, "\n".join(failures)
        for _, run, _ in runs:
            with suppress(OSError):
                run.client.close()
        survivor = "muted" if victim == "primary" else "primary"
        names = {5001 + number: name for number, name in enumerate(scripts())}
        for host in survivor, victim:
            try:
                wait("no copies", lambda: not hosts.count(host, f"now_{host}"))
            except AssertionError:
                left = [f"{names[int(c['client'].rpartition(':')[2])]}: {c}" for c in hosts.status(host) if c["kind"] == "connection"]
                raise AssertionError(f"{host} still has\n" + "\n".join(left)) from None


def go_on(name: str, steps: Iterator[None], failures: list[str]) -> None:
    try:
        for _ in steps:
            pass
    except Exception as e:
        failures.append(f"{name}: {e!r}")


def primary_dies() -> None:
    """The primary dies at each point, and comes back"""
    all_points(V4, "primary")


def muted_dies() -> None:
    """The muted host dies at each point, and comes back"""
    all_points(V4, "muted")


def primary_dies_six() -> None:
    """The same with IPv6: the primary"""
    all_points(FAMILIES[1], "primary")


def muted_dies_six() -> None:
    """The same with IPv6: the muted host"""
    all_points(FAMILIES[1], "muted")


if __name__ == "__main__":
    main(primary_dies, muted_dies, primary_dies_six, muted_dies_six)
