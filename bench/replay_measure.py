# SPDX-License-Identifier: GPL-2.0-or-later
"""Measures for bench/run replay: our services and the peers', on this machine's disk and on one as
slow as the paper's."""

import ctypes
import http.client
import itertools
import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

TOP = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("PERDURE_BUILD", TOP / "build"))
PROGRAMS = BUILD / "userspace/bench"
LIBRARIES = BUILD / "userspace/userspace"
CTL = LIBRARIES / "replay/replayctl"
PEERS = BUILD / "bench/peers"
PARTS = ("peers", "paper", "checkpoints", "crashes", "clients", "recovery")
ROUNDS = int(os.environ.get("PERDURE_REPLAY_ROUNDS", "3"))
# The paper's: a flush, the round trip between two servers, and to the client
FLUSH_US, SERVERS_US, CLIENT_US = 8000, 3596, 3900
CLONE_NEWNS = 0x20000
RAW, SLOW, SLOW_DISK = "this disk", "the paper's regime", "a disk that flushes in 8 ms"
DBOS, UVICORN, RESTATE_SERVER, RESTATE_SDK = "dbos==3.4.0", "uvicorn[standard]==0.54.0", "1.7.12", "1.17.2"

Result = dict[str, Any]


class Missing(Exception):
    """What is needed and not there."""


class Failed(Exception):
    """What is there and does not do what it should."""


def say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


ports = itertools.count(20000 + os.getpid() % 100 * 50)


def free_port() -> int:
    """Below those that the kernel gives to connections: it may be used a while later only."""
    for port in ports:
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise AssertionError


def until(true: Callable[[], bool],
          what: str,
          process: subprocess.Popen[bytes] | None = None,
          seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end or (process and process.poll() is not None):
            raise Failed(f"{what} does not come up; build/log/bench-replay.log may say why")
        time.sleep(0.002)


def listens(port: int) -> bool:
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


def spawn(argv: list[object], env: dict[str, str] | None = None, **more: Any) -> "subprocess.Popen[bytes]":
    with (BUILD / "log/bench-replay.log").open("ab") as log:
        options: Any = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log} | more
        return subprocess.Popen([str(each) for each in argv], env=os.environ | (env or {}), **options)


def end(process: "subprocess.Popen[bytes] | None", sign: int = signal.SIGTERM) -> None:
    if process and process.poll() is None:
        process.send_signal(sign)
    if process:
        process.wait(60)


def quiet(*argv: object, **more: Any) -> None:
    subprocess.run([str(each) for each in argv], check=True, stdin=subprocess.DEVNULL, **more)


def own_mounts() -> None:
    """What is mounted here is in no namespace that others make meanwhile, which would keep it busy; and ends with us."""
    if os.geteuid() == 0 and ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) == 0:
        quiet("mount", "--make-rprivate", "/")


def unmount(place: Path) -> None:
    """A loop device lets go of its file a while later."""
    for _ in range(100):
        if subprocess.run(["umount", str(place)], stderr=subprocess.DEVNULL).returncode == 0:
            return
        time.sleep(0.1)
    quiet("umount", "-l", place)


@contextmanager
def slow_disks(count: int) -> Iterator[list[Path]]:
    """Directories, each on a disk of its own that flushes as slowly as the paper's."""
    if os.geteuid() or not os.access("/dev/fuse", os.W_OK) or not os.access("/dev/loop-control", os.W_OK):
        raise Missing("a disk as slow as the paper's needs root, /dev/fuse and /dev/loop-control")
    with ExitStack() as stack:
        where = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="replay-disks-")))
        where.chmod(0o755)
        found = []
        for n in range(count):
            fuse, place = where / f"fuse{n}", where / f"disk{n}"
            fuse.mkdir()
            place.mkdir()
            disk = spawn([PROGRAMS / "slow-disk", fuse, 1536, FLUSH_US], stdout=subprocess.PIPE)
            assert disk.stdout
            if disk.stdout.readline() != b"ready\n":
                raise Missing("a FUSE file system cannot be mounted here")
            stack.callback(end, disk, signal.SIGKILL)
            stack.callback(unmount, fuse)
            loop = subprocess.run(["losetup", "-f", "--show", "--direct-io=on", fuse / "disk"],
                                  check=True,
                                  stdout=subprocess.PIPE,
                                  text=True).stdout.strip()
            stack.callback(quiet, "losetup", "-d", loop)
            quiet("mkfs.ext4", "-q", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0", loop)
            quiet("mount", loop, place)
            stack.callback(unmount, place)
            place.chmod(0o755)
            found.append(place)
        yield found


@contextmanager
def raw_disks(count: int) -> Iterator[list[Path]]:
    """Directories of the disk that build/ is on: one disk for all."""
    (BUILD / "bench").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="replay-", dir=BUILD / "bench") as where:
        Path(where).chmod(0o755)
        found = [Path(where) / f"disk{n}" for n in range(count)]
        for each in found:
            each.mkdir()
        yield found


