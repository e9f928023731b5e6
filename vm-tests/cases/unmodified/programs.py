#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Servers as Debian has them, under perdurectl run: programs.py [--measure|--alone] NAME [ROUNDS]. Beside it, the same under systemd.

--measure compares the times of both, the least of each: this host's disk makes a guest wait. It needs a clock which others on
the machine do not disturb:
./build.sh run --icount -- vm-tests/cases/unmodified/programs.py --measure nginx
"""

import contextlib
import dataclasses
import os
import pwd
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "hygiene"))
import ktap  # noqa: E402
from manager import START_S, Systemd, children  # noqa: E402

CTL = Path(os.environ["PERDURE_BUILD"]) / "userspace/userspace/tools/perdurectl"
HOST = "127.0.0.1"
PORT = 7100
RESTART_SEC = 0.1       # systemd's default
FEW = 8                 # faults that are measured
END_S = 20
QUICK_S = 2.5           # who dies earlier is started later

Ping = Callable[[socket.socket], bool]


# ---- one question and its answer, in each protocol; the connection stays open

def ask(s: socket.socket, question: bytes, end: bytes) -> bool:
    s.sendall(question)
    got = b""
    while end not in got:
        data = s.recv(65536)
        if not data:
            return False
        got += data
    return True


def http(s: socket.socket) -> bool:
    return ask(s, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"here it is\n")


def redis(s: socket.socket) -> bool:
    return ask(s, b"PING\r\n", b"+PONG\r\n")


def memcached(s: socket.socket) -> bool:
    return ask(s, b"version\r\n", b"VERSION ")


def postgresql(s: socket.socket) -> bool:
    """A session begins, or goes on."""
    try:
        s.getpeername()
        words = b"user\0postgres\0database\0postgres\0\0"
        return ask(s, struct.pack(">II", len(words) + 8, 196608) + words, b"Z\0\0\0\5I")
    except OSError:
        return False


def mariadb(s: socket.socket) -> bool:
    """The greeting, with the protocol's version and the server's."""
    data = s.recv(65536)
    return data[4:5] == b"\x0a"


# ---- programs

@dataclasses.dataclass
class Program:
    command: list[object]
    ping: Ping
    user: str = "root"                      # under which it is started
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    given: list[object] | None = None       # the command for one that is given its sockets (LISTEN_FDS)
    options: tuple[object, ...] = ()        # of perdurectl run
    shim: bool = True                       # does the preloaded library keep its port?
    prepare: Callable[[], None] | None = None


def www(name: str) -> Path:
    place = PLACE / name
    place.mkdir(exist_ok=True)
    (place / "index.html").write_text("here it is\n")
    return place


def config(name: str, text: str) -> Path:
    path = PLACE / name
    path.write_text(text)
    return path


def http_server() -> Program:
    return Program([sys.executable, "-m", "http.server", PORT, "-b", HOST, "-p", "HTTP/1.1", "-d", www("www")], http)


def nginx() -> Program:
    conf = config("nginx.conf", f"user www-data;\npid {PLACE}/nginx.pid;\nerror_log {PLACE}/errors;\nworker_processes 2;\ndaemon off;\n"
                  f"events {{ worker_connections 64; }}\nhttp {{ access_log off; client_body_temp_path {PLACE}/body;\n"
                  f"server {{ listen {HOST}:{PORT}; location / {{ return 200 'here it is\\n'; }} }} }}\n")
    return Program(["nginx", "-p", PLACE, "-e", f"{PLACE}/errors", "-c", conf], http, options=("--pid-file", PLACE / "nginx.pid"))


def lighttpd() -> Program:
    text = (f"server.document-root = \"{www('www')}\"\nserver.username = \"www-data\"\nserver.groupname = \"www-data\"\n"
            "index-file.names = (\"index.html\")\n")
    own = config("lighttpd.conf", text + f"server.bind = \"{HOST}\"\nserver.port = {PORT}\nserver.pid-file = \"{PLACE}/lighttpd.pid\"\n")
    given = config("given.conf", own.read_text() + "server.systemd-socket-activation = \"enable\"\n")
    return Program(["lighttpd", "-D", "-f", own], http, given=["lighttpd", "-D", "-f", given], options=("--pid-file", PLACE / "lighttpd.pid"))


def apache() -> Program:
    modules = "".join(f"LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n" for name in ("mpm_event", "authz_core", "dir"))
    conf = config("apache.conf", f"ServerName a\nServerRoot {PLACE}\nPidFile {PLACE}/apache.pid\nErrorLog {PLACE}/errors\nMutex pthread\n{modules}"
                  f"User www-data\nGroup www-data\nStartServers 2\nMinSpareThreads 25\nListen {HOST}:{PORT}\nDocumentRoot {www('www')}\nDirectoryIndex index.html\n")
    return Program(["apache2", "-D", "FOREGROUND", "-f", conf], http, options=("--pid-file", PLACE / "apache.pid"))


def haproxy() -> Program:
    text = ("global\n  user haproxy\n  group haproxy\n  nbthread 2\ndefaults\n  mode http\n  timeout client 60s\nfrontend f\n  bind {}\n"
            "  http-request return status 200 content-type text/plain string \"here it is\\n\"\n")
    own, given = (config(name, text.format(where)) for name, where in (("own.cfg", f"{HOST}:{PORT}"), ("given.cfg", "fd@3")))
    return Program(["haproxy", "-W", "-f", own], http, given=["haproxy", "-W", "-f", given],
                   shim=False)      # its worker has the socket, not its first process


def redis_server() -> Program:
    # Its report of a crash takes seconds on an emulated machine, with or without us
    return Program(["redis-server", "--port", PORT, "--bind", HOST, "--save", "", "--crash-log-enabled", "no", "--dir", PLACE], redis, user="redis")


def memcached_server() -> Program:
    return Program(["memcached", "-u", "memcache", "-p", PORT, "-l", HOST, "-U", 0], memcached)


def gunicorn() -> Program:
    config("app.py", "def app(environ, start):\n    start('200 OK', [('Content-Length', '11')])\n    return [b'here it is\\n']\n")
    words = ["gunicorn", "-w", 2, "-k", "gthread", "--chdir", PLACE, "--worker-tmp-dir", "/dev/shm"]
    return Program([*words, "-b", f"{HOST}:{PORT}", "app:app"], http, user="www-data", given=[*words, "app:app"])


def node() -> Program:
    text = "require('http').createServer((q, a) => a.end('here it is\\n')).listen(%s);\n"
    own, given = (config(name, text % what) for name, what in (("own.js", f"{PORT}, '{HOST}'"), ("given.js", "{fd: 3}")))
    return Program(["node", own], http, user="www-data", given=["node", given])


def postgresql_server() -> Program:
    programs = max(Path("/usr/lib/postgresql").iterdir()) / "bin"
    data = PLACE / "data"

    def prepare() -> None:
        data.mkdir()
        shutil.chown(data, "postgres", "postgres")
        ktap.output("setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups", programs / "initdb", "-D", data, "-A", "trust",
                    "--no-sync", "--locale=C", "-E", "UTF8", cwd=PLACE)

    return Program([programs / "postgres", "-D", data, "-p", PORT, "-k", PLACE, "-c", f"listen_addresses={HOST}", "-c", "fsync=off"], postgresql,
                   user="postgres", prepare=prepare, options=("--pid-file", data / "postmaster.pid"))


def mariadb_server() -> Program:
    data = PLACE / "data"

    def prepare() -> None:
        ktap.output("mariadb-install-db", "--no-defaults", "--user=mysql", f"--datadir={data}", "--skip-test-db", cwd=PLACE)

    return Program(["mariadbd", "--no-defaults", "--user=mysql", f"--datadir={data}", f"--port={PORT}", f"--bind-address={HOST}",
                    f"--socket={PLACE}/sock", f"--pid-file={PLACE}/mariadb.pid",
                    "--innodb-flush-log-at-trx-commit=0",
                    # Its report of a crash may take longer than the 10 s that it gives who does not log in
                    "--connect-timeout=600"], mariadb, prepare=prepare)


def java() -> Program:
    source = config("Server.java", """
        public class Server {
            public static void main(String[] words) throws Exception {
                var server = com.sun.net.httpserver.HttpServer.create(new java.net.InetSocketAddress("%s", %d), 50);
                server.createContext("/", q -> {
                    q.sendResponseHeaders(200, 11);
                    q.getResponseBody().write("here it is\\n".getBytes());
                    q.close();
                });
                server.start();
            }
        }""" % (HOST, PORT))

    def prepare() -> None:
        ktap.output("javac", "-d", PLACE, source)

    # A SIGSEGV by kill(1) is a report and an abort()
    return Program(["java", "-Xshare:auto", "-XX:ErrorFile=/dev/null", "-cp", PLACE, "Server"], http, user="www-data",
                   prepare=prepare)


def go() -> Program:
    source = config("server.go", """package main

