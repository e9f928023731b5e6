#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Clients, servers and networks of many kinds, each of which loses a host in the middle of an answer."""

import os
import random
import socket
import struct
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field

from hosts import V4, V6, Family, Hosts, equal, main, netem, read, read_all, service, sysctl

TCP, SOL = socket.IPPROTO_TCP, socket.SOL_SOCKET
ASK = struct.Struct("!8sII")    # how the server is to write, what for a text, how long
TCP_CORK, TCP_DEFER_ACCEPT, SO_ZEROCOPY, MSG_ZEROCOPY = 3, 9, 60, 0x4000000


def text_of(seed: int, length: int) -> bytes:
    return random.Random(seed).randbytes(length)


def write(s: socket.socket, how: bytes, text: bytes) -> None:
    if how == b"cork":
        s.setsockopt(TCP, TCP_CORK, 1)
        for at in range(0, len(text), 700):
            s.sendall(text[at:at + 700])
        s.setsockopt(TCP, TCP_CORK, 0)
    elif how == b"nodelay":
        s.setsockopt(TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(text), 999):
            s.sendall(text[at:at + 999])
    elif how in (b"sendfile", b"splice"):
        file = os.memfd_create("text")
        os.write(file, text)
        os.lseek(file, 0, 0)
        if how == b"sendfile":
            s.sendfile(os.fdopen(file, "rb"))
            return
        r, w = os.pipe()
        done = 0
        while done < len(text):
            n = os.splice(file, w, 32768)
            while n:
                moved = os.splice(r, s.fileno(), n)
                n, done = n - moved, done + moved
        for fd in (file, r, w):
            os.close(fd)
    elif how == b"zerocopy":
        s.setsockopt(SOL, SO_ZEROCOPY, 1)
        view = memoryview(text)
        while view:
            view = view[s.send(view, MSG_ZEROCOPY):]
    else:
        s.sendall(text)


def serve(s: socket.socket) -> None:
    """Answers what it is asked, until there is no more; then says good-bye."""
    with suppress(OSError), s:
        while request := read(s, ASK.size):
            how, seed, length = ASK.unpack(request)
            write(s, how.rstrip(b"\0"), text_of(seed, length))
        s.sendall(b"bye")


def accept_all(hosts: Hosts) -> None:
    """Each connection has a thread on each host. They end with the network."""
    def loop(listener: socket.socket) -> None:
        with suppress(OSError):
            listener.settimeout(None)
            while True:
                s, _ = listener.accept()
                hosts.sockets.append(s)
                threading.Thread(target=serve, args=(s,), daemon=True).start()
    for listener in hosts.listeners.values():
        threading.Thread(target=loop, args=(listener,), daemon=True).start()


@dataclass
class Client:
    """What it is like; then what it does, in a thread."""
    name: str
    options: tuple[tuple[int, int, int], ...] = ()
    settings: dict[str, int] = field(default_factory=dict)
    how: bytes = b""
    slow: bool = False
    size: int = 120_000
    urgent: bool = False
    half: bool = True
    error: str = ""

    def connect(self, hosts: Hosts, family: Family) -> None:
        for name, value in self.settings.items():
            sysctl("client", **{name: value})
        self.s = hosts.connect(family, self.options)
        for name in self.settings:
            sysctl("client", **{name: {"tcp_ecn": 2}.get(name, 1)})

    def work(self, started: threading.Semaphore, go: threading.Event) -> None:
        try:
            for seed in range(3):
                self.s.sendall(ASK.pack(self.how, seed, self.size))
                want = text_of(seed, self.size)
                got = read(self.s, min(20_000, self.size))
                if seed == 1:
                    started.release()
                    go.wait()
                if self.slow:
                    while len(got) < len(want):
                        time.sleep(0.01)
                        got += read(self.s, min(8_000, len(want) - len(got)))
                else:
                    got += read(self.s, len(want) - len(got))
                assert got == want, f"answer {seed} is wrong: {len(got)} of {len(want)} bytes"
            self.s.shutdown(socket.SHUT_WR)
            equal(read_all(self.s), b"bye")
        except Exception as e:
            self.error = repr(e)
            started.release()


