#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Clients that lie: forged reports and old ones, floods, garbage. No connection ends, none gets or gives a byte too much."""

import random
import socket
import struct
import time
from contextlib import suppress
from pathlib import Path

from hosts import (ACK, FAMILIES, MUTED, PORT, PRIMARY, PROMOTE, PSH, SYN, V4, V6, WAIT_S, Family, Hosts, Segment, ahead, batch,
                   equal, inside, main, nft, nothing, read, service, state, wait)
from interface import argument
from tcp_replica import EXID, LAST, OPTION, UNKNOWN, Report

draw = random.Random(1)


def option(*values: object) -> bytes:
    """With a report."""
    return bytes((OPTION, Report.LAYOUT.size + 2)) + Report.LAYOUT.pack(EXID, *values)


def checksum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data[:len(data) & ~1])) + (data[-1] << 8 if len(data) & 1 else 0)
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


class Liar:
    """Sends what it likes to a host, from anybody."""

    def __init__(self, hosts: Hosts, family: Family = V4) -> None:
        self.family = family
        with inside("client"):
            self.raw = socket.socket(family.kind, socket.SOCK_RAW, socket.IPPROTO_RAW)
        hosts.sockets.append(self.raw)

    def send(self, port: int, seq: int, ack: int, flags: int, options: bytes = b"", data: bytes = b"", window: int = 500,
             to: str = "") -> None:
        f = self.family
        source, service = (socket.inet_pton(f.kind, a) for a in (f.client, to or f.service))
        options += bytes(-len(options) % 4)
        tcp = struct.pack("!HHIIBBHHH", port, PORT, seq & 0xffffffff, ack & 0xffffffff, (20 + len(options)) << 2, flags, window, 0, 0)
        tcp += options + data
        length = struct.pack("!I", len(tcp)) + b"\0\0\0\6" if f is V6 else struct.pack("!HH", 6, len(tcp))
        tcp = tcp[:16] + struct.pack("!H", checksum(source + service + length + tcp)) + tcp[18:]
        if f is V6:
            ip = struct.pack("!IHBB", 6 << 28, len(tcp), 6, 64) + source + service
        else:
            ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0) + source + service
        self.raw.sendto(ip + tcp, (to or f.service, 0))

    def report(self, port: int, number: int, flags: int, rcv_nxt: int, rcv_end: int, write_seq: int, mac: bytes, options: int = 0x77,
               to: str = "") -> None:
        self.send(port, number >> 32, number, 0, option(flags, options, 0, 0, rcv_nxt & 0xffffffff, rcv_end & 0xffffffff,
                                                        write_seq & 0xffffffff, mac), to=to)


def unharmed(client: socket.socket, a: socket.socket, b: socket.socket) -> None:
    """It is still held by both, and the gate still works."""
    equal((state(a)["role"], state(b)["role"]), (PRIMARY, MUTED))
    client.sendall(b"q")
    equal(read(a, 1) + read(b, 1), b"qq")
    a.sendall(b"answer")
    nothing(client, 0.15)
    b.sendall(b"answer")
    equal(read(client, 6), b"answer")


def forged() -> None:
    """Reports with a wrong signature, of all flags, to both hosts: counted, and nothing else"""
    for family in FAMILIES:
        with service(family) as hosts:
            client, a, b = hosts.pair(family)
            liar = Liar(hosts, family)
            port, number = client.getsockname()[1], state(a)["id"]
            unharmed(client, a, b)
            last = [s.report for s in hosts.capture.of("muted") if s.report][-1]
            before = {host: hosts.count(host, "reports_bad") for host in ("primary", "muted")}
            for host in ("muted", "primary"):
                if host == "primary":
                    hosts.copies(False)
                    forward(hosts)
                for flags in (*(1 << n for n in range(8)), 0, 0xff):
                    for wrong in bytes(8), draw.randbytes(8), last.mac, bytes([last.mac[0] ^ 1]) + last.mac[1:]:
                        if (wrong, flags) != (last.mac, last.flags):
                            liar.report(port, number, flags, last.rcv_nxt + 1000, last.rcv_end + 5000, last.write_seq + 5000, wrong)
                wait(f"counted by {host}", lambda: hosts.count(host, "reports_bad") > before[host] + 30)
            hosts.copies(True)
            unharmed(client, a, b)