@contextmanager
def memory(count: int) -> Iterator[list[Path]]:
    """Where a flush costs nothing."""
    with tempfile.TemporaryDirectory(prefix="replay-", dir="/dev/shm") as where:
        found = [Path(where) / f"disk{n}" for n in range(count)]
        for each in found:
            each.mkdir()
        yield found


def relay(stack: ExitStack, delay_us: float, pairs: list[tuple[int, int]]) -> None:
    process = spawn(
        [PROGRAMS / "replay-relay", round(delay_us), *(f"{a}:{b}" for a, b in pairs)], stdout=subprocess.PIPE)
    assert process.stdout
    if process.stdout.readline() != b"ready\n":
        raise Failed("replay-relay does not come up")
    stack.callback(end, process)


def try_load(kind: str, port: int, clients: int, seconds: float, path: str, after_ns: int = 0) -> Result:
    """Nothing if nobody was answered in the time that counts, though all were later."""
    argv: list[str | Path] = [PROGRAMS / "replay-bench-client", kind, str(port), str(clients), str(seconds), path]
    done = subprocess.run(argv, env=os.environ | {"AFTER_NS": str(after_ns)}, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, text=True)
    if done.returncode == 3:
        return {}
    if done.returncode:
        raise Failed(f"{path} was answered wrongly or not at all: {done.stdout}")
    result: Result = json.loads(done.stdout)
    return result


def load(kind: str, port: int, clients: int, seconds: float, path: str) -> Result:
    result = try_load(kind, port, clients, seconds, path)
    if not result:
        raise Failed(f"{path} was not answered in time")
    return result


def write_us(directory: Path, sectors: int) -> float:
    """What a flush of as much takes on this disk, when nothing else does."""
    argv: list[str | Path] = [PROGRAMS / "replay-bench-client", "disk", directory / "write", str(sectors), "50"]
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE)
    return float(json.loads(done.stdout)["write_us"])


