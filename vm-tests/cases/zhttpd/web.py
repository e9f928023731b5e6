# SPDX-License-Identifier: GPL-2.0-or-later
"""What the zhttpd cases share: a server to start and watch, a client that sees every byte, KTAP."""

import os
import random
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

DEBUG = os.environ.get("PERDURE_PROFILE") == "debug"    # many times slower: smaller counts
LIMIT_S = 300 if DEBUG else 60      # on everything that is waited for: a hang is a failure, not a wait
BIG = 1_000_000 if DEBUG else 5_000_000
TLS = os.environ.get("ZHTTPD_TLS", "")      # "1.2", "1.3": the same by zhttpd-tls; otherwise without TLS


def content(name: str, size: int) -> bytes:
    return random.Random(name).randbytes(size)


class Root:
    """The directory that is served, made anew, and what is in it."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="zhttpd-"))
        os.chmod(self.path, 0o755)
        self.files = {"index.html": b"<title>root</title>\n", "sub/index.html": b"sub\n", "empty.txt": b"",
                      "small.txt": content("small", 1000), "middle.bin": content("middle", 100_000),
                      "big.bin": content("big", BIG), "a b%20.txt": b"name\n"}
        for name, data in self.files.items():
            file = self.path / name
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(data)
        (self.path / "bare").mkdir()
        self.keys = Path(tempfile.mkdtemp(prefix="zhttpd-keys-"))


def certificate(place: Path) -> list[str]:
    """A new one, and its key, as zhttpd-tls takes them"""
    cert, key = place / "cert.pem", place / "key.pem"
    if not cert.exists():
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30",
                        "-subj", "/CN=localhost", "-keyout", key, "-out", cert], check=True, stderr=subprocess.DEVNULL)
    return ["-C", str(cert), "-K", str(key)]


class Server:
    """A running zhttpd; its messages are read as they come."""

    def __init__(self, root: Root, *options: str, program: str = "zhttpd", env: dict[str, str] | None = None,
                 preexec: Callable[[], None] | None = None, listener: socket.socket | None = None) -> None:
        if TLS:
            program = program.replace("zhttpd", "zhttpd-tls")
            options = (*certificate(root.keys), *options)
        path = shutil.which(program)
        assert path, f"{program} is not in PATH: run ./build.sh userspace"
        command = [path, "-p", "0", "-a", "127.0.0.1", "-d", str(root.path), "-t", str(LIMIT_S), *options]
        fds = [listener.fileno()] if listener else []
        if listener:
            # As a service manager hands it over
            command = ["sh", "-c", f'LISTEN_PID=$$ LISTEN_FDS=1 exec "$0" "$@" 3<&{fds[0]}', *command]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, **(env or {})}, preexec_fn=preexec, pass_fds=fds)
        self.pid = self.process.pid
        self.messages: list[str] = []
        self._more = threading.Condition()      # its lock is re-entrant
        self._ended = False
        threading.Thread(target=self._read, daemon=True).start()
        self.port = int(self.wait_for(r"serving .* on port (\d+)")[1])

    def url(self, path: str) -> str:
        return f"http{'s' * bool(TLS)}://127.0.0.1:{self.port}{path}"

    def _read(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            with self._more:
                self.messages.append(line.rstrip())
                self._more.notify_all()
        with self._more:
            self._ended = True
            self._more.notify_all()

    def wait_for(self, pattern: str, since: int = 0) -> re.Match[str]:
        """The first message that matches, of those after `since`, or fails."""
        found: re.Match[str] | None = None

        def look() -> bool:
            nonlocal found
            found = next((m for line in self.messages[since:] if (m := re.search(pattern, line))), None)
            return bool(found) or self._ended

        with self._more:
            self._more.wait_for(look, LIMIT_S)
            assert found, f"no message like {pattern!r}, but {self.messages}"
        return found

    def generation(self, number: int) -> None:
        self.wait_for(rf"\[{self.pid}\]: generation {number} after ")

    def generations(self) -> int:
        """How many there have been, the present one included. (A fault during a recovery leaves no message.)"""
        with self._more:
            return max((int(m[1]) for line in self.messages if (m := re.search(r": generation (\d+) after", line))), default=1)

    def fault(self) -> None:
        """One more fault, from outside; returns when a next generation is there."""
        number = self.generations()
        os.kill(self.pid, signal.SIGSEGV)
        with self._more:
            assert self._more.wait_for(lambda: self._ended or self.generations() > number, LIMIT_S)
        assert self.generations() > number, f"no generation {number + 1}, but {self.messages}"

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(LIMIT_S)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        died = self.process.poll()
        if died is None:
            self.process.kill()
        self.process.wait()
        if kind:
            print(f"# server: {'status %s' % died if died is not None else 'alive'}, its messages:")
            for line in self.messages[-12:]:
                print(f"#   {line}")


class Response(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Tls:
    """A socket that speaks TLS, by the version that is asked for. What is sent below it is up to the test, too."""

    def __init__(self, sock: socket.socket, version: str) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.minimum_version = context.maximum_version = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}[version]
        self.sock = sock
        self.clean = False      # whether the server has said that this is the end
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._in, self._out)
        self.setsockopt, self.settimeout, self.shutdown, self.close = sock.setsockopt, sock.settimeout, sock.shutdown, sock.close

    def step(self, do: Callable[[], object]) -> object:
        while True:
            try:
                return do()
            except ssl.SSLWantReadError:
                self.flush()
                data = self.sock.recv(65536)
                if data:
                    self._in.write(data)
                else:
                    self._in.write_eof()
            finally:
                self.flush()

    def flush(self) -> None:
        data = self._out.read()
        if data:
            self.sock.sendall(data)

    def sendall(self, data: bytes) -> None:
        if not self.tls.version():
            self.step(self.tls.do_handshake)
        self.step(lambda: self.tls.write(data))

    def recv(self, count: int) -> bytes:
        try:
            data = self.step(lambda: self.tls.read(count))
        except ssl.SSLZeroReturnError:
            data = b""
        except ssl.SSLEOFError:
            return b""
        assert isinstance(data, bytes)
        self.clean = self.clean or not data
        return data


class Client:
    """A connection. Knows the framing of answers and nothing else, so that any bytes can be sent."""

    def __init__(self, server: Server, receive_buffer: int = 0) -> None:
        sock = socket.socket()
        sock.settimeout(LIMIT_S)
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.connect(("127.0.0.1", server.port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = Tls(sock, TLS) if TLS else sock
        self.buffer = bytearray()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *rest: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def get(self, path: str, *headers: str, method: str = "GET") -> None:
        self.send("\r\n".join([f"{method} {path} HTTP/1.1", "Host: test", *headers, "", ""]).encode())

    def _more(self) -> bool:
        data = self.sock.recv(65536)
        self.buffer += data
        return bool(data)

    def take(self, count: int) -> bytes:
        while len(self.buffer) < count:
            assert self._more(), f"the connection ended {count - len(self.buffer)} bytes early"
        data = bytes(self.buffer[:count])
        del self.buffer[:count]
        return data

    def head(self) -> Response:
        while (end := self.buffer.find(b"\r\n\r\n")) < 0:
            assert self._more(), f"the connection ended within a header: {bytes(self.buffer)!r}"
        first, *lines = self.take(end + 4).decode("latin-1")[:-4].split("\r\n")
        assert (m := re.fullmatch(r"HTTP/1\.1 (\d{3}) [A-Za-z ]+", first)), f"not a status line: {first!r}"
        headers: dict[str, str] = {}
        for line in lines:
            name, value = line.split(": ", 1)
            assert name.lower() not in headers, f"{name} is there twice"
            headers[name.lower()] = value
        return Response(int(m[1]), headers, b"")

    def response(self, head: bool = False) -> Response:
        answer = self.head()
        if head or answer.status == 304:
            return answer
        return answer._replace(body=self.take(int(answer.headers["content-length"])))

    def at_end(self) -> bool:
        """Whether the server has closed, and sent nothing more."""
        try:
            return not self.buffer and not self._more()
        except ConnectionResetError:
            raise AssertionError("the connection was reset") from None


Case = Callable[[Root], None]
cases: list[tuple[str, Case]] = []


def case(run: Case) -> Case:
    """A test; its docstring is its name."""
    assert run.__doc__
    cases.append((run.__doc__, run))
    return run


class Skip(Exception):
    """The reason why a case cannot run here."""


def main() -> None:
    """Runs the cases, or those whose names contain the arguments."""
    seed = int(os.environ.get("SEED") or time.time_ns() % 1_000_000)
    chosen = [c for c in cases if len(sys.argv) == 1 or any(a in c[0] for a in sys.argv[1:])]
    root = Root()
    failed = 0
    print(f"KTAP version 1\n1..{len(chosen)}\n# SEED={seed} repeats this run's random choices", flush=True)
    for number, (name, run) in enumerate(chosen, 1):
        random.seed(seed + number)
        start = time.monotonic()
        verdict, note = "ok", ""
        try:
            run(root)
        except Skip as e:
            note = f" # SKIP {e}"
        except Exception:
            verdict, failed = "not ok", failed + 1
            for line in traceback.format_exc().splitlines()[-12:]:
                print(f"# {line}")
        print(f"{verdict} {number} {name}{note}\n# {time.monotonic() - start:.1f} s", flush=True)
    shutil.rmtree(root.path)
    shutil.rmtree(root.keys)
    sys.exit(1 if failed else 0)
