#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""This test has Python's servers fault under load, and compares every byte that clients get.

servers.py [long] [TEST...] [KIND...]
"""

import errno
import hashlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "hygiene"))
import ktap  # noqa: E402

HERE = Path(__file__).resolve().parent
MODULE = Path(os.environ["PERDURE_TOP"]) / "userspace/python"
sys.path[:0] = [str(MODULE), str(HERE)]
import perdure  # noqa: E402
from served import known  # noqa: E402

LONG = "long" in sys.argv[1:]
DEBUG = os.environ.get("PERDURE_PROFILE") == "debug"
LIMIT_S = 600 if DEBUG else 120
FAULTS = 20 if LONG else 3
ALL = ("http", "wsgi", "streams", "protocol")
KINDS = tuple(kind for kind in ALL if kind in sys.argv[1:]) or ALL
PYTHON = os.environ.get("PERDURE_PYTHON") or sys.executable
PLAIN = not Path("/proc/sys/kernel/restart").exists()       # a stock kernel


class Server:
    def __init__(self, kind: str, port: int = 0, *options: str, env: dict[str, str] | None = None) -> None:
        with socket.create_server(("127.0.0.1", port)) as s:
            self.port: int = s.getsockname()[1]
        self.marks = tempfile.TemporaryDirectory()
        self.messages = tempfile.TemporaryFile("w+")
        place = HERE if kind in (*ALL, "lines", "wrapped") else MODULE      # an example
        if kind.startswith("wsgi"):
            program = ["-m", "perdure.wsgi", "served" if kind == "wsgi" else kind, "--port", str(self.port), *options]
        else:
            program = [kind, str(self.port)] if place == MODULE else ["served.py", kind, str(self.port)]
        self.process = subprocess.Popen([PYTHON, *program], stderr=self.messages, cwd=place, env={
            **os.environ, "PYTHONPATH": str(MODULE), "MARKS": self.marks.name, **(env or {})})
        limit = time.monotonic() + LIMIT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except ConnectionRefusedError:
                if self.process.poll() is not None or time.monotonic() > limit:
                    raise RuntimeError(f"{kind} does not start: {self.said()}") from None
                time.sleep(0.1)

    def said(self) -> str:
        self.messages.seek(0)
        return self.messages.read()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if kind:
            print("# " + self.said()[-2000:].replace("\n", "\n# "))
        self.marks.cleanup()


class Client:
    """A connection that knows the framing of answers, and nothing else."""

    def __init__(self, server: Server, small: bool = False) -> None:
        self.sock = socket.socket()
        self.sock.settimeout(LIMIT_S)
        if small:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.sock.connect(("127.0.0.1", server.port))
        self.file = self.sock.makefile("rb")

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self.sock.close()

    def get(self, *paths: str) -> None:
        form = "GET {} HTTP/1.1\r\nHost: t\r\nX-Length: {}\r\n\r\n"
        self.sock.sendall("".join(form.format(path, random.choice(["", "y"])) for path in paths).encode())

    def answer(self) -> bytes:
        line = self.file.readline()
        if not line:
            raise ConnectionError("the connection ended where an answer was expected")
        headers = {}
        while (field := self.file.readline().strip()):
            name, _, value = field.partition(b": ")
            headers[name.lower()] = value
        body = b""
        if headers.get(b"transfer-encoding") == b"chunked":
            while (size := int(self.file.readline(), 16)):
                body += self.file.read(size)
                assert self.file.readline() == b"\r\n"
            assert self.file.readline() == b"\r\n"
        else:
            size = int(headers[b"content-length"])
            body = self.file.read(size)
            if len(body) != size:
                raise ConnectionError(f"{len(body)} of {size} bytes")
        return body if line.split()[1] == b"200" else line.split()[1]

    def ask(self, path: str) -> bytes:
        self.get(path)
        return self.answer()


def differ(what: str, have: object, want: object) -> Iterator[str]:
    if have != want:
        yield f"{what} is {str(have)[:200]}, not {str(want)[:200]}"


def generations(server: Server) -> int:
    with Client(server) as c:
        return int(c.ask("/generation"))


def load(kind: str, requests: int, faults: int) -> Iterator[str]:
    errors: list[str] = []
    with Server(kind) as server:
        numbers = list(range(requests))
        lock = threading.Lock()

        def run(seed: int) -> None:
            choose = random.Random(seed)
            try:
                with Client(server) as c:
                    while True:
                        with lock:
                            if not numbers:
                                return
                            n = numbers.pop(0)
                        size = choose.choice((1, 100, 5000, 200000))
                        path = f"/data/{size}"
                        if n % (requests // faults) == 7:
                            way = ("kill", "null", "abort", "thread")[n // 7 % 4]
                            where = ("before", "within", "after")[n // 7 % 3]
                            path = f"/fault/{way}/{where}/{n}/{size}"
                        if c.ask(path) != known(size):
                            errors.append(f"{kind}: the answer to {path} is wrong")
            except Exception as e:
                errors.append(f"{kind}: {type(e).__name__}: {e}")

        threads = [threading.Thread(target=run, args=(seed,)) for seed in range(5)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        yield from errors
        yield from differ(f"{kind}: generations", generations(server), faults + 1)
        if errors:
            yield server.said()[-1500:]


def under_load() -> Iterator[str]:
    """Requests by five clients, and faults of all kinds before, within and after answers: each answer is right."""
    for kind in KINDS:
        begun = time.monotonic()
        yield from load(kind, 200 if LONG else 30, FAULTS)
        print(f"# {kind}: {time.monotonic() - begun:.1f} s")


def pipelined() -> Iterator[str]:
    """Requests that are sent together, a fault in the second; half a request at a fault."""
    for kind in KINDS:
        with Server(kind) as server, Client(server) as c, Client(server) as half, Client(server) as idle, \
                Client(server, small=True) as slow:
            yield from differ("idle", idle.ask("/data/10"), known(10))
            half.sock.sendall(b"GET /data/77 HT")
            slow.get("/data/3000000", "/data/11")
            c.get("/data/10", "/fault/null/within/a/50000", "/data/12")
            for size in (10, 50000, 12):
                yield from differ(f"{kind}: pipelined {size}", c.answer(), known(size))
            os.kill(server.process.pid, signal.SIGSEGV)
            c.get("/data/13")
            yield from differ(f"{kind}: after a kill", c.answer(), known(13))
            half.sock.sendall(b"TP/1.1\r\nHost: t\r\n\r\n")
            yield from differ(f"{kind}: half a request", half.answer(), known(77))
            for size in (3000000, 11):
                yield from differ(f"{kind}: slow {size}", slow.answer() == known(size), True)
            yield from differ("idle", idle.ask("/data/14"), known(14))
            yield from differ(f"{kind}: generations", generations(server), 3)
            yield from differ(f"{kind}: alive", server.process.poll(), None)


def accepting() -> Iterator[str]:
    """A fault when a connection has been accepted and nothing is known of it yet"""
    with Server("http", env={"ACCEPT": "1"}) as server:
        Path(server.marks.name, "armed").touch()
        with Client(server) as c:
            yield from differ("accepted", c.ask("/data/10"), known(10))
        yield from differ("generations", generations(server), 2)


def differs() -> Iterator[str]:
    """An answer that is not the same the second time is not mixed: the client gets a reset. Others go on."""
    for kind in KINDS if LONG else ("http", "streams"):
        with Server(kind) as server, Client(server) as c, Client(server) as other:
            yield from differ("other", other.ask("/data/10"), known(10))
            c.get("/differs/d")
            try:
                yield f"{kind}: an answer of {len(c.answer())} bytes"
            except (ConnectionResetError, ValueError):
                pass
            except ConnectionError as e:
                yield f"{kind}: {e}, and no reset"
            yield from differ("other", other.ask("/data/11"), known(11))
            yield from differ(f"{kind}: said", "the answer made again is not the one" in server.said(), True)
    with Server("wrapped") as server, Client(server) as c:
        yield from differ("wrapped", c.ask("/data/10"), known(10))
        c.get("/differs/d")
        try:
            yield f"not counted: an answer of {len(c.answer())} bytes"
        except ConnectionError:
            pass
        with Client(server) as c:
            yield from differ("wrapped", c.ask("/data/11"), known(11))


def poison() -> Iterator[str]:
    """A request that faults whenever it is read is dropped after two faults. Faults by kill blame nobody."""
    for kind in KINDS:
        is_http = kind in ("http", "wsgi")
        with Server(kind) as server, Client(server) as c, Client(server) as other:
            yield from differ("other", other.ask("/data/10"), known(10))
            other.sock.sendall(b"GET /data/11 HTTP/1.1\r\n")
            for n in range(3):
                time.sleep(0.1)
                os.kill(server.process.pid, signal.SIGSEGV)
                generations(server)
            other.sock.sendall(b"\r\n")
            yield from differ(f"{kind}: after three kills", other.answer(), known(11))
            try:
                yield from differ(f"{kind}: poison", c.ask("/poison"), b"500" if is_http else "a reset")
            except ConnectionError as e:
                yield from differ(f"{kind}: poison", type(e) is ConnectionResetError and not is_http, True)
            yield from differ("other", other.ask("/data/12"), known(12))
            yield from differ(f"{kind}: generations", generations(server), 6)


def sha256(size: int) -> bytes:
    return hashlib.sha256(known(size)).hexdigest().encode()


def links(server: Server) -> list[str]:
    """What it has open"""
    found = []
    for fd in os.listdir(f"/proc/{server.process.pid}/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/{server.process.pid}/fd/{fd}"))
    return found


def upload(server: Server, size: int, mark: str) -> bytes:
    body = known(size)
    with Client(server) as c:
        c.sock.sendall(f"POST /upload/{mark} HTTP/1.1\r\nHost: t\r\nContent-Length: {size}\r\n\r\n".encode())
        c.sock.sendall(body)
        return c.answer()


def uploads() -> Iterator[str]:
    """Bodies below and beyond what the kernel holds, with a fault in the middle; beyond what is kept, a fault is a
    reset."""
    for kind in ("http", "wsgi", "streams"):
        with Server(kind) as server:
            for size in (300_000, 5_000_000):
                yield from differ(f"{kind}: upload of {size}", upload(server, size, str(size)), sha256(size))
            yield from differ(f"{kind}: generations", generations(server), 3)
            for _ in range(100):
                left = [link for link in links(server) if "spool" in link]
                if not left:                    # it sees that clients have gone
                    break
                time.sleep(0.1)
            yield from differ(f"{kind}: spools left", left, [])
    with Server("http", env={"SPOOL": "1000000"}) as server:
        size = 4_000_000
        yield from differ("a big upload", upload(server, size, "-"), sha256(size))
        try:
            yield f"a fault in a big upload: {upload(server, size, 'big')!r}"
        except ConnectionError:
            pass
        yield from differ("after that", upload(server, 1000, "-"), sha256(1000))


def leaks() -> Iterator[str]:
    """After many faults a server has the files open that it had before, whatever they interrupt."""
    def kinds() -> list[str]:
        return sorted(link.split(":")[0] + link.partition("perdure")[2] for link in links(server))

    for kind in KINDS:
        with Server(kind) as server, Client(server) as kept:
            kept.ask("/data/1")
            time.sleep(1)                       # until it sees that the first client has gone
            before = kinds()
            for n in range(50 if LONG else 4):
                with Client(server) as c:
                    where = ("before", "within", "after")[n % 3]
                    yield from differ(f"{kind}: answer", c.ask(f"/fault/null/{where}/{n}/100"), known(100))
                with Client(server) as c:
                    c.get("/data/10")           # and goes away
            for _ in range(100):
                if kinds() == before:
                    break
                time.sleep(0.1)
            yield from differ(f"{kind}: open files after {n + 1} faults", kinds(), before)
            yield from differ(f"{kind}: kept", kept.ask("/data/2"), known(2))
            yield from differ(f"{kind}: generations", generations(server), n + 2)


def lines() -> Iterator[str]:
    """A server that releases nothing: the whole connection is replayed."""
    with Server("lines") as server, Client(server) as c:
        total = 0
        for n in range(30):
            if n % 10 == 5:
                c.sock.sendall(b"fault %d\n" % n)
            c.sock.sendall(b"%d\n" % n)
            total += n
            yield from differ("sum", c.file.readline(), b"%d\n" % total)


def stops() -> Iterator[str]:
    """The WSGI server ends at SIGTERM when what is there is answered, also over a fault; idle clients get an end."""
    with Server("wsgi") as server, Client(server) as idle, Client(server, small=True) as busy:
        idle.ask("/data/1")
        busy.get("/data/3000000")
        time.sleep(1)
        server.process.terminate()
        yield from differ("idle", idle.file.read(), b"")
        for _ in range(100):
            try:
                socket.create_connection(("127.0.0.1", server.port)).close()
                time.sleep(0.1)
            except ConnectionRefusedError:
                break
        if not PLAIN:
            os.kill(server.process.pid, signal.SIGSEGV)
            time.sleep(1)
        yield from differ("status", server.process.poll(), None)
        yield from differ("busy", busy.answer() == known(3000000), True)
        yield from differ("the end", busy.file.read(), b"")
        yield from differ("status", server.process.wait(LIMIT_S), 0)


def refused() -> Iterator[str]:
    """What the WSGI server says to requests whose end is not clear, and to wrong options."""
    with Server("wsgi", 0, "--timeout", "2") as server:
        for request, status in ((b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"411"),
                                (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", b"400"),
                                (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"400"),
                                (b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: x\r\n\r\n", b"411")):
            with Client(server) as c:
                c.sock.sendall(request)
                yield from differ(str(request), c.file.readline().split()[1], status)
                c.file.read()
        with Client(server) as c:
            yield from differ("an idle client", c.file.read(), b"")
        with Client(server) as c:
            c.sock.sendall(b"HEAD /data/5 HTTP/1.1\r\n\r\nGET /data/6 HTTP/1.0\r\n\r\n")
            yield from differ("HEAD, and 1.0", c.file.read().endswith(known(6)), True)
    for options, message in ((["nothing:here"], "ModuleNotFoundError"), (["served:none"], "AttributeError"),
                             (["served:known", "--port", "70000"], "--port")):
        done = subprocess.run([PYTHON, "-m", "perdure.wsgi", *options], cwd=HERE, text=True, stderr=subprocess.PIPE,
                              env={**os.environ, "PYTHONPATH": str(MODULE)}, timeout=LIMIT_S)
        yield from differ(f"{options}", (done.returncode, message in done.stderr), (2, True))


def plain() -> Iterator[str]:
    """Where nothing is restarted, servers serve as ever, and a fault ends them."""
    for kind in KINDS:
        with Server(kind) as server, Client(server) as c, Client(server, small=True) as slow:
            slow.get("/data/3000000", "/data/11")
            c.get("/data/10", "/data/200000", "/data/12")
            for size in (10, 200000, 12):
                yield from differ(f"{kind}: {size}", c.answer() == known(size), True)
            for size in (3000000, 11):
                yield from differ(f"{kind}: slow {size}", slow.answer() == known(size), True)
            if kind != "protocol":
                yield from differ(f"{kind}: upload", upload(server, 5_000_000, "-"), sha256(5_000_000))
            yield from differ(f"{kind}: generation", c.ask("/generation"), b"0")
            c.get("/poison")
            yield from differ(f"{kind}: status", server.process.wait(LIMIT_S), -signal.SIGSEGV)


def unrescued() -> Iterator[str]:
    """Where there are no rescue points, perdure.rescue() says so, and does not call the function."""
    called: list[int] = []
    for how in ({}, {"deadline": 60}, {"cork": True}, {"cascade": True}):
        try:
            yield f"rescue({how}) gives {perdure.rescue(called.append, 1, **how)}"
        except OSError as e:
            yield from differ(f"rescue({how})", e.errno, errno.ENOSYS)
    try:
        yield f"rescue_sockets() gives {perdure.rescue_sockets(True)}"
    except OSError as e:
        yield from differ("rescue_sockets()", e.errno, errno.ENOSYS)
    yield from differ("calls", called, [])


def switched_off() -> Iterator[str]:
    """kernel.restart.enabled=0: the same on our kernel; under way: connections go on, without."""
    switch = Path("/proc/sys/kernel/restart/enabled")
    switch.write_text("0")
    try:
        yield from plain()
    finally:
        switch.write_text("1")
    for kind in KINDS:
        with Server(kind) as server, Client(server) as c, Client(server, small=True) as slow:
            slow.get("/data/3000000", "/data/11")
            yield from differ(kind, c.ask("/data/10"), known(10))
            switch.write_text("0")
            try:
                for size in (10, 100000, 12):
                    yield from differ(kind, c.ask(f"/data/{size}") == known(size), True)
                for size in (3000000, 11):
                    yield from differ(f"{kind}: slow {size}", slow.answer() == known(size), True)
            finally:
                switch.write_text("1")
            yield from differ(kind, c.ask("/data/13"), known(13))
            os.kill(server.process.pid, signal.SIGSEGV)     # what was counted is not true any more
            while generations(server) < 2:
                time.sleep(0.1)
            try:
                yield f"{kind}: goes on, with {c.ask('/data/14')!r}"
            except ConnectionError:
                pass


SOCKETS = r"""
import errno, os, select, socket, struct, sys, time
import perdure

