# SPDX-License-Identifier: GPL-2.0-or-later
"""nginx, redis and PostgreSQL as distributions have them, each in an empty directory, and a rescue point in one."""

import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / place) for place in ("harness", "rescue")]
from httpd import RESCUECTL  # noqa: E402
from points import equal, run  # noqa: E402

PORT = 8080
scratch = tempfile.TemporaryDirectory(prefix="servers-")
PLACE = Path(scratch.name)
PLACE.chmod(0o755)


def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline, f"{what} has not come"
        time.sleep(0.1)


@contextmanager
def point(binary: str | Path, symbol: str, value: int, *options: object) -> Iterator[Callable[[], dict[str, int]]]:
    run(RESCUECTL, "add", binary, symbol, "--value", value, "--name", "it", *options)
    try:
        yield lambda: next(p for p in json.loads(run(RESCUECTL, "list", "--json")) if p["name"] == "it")
    finally:
        run(RESCUECTL, "remove", "it")


def judge(counts: dict[str, int], failed: int, requests: int, *may: str) -> None:
    """may: scopes can be given up for these reasons, though few are."""
    print(f"# {failed} of {requests} requests failed; {counts}")
    equal(counts["rescued"], failed)
    equal(counts["entered"], counts["left"] + counts["rescued"])
    lost = {key: n for key, n in counts.items() if key.startswith(("died_", "given_up_", "refused_"))}
    equal([key for key, n in lost.items() if key not in may or n * 1000 > requests], [])


def connect() -> socket.socket:
    return socket.create_connection(("127.0.0.1", PORT), timeout=60)


def listens() -> bool:
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", PORT)) == 0


class Server:
    """It is gone after the block."""

    ends_at = signal.SIGTERM

    def __init__(self, place: Path) -> None:
        self.place = place
        place.mkdir()

    def command(self) -> Sequence[str | Path]:
        raise NotImplementedError

    def serves(self) -> bool:
        return listens()

    def start(self) -> None:
        with (self.place / "stderr").open("a") as errors:
            self.process = subprocess.Popen([str(word) for word in self.command()], cwd="/", start_new_session=True,
                                            stdout=subprocess.DEVNULL, stderr=errors)
        until(self.serves, type(self).__name__)

    def stop(self) -> None:
        self.process.send_signal(self.ends_at)
        equal(self.process.wait(60), 0)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Nginx(Server):
    def __init__(self, place: Path, location: str, before: str = "", workers: int = 2) -> None:
        super().__init__(place)
        (place / "nginx.conf").write_text(f"""
pid {place}/pid;
error_log {place}/errors crit;
worker_processes {workers};
{before}
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {place}/body;
    server {{ listen 127.0.0.1:{PORT}; keepalive_requests 1000000; location / {{ {location} }} }}
}}
""")

    def command(self) -> Sequence[str | Path]:
        return "nginx", "-c", self.place / "nginx.conf", "-g", "daemon off; user root;"

    def workers(self) -> str:
        return Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()

    def errors(self) -> str:
        return (self.place / "errors").read_text()


class Http:
    """A connection with requests in a row; nginx closes it behind the answer to one that is wrong."""

    def __init__(self) -> None:
        self.connect()

    def connect(self) -> None:
        self.socket = connect()
        self.file = self.socket.makefile("rb")

    def answer(self) -> tuple[int, bytes]:
        first = self.file.readline()
        if not first:
            raise ConnectionError("no answer")
        length = 0
        for line in iter(self.file.readline, b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        return int(first.split()[1]), self.file.read(length)


class Redis(Server):
    def __init__(self, place: Path, *options: str | Path) -> None:
        super().__init__(place)
        self.options = options

    def command(self) -> Sequence[str | Path]:
        return ("redis-server", "--port", str(PORT), "--bind", "127.0.0.1", "--dir", self.place, "--save", "",
                "--appendonly", "no", *self.options)


class Postgres(Server):
    ends_at = signal.SIGINT     # though it has clients

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.programs = max(Path("/usr/lib/postgresql").glob("*/bin"))
        user = pwd.getpwnam("postgres")
        os.chown(place, user.pw_uid, user.pw_gid)
        self.prefix = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        run(*self.prefix, self.programs / "initdb", "-D", place / "data", "-A", "trust", "-U", "postgres", "--locale=C",
            "-E", "UTF8", "--no-sync")

    def command(self) -> Sequence[str | Path]:
        settings = ("listen_addresses=", "fsync=off", "log_destination=stderr", "log_min_messages=log",
                    "log_min_error_statement=panic")
        return (*self.prefix, self.programs / "postgres", "-D", self.place / "data", "-k", self.place,
                *(word for setting in settings for word in ("-c", setting)))

    def serves(self) -> bool:
        return not subprocess.run(self.psql("-c", "SELECT 1"), capture_output=True).returncode

    def errors(self) -> str:
        return (self.place / "stderr").read_text()

    def psql(self, *words: str) -> list[str]:
        return [str(self.programs / "psql"), "-h", str(self.place), "-U", "postgres", "-qtAX", *words]


def program(name: str) -> str:
    return shutil.which(name) or name
