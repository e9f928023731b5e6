# SPDX-License-Identifier: GPL-2.0-or-later
"""Two web servers on this host, primary and backup, and a client whose bytes both get; fake.c joins them."""

import atexit
import os
import re
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "harness"))
from points import BUILD, equal, free_port, main, run  # noqa: E402,F401

FAKE = BUILD / "userspace/vm-tests/cases/services-takeover/libtakeover.so.0"
ROLES = ("primary", "backup")
RESET = b"(reset)"

scratch = tempfile.TemporaryDirectory(prefix="services-takeover-", dir=BUILD)
PLACE = Path(scratch.name)
LOG = PLACE / "log"
CONTINUE = ("Expect: 100-continue",)


def until(condition: Callable[[], object], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.01)


def writable(path: Path) -> Path:
    """Servers that are started by root work as nobody."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o777)
    return path


def mark(*names: str) -> None:
    """What the two servers' libtakeover finds in its log, and nothing else: see fake.c."""
    shutil.rmtree(LOG, ignore_errors=True)
    writable(LOG)
    for name in names:
        (LOG / name).touch()


class Host:
    """One of the two servers. `command` runs it in the foreground."""

    def __init__(self, role: str, command: list[str], ports: list[int], name: str = "") -> None:
        self.role, self.command, self.port, self.ports = role, command, ports[0], ports
        self.place = writable(PLACE / (name or role))
        self.executed_file, self.errors = self.place / "executed", self.place / "errors"
        self.access_log = self.place / "access.log"

    def start(self) -> None:
        env = os.environ | {"FAKE_ROLE": self.role, "FAKE_LOG": str(LOG), "LD_PRELOAD": str(FAKE),
                            "TMPDIR": str(self.place)}
        with open(self.place / "stderr", "wb") as errors:
            # A group of its own: Apache kills its group when it ends
            self.process = subprocess.Popen(["setpriv", "--pdeathsig", "TERM", *self.command], env=env, stdout=errors,
                                            stdin=subprocess.DEVNULL, stderr=errors, process_group=0)
        atexit.register(self.stop)
        until(self.listens)

    def listens(self) -> bool:
        assert self.process.poll() is None, (self.place / "stderr").read_text()
        with socket.socket() as s:
            s.bind(("127.0.0.2", 0))
            return not s.connect_ex(("127.0.0.1", self.port))

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()

    def executed(self) -> int:
        """How many requests its program has executed since the last call."""
        if not self.executed_file.exists():
            return 0
        count = len(self.executed_file.read_text().splitlines())
        self.executed_file.unlink()
        return count

    def names(self) -> list[str]:
        """What the requests were called that its program has executed since the last call."""
        file = self.executed_file.with_name("executed.names")
        names = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return names

    def notes(self) -> list[str]:
        """What its access log says of each request since the last call; it is written after the reply."""
        time.sleep(0.1)
        lines = self.access_log.read_text().splitlines()
        self.access_log.write_text("")
        return lines


class Client:
    """One connection to each of the two, from the same port. What it has not read is with the server, but for `window` bytes."""

    def __init__(self, pair: "Pair", which: int = 0, address: str = "127.0.0.1", window: int = 0) -> None:
        self.sockets: list[socket.socket] = []
        self.were_reset: set[socket.socket] = set()
        self.window = window
        for _ in range(50):
            port = 0
            try:
                for host in pair.hosts:
                    self.connect(host.ports[which], address, port)
                    port = self.sockets[0].getsockname()[1]
                return
            except OSError:
                self.close()
        raise AssertionError("no port is free for both")

    def connect(self, to: int, address: str = "127.0.0.1", port: int = 0) -> None:
        s = socket.socket()
        self.sockets.append(s)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if self.window:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.window // 2)
        s.bind((address, port))
        s.settimeout(30)
        s.connect(("127.0.0.1", to))

    def reset(self, s: socket.socket) -> None:
        """Its port can be used again at once."""
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()

    def close(self) -> None:
        for s in self.sockets:
            s.close()
        self.sockets.clear()

    def send(self, data: bytes, later: float = 0) -> None:
        """To both at once; to the backup `later` seconds."""
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(self._send, self.sockets, (data, data), (0, later)))

    def _send(self, s: socket.socket, data: bytes, later: float) -> None:
        time.sleep(later)
        try:
            s.sendall(data)
        except ConnectionResetError:
            self.were_reset.add(s)      # who reads is not told again
        except OSError:
            pass    # one that has answered need not read on

    def read(self, count: int = -1, rest: float = 0) -> list[bytes]:
        """What each of them sends: all, or `count` bytes; a pause of `rest` seconds ends it, too."""
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(lambda s: self._read(s, count, rest), self.sockets))

    def _read(self, s: socket.socket, count: int, rest: float) -> bytes:
        s.settimeout(rest or 30)
        got = bytearray()    # adding to bytes would copy them all, again and again
        while len(got) != count:
            try:
                data = s.recv(65536 if count < 0 else min(65536, count - len(got)))
            except ConnectionResetError:
                return bytes(got) + RESET
            except TimeoutError:
                assert rest, f"no end after {bytes(got[-300:])!r}"
                return bytes(got)
            if not data:
                break
            got += data
        return bytes(got) + (RESET if not data and s in self.were_reset else b"")

    def read_at_two_speeds(self) -> list[bytes]:
        """All, of a client with a `window`: of the backup slowly at first."""
        fast, slow = self.sockets
        with ThreadPoolExecutor(1) as pool:
            reader = pool.submit(self._read, fast, -1, 0)
            got = bytearray()
            for n in range(300):
                got += slow.recv(1000)
                time.sleep(0.002)
            rest = self._read(slow, -1, 0)
            return [reader.result(), bytes(got) + rest]