assert perdure.protect(), "not protected"
generation = perdure.info().generation
left = generation > 1

def crash():
    os.abort()

def listen(address):
    s = perdure.HeldSocket()
    s.bind(address)
    s.listen()
    return s

if generation == 1:
    fixed, here = listen(("127.0.0.1", int(sys.argv[1]))), listen(("127.0.0.1", 0))
    out = socket.create_connection(here.getsockname())              # outgoing
    one, _ = here.accept()
    out.sendall(b"request")
    assert one.recv(100) == b"request" and one.send(b"ans") == 3
    out2 = socket.create_connection(fixed.getsockname())            # waits to be accepted
    os.set_inheritable(out2.fileno(), True)                         # as if it were given
    os.dup2(out2.fileno(), 60)
    os.dup2(out.fileno(), 61)                                       # the client's end, kept for the next generation
    file, epoll = open("/etc/passwd"), select.epoll()
    os.environ["PORT"] = str(here.getsockname()[1])
    perdure.register(env=dict(os.environ))
    crash()
if generation == 2:
    here = listen(("localhost", 0))
    assert here.getsockname()[1] == int(os.environ["PORT"]), here
    (one, address), = here.inherited()
    assert here.inherited() == [] and isinstance(one, perdure.HeldSocket)
    assert address == socket.socket(fileno=os.dup(61)).getsockname()
    assert one.recv(3, socket.MSG_PEEK) == b"req" and one.recv(100) == b"request"
    one.sendall(b"answer")
    one.release()
    for call in (one.dup, lambda: one.recvmsg(10), lambda: one.recv(1, socket.MSG_DONTWAIT),
                 lambda: one.sendto(b"", address)):
        try:
            call()
            raise SystemExit(f"{call} is not refused")
        except OSError as e:
            assert e.errno == errno.EOPNOTSUPP, e
    try:
        one.release(1)
        raise SystemExit("more is released than was read")
    except ValueError:
        pass
    began = one.began
    time.sleep(0.1)
    assert one.began == began
    crash()
