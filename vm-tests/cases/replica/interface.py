#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The socket option and /proc/net/tcp_replica: each error, and which one wins; who may, and what becomes of namespaces."""

import ctypes
import errno
import fcntl
import mmap
import os
import select
import signal
import socket
import struct
import threading
import time
from contextlib import suppress
from pathlib import Path

from hosts import (ABANDON, ALONE, ARGUMENT, BUSY, FAMILIES, GATE, JOIN, KEY, LEAVE, MUTED, NAMES, OFF, PORT, PRIMARY,
                   PROMOTE, SET, TCP_REPLICA, UNGATED, V4, V6, WAIT_S, Hosts, batch, equal, inside, libc, main,
                   nft, quietly, read, service, state, sysctl, wait)

TCP, MPTCP = socket.IPPROTO_TCP, 262
TCP_MD5SIG, TCP_AO_ADD_KEY = 14, 38
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
USERFAULTFD, UFFDIO_API, UFFDIO_REGISTER, UFFDIO_UNREGISTER = 323, 0xc018aa3f, 0xc020aa00, 0x8010aa01


def argument(op: int = SET, flags: int = 0, role: int = PRIMARY, patience: int = 0, address: bytes = V4.packed(V4.service),
             peer: bytes = V4.packed(V4.muted), key: bytes = KEY, family: int = socket.AF_INET, port: int = 8080, ifindex: int = 0,
             number: int = 0, unstored: int = 0, unsent: int = 0) -> bytes:
    return ARGUMENT.pack(op, flags, role, patience, address, peer, key, family, struct.pack("!H", port), ifindex, number, unstored,
                         unsent)


def tell(value: bytes, s: socket.socket | None = None) -> int:
    """The error, or 0."""
    with socket.socket() as own:
        try:
            (s or own).setsockopt(TCP, TCP_REPLICA, value)
        except OSError as e:
            return e.errno or -1
    return 0


def check(cases: list[tuple[str, bytes, int]], s: socket.socket | None = None) -> None:
    wrong = [f"{name}: {errno.errorcode.get(got, got)}, not {errno.errorcode.get(want, want)}"
             for name, value, want in cases if (got := tell(value, s)) != want]
    assert not wrong, "\n".join(wrong)


def sizes() -> None:
    """Sizes: short is EINVAL, long is as good as its tail is zero"""
    good = argument()
    with socket.socket() as s:
        check([("0", b"", errno.EINVAL), ("1", b"\0", errno.EINVAL), ("one less", good[:-1], errno.EINVAL), ("right", good, 0),
               ("zeros behind", good + bytes(8), 0), ("a page", good + bytes(4096 - len(good)), 0),
               ("something behind", good + b"\1", errno.E2BIG), ("at the end", good + bytes(100) + b"\1", errno.E2BIG),
               ("more than a page", good + bytes(5000), errno.E2BIG)], s)
        equal(libc.setsockopt(s.fileno(), TCP, TCP_REPLICA, 8, ARGUMENT.size), -1)
        equal(ctypes.get_errno(), errno.EFAULT)
        for size in 0, ARGUMENT.size - 1:
            try:
                s.getsockopt(TCP, TCP_REPLICA, size) if size else s.getsockopt(TCP, TCP_REPLICA)
                raise AssertionError(f"getsockopt took {size}")
            except OSError as e:
                equal(e.errno, errno.EINVAL)
        equal(s.getsockopt(TCP, TCP_REPLICA, 512), bytes(ARGUMENT.size))
    equal(tell(argument(role=OFF)), 0)


