#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The switch, between processes on this machine instead of guests."""

import os
import socket
import struct
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "harness"))
from points import equal, main  # noqa: E402
from net import Frame, Network, capture  # noqa: E402

FRAMES = 100_000
A_SECOND = 40_000
MANY = 20_000
ALL = b"\xff" * 6


class Station:
    """What has one port of a network."""

    def __init__(self, net: Network, network: str, name: str) -> None:
        self.mac = b"\x02\0\0\0\0" + bytes([len(name) + ord(name[-1])])
        self.net, self.network, self.name, self.path = net, network, name, net.port(network, name)
        self.plug()

    def plug(self) -> None:
        self.buffer = b""
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(self.path))
        # A command that follows it finds it connected
        self.net.count(self.network, self.name)

    def send(self, to: bytes, body: bytes, ethertype: int = 0x88b5) -> bytes:
        frame = to + self.mac + struct.pack(">H", ethertype) + body
        self.socket.sendall(struct.pack(">I", len(frame)) + frame)
        return frame

    def get(self, patience: float = 10) -> bytes | None:
        """The next frame."""
        self.socket.settimeout(patience)
        try:
            while len(self.buffer) < 4 or len(self.buffer) < 4 + struct.unpack_from(">I", self.buffer)[0]:
                self.buffer += self.socket.recv(1 << 20)
        except (TimeoutError, BlockingIOError):
            return None
        end = 4 + struct.unpack_from(">I", self.buffer)[0]
        frame, self.buffer = self.buffer[4:end], self.buffer[end:]
        return frame

    def all(self, last: bytes) -> list[bytes]:
        """The bodies of the frames until this one, and a little longer."""
        found = []
        while (frame := self.get(10 if last not in found else 0.1)) is not None:
            found.append(frame[14:])
        return found


class Two(Network):
    """A network of two, who know where the other one is."""

    def __enter__(self) -> "Two":
        super().__enter__()
        self.a, self.b = (Station(self, "lan", name) for name in "ab")
        for one, other in ((self.a, self.b), (self.b, self.a)):
            one.send(ALL, b"hello")
            equal(other.get(), ALL + one.mac + b"\x88\xb5hello")
        return self


def two(seed: int = 1) -> Two:
    return Two("net-cables", seed)


def number(i: int) -> bytes:
    return i.to_bytes(4, "big")


def segment(flags: str, payload: bytes = b"", ports: tuple[int, int] = (1000, 80), six: bool = False) -> bytes:
    """A packet with TCP, and options."""
    bits = sum(1 << "FSRPAU".index(letter) for letter in flags)
    tcp = struct.pack(">HHIIBBHHH", *ports, 7, 8, 8 << 4, bits, 512, 0, 0) + b"\1\1\x08\x0a" + bytes(8) + payload
    if six:
        return struct.pack(">IHBB", 6 << 28, len(tcp), 6, 64) + bytes(15) + b"\1" + bytes(15) + b"\2" + tcp
    return struct.pack(">BBHIBBH4s4s", 0x45, 0, 20 + len(tcp), 0, 64, 6, 0, bytes([192, 0, 2, 1]), bytes([192, 0, 2, 2])) + tcp


def learning() -> None:
    """A frame for everybody gets to everybody in its network, one for a known station to that alone, also when it has moved"""
    with Network("net-cables") as net:
        a, b, c = (Station(net, "lan", name) for name in "abc")
        d = Station(net, "link", "d")
        for frame in (a.send(ALL, b"all"), a.send(c.mac, b"unknown")):
            equal((b.get(), c.get(), d.get(0)), (frame, frame, None))
        for sender in b, c, d:
            sender.send(ALL, b"here")
        equal([a.get()[6:12], a.get()[6:12]], [b.mac, c.mac])       # type: ignore[index]
        equal((b.get()[6:12], c.get()[6:12]), (c.mac, b.mac))       # type: ignore[index]
        frame = a.send(c.mac, b"known")
        equal((c.get(), b.get(0.1)), (frame, None))
        a.send(a.mac, b"to itself")
        equal([station.get(0.1) for station in (a, b, c)], [None] * 3)
        b.mac = c.mac
        frame = b.send(a.mac, b"moved")
        equal(a.get(), frame)
        frame = a.send(c.mac, b"to the new place")
        equal((b.get(), c.get(0.1)), (frame, None))
        # A new connection takes its port
        b.plug()
        frame = a.send(b.mac, b"again")
        equal(b.get(), frame)