if generation == 3:
    kinds = perdure.inherited()
    assert len(kinds.listening) == 2 and len(kinds.accepted) == 1 and len(kinds.outgoing) == 1, kinds
    links = sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in kinds.unknown)
    assert links == ["/etc/passwd", "anon_inode:[eventpoll]"], links
    assert not any(perdure.inherited().__dict__.values())
    client = socket.socket(fileno=61)
    assert client.recv(100) == b"answer", "skipped"
    client.sendall(b"x")
    one = kinds.accepted[0]
    one.settimeout(5)
    assert one.recv(100) == b"x"
    try:
        one.recv(1)
        raise SystemExit("no timeout")
    except socket.timeout:
        pass
    one.setblocking(False)
    try:
        one.recv(1)
        raise SystemExit("it blocks")
    except BlockingIOError:
        pass
    pid = os.fork()
    if not pid:
        one.setblocking(True)
        one.sendall(b"from the child")                              # plain: as any socket
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert client.recv(100) == b"from the child"
    crash()                                                         # what the child has written is not counted
if generation == 4:
    client = socket.socket(fileno=61)
    found = perdure.inherited()
    assert found.accepted == [], found
    try:
        raise SystemExit(f"no reset, but {client.recv(100)}")
    except ConnectionResetError:
        pass
    print("done")