def values() -> None:
    """Each value that is not allowed"""
    mapped = bytes(10) + b"\xff\xff" + socket.inet_aton("192.0.2.1")
    check([("operation", argument(op=6), errno.EINVAL), ("huge operation", argument(op=0xffffffff), errno.EINVAL),
           ("flags", argument(flags=UNGATED), errno.EINVAL), ("unknown flag", argument(GATE, flags=4), errno.EINVAL), ("flags of another", argument(LEAVE, flags=BUSY), errno.EINVAL),
           ("no such role", argument(role=ALONE + 1), errno.EINVAL), ("huge role", argument(role=0xffffffff), errno.EINVAL),
           ("no family", argument(family=0), errno.EINVAL), ("AF_UNIX", argument(family=1), errno.EINVAL),
           ("no port", argument(port=0), errno.EINVAL),
           ("no address", argument(address=bytes(16)), errno.EINVAL), ("no peer", argument(peer=bytes(16)), errno.EINVAL),
           ("more than an IPv4 address", argument(address=V6.packed(V6.service)), errno.EINVAL),
           ("more than an IPv4 peer", argument(peer=V6.packed(V6.muted)), errno.EINVAL),
           ("mapped address", argument(family=10, address=mapped, peer=V6.packed(V6.muted)), errno.EINVAL),
           ("mapped peer", argument(family=10, address=V6.packed(V6.service), peer=mapped), errno.EINVAL),
           ("no key", argument(key=bytes(16)), errno.EINVAL), ("alone, no key", argument(role=ALONE, key=bytes(16)), errno.EINVAL),
           ("id", argument(number=1), errno.EINVAL), ("unstored", argument(unstored=1), errno.EINVAL),
           ("unsent", argument(unsent=1), errno.EINVAL),
           ("off, but never on", argument(role=OFF, port=1), errno.ENOENT), ("promote", argument(PROMOTE, port=1), errno.ENOENT),
           ("abandon", argument(ABANDON, port=1), errno.ENOENT), ("join", argument(JOIN, port=1), errno.ENOENT),
           ("gate", argument(GATE), errno.ENOENT), ("leave", argument(LEAVE), errno.ENOENT),
           # The first that is wrong
           ("size before operation", argument(op=6)[:-1], errno.EINVAL), ("tail before operation", argument(op=6) + b"\1", errno.E2BIG),
           ("value before existence", argument(PROMOTE, port=0), errno.EINVAL),
           # Off needs neither
           ("on", argument(), 0), ("off", argument(role=OFF, peer=bytes(16), key=bytes(16)), 0),
           ("off again", argument(role=OFF), 0), ("join what is off", argument(JOIN), errno.ENOENT),
           ("alone", argument(role=ALONE), 0), ("join what is alone", argument(JOIN), errno.ENOENT), ("not alone", argument(role=OFF), 0),
           ("IPv6", argument(family=10, address=V6.packed(V6.service), peer=V6.packed(V6.muted)), 0),
           ("IPv6 off", argument(role=OFF, family=10, address=V6.packed(V6.service)), 0)])


def child(function: object) -> int:
    pid = os.fork()
    if not pid:
        try:
            os._exit(function())    # type: ignore[operator]
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def who() -> None:
    """Root of the namespace may, nobody else, who is told nothing either"""
    def user() -> int:
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        check([("user", argument(), errno.EPERM), ("before values", argument(port=0), errno.EPERM),
               ("not before sizes", argument()[:-1], errno.EINVAL), ("not before flags", argument(flags=1), errno.EINVAL),
               ("own connection", argument(GATE), errno.ENOENT)])
        with suppress(PermissionError):
            Path("/proc/net/tcp_replica").read_text()
            return 1
        return 0
    equal(child(user), 0)

    def namespace() -> int:
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        with socket.socket() as outside:
            equal(libc.unshare(CLONE_NEWUSER), 0)
            check([("root of a user namespace, in the network of another one", argument(), errno.EPERM)])
            equal(libc.unshare(CLONE_NEWNET), 0)
            # The socket counts, not who asks
            equal(tell(argument(), outside), errno.EPERM)
            check([("in a network of its own", argument(), 0), ("promote", argument(PROMOTE), 0)])
        return 0
    equal(child(namespace), 0)


