#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Servers as distributions have them: of 100,000 requests each hundredth meets a fault, and only those fail."""

import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / place) for place in ("harness", "rescue")]
from httpd import RESCUECTL  # noqa: E402
from points import equal, main, run, running  # noqa: E402

REQUESTS = 100_000
EVERY = 100
CLIENTS = 4
BATCH = 50      # requests of one client that are under way
PORT = 8080
scratch = tempfile.TemporaryDirectory(prefix="servers-")
PLACE = Path(scratch.name)


def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline, f"{what} has not come"
        time.sleep(0.1)


@contextmanager
def point(binary: str | Path, symbol: str, value: int, *options: str) -> Iterator[Callable[[], dict[str, int]]]:
    run(RESCUECTL, "add", binary, symbol, "--value", value, "--name", "it", "--inject", EVERY, *options)
    try:
        yield lambda: next(p for p in json.loads(run(RESCUECTL, "list", "--json")) if p["name"] == "it")
    finally:
        run(RESCUECTL, "remove", "it")


def judge(counts: dict[str, int], failed: int, *may: str) -> None:
    """may: scopes can be given up for these reasons, though few are."""
    print(f"# {failed} of {REQUESTS} requests failed; {counts}")
    equal(counts["injected"], counts["rescued"])
    equal(counts["injected"], failed)
    equal(counts["entered"], counts["left"] + counts["rescued"])
    lost = {key: n for key, n in counts.items() if key.startswith(("died_", "given_up_", "refused_"))}
    equal([key for key, n in lost.items() if key not in may or n * 1000 > REQUESTS], [])
    assert failed >= REQUESTS / EVERY, failed


def listens(port: int) -> bool:
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


# ---- nginx: the parser of paths with . and .. in them


def nginx_config(place: Path) -> Path:
    (place / "nginx.conf").write_text(f"""
pid {place}/pid;
error_log {place}/errors crit;
worker_processes 2;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {place}/body;
    server {{ listen 127.0.0.1:{PORT}; keepalive_requests 1000000; location / {{ return 200 "here it is\\n"; }} }}
}}
""")
    return place / "nginx.conf"