def round_trip_us(delay_us: float) -> float:
    """Of a message and its answer, through the relay; without it, when the delay is 0."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = listener.getsockname()[1]
        if delay_us:
            through = free_port()
            relay(stack, delay_us / 2, [(through, port)])
            port = through
        client = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        server = stack.enter_context(listener.accept()[0])
        for each in client, server:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def answer() -> None:
            for _ in range(60):
                server.sendall(server.recv(4096))

        threading.Thread(target=answer, daemon=True).start()
        times = []
        for _ in range(60):
            begin = time.perf_counter()
            client.sendall(bytes(100))
            client.recv(4096)
            times.append((time.perf_counter() - begin) * 1e6)
        return median(times)


class Server:
    """One of ours."""

    def __init__(self,
                 name: str,
                 directory: Path,
                 options: str = "",
                 more: str = "",
                 program: list[object] | None = None,
                 env: dict[str, str] | None = None) -> None:
        self.name, self.port, self.metrics = name, free_port(), free_port()
        self.log, self.config = directory / f"{name}.log", directory / f"{name}.conf"
        self.options, self.more, self.env = options, more, env or {}
        self.program = program or [PROGRAMS / "replay-bench-service"]
        self.process: subprocess.Popen[bytes] | None = None
        self.ending = False
        quiet(CTL, "format", self.log, "--size", "256M", stdout=subprocess.DEVNULL)

    def start(self, before: list[str] | None = None) -> "Server":
        self.config.write_text(f"[server]\nname = {self.name}\nlog = {self.log}\nlisten = 127.0.0.1:{self.port}\n"
                               f"metrics = 127.0.0.1:{self.metrics}\n{self.options}\n{self.more}")
        self.process = spawn([*(before or []), *self.program, self.config], self.env)
        return self

    def ready(self) -> "Server":
        """It has read its log, and serves."""
        until(lambda: "sessions_to_replay" in self.figures(), self.name, self.process)
        return self

    def figures(self) -> dict[str, int]:
        """None while it is not there."""
        connection = http.client.HTTPConnection("127.0.0.1", self.metrics, timeout=30)
        try:
            connection.request("GET", "/metrics")
            lines = connection.getresponse().read().decode().splitlines()
        except (OSError, http.client.HTTPException):
            return {}
        finally:
            connection.close()
        return {
            line.split()[0].removeprefix("replay_"): int(line.split()[1]) for line in lines if not line.startswith("#")
        }

    def replayed(self) -> bool:
        return self.figures().get("sessions_to_replay", 1) == 0

    def kill(self) -> None:
        end(self.process, signal.SIGKILL)

    def stop(self) -> None:
        self.ending = True
        end(self.process)

    def start_again_for_ever(self, pid_file: Path) -> None:
        """Whenever it ends, until it is stopped."""

        def keep() -> None:
            while not self.ending:
                assert self.process
                pid_file.write_text(f"{self.process.pid}\n")
                self.process.wait()
                if not self.ending:
                    self.start()

        threading.Thread(target=keep, daemon=True).start()


class Pair:
    """The paper's two servers. Of one domain (locally optimistic logging), or each for itself (pessimistic logging)."""

    def __init__(self,
                 stack: ExitStack,
                 label: str,
                 disks: list[Path],
                 regime: str,
                 domain: bool,
                 options: str = "",
                 stores: list[str] | None = None,
                 crash_every: int = 0) -> None:
        self.label, self.domain, slow = label, domain, regime == SLOW
        places = [disk / label.replace(" ", "-") for disk in disks]
        for place in places:
            place.mkdir(parents=True, exist_ok=True)
        pid_file = places[0] / "inner.pid"
        envs = [{"STORE": store} if store else {} for store in stores or ["", ""]]
        if crash_every:
            envs[0] |= {"CRASH_EVERY": str(crash_every), "CRASH_PID": str(pid_file)}
        self.front, self.inner = (Server(name, place, options, env=env)
                                  for name, place, env in zip(("front", "inner"), places, envs))
        domain_ports = [free_port(), free_port()]
        urls = {self.front: domain_ports[0], self.inner: domain_ports[1]} if domain else {self.inner: self.inner.port}
        if slow:
            through = {server: free_port() for server in urls}
            relay(stack, SERVERS_US / 2, [(through[server], port) for server, port in urls.items()])
            urls = through
        self.port = free_port() if slow else self.front.port
        if slow:
            relay(stack, CLIENT_US / 2, [(self.port, self.front.port)])
        if domain:
            key = places[0] / "key"
            key.write_text(secrets.token_hex(32) + "\n")
            members = "".join(f"[member {server.name}]\nnumber = {n}\nurl = http://127.0.0.1:{urls[server]}\n"
                              for n, server in enumerate((self.front, self.inner)))
            for server, port in zip((self.front, self.inner), domain_ports):
                server.more = f"[domain]\nlisten = 127.0.0.1:{port}\nkey = {key}\n{members}"
        else:
            self.front.more = f"[service inner]\nurl = http://127.0.0.1:{urls[self.inner]}\nprotocol = replay\n"
        for server in self.inner, self.front:
            server.start().ready()
            stack.callback(server.stop)
        if crash_every:
            self.inner.start_again_for_ever(pid_file)

    def load(self, clients: int, seconds: float, calls: int = 1) -> Result:
        """With what the logs did meanwhile, for each request."""
        before = [server.figures() for server in (self.front, self.inner)]
        result = load("replay", self.port, clients, seconds, "/outer" if calls == 1 else f"/outer{calls}")
        after = [server.figures() for server in (self.front, self.inner)]
        for name, key, unit in (("flushes", "log_flushes_total", 1), ("sectors", "log_written_bytes_total", 512)):
            result[name] = [(now[key] - then[key]) / unit / result["all"] for now, then in zip(after, before)]
        return {"system": self.label, "calls": calls} | result