"""


# A client that goes away between two looks at what the last generation has accepted, and not read from yet
GONE = r"""
import os, socket, struct
import perdure
from perdure.left import LEFT

def sockets():
    return sum(os.readlink(f"/proc/self/fd/{fd}").startswith("socket:") for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}"))

assert perdure.protect(), "not protected"
if perdure.info().generation == 1:
    listener = perdure.HeldSocket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    client = socket.create_connection(listener.getsockname())
    socket.socket._accept(listener)                                 # the kernel has done it, and nobody knows yet
    os.dup2(client.fileno(), 60)
    os.environ["PORT"] = str(listener.getsockname()[1])
    perdure.register(env=dict(os.environ))
    os.abort()
listener = perdure.HeldSocket()
listener.bind(("127.0.0.1", int(os.environ["PORT"])))
LEFT.settle()
client = socket.socket(fileno=60)
client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
client.close()
assert listener.inherited() == []
print(sockets())
"""


def gone() -> Iterator[str]:
    """A connection that is reset while the next generation begins is not kept open."""
    done = subprocess.run([PYTHON, "-c", GONE], capture_output=True, text=True, timeout=LIMIT_S, env={**os.environ, "PYTHONPATH": str(MODULE)})
    yield from differ("sockets", (done.returncode, done.stdout), (0, "1\n"))
    if done.returncode:
        yield done.stderr[-1500:]


def sockets() -> Iterator[str]:
    """A program that takes its sockets over itself; what is refused; a child; what was not counted is reset."""
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    done = subprocess.run([PYTHON, "-c", SOCKETS, str(port)], capture_output=True, text=True, timeout=LIMIT_S,
                          env={**os.environ, "PYTHONPATH": str(MODULE)})
    yield from differ("sockets", (done.returncode, done.stdout), (0, "done\n"))
    if done.returncode:
        yield done.stderr[-1500:]


def examples() -> Iterator[str]:
    """The example programs"""
    with Server("totals.py") as server, Client(server) as c:
        for line, total in ((b"1 2 3", 6), (b"crash", 0), (b"40 x 2", 42)):
            c.sock.sendall(line + b"\n")
            yield from differ(str(line), c.file.readline(), b"%d\n" % total)
    with Server("files.py") as server, Client(server) as c:
        c.get("/shop.py")
        yield from differ("shop.py", c.answer(), (MODULE / "shop.py").read_bytes())
        os.kill(server.process.pid, signal.SIGSEGV)
        c.get("/adder.py")
        yield from differ("adder.py", c.answer(), (MODULE / "adder.py").read_bytes())
    with Server("wsgi_hello") as server, Client(server) as c:
        yield from differ("hello", c.ask("/"), b"Hello from generation 1.\n")
        yield from differ("crash", c.ask("/crash"), b"500")
        with Client(server) as d:
            yield from differ("hello", d.ask("/"), b"Hello from generation 3.\n")


def main() -> int:
    default = (sockets, gone, accepting, under_load, pipelined, differs, stops, refused)
    rest = (examples, poison, uploads, leaks, lines, switched_off)
    if PLAIN:
        return ktap.run(plain, stops, refused, unrescued)
    Path("/proc/sys/kernel/restart/min_interval_ms").write_text("0")
    named = [test for test in default + rest if test.__name__ in sys.argv[1:]]
    return ktap.run(*(named or (default + rest if LONG else default)))


if __name__ == "__main__":
    sys.exit(main())
