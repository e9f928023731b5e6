# SPDX-License-Identifier: GPL-2.0-or-later
"""Servers of libreplay for the tests: their files, their processes, their clients."""

import atexit
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "harness"))
from points import BUILD, equal, free_port, main, run, running  # noqa: E402,F401

PROGRAMS = BUILD / "userspace/vm-tests/cases/replay"
CTL = BUILD / "userspace/userspace/replay/replayctl"
SERVICE = PROGRAMS / "replay-service"
LOAD = PROGRAMS / "replay-load"
DISK = PROGRAMS / "libreplay-disk.so"
KEY = "0123456789abcdef0123456789abcdef"

scratch = tempfile.TemporaryDirectory(prefix="replay-", dir=BUILD)
PLACE = Path(scratch.name)


def ctl(*argv: object, ok: int | None = 0) -> str:
    return run(CTL, *argv, ok=ok)


class Server:
    """One server: its file, its log, and its process, started again and again."""

    def __init__(self, name: str, options: str = "", more: str = "", size: str = "16M", program: list[object] | None = None) -> None:
        self.name, self.port, self.domain_port, self.program, self.said = name, free_port(), 0, program or [SERVICE], ""
        self.log, self.config, self.control = PLACE / f"{name}.log", PLACE / f"{name}.conf", PLACE / f"{name}.sock"
        self.config.write_text(f"[server]\nname = {name}\nlog = {self.log}\nlisten = 127.0.0.1:{self.port}\n"
                               f"control = {self.control}\n{options}\n{more}")
        self.process: subprocess.Popen[str] | None = None
        ctl("format", self.log, "--size", size)

    def launch(self, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        self.process = subprocess.Popen([*map(str, self.program), self.config], env=os.environ | (env or {}), stdin=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, text=True)
        # Also if a test ends before it has stopped it
        atexit.register(self.process.kill)
        return self.process

    def start(self, env: dict[str, str] | None = None) -> "Server":
        self.launch(env)
        assert self.process
        end = time.monotonic() + 60
        while True:
            assert self.process.poll() is None, self.errors()
            assert time.monotonic() < end, f"{self.name} does not come up"
            try:
                status, _, _ = self.ask("POST", "/none", {"Idempotency-Key": "up?"})
                if status == 400:
                    return self
            except OSError:
                pass
            time.sleep(0.02)

    def errors(self) -> str:
        assert self.process and self.process.stderr
        return self.process.stderr.read()

    def kill(self) -> None:
        assert self.process
        self.process.kill()
        self.process.wait()
        self.said = self.errors()

    def stop(self) -> str:
        assert self.process
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(30)
        text = self.errors()
        equal(status, 0)
        return text

    def again(self, env: dict[str, str] | None = None) -> None:
        self.kill()
        self.start(env)

    def fails(self) -> str:
        """It does not start: what it says."""
        done = subprocess.run([SERVICE, self.config], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=60)
        equal(done.returncode, 1)
        return done.stderr

    def ask(self, method: str, path: str, headers: dict[str, str] | None = None,
            body: bytes | str = b"") -> tuple[int, dict[str, str], str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read().decode("latin-1")
        finally:
            connection.close()

    def raw(self, data: bytes, port: int = 0, patience: float = 30) -> bytes:
        """What it answers to these bytes, and to the end of what is said, until it hangs up."""
        with socket.create_connection(("127.0.0.1", port or self.port), patience) as c:
            got = b""
            try:
                c.sendall(data)
                c.shutdown(socket.SHUT_WR)
            except OSError:
                # It has hung up, and may have said why
                pass
            try:
                while piece := c.recv(65536):
                    got += piece
            except ConnectionError:
                pass
            return got

    def resident(self) -> int:
        """Its memory, in bytes."""
        assert self.process
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

    def figures(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(ctl("status", self.control, "--json"))
        return found


class Session:
    """A client that never gives up."""

    def __init__(self, server: Server) -> None:
        self.server, self.next = server, 1
        end = time.monotonic() + 60
        while True:
            status, headers, _ = server.ask("POST", "/replay/sessions")
            if headers["Replay-Answer"] != "retry":
                break
            assert time.monotonic() < end, "no session is begun"
            time.sleep(0.02)
        equal(status, 201)
        self.name = headers["Replay-Session"]

    def once(self, method: str, body: bytes | str = b"", sequence: int | None = None) -> tuple[int, dict[str, str], str]:
        return self.server.ask("POST", f"/{method}", {"Replay-Session": self.name, "Replay-Sequence": str(sequence or self.next)}, body)

    def call(self, method: str, body: bytes | str = b"", patience: float = 60) -> tuple[int, str]:
        end = time.monotonic() + patience
        while True:
            try:
                status, headers, text = self.once(method, body)
                if headers.get("Replay-Answer") != "retry":
                    break
            except OSError:
                pass
            assert time.monotonic() < end, f"{method} is not answered"
            time.sleep(0.05)
        if headers["Replay-Answer"] == "ok":
            equal(int(headers["Replay-Sequence"]), self.next)
            self.next += 1
        return status, text


def at_once(*functions: Callable[[], None]) -> list[Callable[[], None]]:
    """Begins all of them, side by side: for those that wait most of the time. As points for main()."""
    pool = ThreadPoolExecutor(len(functions))

    def point(function: Callable[[], None]) -> Callable[[], None]:
        future = pool.submit(function)

        def wait() -> None:
            future.result()

        wait.__doc__ = function.__doc__
        return wait

    return [point(function) for function in functions]


def until(what: Callable[[], object], patience: float = 60) -> None:
    """Waits for it to be so."""
    end = time.monotonic() + patience
    while not what():
        assert time.monotonic() < end, f"not within {patience} s"
        time.sleep(0.01)


SMALL = "server_checkpoint = 256k\nsession_checkpoint = 16k"


def domain_of(*names: str, options: str = SMALL, special: dict[str, str] | None = None) -> list[Server]:
    """Servers of one domain, numbered from 0; with more options for one of this name. `domain_port` is where others speak to it."""
    key = PLACE / "domain.key"
    key.write_text(f"{KEY}\n")
    servers = [Server(name, f"{options}\n{(special or {}).get(name, '')}", size="8M") for name in names]
    ports = [free_port() for _ in names]
    members = "".join(f"[member {name}]\nnumber = {i}\nurl = http://127.0.0.1:{port}\n" for i, (name, port) in enumerate(zip(names, ports)))
    for server, port in zip(servers, ports):
        server.domain_port = port
        with server.config.open("a") as f:
            f.write(f"[domain]\nlisten = 127.0.0.1:{port}\nkey = {key}\n{members}")
    return servers