class Postgres:
    """A cluster of its own, durable as it is by default."""

    def __init__(self, directory: Path) -> None:
        found = shutil.which("pg_ctl") or next(
            (str(p) for p in sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), reverse=True)), "")
        if not found:
            raise Missing("PostgreSQL (Debian: postgresql)")
        self.programs, self.port = Path(found).resolve().parent, free_port()
        self.data = directory / "postgres"
        self.data.mkdir(exist_ok=True)
        # A socket's path is short
        self.sockets = Path(tempfile.mkdtemp(prefix="replay-pg-"))
        self.socket = self.sockets / f".s.PGSQL.{self.port}"
        self.prefix: list[object] = []
        if not os.geteuid():
            try:
                user = pwd.getpwnam("postgres")
            except KeyError:
                raise Missing("the user postgres (Debian: postgresql)") from None
            for place in self.data, self.sockets:
                os.chown(place, user.pw_uid, user.pw_gid)
            self.prefix = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        initdb = [*self.prefix, self.programs / "initdb", "-D", self.data, "-A", "trust", "-U", "postgres"]
        quiet(*initdb, "-E", "UTF8", "--locale=C", stdout=subprocess.DEVNULL, cwd="/")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> "Postgres":
        # So large a log that no checkpoint falls into a round
        options = ("listen_addresses=127.0.0.1", "max_connections=100", "min_wal_size=256MB", "max_wal_size=4GB")
        argv = [*self.prefix, self.programs / "postgres", "-D", self.data, "-k", self.sockets, "-p", self.port]
        self.process = spawn([*argv, *(each for option in options for each in ("-c", option))], cwd="/")
        ready: list[str | Path] = [
            self.programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p",
            str(self.port), "-U", "postgres"
        ]
        until(lambda: subprocess.run(ready).returncode == 0, "PostgreSQL", self.process)
        return self

    def ask(self, *statements: str) -> str:
        argv: list[str | Path] = [self.programs / "psql", "-qtA", "-h", "127.0.0.1", "-p", str(self.port)]
        argv += ["-U", "postgres", *(each for one in statements for each in ("-c", one))]
        done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True)
        return done.stdout.strip()

    def kill(self) -> None:
        assert self.process
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        end(self.process, signal.SIGKILL)
        for child in children:
            try:
                os.kill(int(child), signal.SIGKILL)
            except ProcessLookupError:
                pass
        until(lambda: not any(Path(f"/proc/{child}").exists() for child in children), "the end of PostgreSQL")

    def stop(self) -> None:
        end(self.process, signal.SIGINT)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.sockets, ignore_errors=True)


