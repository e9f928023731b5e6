#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Clients whose TCP is not Linux's but lwIP's: no SACK, no timestamps, its own timers. Hosts die at each point of their connections."""

import os
import select
import socket
import subprocess
import sys
from pathlib import Path

import clients
import deaths
from hosts import (ABANDON, ALONE, JOIN, MUTED, PORT, PRIMARY, SO_SNDBUFFORCE, V4, V6, WAIT_S, Family, Hosts, equal, main, read, read_all,
                   service, state, wait)

LWIP = Path(os.environ["PERDURE_BUILD"], "userspace/vm-tests/cases/replica/replica-lwip")
stacks: list[tuple[subprocess.Popen[str], int]] = []


def connect(family: Family, port: int) -> socket.socket:
    """What stands for a connection of a stack of its own; its address is the port's."""
    own = family.client + f"{port - 5000:x}" if family is V6 else f"192.0.2.{port - 5000 + 20}"
    ours, its = socket.socketpair()
    with its:
        # What lies here hides no pause
        for s in ours, its:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        stacks.append((subprocess.Popen(["ip", "netns", "exec", "client", LWIP, "lan", own, str(port), family.service, str(PORT)],
                                        stdin=its, stdout=its, stderr=subprocess.PIPE, text=True), port))
    ours.settimeout(WAIT_S)
    return ours


def end() -> None:
    """None of them was reset, or has given up."""
    failed = []
    for stack, port in stacks:
        status = stack.poll()
        stack.kill()
        said = stack.communicate()[1]
        if status is not None:
            failed.append(f"port {port}: status {status}: {said}")
    stacks.clear()
    assert not failed, "\n".join(failed)


class Run(deaths.Run):
    def start(self, wait: bool = True) -> None:
        self.client = connect(self.family, self.port)

    def connected(self) -> None:
        """The stack takes what is said before"""


class Client(clients.Client):
    def connect(self, hosts: Hosts, family: Family) -> None:
        self.s = connect(family, 5001 + len(stacks))
        hosts.sockets.append(self.s)


def points(family: Family, victim: str) -> None:
    try:
        deaths.all_points(family, victim, Run)
    finally:
        end()


def primary_dies() -> None:
    """The primary dies at each point of an lwIP client's connection, and comes back"""
    points(V4, "primary")


def muted_dies() -> None:
    """The muted host dies at each point, and comes back"""
    points(V4, "muted")


def six() -> None:
    """The primary dies at each point of one of IPv6"""
    points(V6, "primary")


def kinds() -> None:
    """Slow ones, small ones and large ones lose each host in the middle of an answer"""
    for victim in ("primary", "muted"):
        with service() as hosts:
            try:
                clients.transfer(hosts, V4, [Client("ordinary"), Client("a window of zero", slow=True, size=60_000), Client("large", size=400_000),
                                             Client("small", size=1000), Client("splice", how=b"splice"), Client("cork", how=b"cork")], victim)
            finally:
                end()


def joined() -> None:
    """Within a request one host dies; the other one answers, gets a new peer, and dies within an answer"""
    text = clients.text_of(1, 150_000)
    with service(free=("primary", "muted")) as hosts:
        for listener in hosts.listeners.values():
            listener.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 1 << 20)
        try:
            client = connect(V4, 5001)
            a, b = hosts.accept("primary"), hosts.accept("muted")
            client.sendall(text[:3000])
            equal(read(a, 3000) + read(b, 3000), text[:3000] * 2)
            hosts.cut("primary")
            client.sendall(text[3000:9000])
            hosts.bury("primary")
            equal(read(b, 6000), text[3000:9000])
            b.sendall(text)
            equal(read(client, len(text)), text)
            equal(state(b)["role"], ALONE)

            a.close()
            hosts.join("primary")
            hosts.call("primary", ABANDON)
            hosts.protect()
            copied: list[socket.socket] = []
            while not copied:
                hosts.call("muted", JOIN)
                copied = select.select([hosts.listeners["primary"]], [], [], 0.3)[0]
            a = hosts.accept("primary")
            wait("protected", lambda: (state(a)["role"], state(b)["role"]) == (MUTED, PRIMARY))
            client.sendall(text[:100])
            equal(read(a, 100) + read(b, 100), text[:100] * 2)
            for s in (a, b):
                s.sendall(text)
            equal(read(client, 40_000), text[:40_000])
            hosts.cut("muted")
            hosts.bury("muted")
            equal(read(client, len(text) - 40_000), text[40_000:])
            client.shutdown(socket.SHUT_WR)
            equal(a.recv(1), b"")
            a.sendall(b"bye")
            a.close()
            equal(read_all(client), b"bye")
        finally:
            end()


if __name__ == "__main__":
    if not LWIP.exists():
        sys.exit(f"{LWIP} is missing: install liblwip-dev (./build.sh setup), then ./build.sh userspace")
    main(primary_dies, muted_dies, six, kinds, joined)