class Pair:
    def __init__(self, hosts: list[Host]) -> None:
        self.hosts = hosts
        self.primary, self.backup = hosts
        mark()
        for host in hosts:
            host.start()

    def both(self, data: bytes, later: float = 0, which: int = 0, address: str = "127.0.0.1") -> list[bytes]:
        client = Client(self, which, address)
        reader = ThreadPoolExecutor(1).submit(client.read)
        client.send(data, later)
        got = reader.result()
        client.close()
        return got

    def same(self, data: bytes, later: float = 0) -> bytes:
        """What both send, which is the same."""
        a, b = self.both(data, later)
        if a != b:
            at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
            near = slice(max(at - 200, 0), at + 100)
            raise AssertionError(f"{len(a)} and {len(b)} bytes differ from {at} on: {a[near]!r} and {b[near]!r}")
        return a

    def executed(self) -> tuple[int, int]:
        return self.primary.executed(), self.backup.executed()


def request(path: str, *fields: str, method: str = "GET", body: bytes = b"", last: bool = False,
            version: str = "1.1") -> bytes:
    lines = [f"{method} {path} HTTP/{version}", "Host: service.example", *fields]
    if body and not any(f.startswith("Transfer-Encoding") for f in fields):
        lines.append(f"Content-Length: {len(body)}")
    if last:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode() + body


def split(stream: bytes) -> list[tuple[str, dict[str, str], bytes]]:
    """The replies of a stream of bytes: status line, fields, body. To GET only."""
    replies = []
    while stream:
        head, _, stream = stream.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        if status.split()[1] in ("100", "304", "204"):
            body = b""
        elif fields.get("transfer-encoding") == "chunked":
            body, size = b"", -1
            while size:
                line, _, stream = stream.partition(b"\r\n")
                size = int(line, 16)
                body, stream = body + stream[:size], stream[size + 2:]
        elif "content-length" in fields:
            size = int(fields["content-length"])
            body, stream = stream[:size], stream[size:]
        else:
            body, stream = stream, b""
        replies.append((status, fields, body))
    return replies


def chunked(body: bytes, size: int) -> bytes:
    parts = [body[i:i + size] for i in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in parts) + b"0\r\n\r\n"


class Backend:
    """A server behind theirs: it counts, and answers what it was sent, and as many random bytes as the query says."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.count = 0
        self.keys: list[str] = []
        self.hold = threading.Event()
        self.hold.set()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            threading.Thread(target=self.answer, args=(self.listener.accept()[0],), daemon=True).start()

    def answer(self, s: socket.socket) -> None:
        with s, s.makefile("rb") as lines:
            head = b""
            while not head.endswith(b"\r\n\r\n") and (line := lines.readline()):
                head += line
            body = lines.read(int((re.findall(rb"(?i)\ncontent-length: (\d+)", head) or [0])[0]))
            self.count += 1
            self.keys += re.findall(r"(?i)\nidempotency-key: (\S+)", head.decode())
            size = int((re.findall(rb"\?(\d+) HTTP", head) or [100])[0])
            body = f"{self.count} ".encode() + body + os.urandom(size)
            self.hold.wait()
            s.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)


def told(client: "Client", asked: bytes, alone: bool = False) -> list[str]:
    """What each of the two servers, or the primary's alone, says by its gate when it is asked this."""
    sockets = client.sockets[:1] if alone else client.sockets
    files = (LOG / "gates", LOG / "gates.backup")[:len(sockets)]
    for s in sockets:
        client._send(s, asked, 0)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda s: client._read(s, -1, 1.5), sockets))
    gates = [file.read_text() if file.exists() else "" for file in files]
    for file in files:
        file.unlink(missing_ok=True)
    return gates