def numbered(net: Two, count: int) -> list[int]:
    """Which of so many frames get from a to b."""
    for i in range(count):
        net.a.send(net.b.mac, number(i))
    net.set("lan", "a", "from", loss=0, duplicate=0, reorder=0)
    net.a.send(net.b.mac, b"last")
    return [int.from_bytes(body, "big") for body in net.b.all(b"last") if body != b"last"]


def chance() -> None:
    """As many frames are lost, doubled and reordered as was asked for; the same ones with the same seed"""
    def lost(seed: int) -> list[int]:
        with two(seed) as net:
            net.set("lan", "a", "from", loss=5)
            return numbered(net, 2000)

    first = lost(1)
    assert first == sorted(first) and 50 < 2000 - len(first) < 160, len(first)
    equal(lost(1), first)
    assert lost(2) != first
    with two() as net:
        net.set("lan", "a", "from", duplicate=5.5)
        got = numbered(net, 2000)
        equal(sorted(set(got)), list(range(2000)))
        assert 2060 < len(got) < 2180, len(got)
    with two() as net:
        net.set("lan", "a", "from", reorder=5)
        got = numbered(net, 2000)
        equal(sorted(got), list(range(2000)))
        later = sum(x < max(got[:i + 1]) for i, x in enumerate(got))
        assert 20 < later < 160, later


def times() -> None:
    """A delay, a jitter and a rate take the time that they should; what does not fit into the queue is dropped"""
    with two() as net:
        def took(count: int, size: int) -> list[float]:
            start = time.monotonic()
            for i in range(count):
                net.a.send(net.b.mac, number(i) + bytes(size - 18))
            ends = []
            for i in range(count):
                frame = net.b.get()
                assert frame and frame[14:18] == number(i), (i, frame)
                ends.append(time.monotonic() - start)
            return ends

        assert max(took(10, 100)) < 1
        net.set("lan", "a", "from", delay=100.5)
        net.set("lan", "b", "to", delay=50)
        assert 0.15 < min(took(10, 100)) < 1.2
        net.set("lan", "b", "to", delay=0, jitter=100)
        ends = took(200, 100)
        assert ends[0] > 0.1 and 0.15 < ends[-1] < 1.5, ends
        net.set("lan", "b", "to", jitter=0, rate=1_000_000)
        net.set("lan", "a", "from", delay=0)
        # 100 frames of 1000 bytes are 0.8 s at that rate
        assert 0.79 < took(100, 1000)[-1] < 4
        net.set("lan", "b", "to", queue=10_000)
        # In one piece, as the queue empties with time
        net.a.socket.sendall((struct.pack(">I", 1000) + net.b.mac + net.a.mac + bytes(988)) * 20)
        net.set("lan", "b", "to", rate=0)
        equal([net.b.get(1) is not None for _ in range(11)], [True] * 10 + [False])
        equal(net.count("lan", "b")["to"]["dropped"], 10)


def cuts() -> None:
    """What is cut gets nothing through, on one leg or both; what is held arrives in order when it is released"""
    with two() as net:
        net.cut("lan", "b", "to")
        net.a.send(net.b.mac, b"lost")
        frame = net.b.send(net.a.mac, b"other leg")
        equal((net.a.get(), net.b.get(0.1)), (frame, None))
        net.mend("lan", "b")
        net.set("lan", "a", hold=1)
        frames = [net.a.send(net.b.mac, number(i)) for i in range(5)]
        net.b.send(net.a.mac, b"held too")
        equal((net.b.get(0.1), net.a.get(0.1)), (None, None))
        net.set("lan", "a", hold=0)
        frames.append(net.a.send(net.b.mac, b"after them"))
        equal([net.b.get() for _ in frames], frames)
        equal(net.a.get()[14:], b"held too")        # type: ignore[index]
        equal(net.count("lan", "b")["to"], {"passed": 7, "lost": 1, "dropped": 0})


