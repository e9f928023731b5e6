# SPDX-License-Identifier: GPL-2.0-or-later
"""A client and the two hosts of a service, each a network namespace of this machine, and the packets between them."""

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "harness"))
from points import equal, main  # noqa: E402,F401
from tcp_replica import FAREWELLS, OPTION, Report, ahead, report_in  # noqa: E402,F401

TCP_REPLICA = 500
OFF, PRIMARY, MUTED, ALONE = range(4)
SET, PROMOTE, ABANDON, JOIN, GATE, LEAVE = range(6)
UNGATED, BUSY = 1, 2
ARGUMENT = struct.Struct("=4I16s16s16sH2sIQII")
KEY = bytes(range(1, 17))
PORT = 80
FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
SNAP = 160              # of each packet is kept
SO_ATTACH_FILTER, SO_SNDBUFFORCE, SO_RCVBUFFORCE = 26, 32, 33
NAMES = ("client", "primary", "muted")
WAIT_S = 20

libc = ctypes.CDLL(None, use_errno=True)


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

    def address(self, verb: str, address: str, device: str) -> str:
        """For ip(8). What is on lo is one address."""
        return f"addr {verb} {address}" + (f"/{self.bits}" if device == "lan" else "") + f" dev {device}" + (
            " nodad" if verb == "add" and self.kind == socket.AF_INET6 else "")


V4 = Family(socket.AF_INET, "192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.10", 24)
V6 = Family(socket.AF_INET6, "2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8::10", 64)
FAMILIES = (V4, V6)


@dataclass
class Segment:
    """One TCP segment that the switch has carried: from which host, and what is in it."""
    host: str
    client: int             # its port
    seq: int
    ack: int
    flags: int
    window: int
    options: bytes
    length: int
    from_service: bool
    frame: bytes            # its first SNAP bytes

    @property
    def report(self) -> Report | None:
        return None if self.flags or self.from_service else report_in(self.option(OPTION))

    @property
    def end(self) -> int:
        return self.seq + self.length + bool(self.flags & FIN) + bool(self.flags & SYN) & 0xffffffff

    def option(self, kind: int) -> bytes | None:
        rest = self.options
        while len(rest) > 1 and rest[0]:
            if rest[0] == 1:
                rest = rest[1:]
                continue
            if rest[0] == kind:
                return rest[2:rest[1]]
            rest = rest[max(rest[1], 2):]
        return None


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
    source, to, seq, ack, offset, flags, window = struct.unpack_from("!HHIIBBH", frame, start)
    data = start + (offset >> 4) * 4
    return Segment(host, to if source == PORT else source, seq, ack, flags & 0x1f, window, frame[start + 20:data], end - data,
                   source == PORT, frame)


class Capture:
    """What the hosts send, in the order in which the switch gets it; and when one of them was promoted."""

    def __init__(self) -> None:
        self.log: list[tuple[bytes, str] | str] = []
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self.socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 256 << 20)
        self.snap(SNAP)
        self.socket.setblocking(False)

    def snap(self, length: int) -> None:
        """So much is kept of what comes from now on; 0: nothing."""
        program = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, length))     # return length
        self.socket.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("@HP", 1, ctypes.addressof(program)))

    def drain(self) -> None:
        with suppress(BlockingIOError):
            while True:
                frame, (device, _, direction, *_) = self.socket.recvfrom(SNAP)
                # What hosts send, not what they get
                if device in NAMES and direction != socket.PACKET_OUTGOING:
                    self.log.append((frame, device))

    def promoted(self, host: str) -> None:
        self.drain()
        self.log.append(host)

    def close(self) -> None:
        self.drain()
        self.socket.close()

    @property
    def segments(self) -> list[Segment]:
        self.drain()
        found = [parse(*entry) for entry in self.log if isinstance(entry, tuple)]
        return [segment for segment in found if segment]

    def of(self, host: str) -> list[Segment]:
        return [segment for segment in self.segments if segment.host == host]