def forward(hosts: Hosts) -> None:
    """The muted host copies everything, reports too: the worst that can be configured."""
    for ip, f in ("ip", V4), ("ip6", V6):
        nft("muted", f"add table {ip} takeover\nadd chain {ip} takeover copy {{ type filter hook prerouting priority raw; }}\n"
                     f"add rule {ip} takeover copy {ip} daddr {f.service} tcp dport {PORT} dup to {f.primary} device lan")


def replayed() -> None:
    """Real reports, of this connection and of an earlier one of the same ports, sent again, to either host"""
    with service() as hosts:
        hosts.copies(False)
        forward(hosts)
        liar = Liar(hosts)
        old: list[Segment] = []
        for number in range(2):
            client = hosts.connect(port=7000)
            a, b = hosts.accept("primary", 7000), hosts.accept("muted", 7000)
            seen = [s for s in hosts.capture.segments if s.report]
            client.sendall(b"more")
            equal(read(a, 4) + read(b, 4), b"moremore")
            for s in (a, b):
                s.sendall(b"x" * 1000)
            read(client, 1000)
            for segment in old + seen:
                liar.send(segment.client, segment.seq, segment.ack, 0, segment.options)
                # As if of another connection
                liar.send(segment.client + 1, segment.seq, segment.ack, 0, segment.options)
            time.sleep(0.1)
            unharmed(client, a, b)
            if not number:
                for s in (a, b):
                    s.close()
                equal(client.recv(1), b"")
                client.close()
                wait("closed", lambda: hosts.free(7000))
                old = [s for s in hosts.capture.segments if s.report and s.host != "client"]
                assert any(s.report and s.report.flags & LAST for s in old)


def echo() -> None:
    """What the primary says about itself comes back to it: that is not what the other host has"""
    with service() as hosts:
        hosts.copies(False)
        forward(hosts)
        client, a, b = hosts.pair()
        a.sendall(b"answer")
        client.settimeout(1)
        with suppress(TimeoutError):
            raise AssertionError(f"the client has {client.recv(10)!r}, which one host alone has")
        assert any(s.report for s in hosts.capture.of("primary")), "the primary has not asked"
        client.settimeout(WAIT_S)
        b.sendall(b"answer")
        equal(read(client, 6), b"answer")
        unharmed(client, a, b)


def garbage() -> None:
    """Segments without flags and options of random bytes"""
    with service() as hosts:
        hosts.copies(False)
        forward(hosts)
        client, a, b = hosts.pair()
        liar = Liar(hosts)
        port, number = client.getsockname()[1], state(a)["id"]
        for _ in range(1500):
            options = draw.randbytes(4 * draw.randrange(11))
            if draw.random() < 0.5:
                options = b"\xfe" + bytes([draw.choice((28, 20, 4, 255))]) + b"RR" + options[4:]
            where = draw.choice((port, port, draw.randrange(1, 65536)))
            liar.send(where, draw.choice((number >> 32, draw.randrange(1 << 32))), number, draw.choice((0, 0, 8, 32)), options[:40],
                      draw.randbytes(draw.randrange(20)))
        unharmed(client, a, b)


def flood() -> None:
    """Thousands of reports for connections that nobody has: service goes on"""
    with service(resets=True) as hosts:
        client, a, b = hosts.pair()
        liar = Liar(hosts)
        for number in range(3000):
            liar.send(10_000 + number, number, number, 0, option(UNKNOWN, 0, 1, 0, 0, 0, 0, bytes(8)))
            if number % 10 == 0:
                liar.send(10_000 + number, number, number, 16)      # an acknowledgment of nothing
        unharmed(client, a, b)


