# SPDX-License-Identifier: GPL-2.0-or-later
"""A client and the two hosts of a service, each a network namespace of this machine, and the packets between them."""

import ctypes
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "harness"))
from points import equal, main  # noqa: E402,F401

TCP_REPLICA = 500
OFF, PRIMARY, MUTED, ALONE = range(4)
SET, PROMOTE, ABANDON, JOIN, GATE, LEAVE = range(6)
UNGATED = 1
ARGUMENT = struct.Struct("=4I16s16s16sH2sIQII")
KEY = bytes(range(1, 17))
PORT = 80
FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
NAMES = ("client", "primary", "muted")
WAIT_S = 20

libc = ctypes.CDLL(None, use_errno=True)


def sh(command: str, check: bool = True) -> str:
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert not check or done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


@contextmanager
def inside(host: str) -> Iterator[None]:
    """This thread is in the host's network. Its sockets stay there."""
    with open("/proc/thread-self/ns/net") as home, open(f"/run/netns/{host}") as there:
        assert libc.setns(there.fileno(), 0x40000000) == 0, os.strerror(ctypes.get_errno())
        try:
            yield
        finally:
            assert libc.setns(home.fileno(), 0x40000000) == 0


@dataclass
class Family:
    kind: int
    client: str
    primary: str
    muted: str
    service: str
    bits: int

    def packed(self, address: str) -> bytes:
        return socket.inet_pton(self.kind, address).ljust(16, b"\0")


V4 = Family(socket.AF_INET, "192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.10", 24)
V6 = Family(socket.AF_INET6, "2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8::10", 64)
FAMILIES = (V4, V6)


@dataclass
class Segment:
    """One TCP segment that the switch has carried: from which host, and what is in it."""
    time: float
    host: str
    seq: int
    ack: int
    flags: int
    window: int
    options: bytes
    data: bytes
    from_service: bool

    @property
    def report(self) -> bool:
        return not self.flags


@dataclass
class Capture:
    """Of one host's cable."""
    host: str
    segments: list[Segment] = field(default_factory=list)
    stop: bool = False

    def run(self, s: socket.socket, start: Callable[[], None]) -> None:
        s.settimeout(0.05)
        start()
        while True:
            try:
                frame, where = s.recvfrom(1 << 17)
            except TimeoutError:
                if self.stop:
                    return
                continue
            if segment := parse(frame, self.host):
                # What this host has sent, not what it gets
                if where[2] != socket.PACKET_OUTGOING:
                    self.segments.append(segment)


def parse(frame: bytes, host: str) -> Segment | None:
    kind = struct.unpack_from("!H", frame, 12)[0]
    if kind == 0x0800 and frame[23] == 6:
        start = 14 + (frame[14] & 15) * 4
        end = 14 + struct.unpack_from("!H", frame, 16)[0]
    elif kind == 0x86dd and frame[20] == 6:
        start = 54
        end = 54 + struct.unpack_from("!H", frame, 18)[0]
    else:
        return None
    source, _, seq, ack, offset, flags, window = struct.unpack_from("!HHIIBBH", frame, start)
    data = start + (offset >> 4) * 4
    return Segment(time.monotonic(), host, seq, ack, flags & 0x1f, window, frame[start + 20:data], frame[data:end], source == PORT)