import (
	"io"
	"net"
	"net/http"
	"os"
)

func main() {
	var l net.Listener
	var err error
	if os.Getenv("LISTEN_FDS") != "" {
		l, err = net.FileListener(os.NewFile(3, "given"))
	} else {
		l, err = net.Listen("tcp", "%s:%d")
	}
	if err != nil {
		panic(err)
	}
	panic(http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		io.WriteString(w, "here it is\\n")
	})))
}
""" % (HOST, PORT))

    def prepare() -> None:
        ktap.output("go", "build", "-o", PLACE / "server", source, cwd=PLACE,
                    env={"GOCACHE": str(PLACE / "cache"), "CGO_ENABLED": "0", "GO111MODULE": "off"})

    # Go's own end after a fault is exit status 2, unless it is to crash
    return Program([PLACE / "server"], http, user="www-data", environment={"GOTRACEBACK": "crash"}, given=[PLACE / "server"], prepare=prepare,
                   shim=False)      # it makes its system calls itself


PROGRAMS: dict[str, Callable[[], Program]] = {
    "http_server": http_server, "nginx": nginx, "lighttpd": lighttpd, "apache": apache, "haproxy": haproxy, "redis": redis_server,
    "memcached": memcached_server, "gunicorn": gunicorn, "node": node, "postgresql": postgresql_server, "mariadb": mariadb_server, "java": java,
    "go": go,
}


# ---- processes

def family(pid: int) -> list[int]:
    """The process and all that descend from it, but for those that have just ended."""
    found = [pid]
    for one in found:
        try:
            found += [child for task in Path(f"/proc/{one}/task").iterdir() for child in map(int, (task / "children").read_text().split())]
        except OSError:
            pass
    return found


def files(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


class Server:
    """The program under perdurectl run."""

    def __init__(self, program: Program, command: list[object], options: list[object]) -> None:
        self.program = program
        words = [CTL, "run", "--burst", 64, "--interval", 1, *options, *program.options, "--", *command]
        user = pwd.getpwnam(program.user)
        self.errors = open(PLACE / "said", "ab")
        self.process = subprocess.Popen(list(map(str, words)), stdin=subprocess.DEVNULL, stdout=self.errors, stderr=self.errors, cwd=PLACE, start_new_session=True,
                                        user=user.pw_uid, group=user.pw_gid, extra_groups=os.getgrouplist(user.pw_name, user.pw_gid),
                                        env=os.environ | {"HOME": str(PLACE)} | program.environment)

    def main(self) -> int:
        """The program's first process: below a keeper, where there is one."""
        kept = os.readlink(f"/proc/{self.process.pid}/exe") == str(CTL.resolve())
        return children(self.process.pid)[0] if kept else self.process.pid

    def processes(self) -> list[int]:
        return family(self.process.pid)

    def alive(self) -> None:
        assert self.process.poll() is None, f"it has ended with {self.process.returncode}: {(PLACE / 'said').read_text()[-2000:]}"

    def terminates(self) -> bool:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self) -> None:
        for pid in reversed(self.processes()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()
        self.errors.close()


class Unit:
    """The program as a service of systemd, with Restart=always and what else systemd does by itself; for one that is given its
    sockets, with a socket unit."""

    def __init__(self, systemd: Systemd, program: Program, command: list[object], given: bool) -> None:
        self.systemd, self.program, self.names = systemd, program, ["server.socket"] * given + ["server.service"]
        words = " ".join('"' + re.sub(r'(["\\])', r"\\\1", str(word)).replace("%", "%%").replace("$", "$$") + '"' for word in command)
        environment = "".join(f"Environment={name}={value}\n" for name, value in ({"HOME": PLACE} | program.environment).items())
        (systemd.units / "server.service").write_text(
            "[Unit]\nDefaultDependencies=no\nStartLimitIntervalSec=0\n[Service]\nRestart=always\n"
            f"ExecStart={words}\nUser={program.user}\nWorkingDirectory={PLACE}\n{environment}"
            f"StandardOutput=append:{PLACE}/said\nStandardError=append:{PLACE}/said\n")
        if given:
            (systemd.units / "server.socket").write_text(f"[Unit]\nDefaultDependencies=no\n[Socket]\nListenStream={HOST}:{PORT}\n")
        systemd.ctl("daemon-reload")
        systemd.ctl("start", *self.names)

    def processes(self) -> list[int]:
        try:
            return [int(pid) for pid in (self.systemd.cgroup / "system.slice/server.service/cgroup.procs").read_text().split()]
        except OSError:
            return []

    def main(self) -> int:
        begun = time.monotonic()
        while time.monotonic() - begun < START_S:       # there is none while it is started again
            inside = self.systemd.ctl("show", "-p", "MainPID", "--value", "server.service")
            for pid in self.processes():
                try:
                    found = re.search(r"^NSpid:.*\s(\d+)$", Path(f"/proc/{pid}/status").read_text(), re.M)
                except OSError:
                    continue
                if found and found[1] == inside:
                    return pid
            time.sleep(0.1)
        raise RuntimeError("systemd has no main process")

    def alive(self) -> None:
        assert self.systemd.process.poll() is None, "systemd has ended"

    def terminates(self) -> bool:
        self.systemd.ctl("stop", *self.names)
        return True

    def stop(self) -> None:
        self.systemd.ctl("stop", *self.names)


class Busy:
    """
    When times are measured, a process that computes while nothing else does. The clock of a guest that counts instructions jumps to the
    next timer when the guest is idle: waiting for a file of the host's may take no time then, or a minute.
    """

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", "while True: pass"], stdin=subprocess.DEVNULL) if MEASURE else None
        if self.process:
            os.sched_setscheduler(self.process.pid, os.SCHED_IDLE, os.sched_param(0))

    def signal(self, sig: int) -> None:
        if self.process:
            self.process.send_signal(sig)

    def end(self) -> None:
        self.signal(signal.SIGKILL)

    @contextlib.contextmanager
    def at_rest(self) -> Iterator[None]:
        """Nothing is to happen: the clock may jump."""
        self.signal(signal.SIGSTOP)
        yield
        self.signal(signal.SIGCONT)


def succeed(server: Server | Unit, old: Sequence[int] = ()) -> float:
    """When a new connection has had an answer, from now; not by these processes, which have the socket as long as they live."""
    begun = time.monotonic()
    while time.monotonic() - begun < START_S:
        server.alive()
        try:
            if not any(Path(f"/proc/{pid}").exists() for pid in old):
                with socket.create_connection((HOST, PORT), timeout=30) as s:
                    if server.program.ping(s):
                        return time.monotonic() - begun
        except OSError:
            pass
        time.sleep(0.002)
    raise RuntimeError(f"no answer: {(PLACE / 'said').read_text()[-2000:]}")


def settled(server: Server | Unit) -> tuple[int, int]:
    """Processes, and descriptors of the first one, once they have stayed the same for a second."""
    main_process = server.main()    # which takes time, too
    last, since, begun = (0, 0), time.monotonic(), time.monotonic()
    while time.monotonic() - since < 1 and time.monotonic() - begun < 30:
        now = (len(server.processes()), files(main_process))
        if now != last:
            last, since = now, time.monotonic()
        time.sleep(0.05)
    return last


def said_by_us() -> str:
    return " ".join(re.findall(r"perdurectl: .*", (PLACE / "said").read_text())) or "perdurectl said nothing"


class Refused:
    """Others connect all the time; how many were refused?"""

    def __init__(self) -> None:
        self.count, self.tried, self.over = 0, 0, False
        self.thread = threading.Thread(target=self.go)
        self.thread.start()

    def go(self) -> None:
        while not self.over:
            with socket.socket() as s:
                s.settimeout(1)
                self.tried += 1
                try:
                    s.connect((HOST, PORT))
                except ConnectionRefusedError:
                    self.count += 1
                except OSError:
                    pass
            time.sleep(0.005)

    def end(self) -> int:
        self.over = True
        self.thread.join()
        return self.count


def opened(server: Server | Unit) -> socket.socket:
    """A connection that has been served, and stays open."""
    begun = time.monotonic()
    while time.monotonic() - begun < START_S:
        try:
            s = socket.create_connection((HOST, PORT), timeout=30)
        except OSError:     # a worker that was about to end may have answered before
            time.sleep(0.02)
            continue
        try:
            if server.program.ping(s):
                return s
        except OSError:
            pass
        s.close()
        time.sleep(0.02)
    raise RuntimeError("no connection stays open")


def ended(s: socket.socket) -> float:
    """How long until the connection is over."""
    begun = time.monotonic()
    s.settimeout(END_S)
    try:
        while s.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return time.monotonic() - begun


class Seen:
    """What a way to run the program has shown."""

    def __init__(self, kept: bool) -> None:
        self.kept = kept                # are its sockets?
        self.times: list[float] = []    # until a new connection succeeds, in seconds
        self.refused: list[int] = []    # connections, of others that connect all the time
        self.left: int | None = None    # processes, and descriptors of the first one, more than after the first fault


def faults(server: Server | Unit, rounds: int, seen: Seen) -> Iterator[str]:
    """Fault after fault: new connections succeed, old ones end, nobody is refused, nothing is left."""
    try:
        succeed(server)
        started = time.monotonic()
        first: tuple[int, int] = (0, 0)
        for number in range(rounds):
            with BUSY.at_rest():
                time.sleep(max(0, started + QUICK_S - time.monotonic()))
            old, before = opened(server), server.main()
            workers = family(before)[1:]
            # They take time of their own: only every second fault is measured
            refused = None if number % 2 else Refused()
            try:
                begun = time.monotonic()
                os.kill(before, signal.SIGSEGV)
                until_end = ended(old)
                succeed(server, workers)
                took = time.monotonic() - begun
            except TimeoutError:
                yield f"fault {number}: the old connection has not ended after {END_S} s"
                return
            finally:
                count = refused.end() if refused else 0
                old.close()
            started = time.monotonic()
            if refused:
                seen.refused.append(count)
            else:
                seen.times.append(took)
            with BUSY.at_rest() if number else contextlib.nullcontext():
                now = settled(server)
            print(f"#   fault {number}: the old connection ended after {until_end * 1000:.0f} ms, a new one succeeded after "
                  f"{took * 1000:.0f} ms{f', {count} of {refused.tried} refused' if refused else ''}; {now[0]} processes, {now[1]} files", flush=True)
            if seen.kept and count:
                yield f"fault {number}: {count} connections refused; " + said_by_us()
            if not number:
                first = now
        # The first fault may change something, as what is kept has its place; the others do not
        last = settled(server)
        seen.left = max(0, last[0] - first[0]) + max(0, last[1] - first[1])
        print(f"#   left after {rounds} faults: {last[0] - first[0]} processes, {last[1] - first[1]} files")
        if rounds > 1 and (last[0] > first[0] or last[1] > first[1]):
            yield f"leaked: processes, files {first} after the first fault, {last} after {rounds}"
        said = (PLACE / "said").read_text()
        if "died right after" in said:
            yield "it died right after a start"
        if not server.terminates():
            yield "SIGTERM does not end it"
    finally:
        server.stop()


def main() -> int:
    program = PROGRAMS[WORDS[0]]()
    if program.prepare:
        program.prepare()
    systemd = None if ALONE else Systemd()
    seen = {"run": Seen(program.shim), "systemd": Seen(False), "run --listen": Seen(True), "socket unit": Seen(True)}
    beside = min(ROUNDS, 2 * FEW)

    def own_port() -> Iterator[str]:
        yield from faults(Server(program, program.command, []), ROUNDS, seen["run"])

    def given_a_socket() -> Iterator[str]:
        assert program.given
        yield from faults(Server(program, program.given, ["--listen", f"{HOST}:{PORT}"]), ROUNDS, seen["run --listen"])

    def under_systemd() -> Iterator[str]:
        assert systemd
        yield from faults(Unit(systemd, program, program.command, False), beside, seen["systemd"])

    def under_systemd_given_a_socket() -> Iterator[str]:
        assert program.given and systemd
        yield from faults(Unit(systemd, program, program.given, True), beside, seen["socket unit"])

    def never_later() -> Iterator[str]:
        """At least the 100 ms sooner that systemd waits, but for the tenth of that which we may take."""
        least = {}
        for name, one in seen.items():
            if times := one.times[:FEW]:
                least[name] = min(times)
                print(f"bench\t{WORDS[0]}\t{name}\t{min(times) * 1e9:.0f}\t{min(times) * 1e9:.0f}\t{max(times) * 1e9:.0f}\t{len(times)}")
            if refused := one.refused:
                what = "refused" if one.kept else "may be refused"
                print(f"bench\t{WORDS[0]}\t{name}, {what}\t{sum(refused) / len(refused)}\t{min(refused)}\t{max(refused)}\t{len(refused)}")
            if one.left is not None:
                print(f"bench\t{WORDS[0]}\t{name}, left\t{one.left}\t{one.left}\t{one.left}\t{ROUNDS}", flush=True)
        for name, peer in ("run", "systemd"), ("run --listen", "socket unit"):
            if name in least and peer in least and least[name] > least[peer] - 0.9 * RESTART_SEC:
                yield f"{name}: {least[name] * 1000:.0f} ms until a new connection succeeds, and {least[peer] * 1000:.0f} by a {peer}"

    try:
        ways = [own_port, under_systemd, *([given_a_socket, under_systemd_given_a_socket] if program.given else [])]
        return ktap.run(*(ways[::2] if ALONE else ways), *([never_later] if MEASURE else []))
    finally:
        if systemd:
            systemd.end()
        BUSY.end()


if __name__ == "__main__":
    MEASURE = "--measure" in sys.argv
    ALONE = "--alone" in sys.argv
    WORDS = [word for word in sys.argv[1:] if word not in ("--measure", "--alone")]
    END_S = 600 if MEASURE else END_S
    ROUNDS = int(WORDS[1]) if len(WORDS) > 1 else 2 * FEW if MEASURE else 4
    BUSY = Busy()
    with tempfile.TemporaryDirectory(prefix="unmodified-") as scratch:
        PLACE = Path(scratch)
        PLACE.chmod(0o777)
        sys.exit(main())