def full() -> None:
    """1024 services a namespace; those that are off make room"""
    def fill() -> int:
        equal(libc.unshare(CLONE_NEWNET), 0)
        for port in range(1, 1025):
            equal(tell(argument(port=port)), 0)
        check([("one more", argument(port=2000), errno.ENOSPC), ("one of them", argument(port=7, role=MUTED), 0),
               ("off", argument(port=9, role=OFF), 0), ("now", argument(port=2000), 0), ("no more", argument(port=2001), errno.ENOSPC)])
        lines = Path("/proc/net/tcp_replica").read_text().splitlines()
        equal(len(lines), 1024)
        equal(len(set(lines)), 1024)
        return 0
    equal(child(fill), 0)


def busy() -> None:
    """EBUSY while connections are replicated, but for what changes nothing"""
    with service() as hosts:
        client, a, b = hosts.pair()
        for host in ("primary", "muted"):
            role, other = (PRIMARY, MUTED) if host == "primary" else (MUTED, PRIMARY)
            peer = V4.packed(V4.muted if host == "primary" else V4.primary)
            with inside(host):
                check([("same", argument(port=PORT, role=role, peer=peer), 0),
                       ("patience", argument(port=PORT, role=role, peer=peer, patience=9), 0),
                       # That of new connections
                       ("role", argument(port=PORT, role=other, peer=peer), 0),
                       ("and back", argument(port=PORT, role=role, peer=peer, patience=9), 0),
                       ("peer", argument(port=PORT, role=role, peer=V4.packed("192.0.2.77")), errno.EBUSY),
                       ("key", argument(port=PORT, role=role, peer=peer, key=KEY[::-1]), errno.EBUSY),
                       ("link", argument(port=PORT, role=role, peer=peer, ifindex=1), errno.EBUSY)])
        equal(hosts.service("primary")["patience_ms"], "9")
        # New connections are ordinary, this one stays
        hosts.call("primary", SET, OFF)
        hosts.call("muted", SET, OFF)
        equal((state(a)["role"], state(b)["role"]), (PRIMARY, MUTED))
        client.sendall(b"x")
        equal(read(a, 1) + read(b, 1), b"xx")
        for s in (a, b):
            s.sendall(b"y")
        equal(read(client, 1), b"y")
        for s in (a, b):
            s.close()
        equal(client.recv(1), b"")
        client.close()
        wait("no connection", lambda: not hosts.count("muted", "now_muted"))
        with inside("muted"):
            equal(tell(argument(port=PORT, role=PRIMARY, peer=V4.packed(V4.primary))), 0)


def told() -> None:
    """What getsockopt and /proc/net/tcp_replica tell"""
    for family in FAMILIES:
        with service(family, 1234, ungated=True) as hosts:
            client, a, b = hosts.pair(family)
            equal(state(client), {"role": OFF, "flags": 0, "id": 0, "unstored": 0, "unsent": 0})
            equal(state(hosts.listeners["primary"])["role"], OFF)
            place = f"[{family.service}]" if family is V6 else family.service
            for host, s in ("primary", a), ("muted", b):
                top, one = hosts.status(host)
                equal((top["kind"], one["kind"]), ("service", "connection"))
                equal((top["service"], top["role"], top["patience_ms"], top["connections"], top[f"now_{host}"]),
                      (f"{place}:{PORT}", host, "1234", "1", "1"))
                equal(int(one["id"], 16), state(s)["id"])
                equal(one["role"], host)
                equal(int(one["client"].rpartition(":")[2]), client.getsockname()[1])
            a.sendall(b"twelve bytes")
            equal(state(a)["unsent"], 12)
            wait("told", lambda: int(hosts.status("primary")[1]["wait_generated_ms"]) > 30)
            for flags in UNGATED | BUSY, BUSY, UNGATED:
                a.setsockopt(TCP, TCP_REPLICA, argument(GATE, flags))
                equal(state(a)["flags"], flags)
            equal(read(client, 12), b"twelve bytes")
            a.setsockopt(TCP, TCP_REPLICA, argument(GATE))
            equal(state(a)["flags"], 0)
            hosts.call("muted", PROMOTE, family=family)
            equal(state(b)["role"], ALONE)
            equal(state(b)["id"], state(a)["id"])
            equal(hosts.count("muted", "promoted"), 1)