def triggers() -> None:
    """Each condition of a trigger finds its frame and no other one, before it or after it; it happens once"""
    with two() as net:
        third = Station(net, "lan", "c")
        third.send(ALL, b"hello")
        for station in net.a, net.b:
            assert station.get()
        packets = [segment("SA", ports=(80, 1000)), segment("S"), segment("A"), segment("PA", b"GET /one"), segment("PA", b"GET /two", six=True),
                   segment("PA", b"x", ports=(80, 1000)), segment("F")]
        for i, keys in enumerate(({"set": "SA"}, {"set": "S", "unset": "A"}, {"n": 3}, {"payload": 8}, {"contains": b"/two"},
                                  {"tcp": 80, "payload": 1, "n": 3}, {"set": "F", "source": "a", "to": "b"})):
            trigger = net.trigger("lan", "drop", **keys)        # type: ignore[arg-type]
            wrong = [net.trigger("lan", source="b"), net.trigger("lan", to="c"), net.trigger("lan", contains=b"/three"), net.trigger("lan", tcp=81)]
            for packet in packets:
                net.a.send(net.b.mac, packet, 0x86dd if packet[0] >> 4 == 6 else 0x0800)
            equal([net.b.get() is not None for _ in range(6)] + [net.b.get(0.1)], [True] * 6 + [None])
            trigger.wait(0)
            got = [f.data[14:] for f in net.capture("lan") if f.host == "b" and not f.sent][-6:]
            equal(got, packets[:i] + packets[i + 1:])
            equal([w.fired.is_set() for w in wrong], [False] * 4)
        for after in False, True:
            net.set("lan", "b", loss=100)       # the chosen frame arrives for sure
            trigger = net.trigger("lan", "cut:b", after=after, contains=b"now")
            net.a.send(net.b.mac, segment("PA", b"now"), 0x0800)
            trigger.wait()
            equal(net.b.get(0.2) is not None, after)
            net.set("lan", "b", loss=0)
            net.a.send(net.b.mac, b"lost")
            equal(net.b.get(0.1), None)
            net.mend("lan", "b")
        trigger = net.trigger("lan", "hold:a", n=2, source="a")
        for text in b"1", b"2", b"3":
            net.a.send(net.b.mac, text)
        trigger.wait()
        equal([f and f[14:] for f in (net.b.get(), net.b.get(0.1))], [b"1", None])
        net.set("lan", "a", hold=0)
        equal([f and f[14:] for f in (net.b.get(), net.b.get(0.1), net.b.get(0.1))], [b"2", b"3", None])


def recorded() -> None:
    """The capture has what was sent, lost or not, and what arrived, with its fields; a killed switch leaves it readable"""
    with two() as net:
        net.cut("lan", "b", "to")
        net.a.send(net.b.mac, segment("PA", b"into the cut"), 0x0800)
        net.count("lan", "a")
        net.mend("lan", "b")
        net.set("lan", "b", "to", delay=500)
        before = time.monotonic_ns()
        net.a.send(net.b.mac, segment("PA", b"four") + b"padding", 0x0800)
        net.a.send(net.b.mac, segment("FA", b"six", six=True), 0x86dd)
        assert net.b.get() and net.b.get()
        frames = net.capture("lan")[-5:]
        equal([(f.host, f.sent, f.payload) for f in frames], [("a", True, b"into the cut"), ("a", True, b"four"), ("a", True, b"six"),
                                                              ("b", False, b"four"), ("b", False, b"six")])
        four, six = frames[1:3]
        equal((four.src, four.dst, four.sport, four.dport, four.flags, four.seq, four.ack, four.window, four.options),
              ("192.0.2.1", "192.0.2.2", 1000, 80, "PA", 7, 8, 512, [(8, bytes(8))]))
        equal((six.src, six.dst, six.flags, six.protocol), ("::1", "::2", "FA", socket.IPPROTO_TCP))
        assert before < four.time <= six.time < before + 500_000_000 <= frames[3].time < time.monotonic_ns(), [str(f) for f in frames]
        # More at once than it keeps before it writes
        net.set("lan", "b", "to", delay=0, hold=1)
        for i in range(0, MANY, 1000):
            net.a.socket.sendall(b"".join(struct.pack(">I", 18) + net.b.mac + net.a.mac + b"\x88\xb5" + number(j) for j in range(i, i + 1000)))
        net.a.send(net.b.mac, b"last")
        net.set("lan", "b", "to", hold=0)
        equal(net.b.all(b"last"), [*map(number, range(MANY)), b"last"])
        equal([f.data[14:] for f in net.capture("lan") if not f.sent][-MANY - 1:-1], [*map(number, range(MANY))])
        sending = threading.Event()

        def send() -> None:
            try:
                while True:
                    net.a.send(net.b.mac, bytes(1000))
                    sending.set()
            except OSError:
                pass

        thread = threading.Thread(target=send)
        thread.start()
        assert sending.wait(10)
        time.sleep(0.2)
        net.switch.kill()
        thread.join(10)
        net.switch.wait()
        net.switch.returncode = 0       # as it was meant
        found: list[Frame] = list(capture(net.networks["lan"]))
        assert len(found) > 2 * MANY + 100, len(found)
        equal([f.data[14:] for f in found[-3:]], [bytes(1000)] * 3)
        # So does a disk that was full, within the last block that is whole: the kill may have cut one already
        written, end = net.networks["lan"].read_bytes(), 0
        while end + 8 <= len(written) and end + (size := struct.unpack_from("<I", written, end + 4)[0]) <= len(written):
            end += size
        os.truncate(net.networks["lan"], end - 5)
        equal(len(list(capture(net.networks["lan"]))), len(found) - 1)


