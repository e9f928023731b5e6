#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What the hosts do by themselves: copies that differ, servers that are late, gates, and connections that nobody knows."""

import select
import socket
import struct
import threading
import time
from contextlib import suppress
from pathlib import Path

from hosts import (ABANDON, ALONE, FIN, GATE, LEAVE, PORT, PRIMARY, PROMOTE, RST, SET, SO_SNDBUFFORCE, UNGATED, V4, Hosts, equal, inside,
                   main, netem, nft, nothing, quietly, read, read_all, service, state, sysctl, wait)
from tcp_replica import GONE

TCP, SOL = socket.IPPROTO_TCP, socket.SOL_SOCKET
PATIENCE_MS = 500


def ended(s: socket.socket) -> bool:
    """This copy, without a word."""
    s.settimeout(0)
    try:
        while s.recv(65536):
            pass
        return False
    except BlockingIOError:
        return False
    except ConnectionAbortedError:
        return True


def resets(hosts: Hosts) -> int:
    """One or two come from the hosts: each may find out first that the other one does not know the connection either."""
    return len([s for s in hosts.capture.segments if s.flags & RST and s.from_service])


def late_writer() -> None:
    """A muted server that does not write: the primary goes on alone after its patience, not before"""
    with service(patience=PATIENCE_MS, free=("primary",)) as hosts:
        client, a, b = hosts.pair()
        client.sendall(b"q")
        read(a, 1), read(b, 1)
        start = time.monotonic()
        a.sendall(b"answer")
        equal(read(client, 6), b"answer")
        took = time.monotonic() - start
        print(f"# {took * 1000:.0f} ms with a patience of {PATIENCE_MS}")
        assert PATIENCE_MS / 1000 <= took <= 2 * PATIENCE_MS / 1000, took
        equal(state(a)["role"], ALONE)
        equal(hosts.count("primary", "alone_late"), 1)
        wait("the copy ends", lambda: ended(b))


def late_reader() -> None:
    """A muted server that does not read: the client is not stopped for longer than the patience"""
    with service(patience=PATIENCE_MS, free=("primary",)) as hosts:
        hosts.listeners["muted"].setsockopt(SOL, socket.SO_RCVBUF, 4096)
        client, a, b = hosts.pair()
        got = []
        thread = threading.Thread(target=lambda: got.append(read_all(a)))
        thread.start()
        text = bytes(range(256)) * 2000
        start = time.monotonic()
        client.sendall(text)
        client.shutdown(socket.SHUT_WR)
        thread.join()
        print(f"# {(time.monotonic() - start) * 1000:.0f} ms")
        equal(len(got[0]), len(text))
        assert got[0] == text
        equal(hosts.count("primary", "alone_late"), 1)
        wait("the copy ends", lambda: ended(b))


def no_patience() -> None:
    """Without patience the primary waits; nothing has come after a second"""
    with service() as hosts:
        client, a, b = hosts.pair()
        a.sendall(b"answer")
        nothing(client, 1)
        equal(state(a)["role"], PRIMARY)
        b.sendall(b"answer")
        equal(read(client, 6), b"answer")


def silent_peer() -> None:
    """A peer that says nothing at all is the cluster manager's: no patience ends that"""
    with service(patience=200) as hosts:
        client, a, b = hosts.pair()
        client.sendall(b"q")
        equal(read(a, 1) + read(b, 1), b"qq")
        hosts.cut("muted")
        a.sendall(b"answer")
        nothing(client, 1)
        equal(state(a)["role"], PRIMARY)
        hosts.bury("muted")
        equal(read(client, 6), b"answer")


def differing(first: bytes, second: bytes) -> None:
    """What both servers write and then close: the client has one of them, and an end."""
    for order in ("primary", "muted"), ("muted", "primary"):
        with service(free=("primary", "muted")) as hosts:
            for listener in hosts.listeners.values():
                listener.setsockopt(SOL, SO_SNDBUFFORCE, 1 << 20)
            client, a, b = hosts.pair()
            sides = {"primary": (a, first), "muted": (b, second)}
            for host in order:
                s, text = sides[host]
                with suppress(OSError):
                    s.sendall(text)
                    s.close()
                time.sleep(0.05)
            got = read_all(client)
            longer = max(first, second, key=len)
            assert got == longer, f"{order[0]} first: {len(got)} bytes, not {len(longer)}"
            assert not any(s.flags & RST for s in hosts.capture.segments), "a reset"