class Hosts:
    """
    The client, the primary and the muted host on one switch. The address of the service is the muted one's; its packets are copied
    to the primary, which has the address, too, but does not say so.
    """

    def __init__(self) -> None:
        sh("ip link del sw 2>/dev/null; for n in $(ip netns list | cut -d' ' -f1); do ip netns del $n; done; true")
        sh("ip link add sw type bridge forward_delay 0 && ip link set sw up")
        for name in NAMES:
            sh(f"ip netns add {name} && ip link add {name} type veth peer name lan netns {name} && ip link set {name} master sw up")
            sh(f"ip -n {name} link set lo up && ip -n {name} link set lan up")
            sh(f"ip netns exec {name} sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.lan.rp_filter=0 net.ipv6.conf.lan.accept_dad=0")
            for family in FAMILIES:
                nodad = " nodad" if family is V6 else ""
                sh(f"ip -n {name} addr add {getattr(family, name)}/{family.bits} dev lan{nodad}")
            # Real segments on the wire
            sh(f"ip netns exec {name} ethtool -K lan tso off gso off gro off", check=False)
            sh(f"ip link set {name} gso_max_segs 1; ip -n {name} link set lan gso_max_segs 1")
        sh("ip netns exec primary sysctl -qw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2")
        for family in FAMILIES:
            nodad = " nodad" if family is V6 else ""
            sh(f"ip -n primary addr add {family.service} dev lo{nodad}")
            sh(f"ip -n muted addr add {family.service}/{family.bits} dev lan{nodad}")
        self.copies(True)
        self.captures: list[Capture] = []

    def copies(self, on: bool) -> None:
        """From the muted host to the primary."""
        sh("ip netns exec muted nft flush ruleset")
        if on:
            rules = "".join(f"""table {ip} takeover {{
                chain copy {{
                    type filter hook prerouting priority raw;
                    {ip} daddr {f.service} tcp dport {PORT} tcp option @254,16,16 0x5252 return
                    {ip} daddr {f.service} tcp dport {PORT} dup to {f.primary} device lan
                }}
            }}
            """ for ip, f in (("ip", V4), ("ip6", V6)))
            subprocess.run(["ip", "netns", "exec", "muted", "nft", "-f", "-"], check=True, text=True, input=rules)

    def call(self, host: str, op: int, role: int = OFF, family: Family = V4, patience: int = 0, port: int = PORT, key: bytes = KEY,
             flags: int = 0, on: socket.socket | None = None) -> None:
        peer = family.muted if host == "primary" else family.primary
        argument = ARGUMENT.pack(op, flags, role, patience, family.packed(family.service), family.packed(peer), key, family.kind,
                                 struct.pack("!H", port), 0, 0, 0, 0)
        with inside(host), socket.socket() as s:
            (on or s).setsockopt(socket.IPPROTO_TCP, TCP_REPLICA, argument)

    def protect(self, family: Family = V4, patience: int = 0) -> None:
        for host, role in ("primary", PRIMARY), ("muted", MUTED):
            self.call(host, SET, role, family, patience)

    def listen(self, host: str, family: Family = V4, options: tuple[tuple[int, int, int], ...] = ()) -> socket.socket:
        with inside(host):
            s = socket.socket(family.kind)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            for option in options:
                s.setsockopt(*option)
            s.bind((family.service, PORT))
            s.listen(4096)
            s.settimeout(WAIT_S)
            return s

    def connect(self, family: Family = V4, options: tuple[tuple[int, int, int], ...] = (), port: int = 0) -> socket.socket:
        with inside("client"):
            s = socket.socket(family.kind)
            s.settimeout(WAIT_S)
            for option in options:
                s.setsockopt(*option)
            if port:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                s.bind((family.client, port))
            s.connect((family.service, PORT))
            return s

    def cut(self, host: str) -> None:
        """Its cable."""
        sh(f"ip link set {host} down")

    def join(self, host: str) -> None:
        sh(f"ip link set {host} up")

    def move_address(self) -> None:
        """To the primary, as a cluster manager does."""
        for family in FAMILIES:
            sh(f"ip -n primary addr del {family.service} dev lo; ip -n primary addr add {family.service}/{family.bits} dev lan"
               + (" nodad" if family is V6 else ""))
        sh("ip netns exec primary sysctl -qw net.ipv4.conf.all.arp_ignore=0")
        sh(f"ip -n client neigh flush all")

    def loss(self, host: str, what: str) -> None:
        """Of what comes to the host: a netem specification."""
        sh(f"tc qdisc replace dev {host} root netem {what}")

    @contextmanager
    def capture(self) -> Iterator[dict[str, Capture]]:
        captures = {name: Capture(name) for name in NAMES}
        threads = []
        for name, capture in captures.items():
            s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
            s.bind((name, 3))
            ready = threading.Event()
            threads.append(threading.Thread(target=capture.run, args=(s, ready.set)))
            threads[-1].start()
            ready.wait()
        try:
            yield captures
        finally:
            for capture in captures.values():
                capture.stop = True
            for thread in threads:
                thread.join()

    def status(self, host: str) -> list[dict[str, str]]:
        """/proc/net/tcp_replica: the first word is "kind"."""
        text = sh(f"ip netns exec {host} cat /proc/net/tcp_replica")
        return [{"kind": line.split()[0], **dict(pair.split("=", 1) for pair in line.split()[1:])} for line in text.splitlines()]

    def service(self, host: str) -> dict[str, str]:
        return next(line for line in self.status(host) if line["kind"] == "service")

    def end(self) -> None:
        for name in NAMES:
            sh(f"ip netns del {name}; ip link del {name}", check=False)


def state(s: socket.socket) -> dict[str, int]:
    fields = ARGUMENT.unpack(s.getsockopt(socket.IPPROTO_TCP, TCP_REPLICA, ARGUMENT.size))
    return {"role": fields[2], "flags": fields[1], "id": fields[10], "unstored": fields[11], "unsent": fields[12]}


def wait(what: str, done: Callable[[], object], limit: float = WAIT_S) -> None:
    end = time.monotonic() + limit
    while not done():
        assert time.monotonic() < end, f"{what}: not within {limit:g} seconds"
        time.sleep(0.005)


def read(s: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length and (more := s.recv(min(1 << 20, length - len(data)))):
        data += more
    return data


def read_all(s: socket.socket) -> bytes:
    data = b""
    while more := s.recv(1 << 20):
        data += more
    return data


def quietly(function: Callable[..., object], *args: object) -> None:
    with suppress(OSError):
        function(*args)
