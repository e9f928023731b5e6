#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""This test restarts and upgrades services under load with perdurectl, and has it fail in every way that it can.

upgrade.py load COUNT: so many requests to zhttpd, with an upgrade every second.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / suite) for suite in ("hygiene", "perdurectl", "unmodified", "zhttpd")]
import ctl as tool  # noqa: E402
import ktap  # noqa: E402
from ctl import CTL  # noqa: E402
from ktap import differ  # noqa: E402
from manager import Systemd, children  # noqa: E402
from web import DEBUG, LIMIT_S, Client, Root, Server  # noqa: E402

BUILD = Path(os.environ["PERDURE_BUILD"]) / "userspace/userspace"
COMPLETION = Path(os.environ["PERDURE_TOP"]) / "userspace/tools/perdurectl.bash"
PORT = 7012
NOBODY = 65534
CLIENTS = 4
ctl, run = partial(tool.ctl, timeout=LIMIT_S), partial(tool.run, timeout=LIMIT_S)
os.environ["PATH"] = f"{CTL.parent}:{BUILD / 'zhttpd'}:{os.environ['PATH']}"


def copy(program: str | Path, name: str) -> Path:
    """The next version of a program: under a name of its own."""
    found = shutil.which(program)
    assert found, program
    return Path(shutil.copy(found, Path(scratch) / name))


def script(name: str, text: str) -> Path:
    path = Path(scratch) / name
    path.write_text(text)
    path.chmod(0o755)
    return path


def told(pid: int) -> dict[str, object]:
    value: dict[str, object] = json.loads(ctl("--json", "show", pid).stdout)
    return value


# ---- a server on libperdure, under load ----


class Load:
    """Clients that ask for a file again and again, each over a connection that stays, and compare what they get."""

    def __init__(self, server: Server, body: bytes, path: str, goal: int = 0) -> None:
        self.server, self.body, self.path, self.goal = server, body, path, goal
        self.done = 0
        self.served: set[int] = set()       # clients that have had an answer: their connections are the server's
        self.errors: list[str] = []
        self.stopping = False
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self._run) for _ in range(CLIENTS)]
        for t in self.threads:
            t.start()

    def _run(self) -> None:
        try:
            with Client(self.server) as c:
                while not self.stopping:
                    c.get(self.path)
                    got = c.response()
                    assert (got.status, got.body == self.body) == (200, True), (got.status, len(got.body))
                    with self.lock:
                        self.served.add(threading.get_ident())
                        self.done += 1
                        self.stopping |= self.done == self.goal
        except Exception as e:      # to be told by finish()
            self.errors.append(f"{type(e).__name__}: {e}")

    def wait(self, ready: Callable[[], bool]) -> None:
        end = time.monotonic() + LIMIT_S
        while not ready() and not self.errors and time.monotonic() < end:
            time.sleep(0.02)

    def finish(self) -> Iterator[str]:
        self.stopping = True
        for t in self.threads:
            t.join(LIMIT_S)
        yield from self.errors


def upgrades(root: Root, file: str, count: int, requests: int = 0, pause_s: float = 0.0) -> Iterator[str]:
    """So many upgrades, or requests, from one version of zhttpd to the other and back; each connection is the first one."""
    versions = [copy("zhttpd", "zhttpd-1"), copy("zhttpd", "zhttpd-2")]
    with Server(root, program=str(versions[0])) as server:
        load = Load(server, root.files[file], f"/{file}", requests)
        load.wait(lambda: len(load.served) == CLIENTS)
        generation, since, kept = 1, time.monotonic(), 0
        while not load.errors and (not load.stopping if requests else generation <= count):
            done = load.done
            generation += 1
            yield from run("upgrade", "--trial", 0, server.pid, versions[(generation + 1) % 2], status=0)
            server.generation(generation)
            # At the end of the last one they may have gone
            kept += load.stopping or bool(re.search(f" {CLIENTS} connections kept", server.messages[-1]))
            if requests:
                time.sleep(max(0.0, since + pause_s * (generation - 1) - time.monotonic()))
            else:
                # Each version serves everybody before the next one comes
                load.wait(lambda: load.done >= done + 2 * CLIENTS)
        yield from load.finish()
        yield from differ("the process", server.process.poll(), None)
        if not count:
            yield from differ("requests", load.done >= requests, True)
        state = told(server.pid)
        yield from differ("restarts that count", (state["restarts"], state["left"], state["cause"]), (0, 1, "asked"))
        yield from differ("upgrades that kept all connections", kept, generation - 1)
        print(f"# {load.done} requests answered in {time.monotonic() - since:.1f} s, with {generation - 1} upgrades")
        # A fault still finds all that it needs, and is the one that is allowed
        server.fault()