def refused() -> None:
    """Wrong commands are refused, and change nothing; a frame may come in pieces; one that is none ends the connection"""
    with two() as net:
        for words in ("set lan c both loss=1", "set lan a up loss=1", "set lan a both loss=101", "set lan a both speed=1", "set lan a both loss",
                      "set lan a both delay=-1", "port lan a /tmp/x", "port wan a /tmp/x", f"port lan c /{'x' * 200}", "network lan /tmp/x",
                      "trigger x wan do=tell", "trigger x lan do=cut", "trigger x lan do=cut:c", "trigger x lan do=tell n=0", "count lan",
                      "trigger x lan do=jump", "trigger x lan do=drop after=1", "trigger x lan do=tell set=Z", "no", "network wan /no/such/place"):
            try:
                net.ask(words)
            except AssertionError as error:
                assert "error: " in str(error), error
            else:
                raise AssertionError(f"{words}: is done")
        frame = net.a.mac + net.b.mac + b"\x88\xb5" + bytes(range(100))
        whole = struct.pack(">I", len(frame)) + frame
        for start, end in ((0, 2), (2, 50), (50, None)):
            net.b.socket.sendall(whole[start:end])
            net.count("lan", "b")
        equal(net.a.get(), frame)
        net.b.socket.sendall(struct.pack(">I", 1 << 20))
        equal(net.b.socket.recv(100), b"")
        net.b.plug()
        frame = net.a.send(net.b.mac, b"still there")
        equal(net.b.get(), frame)


def fast() -> None:
    """It carries 40,000 frames of 1500 bytes a second with less than half a processor"""
    with two() as net:
        got = 0

        def swallow() -> None:
            nonlocal got
            while got < FRAMES * 1518:
                got += len(net.b.socket.recv(1 << 20))

        def used() -> float:
            fields = Path(f"/proc/{net.switch.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

        frame = net.b.mac + net.a.mac + b"\x88\xb5" + bytes(1500)
        burst = (struct.pack(">I", len(frame)) + frame) * 100
        thread = threading.Thread(target=swallow)
        thread.start()
        start, before = time.monotonic(), used()
        for i in range(FRAMES // 100):
            net.a.socket.sendall(burst)
            while (i + 1) * 151800 - got > 500_000:     # a host acknowledges what it gets
                time.sleep(0.0001)
        thread.join(30)
        assert not thread.is_alive(), (got, net.count("lan", "b"))
        cost = (used() - before) / FRAMES
        print(f"# {FRAMES / (time.monotonic() - start):.0f} frames a second, {cost * 1e6:.1f} us of a processor each", flush=True)
        assert cost * A_SECOND < 0.5, cost
        net.networks["lan"].unlink()        # large


main(learning, chance, times, cuts, triggers, recorded, refused, fast)
