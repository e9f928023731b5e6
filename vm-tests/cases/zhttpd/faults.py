#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""This test will make zhttpd fault at chosen points and at random instants, and compare every byte that clients get.

zhttpd-faults dereferences NULL where ZHTTPD_FAULT says (userspace/zhttpd/fault.c); random faults are SIGSEGVs sent
from outside, to the program as it is shipped.
"""

import hashlib
import os
import random
import re
import resource
import signal
import socket
import struct
import subprocess
import threading
import time
from contextlib import ExitStack, suppress
from email.utils import parsedate_to_datetime
from pathlib import Path

from web import BIG, DEBUG, LIMIT_S, TLS, Client, Root, Server, Skip, case, main

SYSCTL = Path("/proc/sys/kernel/restart")
STAGES = ["connection_accepted", "request_read", "request_parsed", "file_opened", "expnfilename_recorded",
          "some_response_sent", "response_sending_completed"]


def sysctl(name: str, value: int) -> None:
    (SYSCTL / name).write_text(str(value))


def faulty(root: Root, points: str, delay_ms: int = 0) -> Server:
    return Server(root, program="zhttpd-faults", env={"ZHTTPD_FAULT": points, "ZHTTPD_FAULT_DELAY": str(delay_ms)})


def check(c: Client, root: Root, name: str) -> None:
    got = c.response()
    assert (got.status, got.body == root.files[name]) == (200, True), (name, got.status, len(got.body))


def connects_under_faults() -> None:
    if TLS:
        raise Skip("a handshake that a fault cuts is lost; the suite ktls has clients that know")


class Downloads:
    """Clients in threads, each getting files over one connection, until they are told to stop."""

    def __init__(self, server: Server, root: Root, count: int, names: list[str]) -> None:
        self.server, self.root, self.names = server, root, names
        self.done = 0
        self.errors: list[str] = []
        self.stopping = False
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self._run, args=(random.randrange(1 << 30),)) for _ in range(count)]
        for t in self.threads:
            t.start()

    def _run(self, seed: int) -> None:
        choose = random.Random(seed)
        try:
            while not self.stopping:
                with Client(self.server) as c:
                    for _ in range(5):
                        batch = [choose.choice(self.names) for _ in range(choose.randint(1, 3))]
                        for name in batch:
                            c.get("/" + name)
                        for name in batch:
                            check(c, self.root, name)
                            with self.lock:
                                self.done += 1
        except Exception as e:      # to be told by finish(), where the case is
            self.errors.append(f"{type(e).__name__}: {e}")

    def finish(self) -> None:
        self.stopping = True
        for t in self.threads:
            t.join(LIMIT_S)
        assert not self.errors, self.errors


@case
def stages(root: Root) -> None:
    """a fault at each state of Figure 12, of the first and of the second of three pipelined requests"""
    for stage in STAGES:
        for nth in (1,) if stage == "request_read" or DEBUG else (1, 2):     # one read brings all three
            with faulty(root, f"{stage}:{nth}") as s, Client(s) as c:
                for name in ("small.txt", "middle.bin", "index.html"):
                    c.get("/" + name)
                for name in ("small.txt", "middle.bin", "index.html"):
                    check(c, root, name)
                s.generation(2)
                c.get("/empty.txt", "Connection: close")    # and it goes on as if nothing had been
                check(c, root, "empty.txt")
                assert c.at_end()
                c.sock.close()
                assert s.stop() == 0
                assert s.generations() == 2, s.messages


@case
def ends(root: Root) -> None:
    """a fault between accept and its record, and while a connection is closed"""
    for point in ("slot_free:1", "connection_closing:1", "connection_closing:2", "slot_free:2"):
        with faulty(root, point) as s:
            for _ in range(3):
                with Client(s) as c:
                    c.get("/small.txt", "Connection: close")
                    check(c, root, "small.txt")
                    assert c.at_end()
            s.generation(2)
            assert s.stop() == 0


@case
def input_bytes(root: Root) -> None:
    """a fault after each byte of a request of which half is there"""
    request = b"GET /small.txt HTTP/1.1\r\nHost: test\r\n\r\n"
    points = range(1, len(request) + 1, 13 if DEBUG else 1)
    with faulty(root, ",".join(f"input:{p}" for p in list(points)[:32])) as s, Client(s) as c:
        sent = 0
        for number, p in enumerate(list(points)[:32]):
            c.send(request[sent:p])
            sent = p
            s.generation(number + 2)
        c.send(request[sent:])
        check(c, root, "small.txt")


@case
def output_bytes(root: Root) -> None:
    """a fault after chosen and random bytes of an answer, header and body"""
    points = sorted({1, 17, 300, BIG - 1, BIG, *(random.randrange(400, BIG) for _ in range(2 if DEBUG else 8))})
    with faulty(root, ",".join(f"sent:{p}" for p in points)) as s, Client(s) as c:
        c.get("/big.bin")
        check(c, root, "big.bin")
        s.generation(len(points) + 1)
        c.get("/small.txt")
        check(c, root, "small.txt")
        assert s.generations() == len(points) + 1


@case
def header_unchanged(root: Root) -> None:
    """an answer continues with the header that it began with: range, status, Date"""
    file = root.path / "changes"
    file.write_bytes(b"x" * 5000)
    with faulty(root, "sent:40,sent:3000") as s, Client(s) as c:
        c.get("/changes", "Range: bytes=1000-4999")
        head = c.head()
        assert head.headers["content-range"] == "bytes 1000-4999/5000"
        assert head.headers["content-length"] == "4000"
        assert c.take(4000) == b"x" * 4000
        s.generation(3)
    for points, path, method, status in (("sent:100", "/big.bin", "HEAD", 200), ("sent:150,sent:60", "/none", "GET", 404)):
        with faulty(root, points) as s, Client(s) as c:
            c.get(path, method=method)
            c.get("/small.txt")
            assert c.response(head=method == "HEAD").status == status
            check(c, root, "small.txt")
            s.generation(2)
    with faulty(root, f"sent:{len('HTTP/1.1 200 OK/Server: zhttpd/Date: ') + 2}", delay_ms=2200) as s, Client(s) as c:
        sent = time.time()
        c.get("/small.txt")
        date = parsedate_to_datetime(c.response().headers["date"]).timestamp()
        assert int(sent) <= date <= int(sent) + 1, (sent, date)
        s.generation(2)


@case
def idle_and_slow(root: Root) -> None:
    """connections that are idle, half-closed, stalled, or have sent half a request outlive faults"""
    connects_under_faults()
    with Server(root) as s, Client(s) as idle, Client(s) as half, Client(s, receive_buffer=4096) as stalled, \
            Client(s) as closed, Client(s) as fresh:
        idle.get("/small.txt")
        check(idle, root, "small.txt")
        half.send(b"GET /small.t")
        stalled.get("/big.bin")
        closed.get("/middle.bin")
        closed.sock.shutdown(1)
        for _ in range(3):
            s.fault()
        half.send(b"xt HTTP/1.1\r\nHost: t\r\n\r\n")
        check(half, root, "small.txt")
        check(stalled, root, "big.bin")
        check(closed, root, "middle.bin")
        assert closed.at_end()
        for c in (idle, fresh):
            c.get("/small.txt")
            check(c, root, "small.txt")
        assert s.stop() == 0


@case
def many_connections(root: Root) -> None:
    """four hundred connections, each with half a request, outlive three faults"""
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with Server(root) as s, ExitStack() as stack:
        clients = [stack.enter_context(Client(s)) for _ in range(30 if DEBUG else 400)]
        for c in clients:
            c.get("/small.txt")
        for c in clients:
            check(c, root, "small.txt")
            c.send(b"GET /index.html HTTP")
        for _ in range(3):
            s.fault()
        for c in clients:
            c.send(b"/1.1\r\nHost: t\r\n\r\n")
        for c in clients:
            check(c, root, "index.html")
        assert any(f" {len(clients)} connections kept" in m for m in s.messages), s.messages


@case
def nothing_leaks(root: Root) -> None:
    """after many faults the process has the files open that it had before"""
    connects_under_faults()
    with faulty(root, "file_opened:2,file_opened:30,response_sending_completed:3,slot_free:3,slot_free:6") as s:
        def files() -> list[str]:
            """Those that stay when all connections are closed: one socket, it listens."""
            for _ in range(100):
                with suppress(FileNotFoundError):       # closed meanwhile
                    found = [os.readlink(f"/proc/{s.pid}/fd/{fd}")
                             for fd in sorted(os.listdir(f"/proc/{s.pid}/fd"), key=int)]
                    if sum(f.startswith("socket:") for f in found) == 1:
                        return sorted(found)
                time.sleep(0.05)
            raise AssertionError(f"connections are left: {found}")

        with Client(s) as c:
            c.get("/small.txt")
            check(c, root, "small.txt")
        before = files()
        downloads = Downloads(s, root, 2, ["small.txt", "middle.bin"])
        for _ in range(3 if DEBUG else 20):
            s.fault()
        downloads.finish()
        assert files() == before, (before, files())
        assert s.stop() == 0


@case
def random_instants(root: Root) -> None:
    """faults at random instants under ten clients: every body is right"""
    connects_under_faults()
    faults = 5 if DEBUG else 40
    with Server(root) as s:
        downloads = Downloads(s, root, 10, ["small.txt", "middle.bin", "index.html", "empty.txt"])
        for _ in range(faults):
            time.sleep(random.uniform(0, 0.05))
            s.fault()
        downloads.finish()
        print(f"# {faults} faults, {downloads.done} answers")
        assert downloads.done > 10
        assert s.generations() == faults + 1 and s.process.poll() is None


@case
def big_downloads(root: Root) -> None:
    """big downloads at once by curl, faults at random instants: SHA-256 equal"""
    connects_under_faults()
    count, faults = (2, 2) if DEBUG else (10, 10)
    with Server(root) as s:
        url = s.url("/big.bin")
        clients = [subprocess.Popen(f"curl -sSk --limit-rate 5M {url} | sha256sum", shell=True, stdout=subprocess.PIPE)
                   for _ in range(count)]
        for _ in range(faults):
            time.sleep(random.uniform(0, 0.2))
            s.fault()
        wanted = hashlib.sha256(root.files["big.bin"]).hexdigest()
        for c in clients:
            assert c.communicate(timeout=LIMIT_S)[0].split()[0].decode() == wanted


@case
def under_ab(root: Root) -> None:
    """ab: no request fails under faults, with and without keep-alive"""
    connects_under_faults()
    count = 60 if DEBUG else 2000
    for keep in ([], ["-k"]):
        with Server(root) as s:
            ab = subprocess.Popen(["ab", "-q", *keep, "-n", str(count), "-c", "8",
                                   s.url("/small.txt")], stdout=subprocess.PIPE, text=True)
            while ab.poll() is None:
                s.fault()
                time.sleep(random.uniform(0, 2 if DEBUG else 0.1))
            assert ab.stdout
            out = ab.stdout.read()
            print(f"# {s.generations() - 1} faults, {count} requests {' '.join(keep)}")
            assert ab.returncode == 0 and s.generations() > 1, out
            assert re.search(rf"Complete requests: +{count}\n", out), out
            assert re.search(r"Failed requests: +0\n", out) and "Non-2xx" not in out, out


@case
def limits_kept(root: Root) -> None:
    """the connection limit, timeouts and a SIGTERM hold across faults"""
    connects_under_faults()
    with Server(root, "-c", "2", "-t", "1") as s, Client(s) as first, Client(s) as second, Client(s) as third:
        first.send(b"GET / HTTP/1.1\r\nHo")
        third.get("/small.txt")
        s.fault()
        s.fault()
        assert first.response().status == 408
        assert first.at_end() and second.at_end()
        first.sock.close()
        check(third, root, "small.txt")
    with Server(root) as s, Client(s, receive_buffer=4096) as c:
        c.get("/big.bin")
        c.head()
        s.process.send_signal(signal.SIGTERM)
        with suppress(ConnectionRefusedError, ConnectionResetError):
            while True:             # until it has seen it; a reset: while it closed the socket
                Client(s).sock.close()
                time.sleep(0.01)
        s.fault()
        s.fault()
        assert c.take(BIG) == root.files["big.bin"]
        assert s.process.wait(LIMIT_S) == 0


@case
def poison(root: Root) -> None:
    """a request that crashes the server whenever it is read gets 500 at the second time; the others go on"""
    with faulty(root, "path:small.txt") as s, Client(s) as c, Client(s, receive_buffer=4096) as other:
        other.get("/big.bin")
        other.head()
        c.get("/index.html")
        check(c, root, "index.html")
        c.get("/small.txt")
        assert c.response().status == 500
        assert c.at_end()
        c.sock.close()
        s.generation(3)
        assert other.take(BIG) == root.files["big.bin"]
        with Client(s) as d:            # the next one has its own two chances
            d.get("/index.html")
            d.get("/small.txt")
            check(d, root, "index.html")
            assert d.response().status == 500
        s.generation(5)
        assert s.stop() == 0


@case
def poison_at_the_limit(root: Root) -> None:
    """so it is when faults may come once in a minute; a fault that is another's then ends it"""
    sysctl("min_interval_ms", 60000)
    try:
        with faulty(root, "path:small.txt") as s, Client(s) as c, Client(s, receive_buffer=4096) as other:
            other.get("/big.bin")
            other.head()
            c.get("/small.txt")
            assert c.response().status == 500
            s.generation(3)
            assert other.take(BIG) == root.files["big.bin"]
            with Client(s) as d:
                d.get("/small.txt")
                assert s.process.wait(LIMIT_S) == -signal.SIGSEGV
    finally:
        sysctl("min_interval_ms", 0)