def unreplicated() -> None:
    """What cannot be replicated is served; TCP_ULP is refused to what is"""
    with service() as hosts:
        client, a, b = hosts.pair()
        for s in (a, b):
            try:
                s.setsockopt(TCP, 31, b"tls")
                raise AssertionError("it took TCP_ULP")
            except OSError as e:
                assert e.errno in (errno.EOPNOTSUPP, errno.ENOENT), e     # ENOENT: there is no such module here
        # Fast Open: the data of the SYN is ignored, and comes again
        for name in NAMES:
            sysctl(name, tcp_fastopen=0x603)
        for listener in hosts.listeners.values():
            listener.setsockopt(TCP, socket.TCP_FASTOPEN, 5)
        for _ in range(2):
            fast = hosts.create("client", socket.AF_INET)
            fast.settimeout(None)
            fast.sendto(b"hello", 0x20000000, (V4.service, PORT))
            for host in ("primary", "muted"):
                s = hosts.accept(host)
                equal(read(s, 5), b"hello")
                equal(state(s)["role"], PRIMARY if host == "primary" else MUTED)
            equal(fast.getsockopt(TCP, socket.TCP_INFO, 8)[5] & 32, 0)      # TCPI_OPT_SYN_DATA


def cookies() -> None:
    """A connection that begins with a SYN cookie is the primary's alone, and the muted host says nothing about it"""
    with service(free=("primary", "muted")) as hosts:
        for name in ("primary", "muted"):
            sysctl(name, tcp_syncookies=2)
        # It takes cookies, since it has just made one itself
        hosts.cut("primary")
        hosts.call("muted", PROMOTE)
        hosts.connect()
        equal(state(hosts.accept("muted"))["role"], OFF)
        batch(["neigh flush all"], "muted")
        hosts.join("primary")
        hosts.protect()
        client = hosts.connect()
        a = hosts.accept("primary")
        equal(state(a)["role"], OFF)
        client.sendall(b"question")
        equal(read(a, 8), b"question")
        a.sendall(b"answer")
        equal(read(client, 6), b"answer")
        # A SYN that is sent again counts again, on both
        equal(hosts.count("muted", "unreplicated"), hosts.count("primary", "unreplicated") + 1)
        assert hosts.count("primary", "unreplicated"), "nothing was counted"
        equal(select.select([hosts.listeners["muted"]], [], [], 0.3)[0], [])