class Judge:
    """
    What must be true of all segments: the primary acknowledges and sends no more than the muted host has reported, the muted host
    says nothing but reports, no window shrinks, nobody resets. It ends for the host that is promoted, not for the other one.
    """

    def __init__(self, capture: Capture, primary: str = "primary", ungated: bool = False, resets: bool = False,
                 free: tuple[str, ...] = ()) -> None:
        self.primary, self.ungated, self.resets, self.free = primary, ungated, resets, set(free)
        self.flows: dict[int, dict[str, int]] = {}
        self.judged = 0
        capture.drain()
        for number, entry in enumerate(capture.log):
            if isinstance(entry, str):
                self.free.add(entry)
            elif segment := parse(*entry):
                try:
                    self.segment(segment)
                except AssertionError as e:
                    near = "\n".join(map(str, filter(None, (parse(*s) for s in capture.log[max(0, number - 8):number + 1]
                                                           if isinstance(s, tuple)))))
                    raise AssertionError(f"{e}: {segment} (number {number})\n{near}") from None

    def segment(self, s: Segment) -> None:
        flow = self.flows.get(s.client)
        # A late duplicate of a connection that is over is reset, by any TCP
        over = flow is not None and "FIN" in flow and "client's FIN" in flow
        if s.from_service or s.host == "client":
            assert self.resets or not s.flags & RST or over, "a reset"
        if s.host == "client":
            if s.flags & SYN and (flow is None or flow["isn"] != s.seq):
                scale = s.option(3)
                self.flows[s.client] = {"isn": s.seq, "scale": 7 if scale else 0}
            if flow is not None and s.flags & FIN:
                flow["client's FIN"] = s.end
        elif s.report:
            if flow is not None and s.host != self.primary and not s.report.flags & FAREWELLS:
                for name, value in ("stored", s.report.rcv_nxt), ("end", s.report.rcv_end), ("generated", s.report.write_seq):
                    if ahead(value, flow.get(name, value)) >= 0:
                        flow[name] = value
        elif s.from_service:
            if flow is not None and s.flags & FIN:
                flow["FIN"] = s.end
            if s.host in self.free or s.flags & RST:
                return
            assert s.host == self.primary, "the muted host speaks"
            if flow is None:
                return
            self.judged += 1
            if s.flags & SYN:
                flow["start"] = s.seq
            stored, generated = flow.get("stored", flow["isn"] + 1), flow.get("generated", flow.get("start", 0) + 1)
            # What is in TIME_WAIT does not wait for the other host
            if over and s.ack == flow["client's FIN"]:
                stored = max(stored, s.ack - 1, key=lambda n: ahead(n, stored))
                stored += stored == s.ack - 1
            assert ahead(s.ack, stored) <= 0, f"acknowledges {ahead(s.ack, stored)} bytes that the muted host does not have"
            assert self.ungated or ahead(s.end, generated) <= 0, \
                f"sends {ahead(s.end, generated)} bytes that the muted host does not have"
            edge = s.ack + (s.window << (0 if s.flags & SYN else flow["scale"])) & 0xffffffff
            # Two processors may send in another order
            if ahead(s.ack, flow.get("ack", s.ack)) >= 0:
                assert ahead(edge, flow.get("edge", edge)) >= 0, f"the window shrinks by {-ahead(edge, flow['edge'])}"
                flow["edge"], flow["ack"] = edge, s.ack


def batch(commands: list[str], host: str | None = None, force: bool = False) -> None:
    """Of ip(8), in a host's network or in that of the switch: one process for all of them, as processes are slow here."""
    done = subprocess.run(["ip", *(["-n", host] if host else []), *(["-force"] if force else []), "-batch", "-"],
                          input="\n".join(commands), capture_output=True, text=True)
    assert force or done.returncode == 0, f"{commands}: {done.stderr}"


def nft(host: str, rules: str) -> None:
    done = subprocess.run(["ip", "netns", "exec", host, "nft", "-f", "-"], capture_output=True, text=True, input=rules)
    assert done.returncode == 0, f"{rules}: {done.stderr}"


def sysctl(host: str, **values: object) -> None:
    """In net.ipv4."""
    with inside(host):
        for name, value in values.items():
            Path("/proc/sys/net/ipv4", name.replace("__", "/")).write_text(str(value))


def netem(host: str, what: str) -> None:
    """Becomes of all that comes to this host."""
    # Lost questions of ARP are no lost packets: a host asks three times, and gives up
    for name in NAMES:
        sysctl(name, neigh__lan__mcast_solicit=10)
    subprocess.run(["tc", "qdisc", "replace", "dev", host, "root", "netem", *what.split()], check=True)