def tells_when_busy(client: "Client", path: str, alone: bool = False) -> None:
    """
    By its gate, until a body has been read, and on where what is said next may be no request. Alone, it says everything: it may have left.
    """
    count = 1 if alone else len(client.sockets)
    posted = request(path, method="POST", body=b"GET")
    waits = request(path, *CONTINUE, method="POST", body=b"GET")[:-3]
    upgrade = request(path, "Upgrade: websocket", "Connection: Upgrade")
    told(client, request(path), alone)
    for asked, when_alone, protected in (
            (request(path), "0", ""), (posted, "20", "20"), (request(path), "0", ""), (upgrade, "2", "2"), (posted, "20", "0"),
            (request(path, "Transfer-Encoding: chunked", method="POST", body=chunked(b"GET", 2)), "20", "20"),
            (upgrade, "2", "2"), (request(path), "0", "0"), (request(path, *CONTINUE, method="POST", body=b"GET"), "20", "20"),
            # Half of it is no request that is over
            (posted[:-1], "2", "2"), (posted[-1:], "0", "0")):
        equal((asked, told(client, asked, alone)), (asked, [when_alone if alone else protected] * count))
    # One that is busy with the next body is not so no more because the end of the last reply leaves with "100 Continue"
    equal([gates[-1:] for gates in told(client, posted + waits, alone)], ["2"] * count)
    equal(told(client, b"GET", alone), ["0"] * count)


def tells_of_the_next(pair: Pair, path: str, alone: bool = False) -> None:
    """Likewise, while it has read a part of the next request, which a copy would never get. Eleven requests."""
    client = Client(pair)
    get, posted = request(path), request(path, method="POST", body=b"GET")
    for asked, when_alone, protected in (
            (get + get[:20], "2", "2"), (get[20:], "0", "0"), (posted + get[:1], "2", "2"),
            (get[1:] + get[:-1], "2", ""), (get[-1:], "0", "0"), (get + posted + get, "220", "20"),
            (posted + posted[:-1], "22", "2"), (posted[-1:], "0", "0"),
            # Some clients send an empty line behind a body: no part of a request
            (posted + b"\r\n", "20", "20")):
        count = 1 if alone else len(client.sockets)
        equal((asked, told(client, asked, alone)), (asked, [when_alone if alone else protected] * count))
    client.close()


def behind_the_rest(pair: Pair, path: str) -> None:
    """A request, while the end of the reply to the one for `path` before it is still with the server, however busy the machine is."""
    client = Client(pair, window=32768)
    client.send(request(f"{path}?9000000") + request("/ungated", last=True))
    client.read(9000000 - 150000)
    time.sleep(1)
    client.read()


def in_a_row(client: Client, cases: Sequence[tuple[str, str, object]], tail: bytes) -> list[bytes]:
    """The bodies of replies to these paths, of a connection that is kept: both servers' are the same, with these status codes."""
    client.send(b"".join(request(path) for path, _, _ in cases) + tail)
    a, b = client.read()
    replies = split(a)
    equal((a == b, [r[0].split()[1] for r in replies[:-1]]), (True, [status for _, status, _ in cases]))
    return [r[2] for r in replies[:-1]]


def encrypted(port: int, path: str) -> bytes:
    """A request over TLS, and what comes of it."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection(("127.0.0.1", port), 30) as s, context.wrap_socket(s) as t:
            t.sendall(request(path, last=True))
            got = b""
            while data := t.recv(65536):
                got += data
            return got
    except (ConnectionResetError, ssl.SSLError) as e:
        return RESET if isinstance(e, ConnectionResetError) or "EOF" in str(e) else str(e).encode()