class Peer:
    """A system that does the job. start() until it serves; kill() all of its processes."""

    name, kind, path = "", "key", ""
    port = 0

    def start(self, wait: bool = True) -> None:
        raise NotImplementedError

    def kill(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    def version(self) -> str:
        raise NotImplementedError


class Ours(Peer):
    name, kind, path = "libreplay, C", "replay", "/job"

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        self.server = Server("c", directory)
        self.port = self.server.port
        stack.callback(self.stop)

    def start(self, wait: bool = True) -> None:
        self.server.start()
        if wait:
            self.server.ready()

    def kill(self) -> None:
        self.server.kill()

    def stop(self) -> None:
        self.server.stop()

    def version(self) -> str:
        return (TOP / "VERSION").read_text().strip() + ", log written with RWF_DSYNC"


class OursInPython(Ours):
    name = "libreplay, Python"

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        self.server = Server("python",
                             directory,
                             program=[sys.executable, TOP / "bench/peers/perdure-service.py"],
                             env={
                                 "PYTHONPATH": str(TOP / "userspace/python"),
                                 "LD_LIBRARY_PATH": f"{LIBRARIES / 'replay'}:{LIBRARIES / 'libperdure'}"
                             })
        self.port = self.server.port
        stack.callback(self.stop)

    def version(self) -> str:
        return f"{super().version()}, Python {sys.version.split()[0]}"


class Dbos(Peer):
    name, path = "DBOS", "/job/%s"

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        self.python = PEERS / "venv/bin/python"
        if not (PEERS / "venv/ready").is_file():
            say("installs DBOS into build/bench/peers")
            try:
                quiet(sys.executable, "-m", "venv", "--clear", PEERS / "venv")
                quiet(self.python, "-m", "pip", "install", "-q", "--disable-pip-version-check", DBOS, UVICORN)
            except (OSError, subprocess.CalledProcessError):
                raise Missing("DBOS: pip could not install it") from None
            (PEERS / "venv/ready").touch()
        self.database = Postgres(directory)
        stack.callback(self.database.remove)
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        stack.callback(self.stop)

    def start(self, wait: bool = True) -> None:
        self.database.start()
        url = f"postgresql://postgres@127.0.0.1:{self.database.port}/postgres"
        self.process = spawn([self.python, TOP / "bench/peers/dbos-service.py", self.port, url], cwd="/")
        if wait:
            until(lambda: listens(self.port), self.name, self.process)

    def kill(self) -> None:
        end(self.process, signal.SIGKILL)
        self.database.kill()

    def stop(self) -> None:
        end(self.process)
        self.database.stop()

    def version(self) -> str:
        python = subprocess.run([self.python, "--version"], stdout=subprocess.PIPE, text=True).stdout.split()[-1]
        settings = ", ".join(f"{name} = {self.database.ask(f'SHOW {name}')}"
                             for name in ("server_version", "fsync", "synchronous_commit"))
        return f"{DBOS}, {UVICORN}, Python {python}, PostgreSQL {settings}"


class Restate(Peer):
    name, path = "Restate", "/session/%s/job"

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        self.node = shutil.which("node") or ""
        if not self.node or not shutil.which("npm"):
            raise Missing("Restate: node and npm (Debian: nodejs, npm)")
        if not (PEERS / "npm/ready").is_file():
            say("installs Restate into build/bench/peers")
            shutil.rmtree(PEERS / "npm", ignore_errors=True)
            PEERS.mkdir(parents=True, exist_ok=True)
            try:
                quiet("npm", "install", "--silent", "--no-fund", "--no-audit", "--ignore-scripts", "--prefix",
                      PEERS / "npm", f"@restatedev/restate-server@{RESTATE_SERVER}",
                      f"@restatedev/restate-sdk@{RESTATE_SDK}", stdout=subprocess.DEVNULL)
            except (OSError, subprocess.CalledProcessError):
                raise Missing("Restate: npm could not install it") from None
            (PEERS / "npm/ready").touch()
        found = list((PEERS / "npm/node_modules/@restatedev").glob("restate-server-*/bin/restate-server"))
        if len(found) != 1:
            raise Missing("Restate: npm has no server for this machine")
        self.program = found[0]
        self.data = directory / "restate"
        # Its modules are found from where it is
        shutil.copy(TOP / "bench/peers/restate-service.mjs", PEERS / "npm/service.mjs")
        self.port, self.admin, self.internal, self.service = (free_port() for _ in range(4))
        self.processes: list[subprocess.Popen[bytes]] = []
        self.registered = False
        stack.callback(self.stop)

    def start(self, wait: bool = True) -> None:
        environment = {
            "RESTATE_DISABLE_TELEMETRY": "true", "RESTATE_INGRESS__BIND_PORT": str(self.port),
            "RESTATE_ADMIN__BIND_PORT": str(self.admin), "RESTATE_LOG_FILTER": "warn"
        }
        self.processes = [
            spawn([self.node, PEERS / "npm/service.mjs", self.service],
                  {"NODE_ENV": "production", "RESTATE_LOGGING": "ERROR"}),
            spawn([
                self.program, "--base-dir", self.data, "--node-name", "bench", "--listen-mode", "tcp", "--bind-ip",
                "127.0.0.1", "--bind-port", self.internal, "--no-logo"
            ], environment)
        ]
        if not wait:
            return
        for port in self.service, self.port, self.admin:
            until(lambda: listens(port), self.name, self.processes[-1])
        until(self.register, "the service of Restate")

    def register(self) -> bool:
        if self.registered:
            return True
        connection = http.client.HTTPConnection("127.0.0.1", self.admin, timeout=30)
        try:
            connection.request("POST", "/deployments", json.dumps({"uri": f"http://127.0.0.1:{self.service}"}),
                               {"Content-Type": "application/json"})
            self.registered = connection.getresponse().status in (200, 201)
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
        return self.registered

    def kill(self) -> None:
        for process in self.processes:
            end(process, signal.SIGKILL)

    def stop(self) -> None:
        for process in reversed(self.processes):
            end(process)

    def version(self) -> str:
        node = subprocess.run([self.node, "--version"], stdout=subprocess.PIPE, text=True).stdout.strip()
        return (f"restate-server {RESTATE_SERVER}, restate-sdk {RESTATE_SDK}, Node.js {node}, its log as by default, "
                "flushed")


def crash(peer: Peer, clients: int = 10) -> float | None:
    """Milliseconds from kill -9 of all that it is, under load, to the first request that is answered;
    None if it did not answer before, either. All are answered, once."""
    results: list[Result] = []
    killed = time.monotonic_ns() + 2000000000

    def ask() -> None:
        results.append(try_load(peer.kind, peer.port, clients, 4, peer.path, killed))

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep((killed - time.monotonic_ns()) / 1e9)
    peer.kill()
    peer.start(wait=False)
    thread.join()
    if not results:
        raise Failed(f"{peer.name} lost requests in the crash, or executed them twice")
    return float(results[0]["gap_end_ns"] - killed) / 1e6 if results[0] else None


def peers(disk: str, rounds: int) -> Iterator[Result]:
    """The same job by ours and the peers, one system after the other, in turn; nothing else of them runs meanwhile."""
    slow = disk == SLOW_DISK
    with ExitStack() as stack:
        place = stack.enter_context(slow_disks(1) if slow else raw_disks(1))[0]
        found: list[Peer] = []
        for system in (Ours, OursInPython, Dbos, Restate):
            try:
                found.append(system(stack, place))
            except Missing as e:
                say(f"peers: skipped: {e} is not to be had")
        for n in range(rounds):
            for peer in found if n % 2 == 0 else reversed(found):
                peer.start()
                if n == 0:
                    say(f"peers: {peer.name}: {peer.version()}")
                # The first requests find caches empty and pools without connections
                try_load(peer.kind, peer.port, 10, 2, peer.path)
                for clients in (1, 100) if slow else (1, 10, 100):
                    result = try_load(peer.kind, peer.port, clients, 4, peer.path)
                    result = result or try_load(peer.kind, peer.port, clients, 20, peer.path)
                    if not result:
                        say(f"peers: {peer.name}: {clients} clients: nobody was answered in 16 s")
                        continue
                    yield {"part": "peers", "disk": disk, "system": peer.name, "round": n} | result
                outage = None if slow else crash(peer)
                if outage is not None:
                    yield {"part": "peers", "disk": disk, "system": peer.name, "round": n, "outage_ms": outage}
                peer.stop()


def store(stack: ExitStack, directory: Path) -> Postgres:
    database = Postgres(directory)
    stack.callback(database.remove)
    database.start().ask("CREATE TABLE sessions (id text PRIMARY KEY, state text, locked boolean)",
                         "ALTER TABLE sessions ALTER state SET STORAGE EXTERNAL")
    return database


def redis(stack: ExitStack, slow: bool) -> int:
    program = shutil.which("redis-server")
    if not program:
        raise Missing("Redis (Debian: redis-server)")
    port = free_port()
    stack.callback(end,
                   spawn([program, "--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no"], cwd="/"))
    until(lambda: listens(port), "Redis")
    if not slow:
        return port
    # It is on a computer of its own
    through = free_port()
    relay(stack, SERVERS_US / 2, [(through, port)])
    return through


def paper(regime: str, rounds: int) -> Iterator[Result]:
    """Figure 14."""
    slow = regime == SLOW
    with ExitStack() as stack:
        disks = stack.enter_context(slow_disks(2) if slow else raw_disks(2))
        nowhere = stack.enter_context(memory(2))
        pairs = [
            Pair(stack, "LoOptimistic", disks, regime, True),
            Pair(stack, "Pessimistic", disks, regime, False),
            Pair(stack, "NoLog", nowhere, regime, False)
        ]
        try:
            databases = [store(stack, disk) for disk in disks]
            for label, how in (("Psession", "postgres"), ("Psession, locked", "postgres-locked")):
                pairs.append(
                    Pair(stack, label, nowhere, regime, False, stores=[f"{how}:{one.socket}" for one in databases]))
        except Missing as e:
            say(f"paper: Psession is skipped: {e} is not to be had")
        try:
            pairs.append(Pair(stack, "StateServer", nowhere, regime, False, stores=[f"redis:{redis(stack, slow)}"] * 2))
        except Missing as e:
            say(f"paper: StateServer is skipped: {e} is not to be had")
        for n in range(rounds):
            yield {
                "part": "paper", "regime": regime, "round": n,
                "flush_us": [write_us(disks[0], sectors) for sectors in (2, 3)],
                "message_us": round_trip_us(SERVERS_US if slow else 0)
            }
            for calls, seconds in ((1, 5), (2, 3), (4, 3)) if slow else ((1, 3),):
                for pair in pairs if n % 2 == 0 else reversed(pairs):
                    yield {"part": "paper", "regime": regime, "round": n} | pair.load(1, seconds, calls)


def checkpoints(regime: str, rounds: int) -> Iterator[Result]:
    """Figure 15 (a): a session's checkpoint after as much of the log."""
    thresholds = ("64k", "128k", "256k", "512k", "1M", "4M", "1024G") if regime == RAW else ("64k", "256k", "1024G")
    with ExitStack() as stack:
        disks = stack.enter_context(slow_disks(2) if regime == SLOW else raw_disks(2))
        pairs = [Pair(stack, each, disks, regime, True, f"session_checkpoint = {each}") for each in thresholds]
        for n in range(rounds):
            for pair in pairs if n % 2 == 0 else reversed(pairs):
                yield {"part": "checkpoints", "regime": regime, "round": n} | pair.load(1, 3 if regime == RAW else 6)


def crashes(regime: str, rounds: int) -> Iterator[Result]:
    """Figures 15 (b) and 16: the inner server is killed every 1000 requests, when its answer has come,
    and started again."""
    with ExitStack() as stack:
        disks = stack.enter_context(slow_disks(2) if regime == SLOW else raw_disks(2))
        pairs = [
            Pair(stack,
                 f"{'LoOptimistic' if domain else 'Pessimistic'}, {'crashes' if every else 'none'}",
                 disks,
                 regime,
                 domain,
                 crash_every=every) for domain in (True, False) for every in (1000, 0)
        ]
        for n in range(rounds):
            for pair in pairs:
                crashing = pair.label.endswith("crashes")
                seconds = (45 if pair.domain else 65) if regime == SLOW and crashing else 8
                # Counters of a server that was killed begin again: nothing is said of them
                result = load("replay", pair.port, 1, seconds, "/outer")
                yield {"part": "crashes", "regime": regime, "system": pair.label, "round": n} | result


def clients(regime: str, rounds: int) -> Iterator[Result]:
    """Figure 17."""
    with ExitStack() as stack:
        disks = stack.enter_context(slow_disks(2))
        pairs = [
            Pair(stack, f"{'LoOptimistic' if domain else 'Pessimistic'}{', batch' if batch else ''}", disks, regime,
                 domain, batch) for domain in (True, False) for batch in ("", "batch = 8ms")
        ]
        for n in range(rounds):
            for count in (1, 2, 4, 6, 8):
                for pair in pairs if n % 2 == 0 else reversed(pairs):
                    yield {"part": "clients", "regime": regime, "round": n} | pair.load(count, 2.5)


def recovery(regime: str, rounds: int) -> Iterator[Result]:
    """How fast requests are replayed, beside how fast they were executed; with one processor and with two."""
    with ExitStack() as stack:
        disks = stack.enter_context(slow_disks(2) if regime == SLOW else raw_disks(2))
        for n in range(rounds):
            with ExitStack() as once:
                pair = Pair(once, f"round{n}", disks, regime, True, "session_checkpoint = 1024G")
                executed = pair.load(1, 12 if regime == SLOW else 3)
                pair.front.kill()
                yield {
                    "part": "recovery", "regime": regime, "round": n, "case": "1 session",
                    "mean_us": executed["mean_us"], "requests_s": executed["requests_s"], **replay(pair.front)
                }
        if regime == SLOW:
            return
        processors = sorted(os.sched_getaffinity(0))
        server = Server("many", disks[0], "session_checkpoint = 1024G\nserver_checkpoint = 1024G").start().ready()
        stack.callback(server.stop)
        executed = load("replay", server.port, 100, 4, "/job")
        server.kill()
        shutil.copy(server.log, copy := disks[0] / "copy")
        for n in range(rounds):
            for count in (1, 2) if n % 2 == 0 else (2, 1):
                if count > len(processors):
                    continue
                shutil.copy(copy, server.log)
                os.sync()
                before = ["taskset", "-c", ",".join(map(str, processors[:count]))]
                yield {
                    "part": "recovery", "regime": regime, "round": n, "case": "100 sessions", "processors": count,
                    "requests_s": executed["requests_s"], **replay(server, before)
                }
                server.kill()


def replay(server: Server, before: list[str] | None = None) -> Result:
    begin = time.monotonic()
    server.start(before)
    until(server.replayed, server.name, server.process)
    return {"recovery_s": time.monotonic() - begin, "replayed": server.figures()["replayed_total"]}


def measure(parts: list[str], keep: Callable[[list[Result]], None]) -> list[Result]:
    """keep() gets all that is known, each time that there is more."""
    results: list[Result] = []
    (BUILD / "log").mkdir(parents=True, exist_ok=True)
    (BUILD / "log/bench-replay.log").write_bytes(b"")
    own_mounts()
    fewer = max(1, ROUNDS - 1)
    plan: dict[str, list[tuple[Callable[[str, int], Iterator[Result]], str, int]]] = {
        "peers": [(peers, RAW, ROUNDS), (peers, SLOW_DISK, fewer)],
        "paper": [(paper, SLOW, ROUNDS), (paper, RAW, ROUNDS)],
        "checkpoints": [(checkpoints, RAW, ROUNDS), (checkpoints, SLOW, fewer)],
        "crashes": [(crashes, SLOW, 1), (crashes, RAW, 1)],
        "clients": [(clients, SLOW, fewer)],
        "recovery": [(recovery, SLOW, 1), (recovery, RAW, ROUNDS)],
    }
    for part in parts:
        for function, regime, rounds in plan[part]:
            say(f"{part}: {regime}")
            try:
                for result in function(regime, rounds):
                    results.append(result)
                    keep(results)
                    told = {
                        "requests_s": "{:.1f} requests/s", "p50_us": "p50 {:.0f} us", "p99_us": "p99 {:.0f} us",
                        "max_us": "max {:.0f} us", "outage_ms": "served again after {:.0f} ms",
                        "recovery_s": "recovered in {:.3f} s", "replayed": "{} replayed",
                        "message_us": "a round trip takes {:.0f} us"
                    }
                    say(f"{part}: {result.get('system', result.get('case', ''))}: " +
                        (f"{result['clients']} clients: " if "clients" in result else "") +
                        (f"{result['calls']} calls: " if result.get("calls", 1) > 1 else "") +
                        ", ".join(form.format(result[key]) for key, form in told.items() if key in result))
            except Missing as e:
                say(f"{part}: {regime}: skipped: {e}")
            except Failed as e:
                results.append({"part": "failed", "what": f"{part}: {regime}", "why": str(e)})
                say(f"{part}: {regime}: failed: {e}")
    return results