def closed_first() -> None:
    """The server ends the connection: the client's FIN is acknowledged at once, whatever becomes of the socket then"""
    for lingering, full in (False, False), (True, False), (True, True):
        with service() as hosts:
            if full:
                for name in ("primary", "muted"):
                    sysctl(name, tcp_max_tw_buckets=0)
            client, a, b = hosts.pair()
            # Until the client's acknowledgment of a FIN waits for its own
            for _ in range(4):
                client.sendall(b"q")
                equal(read(a, 1) + read(b, 1), b"qq")
                for s in (a, b):
                    s.sendall(b"a")
                equal(read(client, 1), b"a")
            for s in (b, a):
                s.shutdown(socket.SHUT_WR) if lingering else s.close()
            equal(client.recv(1), b"")
            client.close()
            if lingering:
                equal(read_all(a) + read_all(b), b"")
            time.sleep(1)
            equal(len([s for s in hosts.capture.of("client") if s.flags & FIN]), 1)


def shorter() -> None:
    """The primary's answer is shorter: the client has the muted server's"""
    differing(b"x" * 1000, b"x" * 1500)


def longer() -> None:
    """The primary's answer is longer: the client has that one"""
    differing(b"x" * 150_000, b"x" * 1000)


def empty() -> None:
    """One server closes where the other one answers"""
    differing(b"", b"an answer")
    differing(b"an answer", b"")


