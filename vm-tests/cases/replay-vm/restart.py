#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
A server that the kernel restarts in place after a fault keeps its clients' connections. restart.py FAULTS [CLIENTS], and in the
guest: restart.py inside FAULTS CLIENTS
"""

import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from guest import BUILD, CTL, PLACE, Guest, equal, main

FAULTY = BUILD / "userspace/vm-tests/cases/replay-vm/replay-faulty"
PORT = 8080


# ---- In the guest

def wait(what: str, done: Callable[[], bool], limit: float = 60) -> None:
    end = time.monotonic() + limit
    while not done():
        assert time.monotonic() < end, f"{what}: not within {limit:g} seconds"
        time.sleep(0.005)


class Gone(Exception):
    """The connection has ended."""


class Connection:
    """With what it has sent and got."""

    def __init__(self) -> None:
        self.socket = socket.create_connection(("127.0.0.1", PORT), 60)
        self.socket.settimeout(60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.name = self.socket.getsockname()
        self.buffer = b""

    def send(self, method: str, headers: dict[str, object], body: str = "") -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.socket.sendall(f"POST /{method} HTTP/1.1\r\nHost: x\r\n{lines}Content-Length: {len(body)}\r\n\r\n{body}".encode())

    def more(self) -> None:
        try:
            piece = self.socket.recv(65536)
        except ConnectionError:
            piece = b""
        if not piece:
            raise Gone
        self.buffer += piece

    def answer(self) -> tuple[int, dict[str, str], str]:
        while b"\r\n\r\n" not in self.buffer:
            self.more()
        head, _, rest = self.buffer.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        self.buffer = rest
        length = int(headers["Content-Length"])
        while len(self.buffer) < length:
            self.more()
        body, self.buffer = self.buffer[:length].decode(), self.buffer[length:]
        return int(first.split()[1]), headers, body


class Client:
    """One connection and one session, for ever. A connection that ends is an error, unless it may."""

    def __init__(self) -> None:
        self.connection, self.next = Connection(), 1
        self.retried = self.lost = 0
        status, headers = 503, dict[str, str]()
        while status == 503:
            self.connection.send("replay/sessions", {})
            status, headers, _ = self.connection.answer()
        equal(status, 201)
        self.session = headers["Replay-Session"]

    def send(self) -> None:
        self.connection.send("add", {"Replay-Session": self.session, "Replay-Sequence": self.next}, "total 1")

    def call(self) -> int:
        """The sum."""
        self.send()
        return self.finish()

    def finish(self) -> int:
        while True:
            try:
                status, headers, body = self.connection.answer()
                if headers["Replay-Answer"] == "ok":
                    break
                equal((status, headers["Replay-Answer"]), (503, "retry"))
                self.retried += 1
                time.sleep(0.02)
            except Gone:
                self.lost += 1
                self.connection = Connection()
            self.send()
        equal(status, 200)
        total, asked = body.split()
        equal(int(asked), self.next)
        self.next += 1
        return int(total)


class Service:
    """faulty under perdurectl run: 64 restarts in a millisecond are allowed, so all."""

    def __init__(self) -> None:
        self.log, self.config, self.flag = Path("/tmp/s.log"), Path("/tmp/s.conf"), Path("/tmp/flag")
        self.config.write_text(f"[server]\nname = s\nlog = {self.log}\nlisten = 127.0.0.1:{PORT}\ncontrol = /tmp/s.sock\n"
                               "metrics = 127.0.0.1:9400\nserver_checkpoint = 256k\nsession_checkpoint = 16k\n")
        subprocess.run([CTL, "format", self.log, "--size", "8M", "--force"], check=True, stdout=subprocess.DEVNULL)
        self.seen = 0
        self.errors = open("/tmp/s.err", "w+")
        self.process = subprocess.Popen(["perdurectl", "run", "--keep", "--burst", "64", "--interval", "1", "--", FAULTY, self.config, self.flag],
                                        stdin=subprocess.DEVNULL, stderr=self.errors)
        wait("it serves", self.there)
        self.listeners = self.sockets("0A")

    def there(self) -> bool:
        assert self.process.poll() is None, Path("/tmp/s.err").read_text()
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", PORT)) == 0

    def generation(self) -> int:
        found = re.search(r"^generation:\t(\d+)", Path(f"/proc/{self.process.pid}/restart").read_text(), re.MULTILINE)
        assert found, (self.process.wait(10), Path("/tmp/s.err").read_text())
        return int(found[1])

    def sockets(self, state: str) -> list[str]:
        """The inodes of TCP sockets at its port in this state."""
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return sorted(row[9] for row in rows if row[1].endswith(f":{PORT:04X}") and row[3] == state)

    def files(self) -> list[str]:
        """Kinds of what it has open, but for what a loader had open that was hit."""
        place = Path(f"/proc/{self.process.pid}/fd")
        kinds = [os.readlink(place / name) for name in os.listdir(place)]
        return sorted(kind.split(":[")[0] for kind in kinds if ":" in kind or kind == str(self.log))

    def begun(self) -> bool:
        """A generation more has begun than when this was true the last time."""
        n = Path("/tmp/s.err").read_text().count("listens on")
        if n > self.seen:
            self.seen = n
            return True
        return False

    def taken_over(self) -> tuple[int, int]:
        """Connections kept and closed, of all restarts."""
        found = re.findall(r"restarted in place: (\d+) connections kept, (\d+) closed", Path("/tmp/s.err").read_text())
        return sum(int(a) for a, _ in found), sum(int(b) for _, b in found)

    def fault(self, where: str) -> None:
        """At this place, and it has been restarted when this returns."""
        wait("it has begun", self.begun)
        before = self.generation()
        if where == "kill":
            os.kill(self.process.pid, signal.SIGSEGV)
        else:
            Path(f"{self.flag}.{where}").touch()
        wait(f"a restart after a fault: {where}", lambda: self.generation() > before)

    def end(self) -> None:
        Client()        # the last generation has begun: before, the signal would be the end of it
        self.process.terminate()
        equal(self.process.wait(60), 0)
        done = subprocess.run([CTL, "verify", self.log], check=True, stdout=subprocess.PIPE, text=True)
        assert ": whole" in done.stdout, done.stdout


def one() -> None:
    """A request that waits when the fault comes is answered on the same connection, by the same process"""
    service = Service()
    client = Client()
    equal(client.call(), 1)
    pid, name = service.process.pid, client.connection.name
    for number, where in enumerate(("early", "late", "kill", "idle"), 2):
        if where in ("kill", "idle"):
            service.fault(where)
            equal(client.call(), number)
        else:
            before = service.generation()
            Path(f"{service.flag}.{where}").touch()
            equal(client.call(), number)
            equal(service.generation(), before + 1)
        equal((client.lost, client.connection.name, service.process.pid), (0, name, pid))
    # One that is sent when nobody runs is read by the next generation
    os.kill(pid, signal.SIGSTOP)
    client.send()
    before = service.generation()
    os.kill(pid, signal.SIGSEGV)
    os.kill(pid, signal.SIGCONT)
    wait("it is restarted", lambda: service.generation() > before)
    equal(client.finish(), 6)
    equal((client.lost, client.connection.name), (0, name))
    equal(service.sockets("0A"), service.listeners)
    service.end()


def starting() -> None:
    """Faults at any instant of a start: the next generation starts all the same, and has the listeners, the log and the clients"""
    service = Service()
    client = Client()
    equal(client.call(), 1)
    draw = random.Random(int(sys.argv[4]))
    for number in range(2, 2 + int(sys.argv[2]) // 3):
        before = service.generation()
        os.kill(service.process.pid, signal.SIGSEGV)
        wait("it is restarted", lambda: service.generation() > before)
        time.sleep(draw.uniform(0, 0.5))
        os.kill(service.process.pid, signal.SIGSEGV)
        wait("it is restarted", lambda: service.generation() > before + 1)
        equal(client.call(), number)
    print(f"# {service.generation() - 1} restarts, {client.lost} connections lost", flush=True)
    equal(service.sockets("0A"), service.listeners)
    service.end()


def half() -> None:
    """A connection on which half a request has been read is closed, and the request is executed once all the same"""
    service = Service()
    clients = [Client(), Client()]
    for i, client in enumerate(clients):
        equal(client.call(), i + 1)
    request = (f"POST /add HTTP/1.1\r\nHost: x\r\nReplay-Session: {clients[0].session}\r\nReplay-Sequence: 2\r\n"
               "Content-Length: 7\r\n\r\ntota").encode()
    clients[0].connection.socket.sendall(request)
    # It has read it when nothing is left in the socket
    wait("it is read", lambda: all(row.split()[4].endswith(":00000000") for row in Path("/proc/net/tcp").read_text().splitlines()[1:]
                                   if row.split()[1].endswith(f":{PORT:04X}") and row.split()[3] == "01"))
    service.fault("kill")
    clients[0].connection.socket.sendall(b"l 1")
    equal(clients[0].finish(), 3)
    equal(clients[0].lost, 1)
    equal(clients[1].call(), 4)
    equal(clients[1].lost, 0)
    service.end()


def load() -> None:
    """Faults under load, at idle, in a replay: each request is executed once, no file is left open, connections are kept"""
    faults, number = int(sys.argv[2]), int(sys.argv[3])
    draw = random.Random(int(sys.argv[4]))
    service = Service()
    pid = service.process.pid
    enough = threading.Event()
    sums: list[int] = []
    failed: list[BaseException] = []
    clients = [Client() for _ in range(number)]
    names = [client.connection.name for client in clients]

    def run(client: Client) -> None:
        try:
            while not enough.is_set():
                sums.append(client.call())
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(client,)) for client in clients]
    files = service.files()
    for thread in threads:
        thread.start()
    counts = dict.fromkeys(("early", "late", "kill", "idle", "recovery"), 0)
    for _ in range(faults):
        where = draw.choice(list(counts))
        counts[where] += 1
        enough_sums = len(sums) + draw.randrange(80)
        wait("requests are answered", lambda: len(sums) >= enough_sums or bool(failed))
        if where == "recovery":
            # The flag is there before what is replayed is: two restarts
            Path(f"{service.flag}.recovery").touch()
            service.fault("kill")
            wait("it is replayed", lambda: not Path(f"{service.flag}.recovery").exists())
        else:
            service.fault(where)
        assert not failed, failed
    enough.set()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a client has no answer"
    assert not failed, failed
    equal(sorted(sums), list(range(1, len(sums) + 1)))
    kept, closed = service.taken_over()
    lost = sum(c.lost for c in clients)
    print(f"# {len(sums)} requests of {number} clients, {service.generation() - 1} restarts {counts}: {sum(c.retried for c in clients)} "
          f"times asked again; connections: {kept} times kept, {closed} closed by the server, {lost} lost to a client", flush=True)
    equal(service.process.pid, pid)
    assert service.generation() > faults, service.generation()
    equal(service.sockets("0A"), service.listeners)
    equal(service.files(), files)
    # None but those that were caught half asked or half answered, and these are few
    equal(lost, closed)
    equal([c.connection.name == name for c, name in zip(clients, names)], [not c.lost for c in clients])
    assert closed * 10 < kept, (closed, kept)
    service.end()


# ---- On the host

def guest() -> None:
    faults, clients, seed = (sys.argv[1:] + ["8"])[:2] + [str(random.SystemRandom().randrange(1 << 32))]
    job = Guest("restart", [sys.executable, Path(__file__).resolve(), "inside", faults, clients, seed], memory="1G", timeout=5000)
    job.exit()


if __name__ == "__main__":
    if sys.argv[1] == "inside":
        main(one, half, starting, load)
    guest()