class Http:
    """Requests in a row on one connection; nginx closes it behind the answer to one that is wrong."""

    def __init__(self) -> None:
        self.connect()

    def connect(self) -> None:
        self.socket = socket.create_connection(("127.0.0.1", PORT), timeout=60)
        self.file = self.socket.makefile("rb")

    def answer(self) -> tuple[int, bytes]:
        status = int(self.file.readline().split()[1])
        length = 0
        for line in iter(self.file.readline, b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        return status, self.file.read(length)

    def get(self, nr: int) -> int:
        """How many of them failed"""
        failed = sent = 0
        while sent < nr:
            # What has not been answered when it closes has not been looked at
            batch = min(BATCH, nr - sent)
            self.socket.sendall(b"GET /a/./b/../c%20d HTTP/1.1\r\nHost: service.example\r\n\r\n" * batch)
            for _ in range(batch):
                status, text = self.answer()
                sent += 1
                if status == 200:
                    equal(text, b"here it is\n")
                    continue
                equal(status, 400)
                failed += 1
                self.connect()
                break
        return failed


def nginx() -> None:
    """nginx: a path that cannot be parsed is answered 400"""
    place = PLACE / "nginx"
    place.mkdir()
    with running(["nginx", "-c", nginx_config(place), "-g", "daemon off; user root;"]) as server:
        until(lambda: listens(PORT), "nginx")
        workers = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text()
        with point(shutil.which("nginx") or "nginx", "ngx_http_parse_complex_uri", 11) as counts:
            clients = [Http() for _ in range(CLIENTS)]
            failed = sum(client.get(500) for _ in range(REQUESTS // 500 // CLIENTS) for client in clients)
            judge(counts(), failed)
        equal(Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text(), workers)
        equal((place / "errors").read_text(), "")
        server.terminate()
        equal(server.wait(30), 0)


# ---- redis: a number that is not one


def redis() -> None:
    """redis: a value that cannot be read is answered as an error, and nothing is added to it"""
    place = PLACE / "redis"
    place.mkdir()
    with running(["redis-server", "--port", PORT, "--bind", "127.0.0.1", "--dir", place, "--save", "", "--appendonly", "no"],
                 stdout=subprocess.DEVNULL) as server:
        until(lambda: listens(PORT), "redis")
        sockets = [socket.create_connection(("127.0.0.1", PORT), timeout=60) for _ in range(CLIENTS)]
        files = [s.makefile("rb") for s in sockets]
        failed = 0
        with point(shutil.which("redis-server") or "redis-server", "getLongLongFromObject", -1) as counts:
            for _ in range(REQUESTS // BATCH // CLIENTS):
                for s in sockets:
                    s.sendall(b"INCRBY n 1\r\n" * BATCH)
                for file in files:
                    for _ in range(BATCH):
                        line = file.readline()
                        if line.startswith(b":"):
                            continue
                        equal(line, b"-ERR value is not an integer or out of range\r\n")
                        failed += 1
            judge(counts(), failed)
        # Each that was answered was executed once, and no other one
        sockets[0].sendall(b"GET n\r\n")
        files[0].readline()
        equal(int(files[0].readline()), REQUESTS - failed)
        sockets[0].sendall(b"SHUTDOWN NOSAVE\r\n")
        equal(server.wait(30), 0)


# ---- PostgreSQL: an address that is none


class Postgres:
    def __init__(self, place: Path) -> None:
        self.programs = max(Path("/usr/lib/postgresql").glob("*/bin"))
        self.place, user = place, pwd.getpwnam("postgres")
        place.mkdir()
        os.chown(place, user.pw_uid, user.pw_gid)
        PLACE.chmod(0o755)
        self.prefix = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        run(*self.prefix, self.programs / "initdb", "-D", place / "data", "-A", "trust", "-U", "postgres", "--locale=C", "-E", "UTF8", "--no-sync")
        self.process = subprocess.Popen([*self.prefix, self.programs / "postgres", "-D", place / "data", "-k", place, "-c", "listen_addresses=",
                                         "-c", "fsync=off", "-c", "log_destination=stderr", "-c", "log_min_messages=fatal",
                                         "-c", "log_min_error_statement=panic"], cwd="/", stderr=(place / "errors").open("w"))
        until(lambda: subprocess.run(self.client("-c", "SELECT 1"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0, "PostgreSQL")

    def client(self, *words: str) -> list[str]:
        return [str(self.programs / "psql"), "-h", str(self.place), "-U", "postgres", "-qtAX", *words]

    def stop(self) -> None:
        self.process.terminate()
        equal(self.process.wait(60), 0)


def postgresql() -> None:
    """PostgreSQL: an address that cannot be read is a query that fails, and its transaction is undone"""
    server = Postgres(PLACE / "postgresql")
    run(*server.client("-c", "CREATE TABLE t (client int, address inet)"))
    script = PLACE / "script"
    with point(server.programs / "postgres", "pg_inet_net_pton", -1) as counts:
        clients = []
        for n in range(CLIENTS):
            script = PLACE / f"script{n}"
            script.write_text(f"INSERT INTO t VALUES ({n}, '10.1.2.3/8');\n" * (REQUESTS // CLIENTS))
            clients.append(subprocess.Popen(server.client("-f", str(script)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        said = [client.communicate()[0] for client in clients]
        equal([client.returncode for client in clients], [0] * CLIENTS)
        failed = sum(text.count("ERROR:  invalid input syntax for type inet") for text in said)
        assert sum(text.count("ERROR") for text in said) == failed, said[0][:1000]
        equal(sum(text.count("connection") for text in said), 0)
        # Its processes wake each other up by signals that have handlers
        judge(counts(), failed, "given_up_signal")
    equal(run(*server.client("-c", "SELECT count(*), count(DISTINCT address) FROM t")).strip(), f"{REQUESTS - failed}|1")
    equal((server.place / "errors").read_text().count("terminated by signal"), 0)
    server.stop()


main(nginx, redis, postgresql)