def announce(host: str, address: str) -> None:
    """By ARP, to all."""
    with inside(host), socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as s:
        s.bind(("lan", 0))
        mac, ip = s.getsockname()[4], socket.inet_aton(address)
        s.send(b"\xff" * 6 + mac + bytes.fromhex("0806 0001 0800 06 04 0001") + mac + ip + b"\xff" * 6 + ip)


class Hosts:
    """
    The client, the primary and the muted host on one switch. The address of the service is the muted one's; its packets are copied
    to the primary, which has the address, too, but does not say so.
    """

    def __init__(self) -> None:
        batch([f"link del {name}" for name in ("sw", *NAMES)] + [f"netns del {name}" for name in NAMES], force=True)
        batch(["link add sw type bridge forward_delay 0", "link set sw up"]
              + [command for name in NAMES for command in (
                  f"netns add {name}", f"link add {name} type veth peer name lan netns {name}", f"link set {name} master sw up",
                  f"link set {name} gso_max_segs 1")])
        for name in NAMES:
            service = {"primary": "lo", "muted": "lan"}.get(name)
            sysctl(name, conf__all__rp_filter=0, conf__lan__rp_filter=0)
            if name == "primary":
                sysctl(name, conf__all__arp_ignore=1, conf__all__arp_announce=2)
            batch(["link set lo up", "link set lan up gso_max_segs 1"]
                  + [family.address("add", address, device) for family in FAMILIES
                     for address, device in ((getattr(family, name), "lan"), (family.service, service)) if device], name)
        self.copies(True)
        self.capture = Capture()
        self.listeners: dict[str, socket.socket] = {}
        self.sockets: list[socket.socket] = []
        self.accepted: dict[str, dict[int, socket.socket]] = {name: {} for name in NAMES}
        self.accepting = {name: threading.Lock() for name in NAMES}

    def copies(self, on: bool) -> None:
        """From the muted host to the primary, but for reports that come from there."""
        nft("muted", "flush ruleset\n" + "".join(f"""table {ip} takeover {{
                chain copy {{
                    type filter hook prerouting priority raw;
                    {ip} daddr {f.service} tcp dport {PORT} tcp option @254,16,16 0x5252 return
                    {ip} daddr {f.service} tcp dport {PORT} dup to {f.primary} device lan
                }}
            }}
            """ for ip, f in (("ip", V4), ("ip6", V6)) if on))

    def call(self, host: str, op: int, role: int = OFF, family: Family = V4, patience: int = 0, port: int = PORT, key: bytes = KEY,
             flags: int = 0, on: socket.socket | None = None) -> None:
        peer = family.muted if host == "primary" else family.primary
        argument = ARGUMENT.pack(op, flags, role, patience, family.packed(family.service), family.packed(peer), key, family.kind,
                                 struct.pack("!H", port), 0, 0, 0, 0)
        if op == PROMOTE and port == PORT:
            self.capture.promoted(host)
        with inside(host), socket.socket() as s:
            (on or s).setsockopt(socket.IPPROTO_TCP, TCP_REPLICA, argument)

    def protect(self, family: Family = V4, patience: int = 0) -> None:
        for host, role in ("primary", PRIMARY), ("muted", MUTED):
            self.call(host, SET, role, family, patience)

    def create(self, host: str, kind: int, *options: tuple[int, int, Any], protocol: int = 0) -> socket.socket:
        with inside(host):
            s = socket.socket(kind, proto=protocol)
        s.settimeout(WAIT_S)
        for option in options:
            s.setsockopt(*option)
        self.sockets.append(s)
        return s

    def listen(self, host: str, family: Family = V4, options: tuple[tuple[int, int, Any], ...] = (), address: str = "",
               protocol: int = 0) -> socket.socket:
        s = self.create(host, family.kind, (socket.SOL_SOCKET, socket.SO_REUSEADDR, 1), *options, protocol=protocol)
        s.bind((address or family.service, PORT))
        s.listen(4096)
        self.listeners[host] = s
        return s

    def connect(self, family: Family = V4, options: tuple[tuple[int, int, int], ...] = (), port: int = 0,
                wait: bool = True) -> socket.socket:
        s = self.create("client", family.kind, *options)
        if port:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind((family.client, port))
        s.settimeout(WAIT_S if wait else 0)
        with suppress(BlockingIOError):
            s.connect((family.service, PORT))
        s.settimeout(WAIT_S)
        return s

    def free(self, port: int) -> bool:
        """The client has no connection from this port any more."""
        with inside("client"):
            return f":{port:04X} " not in Path("/proc/thread-self/net/tcp").read_text()

    def half_open(self, host: str) -> int:
        with inside(host):
            return Path("/proc/thread-self/net/tcp").read_text().count(" 03 ")

    def accept(self, host: str, port: int = 0) -> socket.socket:
        """The next one, or that of this client's port."""
        with self.accepting[host]:
            while not (port or self.accepted[host]) or port and port not in self.accepted[host]:
                s, address = self.listeners[host].accept()
                s.settimeout(WAIT_S)
                self.sockets.append(s)
                self.accepted[host][address[1]] = s
            return self.accepted[host].pop(port or next(iter(self.accepted[host])))

    def pair(self, family: Family = V4, options: tuple[tuple[int, int, int], ...] = ()) -> tuple[socket.socket, ...]:
        """A client's connection and the two copies of it."""
        client = self.connect(family, options)
        return client, self.accept("primary"), self.accept("muted")

    def cable(self, host: str, up: bool) -> None:
        with socket.socket() as s:
            request = struct.pack("16sh", host.encode(), 0)
            flags = struct.unpack_from("16sh", fcntl.ioctl(s, 0x8913, request + bytes(22)))[1]
            fcntl.ioctl(s, 0x8914, struct.pack("16sh22x", host.encode(), flags & ~1 | up))

    def cut(self, host: str) -> None:
        self.cable(host, False)

    def join(self, host: str) -> None:
        self.cable(host, True)

    def move_address(self, back: bool = False) -> None:
        """To the primary, as a cluster manager does."""
        old, new = ("lan", "lo") if back else ("lo", "lan")
        batch([family.address(verb, family.service, device) for family in FAMILIES
               for verb, device in (("del", old), ("add", new))], "primary")
        sysctl("primary", conf__all__arp_ignore=int(back))
        # One that is being asked for is left: without it, what waits for it fails
        batch(["neigh flush all nud reachable nud stale nud delay nud probe"], "client")
        # ... and says so: lwIP hears it
        announce("primary", V4.service)

    def bury(self, host: str) -> None:
        """What a cluster manager does when a host has died: the other one gets the address, if it has not, and goes on."""
        if host == "muted":
            self.move_address()
        for family in FAMILIES:
            with suppress(FileNotFoundError):
                self.call("muted" if host == "primary" else "primary", PROMOTE, family=family)

    def status(self, host: str) -> list[dict[str, str]]:
        """/proc/net/tcp_replica: the first word is "kind"."""
        with inside(host):
            text = Path("/proc/thread-self/net/tcp_replica").read_text()
        return [{"kind": line.split()[0], **dict(pair.split("=", 1) for pair in line.split()[1:])} for line in text.splitlines()]

    def service(self, host: str) -> dict[str, str]:
        return next(line for line in self.status(host) if line["kind"] == "service")

    def count(self, host: str, name: str) -> int:
        return int(self.service(host)[name])

    def end(self) -> None:
        for s in self.sockets:
            s.close()
        self.capture.close()
        batch([f"link del {name}" for name in ("sw", *NAMES)] + [f"netns del {name}" for name in NAMES], force=True)


@contextmanager
def service(family: Family = V4, patience: int = 0, **judge: Any) -> Iterator[Hosts]:
    """Hosts that protect a service and listen. All that they have sent is judged at the end."""
    hosts = Hosts()
    try:
        hosts.protect(family, patience)
        for name in ("primary", "muted"):
            hosts.listen(name, family)
        yield hosts
        time.sleep(0.05)
        Judge(hosts.capture, **judge)
    finally:
        hosts.end()


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


def nothing(s: socket.socket, seconds: float = 0.3) -> None:
    """Comes for now."""
    s.settimeout(seconds)
    with suppress(TimeoutError):
        raise AssertionError(f"it came too early: {s.recv(100)!r}")
    s.settimeout(WAIT_S)