def begins(hosts: Hosts, liar: Liar) -> tuple[Segment, int]:
    """What the primary has answered to a SYN, and its clock."""
    nft("client", f"add table ip mute\nadd chain ip mute out {{ type filter hook output priority 0; }}\n"
                  f"add rule ip mute out tcp dport {PORT} tcp flags & rst == rst drop")
    liar.send(7000, 1000, 0, SYN, b"\2\4\5\xb4\1\1\x08\x0a" + struct.pack("!II", 1, 0))
    wait("an answer", lambda: [s for s in hosts.capture.of("primary") if s.flags & SYN])
    begun = next(s for s in hosts.capture.of("primary") if s.flags & SYN)
    return begun, stamp(begun)


def stamp(s: Segment) -> int:
    return int(struct.unpack("!II", s.option(8) or b"")[0])


def echoing(value: int) -> bytes:
    return b"\1\1\x08\x0a" + struct.pack("!II", 2, value & 0xffffffff)


def answered(hosts: Hosts, b: socket.socket) -> list[Segment]:
    """By the host that had been mute: what it sends."""
    b.sendall(b"answer")
    wait("the answer", lambda: [s for s in hosts.capture.of("muted") if s.from_service and s.length])
    return [s for s in hosts.capture.of("muted") if s.from_service]


def other_clock() -> None:
    """A client that only sends has seen the other host's clock, too: it takes what comes from this one"""
    with service(free=("muted",)) as hosts:
        liar = Liar(hosts)
        begun, clock = begins(hosts, liar)
        seen = clock + 60_000
        liar.send(7000, 1001, begun.seq + 1, ACK, echoing(seen))
        a, b = hosts.accept("primary"), hosts.accept("muted")
        liar.send(7000, 1001, begun.seq + 1, ACK | PSH, echoing(seen), b"upload")
        equal(read(a, 6) + read(b, 6), b"uploadupload")
        hosts.bury("primary")
        for s in answered(hosts, b):
            assert ahead(stamp(s), seen & 0xffffffff) >= 0, "the client drops what is older"


def half_open_clock() -> None:
    """A client whose handshake the other host began may have seen a clock that is ahead of this one's"""
    with service(free=("muted",)) as hosts:
        liar = Liar(hosts)
        begun, clock = begins(hosts, liar)
        hosts.cut("primary")
        hosts.bury("primary")
        liar.send(7000, 1001, begun.seq + 1, ACK | PSH, echoing(clock), b"question")
        b = hosts.accept("muted")
        equal(read(b, 8), b"question")
        for s in answered(hosts, b):
            assert ahead(stamp(s), clock + 2000 & 0xffffffff) >= 0, "the client drops what is older"


def early_ack() -> None:
    """A client acknowledges what nobody has generated, the FIN too, and is gone: the muted socket does not stay for ever"""
    with service(resets=True) as hosts:
        liar = Liar(hosts)
        client, a, b = hosts.pair()
        port = client.getsockname()[1]
        last = [s for s in hosts.capture.of("client") if s.client == port][-1]
        liar.send(port, last.end, last.ack + 30_000, ACK)
        client.sendall(b"q")
        equal(read(a, 1) + read(b, 1), b"qq")
        hosts.cut("client")
        for s in (a, b):
            s.sendall(b"x" * 1000)
            s.close()
        time.sleep(0.2)
        with inside("muted"):
            lines = [line.split() for line in Path("/proc/thread-self/net/tcp").read_text().splitlines()]
        found = [fields for fields in lines if fields[2].endswith(f":{port:04X}")]
        equal([fields[3] for fields in found], ["04"])      # FIN_WAIT1
        assert not found[0][5].startswith("00:"), f"no timer ends it: {found[0]}"


def other_network() -> None:
    """What another network namespace sets is no business of this one"""
    with service() as hosts:
        client, a, b = hosts.pair()
        batch(["netns del other"], force=True)
        batch(["netns add other"])
        try:
            with inside("other"), socket.socket() as s:
                s.setsockopt(socket.IPPROTO_TCP, 500, argument(port=PORT))
                s.setsockopt(socket.IPPROTO_TCP, 500, argument(PROMOTE, port=PORT))
            equal(len(hosts.status("other")), 1)
            unharmed(client, a, b)
        finally:
            batch(["netns del other"], force=True)


if __name__ == "__main__":
    main(forged, replayed, echo, garbage, flood, other_clock, half_open_clock, early_ack, other_network)