def reset_by(host: str) -> None:
    """SO_LINGER 0, or a process that is killed with unread data: the other host goes on, the client notices nothing."""
    with service(free=("primary", "muted")) as hosts:
        client, a, b = hosts.pair()
        gone, stays = (a, b) if host == "primary" else (b, a)
        client.sendall(b"question")
        read(stays, 8)
        gone.setsockopt(SOL, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.close()
        wait("alone", lambda: state(stays)["role"] == ALONE)
        stays.sendall(b"answer")
        equal(read(client, 6), b"answer")
        stays.close()
        equal(client.recv(1), b"")
        equal(hosts.count("muted" if host == "primary" else "primary", "alone_unknown"), 1)


def reset_by_primary() -> None:
    """The primary's server resets: the muted host goes on"""
    reset_by("primary")


def reset_by_muted() -> None:
    """The muted host's server resets: the primary goes on"""
    reset_by("muted")


def unread() -> None:
    """A server that closes with unread data would reset: the other host goes on"""
    for host in ("primary", "muted"):
        with service(free=("primary", "muted")) as hosts:
            client, a, b = hosts.pair()
            gone, stays = (a, b) if host == "primary" else (b, a)
            client.sendall(b"question")
            read(stays, 8)
            gone.close()
            wait("alone", lambda: state(stays)["role"] == ALONE)
            stays.sendall(b"answer")
            stays.close()
            equal(read_all(client), b"answer")


def reset_by_client() -> None:
    """The client resets: both copies end"""
    with service(resets=True) as hosts:
        client, a, b = hosts.pair()
        client.setsockopt(SOL, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        for s in (a, b):
            try:
                s.recv(1)
                raise AssertionError("no reset")
            except ConnectionResetError:
                pass


def no_listener() -> None:
    """A server that does not listen on one host: the other one serves alone; on both: the client is refused at once"""
    for host in ("primary", "muted"):
        with service(free=("primary", "muted"), resets=True) as hosts:
            hosts.listeners[host].close()
            other = "muted" if host == "primary" else "primary"
            if host == "primary":
                # The muted host sends no SYN-ACK: that is the cluster manager's to see
                client = hosts.connect(wait=False)
                time.sleep(0.2)
                hosts.bury("primary")
            else:
                client = hosts.connect()
            s = hosts.accept(other)
            client.sendall(b"q")
            equal(read(s, 1), b"q")
            s.sendall(b"answer")
            equal(read(client, 6), b"answer")
    with service(resets=True) as hosts:
        for listener in hosts.listeners.values():
            listener.close()
        start = time.monotonic()
        try:
            hosts.connect()
            raise AssertionError("connected to nobody")
        except ConnectionRefusedError:
            pass
        assert time.monotonic() - start < 1, "refused late"
        assert 1 <= resets(hosts) <= 2


def unknown_to_both() -> None:
    """A connection that neither host knows is reset"""
    with service(resets=True) as hosts:
        client, a, b = hosts.pair()
        for host in ("primary", "muted"):
            hosts.call(host, ABANDON)
        hosts.protect()
        client.sendall(b"are you there?")
        try:
            client.recv(1)
            raise AssertionError("it was not reset")
        except ConnectionResetError:
            pass
        assert 1 <= resets(hosts) <= 2


def leave() -> None:
    """LEAVE: the muted host's copy ends, whoever asks for it"""
    for asks in ("primary", "muted"):
        with service(free=("primary",)) as hosts:
            client, a, b = hosts.pair()
            hosts.call(asks, LEAVE, on=a if asks == "primary" else b)
            wait("alone", lambda: state(a)["role"] == ALONE)
            wait("the copy ends", lambda: ended(b))
            client.sendall(b"q")
            equal(read(a, 1), b"q")
            a.sendall(b"answer")
            equal(read(client, 6), b"answer")


def crossing() -> None:
    """A copy that is asked to leave writes more meanwhile: the client has the end of the other one, not of neither"""
    # On a busy machine it may have left before it writes: then there is more time
    for patience in (1000, 4000):
        with suppress(ConnectionAbortedError):
            return crosses(patience)
    raise AssertionError("it has left too early, twice")


def crosses(patience: int) -> None:
    with service(patience=patience, free=("primary",)) as hosts:
        client, a, b = hosts.pair()
        for s in (a, b):
            s.sendall(b"answer")
        equal(read(client, 6), b"answer")
        a.shutdown(socket.SHUT_WR)
        time.sleep(0.8 * patience / 1000)
        # What comes from now on comes after the primary has asked
        netem("primary", f"delay {1.2 * patience:.0f}ms")
        b.sendall(b" and more")
        equal(client.recv(1), b"")
        said = [s.report for s in hosts.capture.of("muted") if s.report]
        end = next(n for n, report in enumerate(said) if report.flags & GONE)
        assert said[end - 1].write_seq == said[end].write_seq, "it had not reported what it wrote"
        equal((hosts.count("primary", "alone_late"), hosts.count("primary", "abandoned")), (1, 0))


def gate() -> None:
    """Ungated: the primary does not wait, the muted host remembers what is acknowledged, and goes on when it has written"""
    with service(ungated=True) as hosts:
        client, a, b = hosts.pair()
        hosts.call("primary", GATE, on=a, flags=UNGATED)
        text = bytes(range(256)) * 100
        a.sendall(text[:10_000])
        equal(read(client, 10_000), text[:10_000])
        time.sleep(0.2)         # its acknowledgments are ahead of the muted host
        hosts.cut("primary")
        b.sendall(text[:5_000])     # the client has this
        hosts.bury("primary")
        nothing(client)
        b.sendall(text[5_000:])
        b.close()
        assert read_all(client) == text[10_000:], "the client got something else"


def abandon() -> None:
    """ABANDON: the copies end here without a word, the peer goes on with the client's next packet"""
    with service(free=("primary",)) as hosts:
        client, a, b = hosts.pair()
        hosts.call("muted", ABANDON)
        equal(hosts.count("muted", "abandoned"), 1)
        assert ended(b), "it did not end"


def half_open() -> None:
    """What is half open when its host gives way comes to nothing there, also if that host is the new primary"""
    with service(free=("primary", "muted")) as hosts:
        for name in ("primary", "muted"):
            nft(name, "add table inet half\nadd chain inet half in { type filter hook prerouting priority -250; }\n"
                      "add rule inet half in tcp dport 80 tcp flags & (syn|ack) == ack drop")
        client = hosts.connect()
        hosts.call("primary", PROMOTE)
        hosts.call("muted", ABANDON)
        hosts.call("muted", SET, PRIMARY)
        # Its timers: after one second, and three
        time.sleep(3.5)
        for name in ("primary", "muted"):
            nft(name, "delete table inet half")
        client.sendall(b"question")
        a = hosts.accept("primary")
        equal(read(a, 8), b"question")
        a.sendall(b"answer")
        equal(read(client, 6), b"answer")
        equal(select.select([hosts.listeners["muted"]], [], [], 0.5)[0], [])
        equal([s for s in hosts.capture.of("muted") if s.from_service], [])


def half_closes() -> None:
    """Either side closes its half first, or both at once; all is delivered"""
    for first in ("client", "server", "both"):
        with service() as hosts:
            client, a, b = hosts.pair()
            if first == "client":
                client.sendall(b"question")
                client.shutdown(socket.SHUT_WR)
                for s in (a, b):
                    equal(read_all(s), b"question")
                    s.sendall(b"answer")
                    s.close()
                equal(read_all(client), b"answer")
            elif first == "server":
                for s in (a, b):
                    s.sendall(b"greeting")
                    s.shutdown(socket.SHUT_WR)
                equal(read_all(client), b"greeting")
                client.sendall(b"question")
                client.close()
                for s in (a, b):
                    equal(read_all(s), b"question")
            else:
                for s in (client, a, b):
                    s.shutdown(socket.SHUT_WR)
                for s in (client, a, b):
                    equal(read_all(s), b"")
            for s in (client, a, b):
                s.close()
            wait("over", lambda: not hosts.count("primary", "now_primary") + hosts.count("muted", "now_muted"))


def urgent() -> None:
    """Urgent data"""
    with service() as hosts:
        client, a, b = hosts.pair()
        for s in (a, b):
            s.setsockopt(SOL, socket.SO_OOBINLINE, 1)
        client.send(b"abc", socket.MSG_OOB)
        client.sendall(b"def")
        for s in (a, b):
            equal(read(s, 6), b"abcdef")
        for s in (a, b):
            s.send(b"xyz", socket.MSG_OOB)
        client.setsockopt(SOL, socket.SO_OOBINLINE, 1)
        equal(read(client, 3), b"xyz")


def again() -> None:
    """The same ports again, while the last connection is in TIME_WAIT; and a SYN that has to be repeated"""
    with service() as hosts:
        for number in range(3):
            client = hosts.connect(port=7000)
            a, b = hosts.accept("primary", 7000), hosts.accept("muted", 7000)
            equal(state(a)["id"], state(b)["id"])
            for s in (a, b):
                s.sendall(b"%d" % number)
                s.close()
            equal(read_all(client), b"%d" % number)
            client.close()
            wait("closed", lambda: hosts.free(7000))
        nft("muted", "add table inet lost\nadd chain inet lost in { type filter hook prerouting priority -400; }\n"
                     f"add rule inet lost in tcp sport 7101 tcp flags syn drop")
        client = hosts.connect(port=7101, wait=False)
        time.sleep(0.3)
        nft("muted", "delete table inet lost")
        wait("connected", lambda: client.getsockopt(TCP, socket.TCP_INFO, 1) == b"\1")
        a, b = hosts.accept("primary", 7101), hosts.accept("muted", 7101)
        equal(state(a)["id"], state(b)["id"])


def probes() -> None:
    """SO_KEEPALIVE of the servers: the primary asks, neither copy ends while the client answers, and the other one asks after a takeover"""
    with service(resets=True) as hosts:
        client, a, b = hosts.pair()
        for s in (a, b):
            for level, option, value in ((SOL, socket.SO_KEEPALIVE, 1), (TCP, socket.TCP_KEEPIDLE, 1), (TCP, socket.TCP_KEEPINTVL, 1),
                                         (TCP, socket.TCP_KEEPCNT, 1)):
                s.setsockopt(level, option, value)

        def asked(host: str) -> int:
            return len([s for s in hosts.capture.of(host) if s.from_service and s.client == client.getsockname()[1]])

        for host, other in (("primary", "muted"), ("muted", "primary")):
            before = asked(host), asked(other)
            time.sleep(2.5)     # longer than it takes to give up
            assert asked(host) >= before[0] + 2, (host, before, asked(host))
            equal(asked(other), before[1])
            text = b"still here, " + host.encode()
            client.sendall(text)
            for s in (a, b) if host == "primary" else (b,):
                equal(read(s, len(text)), text)
                s.sendall(text)
            equal(read(client, len(text)), text)
            if host == "primary":
                hosts.cut("primary")
                hosts.bury("primary")
        equal(resets(hosts), 0)
        # A client that is gone is noticed
        hosts.cut("client")
        with suppress(TimeoutError):
            b.settimeout(10)
            raise AssertionError(f"the client is gone: {b.recv(1)!r}")
        equal(b.getsockopt(TCP, socket.TCP_INFO, 1), b"\7")     # closed, by ETIMEDOUT


def marked() -> None:
    """A network that marks what it would drop (ECN): the client tells, both copies go on, and so does one alone"""
    def counted(name: str) -> int:
        with inside("client"):
            names, values = [line.split() for line in Path("/proc/thread-self/net/netstat").read_text().splitlines()
                             if line.startswith("IpExt:")]
        return int(values[names.index(name)])

    text = bytes(range(256)) * 4000
    with service() as hosts:
        sysctl("client", tcp_ecn=1)
        netem("client", "loss 10% ecn")
        client, a, b = hosts.pair()
        threads = [threading.Thread(target=quietly, args=(s.sendall, text)) for s in (a, b)]
        for thread in threads:
            thread.start()
        equal(read(client, len(text) // 2), text[:len(text) // 2])
        first = counted("InCEPkts")
        hosts.cut("primary")
        hosts.bury("primary")
        equal(read(client, len(text) // 2), text[len(text) // 2:])
        print(f"# {first} marks before the takeover, {counted('InCEPkts') - first} after it")
        assert 0 < first < counted("InCEPkts")


def lost_twice() -> None:
    """What a host that goes on alone sends again, and what is lost then, too, is not counted as a recovery"""
    def info(s: socket.socket) -> dict[str, int]:
        tcp = s.getsockopt(TCP, socket.TCP_INFO, 104)
        return {"state": tcp[1], **{name: struct.unpack_from("I", tcp, at)[0] for name, at in
                                    (("unacked", 24), ("sacked", 28), ("again_in_flight", 36), ("again", 100))}}

    with service() as hosts:
        nft("client", "table ip lossy { chain in { type filter hook input priority 0; ip length 1052 drop; }; }")
        client, a, b = hosts.pair(options=((TCP, socket.TCP_NODELAY, 1),))
        a.setsockopt(TCP, socket.TCP_NODELAY, 1)
        a.sendall(bytes(1000)), b.sendall(bytes(1000))
        wait("sent", lambda: info(a)["unacked"])
        hosts.call("primary", PROMOTE)
        wait("sent again", lambda: info(a)["again"])
        equal(info(a), {"state": 0, "unacked": 1, "sacked": 0, "again_in_flight": 0, "again": 1})
        # Now the client tells that something is missing, and the kernel looks whether its books are right
        a.sendall(b"next")
        wait("the client tells", lambda: info(a)["sacked"])
        nft("client", "flush ruleset")
        equal(read(client, 1004), bytes(1000) + b"next")


def silent_client() -> None:
    """A primary that has sent again and again to a client that did not hear it counts one loss when it goes on alone"""
    with service() as hosts:
        client, a, b = hosts.pair()
        text = bytes(range(256)) * 20
        nft("client", f"table ip deaf {{ chain in {{ type filter hook input priority 0; ip saddr {V4.service} drop; }}; }}")
        a.sendall(text), b.sendall(text)
        # Its third retransmission
        wait("it sends again", lambda: a.getsockopt(TCP, socket.TCP_INFO, 8)[2] >= 3)
        before = a.getsockopt(TCP, socket.TCP_INFO, 104)
        nft("client", "flush ruleset")
        hosts.call("primary", PROMOTE)
        equal(read(client, len(text)), text)
        after = a.getsockopt(TCP, socket.TCP_INFO, 104)
        # Of the window at that time half, not half of the one segment that was left
        thresholds = [struct.unpack_from("I", info, 76)[0] for info in (before, after)]
        assert thresholds[1] >= thresholds[0] > 2, thresholds


def missed() -> None:
    """A muted host that has not heard the client for more than a window of the answer goes on"""
    with service() as hosts:
        sysctl("client", tcp_window_scaling=0)
        client, a, b = hosts.pair()
        text = bytes(range(256)) * 1000
        nft("muted", f"table ip deaf {{ chain in {{ type filter hook input priority 0; ip saddr {V4.client} tcp dport {PORT} drop; }}; }}")
        threads = [threading.Thread(target=quietly, args=(s.sendall, text)) for s in (a, b)]
        for thread in threads:
            thread.start()
        equal(read(client, len(text)), text)
        nft("muted", "delete table ip deaf")
        client.sendall(b"q")
        equal(read(a, 1) + read(b, 1), b"qq")


if __name__ == "__main__":
    main(closed_first, late_writer, late_reader, no_patience, silent_peer, shorter, longer, empty, reset_by_primary, reset_by_muted, unread,
         reset_by_client, no_listener, unknown_to_both, leave, crossing, gate, abandon, half_open, half_closes, urgent, again,
         probes, marked, lost_twice, silent_client, missed)