def zhttpd() -> Iterator[str]:
    """Eight upgrades under load, of small files and of one that takes many writes: every byte is right."""
    root = Root()
    try:
        yield from upgrades(root, "small.txt", 4)
        yield from upgrades(root, "middle.bin", 4)
    finally:
        shutil.rmtree(root.path)


def echo() -> Iterator[str]:
    """The example, on three connections: each byte once."""
    versions = [copy(BUILD / "examples/echo", "echo-1"), copy(BUILD / "examples/echo", "echo-2")]
    server = subprocess.Popen([versions[0], str(PORT)])
    try:
        lines = [connect() for _ in range(3)]
        sent, got = [b"", b"", b""], [b"", b"", b""]
        for step in range(6):
            for i, s in enumerate(lines):
                data = b"connection %d, line %d\n" % (i, step) * 50
                s.sendall(data)
                sent[i] += data
            if step % 2:
                yield from run("upgrade", server.pid, versions[step // 2 % 2 ^ 1], status=0)
            else:
                yield from run("restart", server.pid, status=0)
            for i, s in enumerate(lines):
                while len(got[i]) < len(sent[i]) and (more := s.recv(65536)):
                    got[i] += more
        for i, s in enumerate(lines):
            s.shutdown(socket.SHUT_WR)
            while more := s.recv(65536):
                got[i] += more
            yield from differ(f"connection {i}", got[i] == sent[i], True)
        yield from differ("generation", told(server.pid)["generation"], 7)
    finally:
        server.kill()
        server.wait()


# ---- a program that knows nothing of it ----

# Not by way of env(1): that would execute another program, and the registration be over
SERVER = f"#!{sys.executable}\n" + """\
import os, socket, sys
listener = socket.socket(fileno=3)
while True:
    client = listener.accept()[0]
    if client.recv(1):
        client.sendall(b"%s %%d %%s" %% (os.getpid(), sys.argv[1].encode()))
    client.close()
"""


def connect() -> socket.socket:
    for _ in range(300):
        try:
            return socket.create_connection(("127.0.0.1", PORT), timeout=LIMIT_S)
        except ConnectionRefusedError:
            time.sleep(0.1)
    raise RuntimeError("the server does not listen")


@contextmanager
def unmodified() -> Iterator[subprocess.Popen[bytes]]:
    """With a socket that perdurectl run opens for it."""
    old = script("old", SERVER % "old")
    process = subprocess.Popen([CTL, "run", "--in-place", "--listen", f"127.0.0.1:{PORT}", "--", old, "an argument"])
    try:
        connect().close()
        yield process
    finally:
        process.kill()
        process.wait()


def ask(word: bytes = b"a") -> bytes:
    """An answer. Who is being served when the program is exchanged sees the end of the connection, and asks again."""
    for _ in range(100):
        with suppress(ConnectionResetError, BrokenPipeError), \
             socket.create_connection(("127.0.0.1", PORT), timeout=LIMIT_S) as s:    # refused: that is an error
            s.sendall(word)
            if answer := s.recv(100):
                return answer
    raise RuntimeError("no answer")


def sockets_from_outside() -> Iterator[str]:
    """A restart, an upgrade: no connection is refused, and the new version is the one that answers."""
    new = script("new", SERVER % "new")
    with unmodified() as process:
        errors: list[str] = []
        answers: set[bytes] = set()
        stop = threading.Event()

        def client() -> None:
            try:
                while not stop.is_set():
                    answers.add(ask())
            except Exception as e:
                errors.append(f"{type(e).__name__}: {e}")

        threads = [threading.Thread(target=client) for _ in range(2)]
        for t in threads:
            t.start()
        for args in (("restart", process.pid), ("upgrade", "--trial", 0, process.pid, new), ("restart", process.pid)):
            ask()
            yield from run(*args, status=0)
        ask()
        yield from differ("who answers", ask(), b"new %d an argument" % process.pid)
        stop.set()
        for t in threads:
            t.join(LIMIT_S)
        yield from errors
        yield from differ("answers", answers, {b"%s %d an argument" % (v, process.pid) for v in (b"old", b"new")})
        yield from differ("generation", told(process.pid)["generation"], 4)
        # What a fault brings back is the new one
        os.kill(process.pid, signal.SIGSEGV)
        yield from differ("who answers", ask(), b"new %d an argument" % process.pid)


def cannot_start() -> Iterator[str]:
    """A new version that does not pass its check, is no program, or ends at once: the old one serves."""
    with unmodified() as process:
        good = b"old %d an argument" % process.pid
        ask()
        # It is looked at first
        new = script("new", SERVER % "new")
        yield from run("upgrade", "--check", 'test "$PERDURE_PROGRAM" = /nowhere', process.pid, new, status=1, says="--check: status 1; nothing has")
        yield from run("upgrade", "--check", "kill -9 $$", process.pid, new, status=1, says="--check: killed by signal 9; nothing has")
        yield from run("restart", "--check", f'test "$PERDURE_PID" = 1{process.pid}', process.pid, status=1, says="nothing has changed")
        yield from differ("generation", told(process.pid)["generation"], 1)
        yield from differ("who answers", ask(), good)
        # perdurectl run, which is what is registered, says so and ends: it was on trial
        for number, bad in enumerate((script("fails", "#!/bin/sh\nexit 3\n"), script("faults", "#!/bin/sh\nkill -SEGV $$\n"),
                                      Path(scratch) / "missing", script("garbage", "\1\2\3")), 1):
            yield from run("upgrade", "--wait", 5, process.pid, bad, status=3, says="the new program failed, and the one before")
            yield from differ(f"who answers after {bad.name}", ask(), good)
            state = told(process.pid)
            yield from differ("generation", (state["generation"], state["reverted"], state["trial_left_ns"]), (1 + 2 * number, 1, 0))
        words = ctl("log", process.pid).stdout
        yield from differ("the log", (words.count(f"asked by process "), words.count("restart: back to ")), (4, 4))


# ---- a program that root has started: perdurectl stays beside it, as its keeper ----

# It says who answers, and gives up root when it is asked to
KEPT = SERVER.replace("import os, socket, sys\n", """import os, socket, sys
def drop():
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
""").replace("    if client.recv(1):\n", """    word = client.recv(1)
    if word == b"d":
        drop()
    if word:
""").replace('b"%s %%d %%s" %% (os.getpid(), ', 'b"%s %%d %%d %%s" %% (os.getpid(), os.geteuid(), ')
DROPS = KEPT.replace("while True:", "drop()\nwhile True:", 1)
# When it is asked to, it leaves a child behind that registers itself with the arguments of the service
CLAIMS = DROPS.replace("import os, socket, sys\n", """import ctypes, os, socket, sys, time
libc = ctypes.CDLL(None)
def claim():
    lines = dict(line.split(":\\t", 1) for line in open("/proc/self/restart").read().splitlines() if ":\\t" in line)
    words = [word.encode().decode("unicode_escape").encode() for word in lines["argv"].split(" ")]
    if os.fork():
        os.wait()
        return
    if os.fork():
        os._exit(0)
    os.closerange(3, 1024)
    time.sleep(0.2)
    keeper = os.getppid()
    libc.syscall(500, lines["path"].encode(), (ctypes.c_char_p * (len(words) + 1))(*words), (ctypes.c_char_p * 1)(), 7, 0)
    while os.getppid() == keeper:
        time.sleep(0.1)
    os._exit(0)
""").replace("    os.setresuid(65534, 65534, 65534)\n", "    os.setresuid(65534, 65534, 65534)\n    libc.prctl(4, 1)\n").replace("    if word:\n", """    if word == b"c":
        claim()
    if word:
""")


@contextmanager
def kept(text: str, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    said = Path(scratch) / "said"
    with said.open("w") as errors:
        process = subprocess.Popen([CTL, "run", *(options or ["--keeper"]), "--listen", f"127.0.0.1:{PORT}", "--", script("old", text % "old"), "an argument"], stderr=errors)
        try:
            connect().close()
            yield process, said
        finally:
            process.terminate()
            process.wait(LIMIT_S)


def who(word: bytes = b"a") -> tuple[str, int, int]:
    """The version, the process and the user that answer."""
    version, pid, user = ask(word).split()[:3]
    return version.decode(), int(pid), int(user)


def keeps_root() -> Iterator[str]:
    """A service of root's is named by its main process, the keeper; what is asked for is no fault; later the keeper starts the new program."""
    new = script("new", KEPT % "new")
    with kept(KEPT) as (process, said):
        first = who()
        yield from differ("who answers", (first[0], first[1] != process.pid, first[2]), ("old", True, 0))
        for generation in (2, 3, 4):
            yield from run("restart", process.pid, status=0)
            yield from differ("who answers", who(), first)
            yield from differ("generation", told(first[1])["generation"], generation)
        yield from run("upgrade", "--trial", 0, process.pid, new, status=0)
        yield from differ("who answers", who(), ("new", *first[1:]))
        yield from differ("said", said.read_text(), "")
        # The one fault that is allowed: where it cannot be what it was, another process can, of the new program
        yield from differ("gives up root", who(b"d"), ("new", first[1], NOBODY))
        os.kill(first[1], signal.SIGSEGV)
        version, pid, user = who()
        yield from differ("who answers", (version, pid not in (first[1], process.pid), user), ("new", True, 0))


def drops_root() -> Iterator[str]:
    """A service that gives up root is started afresh, with the sockets, as often as one likes; a new version that fails there is taken back."""
    new, fails = script("new", DROPS % "new"), script("fails", "#!/bin/sh\nexit 3\n")
    with kept(DROPS) as (process, said):
        found = [who()]
        yield from differ("who answers", found[0][::2], ("old", NOBODY))
        for args in (("restart", process.pid), ("restart", process.pid), ("upgrade", process.pid, new), ("restart", process.pid)):
            yield from run(*args, status=0, says="could not be restarted in its process: in its place, its keeper has started")
            found.append(who())
        yield from differ("versions", [version for version, _, _ in found], ["old", "old", "old", "new", "new"])
        yield from differ("processes", len({pid for _, pid, _ in found}), 5)
        yield from differ("paused", "died right after its start" in said.read_text(), False)
        yield from run("upgrade", "--wait", 5, process.pid, fails, status=3, says="has ended within 5 s, and its keeper")
        yield from differ("who answers", who()[0], "new")
        yield from differ("says why", "fails has failed in its trial" in said.read_text(), True)
        # Nothing of that was a fault: the one that is allowed is still there
        yield from run("restart", process.pid, status=0, says="in its place")
        os.kill(who()[1], signal.SIGSEGV)
        yield from differ("who answers", who()[0], "new")
        # Another user can do nothing
        for args in (("restart", process.pid), ("upgrade", process.pid, "/bin/true"), ("restart", who()[1]), ("upgrade", who()[1], "/bin/true")):
            yield from differ(f"{args} by another user", subprocess.run([CTL, *map(str, args)], user=NOBODY + 1, capture_output=True).returncode in (1, 5), True)
        yield from differ("who answers", who()[0], "new")


def who_claims() -> Iterator[str]:
    """A child of the service's that says it is the service is not taken for it; who cannot ask the keeper is told that there are two."""
    with kept(CLAIMS, "--keeper", "--keep-children") as (process, _):
        _, first, _ = who(b"c")
        end, found = time.monotonic() + LIMIT_S, []
        while not found and time.monotonic() < end:
            found = [pid for pid in children(process.pid) if pid != first and "\nchild_id:\t7\n" in Path(f"/proc/{pid}/restart").read_text()]
        yield from differ("who claims it", len(found), 1)
        # In its place, one with a higher number
        yield from run("restart", process.pid, status=0, says="in its place, its keeper has started")
        _, second, _ = who()
        yield from differ("another process", second not in (first, *found), True)
        yield from run("restart", process.pid, status=5, user=NOBODY, group=NOBODY,
                       says=f"processes {found[0]} and {second} say that they are that: ask as root, or give the process id")
        yield from run("restart", process.pid, status=0, says=f"process {second} could not be restarted in its process: in its place")
        _, third, _ = who()
        yield from differ("processes", sorted(children(process.pid)), sorted([third, *found]))
        yield from differ("generation of who claims it", told(found[0]).get("generation"), 1)
        # An upgrade of that is not the keeper's business
        yield from run("upgrade", "--trial", 0, found[0], "/bin/true", status=1, says="cannot be restarted in its process")
        yield from run("restart", process.pid, status=0, says=f"process {third} could not be restarted in its process: in its place")
        yield from differ("who answers", who()[0], "old")


def nobody_keeps() -> Iterator[str]:
    """What cannot be done in a process, where nobody could start another one, is refused; the service goes on."""
    new = script("new", DROPS % "new")
    with kept(DROPS, "--in-place") as (process, _):
        first = who()
        for args in (("restart", process.pid), ("upgrade", process.pid, new)):
            yield from run(*args, status=1, says="cannot be restarted in its process: it has given up privileges")
            yield from differ("who answers", who(), first)
        yield from differ("generation", told(process.pid)["generation"], 1)


def reloads() -> Iterator[str]:
    """systemctl reload: of a service that root starts, whose $MAINPID is its keeper, and of a user's, which is in its unit by itself."""
    if not Path("/lib/systemd/systemd").exists():
        print("# there is no systemd here")
        return
    systemd = Systemd()
    try:
        for text, user in ((DROPS, "root"), (KEPT, "nobody")):
            yield from reload(systemd, text, user)
    finally:
        systemd.end()


def reload(systemd: Systemd, text: str, user: str) -> Iterator[str]:
    old, new, said = script("old", text % "old"), script("new", text % "new"), Path(scratch) / "said"
    said.write_text("")
    before = ("", 0, 0)
    for command, version in (("restart $MAINPID", "old"), (f"upgrade $MAINPID {new}", "new"), ("restart server.service", "new")):
        (systemd.units / "server.service").write_text(
            f"[Unit]\nDefaultDependencies=no\n[Service]\nType=exec\nUser={user}\nEnvironment=PATH={os.environ['PATH']}\n"
            f"StandardOutput=append:{said}\nStandardError=append:{said}\n"
            f"ExecStart={CTL} run --listen 127.0.0.1:{PORT} -- {old} argument\nExecReload={CTL} {command}\n")
        systemd.ctl("daemon-reload")
        if user != "root" and "service" in command:
            continue            # no D-Bus is here, by which a user asks systemd
        if not before[1]:
            systemd.ctl("start", "server.service")
            connect().close()
            before, main_process = who(), systemd.ctl("show", "-p", "MainPID", "--value", "server.service")
        try:
            systemd.ctl("reload", "server.service")
        except RuntimeError:
            yield f"{command} as {user}: {said.read_text()}"
            return
        after = who()
        yield from differ(f"{command} as {user}", (after[0], after[1] != before[1], after[2]), (version, text == DROPS, NOBODY))
        before = after
    yield from differ("the main process", systemd.ctl("show", "-p", "MainPID", "--value", "server.service"), main_process)
    yield from differ("state", systemd.ctl("show", "-p", "ActiveState,NRestarts", "server.service").split(), ["NRestarts=0", "ActiveState=active"])
    systemd.ctl("stop", "server.service")


def own_program() -> Iterator[str]:
    """The same of one that is registered itself, where the kernel finds out before the old one has gone."""
    versions = [copy(BUILD / "examples/echo", "echo-1"), copy(BUILD / "examples/echo", "echo-2")]
    server = subprocess.Popen([versions[0], str(PORT)])
    try:
        line = connect()
        for bad, says in ((Path(scratch) / "missing", "No such file"), (script("garbage", "\1\2\3"), "Exec format error"),
                          (Path("/etc/passwd"), "Permission denied")):
            yield from run("upgrade", server.pid, bad, status=1, says=f"{says}.*; the old program goes on")
        yield from differ("generation", told(server.pid)["generation"], 1)
        yield from run("upgrade", "--wait", 5, server.pid, script("fails", "#!/bin/sh\nexit 3\n"), status=3, says="failed, and the one before")
        line.sendall(b"still there\n")
        yield from differ("the answer", line.recv(100), b"still there\n")
        # Without a trial it has an end
        yield from run("upgrade", "--trial", 0, "--wait", 5, server.pid, script("fails", "#!/bin/sh\nsleep 1; exit 3\n"), status=4, says="has ended within 5 s")
        yield from differ("status", server.wait(LIMIT_S), 3)
    finally:
        server.kill()
        server.wait()

    # One that lives for a while and faults then is no trial's: the policy decides
    server = subprocess.Popen([versions[0], str(PORT)])
    try:
        connect().close()
        yield from run("upgrade", "--wait", 1, "--trial", 1, server.pid, versions[1], status=0)
        time.sleep(0.3)
        os.kill(server.pid, signal.SIGSEGV)
        connect().close()
        yield from differ("path", told(server.pid)["path"], str(versions[1]))
        # Replaced in place, as packages do: a restart takes what is there
        shutil.copy(versions[0], f"{versions[1]}.new")
        os.rename(f"{versions[1]}.new", versions[1])
        yield from run("upgrade", server.pid, versions[1], status=0)
        yield from differ("program", os.readlink(f"/proc/{server.pid}/exe"), str(versions[1]))
    finally:
        server.kill()
        server.wait()


# ---- who, which, and what is said ----


def refusals() -> Iterator[str]:
    """Wrong words, nobody to restart, who may not, one that does not answer."""
    for words, says in ((["restart"], "restart needs a process"), (["upgrade", "1"], "upgrade needs a process and a program"),
                        (["restart", "-t", "x", "1"], "--timeout x"), (["restart", "-T", "1", "1"], "only for upgrade"),
                        (["restart", "--json", "1"], "unrecognized"), (["--json", "restart", "1"], "has to be the first word"),
                        (["upgrade", "-w", "-1", "1", "x"], "--wait -1"), (["restart", "-t", "0", "1"], "--timeout 0")):
        yield from run(*words, status=2, says=says)
    yield from differ("help", ctl("upgrade", "--help").returncode, 0)
    yield from run("restart", 1, status=5, says="process 1 is not registered")
    yield from run("restart", 4194304, status=5, says="there is no process 4194304")
    server = subprocess.Popen([BUILD / "examples/echo", str(PORT)])
    try:
        connect().close()
        yield from run("restart", server.pid, status=1, says="only root, or who may send it signals", user=NOBODY, group=NOBODY)
        yield from run("upgrade", server.pid, "/bin/true", status=1, says="its owner and root", user=NOBODY, group=NOBODY)
        server.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, server.pid, os.WSTOPPED)
        yield from run("restart", "--timeout", 1, server.pid, status=1, says="does not answer within 1 s")
        server.send_signal(signal.SIGCONT)
        time.sleep(0.3)
        yield from differ("generation", told(server.pid)["generation"], 1)
        sysctl = Path("/proc/sys/kernel/restart/enabled")
        sysctl.write_text("0")
        try:
            yield from run("restart", server.pid, status=5, says="switched off")
        finally:
            sysctl.write_text("1")
        words = ctl("restart", server.pid)
        yield from differ("said", words.stdout, f"process {server.pid}: generation 2\n")
        yield from differ("the log", f"asked by process " in ctl("log", server.pid).stdout, True)
    finally:
        server.kill()
        server.wait()


def units() -> Iterator[str]:
    """The main process of a unit; the registered one of its control group when that is another."""
    server = subprocess.Popen([BUILD / "examples/echo", str(PORT)])
    group = Path("/sys/fs/cgroup/perdure-upgrade")
    fake = script("systemctl", f"#!/bin/sh\n[ \"$1 $2 $3 $5 $6\" = 'show --value -p -- echo.service' ] || exit 3\n"
                               f"case $4 in MainPID) cat {scratch}/main ;; ControlGroup) echo /{group.name} ;; esac\n")
    env = os.environ | {"PATH": f"{scratch}:{os.environ['PATH']}"}
    main = Path(scratch) / "main"
    try:
        connect().close()
        main.write_text(f"{server.pid}\n")
        yield from run("restart", "echo.service", status=0, env=env)
        yield from differ("generation", told(server.pid)["generation"], 2)
        main.write_text("1\n")
        yield from run("restart", "echo.service", status=5, says="process 1 is not registered", env=env)
        main.write_text("0\n")
        yield from run("restart", "echo.service", status=5, says="has no process: systemctl status echo.service", env=env)
        with suppress(OSError):
            if not (group.parent / "cgroup.procs").exists():
                subprocess.run(["mount", "-t", "cgroup2", "none", group.parent], check=True)
        if (group.parent / "cgroup.procs").exists():
            group.mkdir(exist_ok=True)
            (group / "cgroup.procs").write_text(str(server.pid))
            yield from run("restart", "echo.service", status=0, env=env)
            yield from differ("generation", told(server.pid)["generation"], 3)
        else:
            yield "no control groups here"
        fake.unlink()
        yield from run("restart", "echo.service", status=5, says="no systemctl to ask", env=env | {"PATH": scratch})
    finally:
        server.kill()
        server.wait()
        with suppress(OSError):
            group.rmdir()


def completion() -> Iterator[str]:
    """bash offers commands, options, processes, programs."""
    for words, want in ((["up"], ["upgrade"]), (["res"], ["restart"]), (["restart", "--ch"], ["--check"]), (["restart", "--tr"], []),
                        (["upgrade", "--tr"], ["--trial"]), (["upgrade", "1", "/etc/passw"], ["/etc/passwd", "/etc/passwd-"])):
        line = " ".join(f"'{w}'" for w in ["perdurectl", *words])
        done = subprocess.run(["bash", "-c", f'. "{COMPLETION}"; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _perdurectl; printf "%s\\n" "${{COMPREPLY[@]}}"'],
                              capture_output=True, text=True)
        yield from differ(f"completion of {words}", sorted(filter(None, done.stdout.splitlines())), want)
        yield from differ("errors", done.stderr, "")


def load() -> Iterator[str]:
    """No request is lost in so many, with an upgrade every second."""
    root = Root()
    try:
        yield from upgrades(root, "small.txt", 0, int(sys.argv[2]) // (10 if DEBUG else 1), 1.0)
    finally:
        shutil.rmtree(root.path)


def main() -> int:
    checks: list[Callable[[], Iterator[str]]] = [zhttpd, echo, sockets_from_outside, cannot_start, keeps_root, drops_root, who_claims, nobody_keeps, reloads, own_program, refusals, units, completion]
    if sys.argv[1:2] == ["load"]:
        return ktap.run(load)
    return ktap.run(*(c for c in checks if len(sys.argv) == 1 or c.__name__ in sys.argv[1:]))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        os.chmod(scratch, 0o755)
        sys.exit(main())