@case
def not_transient(root: Root) -> None:
    """a second fault within min_interval_ms ends it, by the signal that its parent expects"""
    with Server(root) as s:
        sysctl("min_interval_ms", 60000)
        try:
            s.fault()
            os.kill(s.pid, signal.SIGSEGV)
            assert s.process.wait(LIMIT_S) == -signal.SIGSEGV
        finally:
            sysctl("min_interval_ms", 0)


@case
def held_limit(root: Root) -> None:
    """a request beyond kernel.restart.held_bytes_max gets 431, one below it is fine"""
    before = (SYSCTL / "held_bytes_max").read_text()
    sysctl("held_bytes_max", 4096)
    try:
        with Server(root) as s:
            for size, status in ((3000, 200), (6000, 431)):
                with Client(s) as c:
                    c.get("/small.txt", *["X: " + "y" * 96] * (size // 100))
                    assert c.response().status == status
    finally:
        (SYSCTL / "held_bytes_max").write_text(before)


@case
def unregistered(root: Root) -> None:
    """-n, and kernel.restart.enabled=0 at the start: an ordinary server, a fault ends it"""
    for off in (False, True):
        sysctl("enabled", 0 if off else 1)
        try:
            with Server(root, *([] if off else ["-n"])) as s, Client(s) as c:
                c.get("/big.bin")
                check(c, root, "big.bin")
                assert s.messages[0].endswith("a fault will end it") and len(s.messages) == 2, s.messages
                os.kill(s.pid, signal.SIGSEGV)
                assert s.process.wait(LIMIT_S) == -signal.SIGSEGV
        finally:
            sysctl("enabled", 1)


@case
def given_socket(root: Root) -> None:
    """a listening socket from outside stays across faults, also where the state is of no use"""
    with socket.create_server(("127.0.0.1", 0)) as listener, Server(root, listener=listener) as s, Client(s) as c:
        c.get("/small.txt")
        check(c, root, "small.txt")
        c.get("/big.bin")
        s.fault()
        check(c, root, "big.bin")
        sysctl("enabled", 0)
        try:
            c.get("/small.txt")
            check(c, root, "small.txt")
            s.wait_for("has been switched off")
        finally:
            sysctl("enabled", 1)
        os.kill(s.pid, signal.SIGSEGV)
        with Client(s) as d:    # refused never, but accepted late
            d.get("/small.txt")
            check(d, root, "small.txt")
        s.wait_for("starting afresh")


@case
def switched_off(root: Root) -> None:
    """kernel.restart.enabled=0 under way: it goes on, once and for all without"""
    with Server(root) as s, Client(s, receive_buffer=4096) as c, Client(s) as half:
        half.send(b"GET /small.txt HT")
        c.get("/big.bin")
        c.head()
        sysctl("enabled", 0)
        try:
            assert c.take(BIG) == root.files["big.bin"]
            half.send(b"TP/1.1\r\nHost: t\r\n\r\n")
            check(half, root, "small.txt")
            s.wait_for("has been switched off")
        finally:
            sysctl("enabled", 1)
        c.get("/small.txt")
        check(c, root, "small.txt")
        os.kill(s.pid, signal.SIGSEGV)     # the counts are no longer true: it must not trust them
        s.wait_for("starting afresh")
        s.port = int(s.wait_for(r"serving .* on port (\d+)", since=2)[1])
        assert c.at_end()
        with Client(s) as d:
            d.get("/small.txt")
            check(d, root, "small.txt")
    # Who is to stop stops then; what nobody has noticed is as if nothing had been
    with Server(root) as s, Client(s, receive_buffer=4096) as c, Client(s) as other:
        other.get("/small.txt")
        check(other, root, "small.txt")
        for off in (True, False):
            sysctl("enabled", 0 if off else 1)
            s.wait_for(f"has been switched {'off' if off else 'on'}")
        s.fault()
        other.get("/small.txt")
        check(other, root, "small.txt")
        c.get("/big.bin")
        c.head()
        s.process.send_signal(signal.SIGTERM)
        assert other.at_end()
        sysctl("enabled", 0)
        try:
            c.take(BIG // 2)
        finally:
            sysctl("enabled", 1)
        os.kill(s.pid, signal.SIGSEGV)
        assert s.process.wait(LIMIT_S) == 0
        s.wait_for("starting afresh")
        s.wait_for("stopped")


@case
def closed_files(root: Root) -> None:
    """a server that is started with some of its files 0 to 2 closed keeps its listener and its state across faults"""
    def close(fds: tuple[int, ...]) -> None:
        for fd in fds:
            os.close(fd)

    for fds in ((0,), (0, 1), (1,)):
        with Server(root, preexec=lambda: close(fds)) as s, Client(s) as c:    # noqa: B023 - it is called at once
            for _ in range(2):
                c.get("/small.txt")
                check(c, root, "small.txt")
                c.get("/middle.bin")
                s.fault()
                check(c, root, "middle.bin")
                with Client(s) as d:
                    d.get("/small.txt")
                    check(d, root, "small.txt")


def ends_early(c: Client) -> bool:
    """Whether the connection ended, in whatever way, before the whole of BIG was there."""
    with suppress(ConnectionResetError):
        while c._more():
            pass
    return len(c.buffer) < BIG


@case
def file_replaced(root: Root) -> None:
    """of a file that is replaced within its answer the client gets the old one; of one that changes, no mixture"""
    for change in ("rename", "unlink", "append", "rewrite"):
        file = root.path / "changing.bin"
        old = os.urandom(BIG)
        file.write_bytes(old)
        with Server(root) as s, Client(s, receive_buffer=4096) as c:
            c.get("/changing.bin")
            c.head()
            assert c.take(20000) == old[:20000]     # it has begun with the file
            if change == "rename":
                (root.path / "new").write_bytes(b"new")
                (root.path / "new").rename(file)
            elif change == "unlink":
                file.unlink()
            else:
                with file.open("ab" if change == "append" else "r+b") as f:
                    f.seek(0 if change == "append" else BIG - 3000)      # what has been sent is not a copy
                    f.write(b"new" * 1000)
            s.fault()
            if change in ("rename", "unlink"):
                assert c.take(BIG - 20000) == old[20000:]
            else:
                assert ends_early(c) and c.buffer == old[20000:20000 + len(c.buffer)]
            with Client(s) as d:
                d.get("/small.txt")
                check(d, root, "small.txt")
    file.unlink()


def area(server: Server, name: str) -> Path:
    """A state area of the server's, as a file"""
    return next(fd for fd in Path(f"/proc/{server.pid}/fd").iterdir()
                if re.fullmatch(rf"/memfd:perdure-{name}( .*)?", os.readlink(fd)))


@case
def wild_stores(root: Root) -> None:
    """what a stray write has hit is not trusted: an answer ends with its connection, and nobody else notices"""
    name_at, length_at, file_at = 96, 8, 24     # in struct httpd_state_var
    (root.path / "big2.bin").write_bytes(root.files["big.bin"])
    for at, value in ((file_at, b"\0\0\0\x40"), (file_at, b"\xf9\xff\xff\xff"), (file_at, b"\0\0\0\0"), (length_at, b"\xff" * 8),
                      (name_at, b"x" * 1024), (file_at, b"")):
        with Server(root) as s, Client(s, receive_buffer=4096) as c, Client(s, receive_buffer=4096) as other:
            for client, name in ((c, "/big.bin"), (other, "/big2.bin")):
                client.get(name)
                client.head()
            others = next(int(fd.name) for fd in Path(f"/proc/{s.pid}/fd").iterdir() if os.readlink(fd).endswith("/big2.bin"))
            with area(s, "zhttpd-connections").open("r+b", buffering=0) as f:
                everything = f.read()
                assert everything.count(b"big.bin\0") == 1
                f.seek(everything.index(b"big.bin\0") - name_at + at)
                f.write(value or struct.pack("i", others))
            s.fault()
            s.wait_for("its answer has been overwritten")
            assert ends_early(c)
            assert other.take(BIG) == root.files["big.bin"]
    # The root directory, which connection was served, and how often it is to stop
    for at in (0, 4, 8):
        for value in (1 << 30, -7, 0):
            with Server(root) as s, Client(s) as c:
                c.get("/small.txt")
                check(c, root, "small.txt")
                with area(s, "zhttpd").open("r+b", buffering=0) as f:
                    f.seek(4096 + at)
                    f.write(struct.pack("i", value))
                s.fault()
                c.get("/small.txt")
                check(c, root, "small.txt")


if __name__ == "__main__":
    sysctl("min_interval_ms", 0)
    if DEBUG:       # a big file must be bigger than what a socket buffers
        Path("/proc/sys/net/ipv4/tcp_wmem").write_text("4096 16384 131072")
    main()