def special() -> None:
    """A listener of Multipath TCP, that signs, or of a device: its connections are the primary's alone, which is counted"""
    # Another peer's key: this client needs none
    peer = struct.pack("=HH4s120x", socket.AF_INET, 0, socket.inet_aton("203.0.113.1"))
    md5 = TCP, TCP_MD5SIG, peer + struct.pack("=BBHi80s", 0, 0, 3, 0, b"key")
    ao = TCP, TCP_AO_ADD_KEY, peer + struct.pack("=64siIHBBBBBB80s", b"hmac(sha1)", 0, 0, 0, 32, 1, 1, 12, 0, 3, b"key")
    for what, options, protocol in (("mptcp", (), MPTCP), ("md5", (md5,), 0), ("ao", (ao,), 0),
                                    ("device", ((socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lan"),), 0)):
        with service(free=("primary",)) as hosts:
            for name in ("primary", "muted"):
                hosts.listeners[name].close()
                hosts.listen(name, options=options, protocol=protocol)
            client = hosts.connect()
            a = hosts.accept("primary")
            if not protocol:
                equal((what, state(a)["role"]), (what, OFF))
            client.sendall(b"question")
            equal(read(a, 8), b"question")
            a.sendall(b"answer")
            equal(read(client, 6), b"answer")
            for name in ("primary", "muted"):
                equal((what, name, hosts.count(name, "unreplicated")), (what, name, 1))
            equal(select.select([hosts.listeners["muted"]], [], [], 0.3)[0], [])


def disconnected() -> None:
    """A socket that is connected to AF_UNSPEC is nothing of ours any more"""
    with service(free=("primary",)) as hosts:
        client, a, b = hosts.pair()
        equal(libc.connect(b.fileno(), bytes(16), 16), 0)
        equal(state(b)["role"], OFF)
        wait("alone", lambda: state(a)["role"] == ALONE)
        client.sendall(b"q")
        equal(read(a, 1), b"q")
        a.sendall(b"a")
        equal(read(client, 1), b"a")


class Stuck:
    """A process sends from memory that never comes: the socket is its own until then."""

    def __init__(self, s: socket.socket) -> None:
        self.memory = mmap.mmap(-1, mmap.PAGESIZE)
        self.fault = libc.syscall(USERFAULTFD, os.O_CLOEXEC | os.O_NONBLOCK)
        assert self.fault >= 0, os.strerror(ctypes.get_errno())
        fcntl.ioctl(self.fault, UFFDIO_API, struct.pack("QQQ", 0xaa, 0, 0))
        self.range = struct.pack("QQ", ctypes.addressof(ctypes.c_char.from_buffer(self.memory)), mmap.PAGESIZE)
        fcntl.ioctl(self.fault, UFFDIO_REGISTER, self.range + struct.pack("QQ", 1, 0))
        self.thread = threading.Thread(target=quietly, args=(s.sendall, self.memory))
        self.thread.start()
        assert select.select([self.fault], [], [], WAIT_S)[0], "it does not wait for its memory"

    def end(self) -> None:
        fcntl.ioctl(self.fault, UFFDIO_UNREGISTER, self.range)
        os.close(self.fault)
        self.thread.join()


def ask(host: str, op: int) -> int:
    """A process that does it: setsockopt(2) keeps Python's lock."""
    pid = os.fork()
    if not pid:
        with inside(host):
            os._exit(tell(argument(op, port=PORT)))
    return pid


def stuck() -> None:
    """A process that keeps a socket keeps no other connection waiting, nor who asks next, nor /proc"""
    with service(free=("primary", "muted"), resets=True) as hosts:
        client, _, b = hosts.pair()
        other, _, d = hosts.pair()
        asked: list[int] = []
        one = Stuck(b)
        try:
            hosts.cut("primary")
            for op in PROMOTE, PROMOTE, ABANDON:
                asked.append(ask("muted", op))
                if op == PROMOTE:
                    wait("alone", lambda: state(d)["role"] == ALONE)
                    other.sendall(b"q")
                    equal(read(d, 1), b"q")
                    d.sendall(b"answer")
                    equal(read(other, 6), b"answer")
                else:
                    wait("abandoned", lambda: hosts.service("muted")["role"] == "fenced")
            equal(os.waitpid(asked[0], os.WNOHANG)[0], 0)
            with inside("muted"):
                equal(tell(argument(port=1)), 0)
        finally:
            one.end()
        equal([os.waitpid(pid, 0)[1] for pid in asked], [0, 0, 0])
        equal(hosts.count("muted", "now_muted"), 0)
        # The first that gets it has it: the one that is kept is free to go on, or has ended
        equal(hosts.count("muted", "promoted") + hosts.count("muted", "abandoned"), 2)


def killed() -> None:
    """A promotion that waits for a socket can be killed; the next one ends it"""
    with service(free=("primary", "muted"), resets=True) as hosts:
        client, _, b = hosts.pair()
        one = Stuck(b)
        hosts.cut("primary")
        asked = ask("muted", PROMOTE)
        try:
            wait("alone", lambda: hosts.service("muted")["role"] == "alone")
            os.kill(asked, signal.SIGKILL)
            wait("killed", lambda: os.waitid(os.P_PID, asked, os.WEXITED | os.WNOHANG | os.WNOWAIT), 5)
        finally:
            one.end()
        equal(os.waitpid(asked, 0)[1], signal.SIGKILL)
        equal(state(b)["role"], MUTED)
        hosts.call("muted", PROMOTE)
        equal(read(client, mmap.PAGESIZE), bytes(mmap.PAGESIZE))


def late() -> None:
    """A promotion that ends late, for a process keeps a socket, is none of connections that began after it"""
    with service(free=("primary", "muted"), resets=True) as hosts:
        _, _, b = hosts.pair()
        one = Stuck(b)
        asked = ask("muted", PROMOTE)
        try:
            wait("alone", lambda: hosts.service("muted")["role"] == "alone")
            hosts.call("muted", SET, MUTED)
            client, c, d = hosts.pair()
        finally:
            one.end()
        equal(os.waitpid(asked, 0)[1], 0)
        equal(hosts.count("muted", "promoted"), 1)
        equal((state(c)["role"], state(d)["role"]), (PRIMARY, MUTED))
        client.sendall(b"q")
        equal(read(c, 1) + read(d, 1), b"qq")


def keys() -> None:
    """A key that changes while connections begin makes no host answer that was muted; nor does one that is switched off"""
    with service(free=("primary",), resets=True) as hosts:
        # Alone with its client, to whom it says nothing
        hosts.cut("primary")

        def change() -> int:
            with inside("muted"):
                return any(tell(argument(role=MUTED, port=PORT, peer=V4.packed(V4.primary), key=bytes([turn]) * 16))
                           for turn in range(1, 100))

        thread = threading.Thread(target=lambda: equal(child(change), 0))
        thread.start()
        for _ in range(200):
            hosts.connect(wait=False)
            time.sleep(0.005)
        thread.join()
        equal([s for s in hosts.capture.of("muted") if s.from_service], [])
    # What is half open repeats its answer, or would
    with service(free=("primary",)) as hosts:
        hosts.cut("primary")
        for _ in range(10):
            hosts.connect(wait=False)
        wait("half open", lambda: hosts.half_open("muted") == 10)
        hosts.cut("client")
        hosts.call("muted", SET, OFF)
        time.sleep(3)
        equal([s for s in hosts.capture.of("muted") if s.from_service], [])
    # Nor does a connection begin with the one key and go on with the other one
    with service(free=("primary",)) as hosts:
        nft("client", "add table ip late\nadd chain ip late out { type filter hook output priority 0; }\n"
                      f"add rule ip late out tcp dport {PORT} tcp flags & (syn | ack) == ack drop")
        client = hosts.connect()
        hosts.call("primary", SET, PRIMARY, key=KEY[::-1])
        nft("client", "delete table ip late")
        client.sendall(b"q")
        equal(select.select([hosts.listeners["primary"]], [], [], 1)[0], [])
        # The hosts do not know each other any more, and do not go on and on about it
        told = hosts.count("primary", "reports_bad") + hosts.count("muted", "reports_bad")
        assert 0 < told < 50, told


def namespaces() -> None:
    """Networks end with services set and connections open"""
    for _ in range(3):
        hosts = Hosts()
        hosts.protect()
        hosts.protect(V6)
        for name in ("primary", "muted"):
            hosts.listen(name)
        client, a, b = hosts.pair()
        a.sendall(b"held")
        batch(["netns del primary", "netns del muted"], force=True)
        hosts.end()


if __name__ == "__main__":
    main(sizes, values, who, full, busy, told, unreplicated, special, cookies, disconnected, stuck, killed, late, keys, namespaces)