CLIENTS = [
    Client("ordinary"),
    Client("no timestamps", settings={"tcp_timestamps": 0}),
    Client("no SACK", settings={"tcp_sack": 0}),
    Client("no window scale", settings={"tcp_window_scaling": 0}),
    Client("none of them", settings={"tcp_timestamps": 0, "tcp_sack": 0, "tcp_window_scaling": 0}),
    Client("ECN", settings={"tcp_ecn": 1}),
    Client("small receive buffer", ((SOL, socket.SO_RCVBUF, 2500),), size=60_000),
    Client("small send buffer", ((SOL, socket.SO_SNDBUF, 4600),)),
    Client("small segments", ((TCP, socket.TCP_MAXSEG, 536),), size=60_000),
    Client("a window of zero", ((SOL, socket.SO_RCVBUF, 8192),), slow=True, size=60_000),
    Client("keepalive", ((SOL, socket.SO_KEEPALIVE, 1), (TCP, socket.TCP_KEEPIDLE, 1), (TCP, socket.TCP_KEEPINTVL, 1))),
    Client("no delay", ((TCP, socket.TCP_NODELAY, 1),), how=b"nodelay"),
    Client("cork", how=b"cork"),
    Client("sendfile", how=b"sendfile"),
    Client("splice", how=b"splice"),
    Client("zerocopy", how=b"zerocopy"),
]


def transfer(hosts: Hosts, family: Family, clients: list[Client], victim: str) -> None:
    """All of them at once; the victim dies when each has a part of its second answer."""
    accept_all(hosts)
    started, go = threading.Semaphore(0), threading.Event()
    for client in clients:
        client.error = ""
        client.connect(hosts, family)
    threads = [threading.Thread(target=client.work, args=(started, go)) for client in clients]
    for thread in threads:
        thread.start()
    for _ in clients:
        assert started.acquire(timeout=60), "not all have begun"
    failed = [f"{client.name}: {client.error}" for client in clients if client.error]
    assert not failed, "before a host dies:\n" + "\n".join(failed)
    survivor = "muted" if victim == "primary" else "primary"
    alone = {name: hosts.count(survivor, name) for name in ("alone_unknown", "alone_differs", "alone_late")}
    equal(alone, dict.fromkeys(alone, 0))
    equal(hosts.count(survivor, f"now_{survivor}"), len(clients))
    if victim:
        hosts.cut(victim)
        hosts.bury(victim)
        equal(hosts.count(survivor, "promoted"), len(clients))
    go.set()
    for thread in threads:
        thread.join()
    failed = [f"{client.name}: {client.error}" for client in clients if client.error]
    assert not failed, "\n".join(failed)


def kinds(family: Family, victim: str) -> None:
    with service(family) as hosts:
        transfer(hosts, family, CLIENTS, victim)


def primary_dies() -> None:
    """Clients and servers of all kinds lose the primary"""
    kinds(V4, "primary")


def muted_dies() -> None:
    """Clients and servers of all kinds lose the muted host"""
    kinds(V4, "muted")


def dual_stack() -> None:
    """IPv6, and IPv4 clients of a listener for both"""
    kinds(V6, "primary")
    with service(V4) as hosts:
        for name in ("primary", "muted"):
            hosts.listeners[name].close()
            hosts.listen(name, V6, ((socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0),), "::")
        transfer(hosts, V4, [Client("IPv4 to ::")], "primary")


def deferred() -> None:
    """TCP_DEFER_ACCEPT on both: a connection is there when it has data"""
    with service() as hosts:
        for listener in hosts.listeners.values():
            listener.setsockopt(TCP, TCP_DEFER_ACCEPT, 5)
        transfer(hosts, V4, [Client("deferred")], "primary")


def network(client: str = "", primary: str = "", muted: str = "", size: int = 120_000) -> None:
    for victim in ("primary", "muted"):
        with service() as hosts:
            for device, what in (("client", client), ("primary", primary), ("muted", muted)):
                if what:
                    netem(device, what)
            transfer(hosts, V4, [Client(f"number {n}", size=size) for n in range(4)], victim)


def loss() -> None:
    """Every hundredth packet is lost, wherever it goes"""
    network("loss 1% limit 10000", "loss 1% limit 10000", "loss 1% limit 10000")


def copy_loss() -> None:
    """Copies and reports are lost, each tenth"""
    network(primary="loss 10% limit 10000")


def disorder() -> None:
    """Packets come in another order, or twice"""
    network(*("delay 3ms reorder 75% 50% duplicate 5% limit 10000",) * 3)


def far() -> None:
    """A client 100 ms away"""
    network("delay 50ms limit 10000", "", "delay 50ms limit 10000", 60_000)


def segments() -> None:
    """Segments of 64 KiB: GSO on all ways"""
    for victim in ("primary", "muted"):
        with service() as hosts:
            subprocess.run("for n in client primary muted; do ip link set $n gso_max_segs 65535; "
                           "ip -n $n link set lan gso_max_segs 65535; done", shell=True, check=True)
            transfer(hosts, V4, [Client(f"number {n}", size=400_000) for n in range(3)], victim)
            assert any(s.length > 3000 for s in hosts.capture.segments if s.from_service), "no large segment"


if __name__ == "__main__":
    main(primary_dies, muted_dies, dual_stack, deferred, loss, copy_loss, disorder, far, segments)
