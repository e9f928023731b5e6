#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What each generation of an unmodified program starts with, and what is left of the one before: nothing that it was not given."""

import ast
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "hygiene"))
import ktap  # noqa: E402
from ktap import differ  # noqa: E402

CTL = Path(os.environ["PERDURE_BUILD"]) / "userspace/userspace/tools/perdurectl"
NOBODY = 65534
PORT = 7200
LIMIT = ["--burst", "64", "--interval", "1", "--delay", "0"]

# Writes what it finds as a line of Python, does what it is asked to, and dies; the last generation ends with status 0.
PROGRAM = r"""
import fcntl, os, resource, signal, sys, time
place, generations, deed = sys.argv[1], int(sys.argv[2]), sys.argv[3]
fds = {}
for name in os.listdir("/proc/self/fd"):
    try:
        fds[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        pass
status = dict(line.rstrip("\n").split(":\t", 1) for line in open("/proc/self/status") if ":\t" in line)
found = {"pid": os.getpid(), "parent": os.getppid(), "fds": {n: to for n, to in fds.items() if n < 512 and "/proc/" not in to},
         "high": len([n for n in fds if n >= 512]),
         "nonblock": [n for n in fds if n < 512 and fcntl.fcntl(n, fcntl.F_GETFL) & os.O_NONBLOCK],
         "closes": [n for n in fds if 2 < n < 512 and fcntl.fcntl(n, fcntl.F_GETFD) & fcntl.FD_CLOEXEC and "/proc/" not in fds[n]],
         "cwd": os.getcwd(), "umask": os.umask(0o22), "SigIgn": int(status["SigIgn"], 16) & ~(1 << 12 | 1 << 24), "SigBlk": status["SigBlk"],
         "SigPnd": status["ShdPnd"], "uid": os.getuid(), "root": os.stat("/").st_ino, "limits": [resource.getrlimit(n) for n in range(16)],
         "env": {n: os.environ.get(n) for n in ("LISTEN_FDS", "LISTEN_PID", "LD_PRELOAD", "PERDURE_PORTS", "A")}, "argv": sys.argv[1:],
         "time": time.monotonic(), "pid_file": os.path.exists(place + "/pid")}
with open(place + "/found", "a") as f:
    f.write(repr(found) + "\n")
if len(open(place + "/found").readlines()) >= generations:
    sys.exit(0)
exec(deed)
os.kill(os.getpid(), signal.SIGSEGV)
time.sleep(60)
"""


def generations(deed: str, *options: object, number: int = 3, status: int = 0, says: str = "", **more: object) -> list[dict[str, object]]:
    """What each of them found."""
    place = Path(tempfile.mkdtemp(dir=scratch))
    place.chmod(0o777)
    with tempfile.TemporaryFile("w+") as errors:    # no pipe: who has it open may outlive the program
        done = subprocess.run([CTL, "run", *LIMIT, *map(str, options), "--", sys.executable, "-I", "-S", "-c", PROGRAM, place, str(number), deed],
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, timeout=60, cwd=place, umask=0o27, **more)
        errors.seek(0)
        said = errors.read()
    assert done.returncode == status and re.search(says, said, re.S), (done.returncode, said)
    found = [ast.literal_eval(line) for line in (place / "found").read_text().splitlines()]
    for one in found:
        one["place"] = str(place)
    return found


def same(found: list[dict[str, object]], *keys: str) -> Iterator[str]:
    for number, one in enumerate(found[1:], 2):
        for key in keys:
            yield from differ(f"{key} of generation {number}", one[key], found[0][key])


SPOILS = """
os.umask(0o777); os.chdir("/"); os.environ["A"] = "b"; os.putenv("A", "b")
for sig in range(1, 32):
    if sig not in (9, 11, 19, 17, 18):
        signal.signal(sig, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
os.kill(os.getpid(), signal.SIGUSR1)
signal.alarm(1)
resource.setrlimit(resource.RLIMIT_NOFILE, (400, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
opened = [os.open("/dev/zero", os.O_RDONLY) for _ in range(50)]
os.dup2(opened[0], 0); os.dup2(opened[0], 2)
"""


def as_at_the_start() -> Iterator[str]:
    """Directory, umask, signals, limits, timers, environment, arguments and files are those of the first generation."""
    for options in (["--in-place"], ["--keeper"]):
        found = generations(SPOILS, *options)
        yield from differ("generations", len(found), 3)
        yield from same(found, "cwd", "umask", "SigIgn", "SigBlk", "SigPnd", "limits", "argv", "fds", "high", "env", "pid")
        yield from differ("umask", found[0]["umask"], 0o27)


def sockets() -> Iterator[str]:
    """Whatever the program does with descriptor 3: the sockets are there, from 3 on, as they came."""
    deeds = ("fcntl.fcntl(3, fcntl.F_SETFD, fcntl.FD_CLOEXEC); fcntl.fcntl(4, fcntl.F_SETFD, fcntl.FD_CLOEXEC)",
             "os.dup(3); os.close(3); os.dup2(os.open('/dev/zero', 0), 4)",
             "fcntl.fcntl(3, fcntl.F_SETFL, os.O_NONBLOCK)",
             "os.closerange(5, 10000)",                         # the duplicates are gone, the originals are not
             "os.dup2(3, 700); os.dup2(3, 512)")
    for deed in deeds:
        for how in ("--in-place", "--keeper") if deed == deeds[0] else ("--in-place",):
            found = generations(deed, how, "-l", f"127.0.0.1:{PORT}", "-l", f"127.0.0.1:{PORT + 1}", number=2)
            yield from differ(f"generations, {deed}", len(found), 2)
            yield from same(found, "fds", "env", "nonblock", "closes", "pid")
            fds = found[0]["fds"]
            assert isinstance(fds, dict)
            yield from differ("sockets", [fds[n][:7] for n in (3, 4)], ["socket:"] * 2)
            env = found[0]["env"]
            assert isinstance(env, dict)
            yield from differ("environment", (env["LISTEN_FDS"], env["LISTEN_PID"], env["LD_PRELOAD"], env["PERDURE_PORTS"]),
                              ("2", str(found[0]["pid"]), None, None))


def lost() -> Iterator[str]:
    """A program that closes what it was given, duplicates too, is started afresh by its keeper; without one it dies of its fault."""
    where = ["-l", f"127.0.0.1:{PORT}"]
    found = generations("os.closerange(3, 10000)", "--keeper", *where, says="it has closed a descriptor that it was given")
    yield from differ("processes", len({one["pid"] for one in found}), 3)
    yield from same(found, "fds")
    for one in found:
        env = one["env"]
        assert isinstance(env, dict)
        yield from differ("LISTEN_PID", env["LISTEN_PID"], str(one["pid"]))
    found = generations("os.closerange(3, 10000)", "--in-place", *where, status=-signal.SIGSEGV, says="cannot be restarted in its process")
    yield from differ("generations", len(found), 1)


def privileges() -> Iterator[str]:
    """Who gives them up, changes the root or filters its calls is started afresh, with what it was started with; nobody else is."""
    chroot = "os.mkdir(place + '/root'); os.chroot(place + '/root'); os.chdir('/')"
    nnp = "import ctypes; ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)"
    for deed in (f"os.setgroups([]); os.setresgid({NOBODY}, {NOBODY}, {NOBODY}); os.setresuid({NOBODY}, {NOBODY}, {NOBODY})", nnp):
        found = generations(deed, says="it has given up privileges.*started afresh")
        yield from differ(f"generations, {deed}", len(found), 3)
        yield from differ("processes", len({one["pid"] for one in found}), 3)
        yield from same(found, "uid", "root", "fds", "cwd", "umask", "limits")
    yield from differ("without a keeper", len(generations(deed, "--in-place", status=-signal.SIGSEGV, says="given up privileges")), 1)
    found = generations(f"if not os.path.exists(place + '/root'): {chroot}", says="started afresh")
    yield from same(found, "root", "cwd", "fds")
    yield from differ("started as root, stayed root", len({one["pid"] for one in generations("pass")}), 1)
    # Nobody has none to give up
    found = generations("pass", user=NOBODY, group=NOBODY, extra_groups=[])
    yield from differ("nobody's", {(one["uid"], one["pid"], one["parent"]) for one in found}, {(NOBODY, found[0]["pid"], os.getpid())})


# The last one has no parent any more
CHILDREN = """
def child(prepare):
    if os.fork() == 0:
        prepare()
        with open(place + "/children", "a") as f:
            f.write(f"{os.getpid()} ")
        time.sleep(300)
        os._exit(0)
def orphan():
    for _ in range(2):
        if os.fork():
            os._exit(0)
        os.setsid()
for prepare in (lambda: None, lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN), os.setsid, orphan):
    child(prepare)
while not os.path.exists(place + "/children") or len(open(place + "/children").read().split()) < 4:
    time.sleep(0.02)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children() -> Iterator[str]:
    """Those of the old generation are ended: ones that refuse, that have a session of their own, that have no parent any more."""
    drop = f"; os.setresuid({NOBODY}, {NOBODY}, {NOBODY})"
    for deed, options in ((CHILDREN, ["--keeper"]), (CHILDREN + drop[2:], ["--keeper"]), (CHILDREN, ["--keep-children"])):
        found = generations(deed, *options, number=2, says="")
        pids = list(map(int, (Path(str(found[0]["place"])) / "children").read_text().split()))
        left = [pid for pid in pids if alive(pid)]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        yield from differ(f"children that are left, {options}", (len(pids), len(left)), (4, 4 if "--keep-children" in options else 0))


def cgroup() -> Iterator[str]:
    """In a cgroup of its own, without a keeper: those that nobody is the parent of."""
    place = Path("/sys/fs/cgroup")
    if not (place / "cgroup.procs").exists():
        place.mkdir(exist_ok=True)
        ktap.output("mount", "-t", "cgroup2", "none", place)
    group = place / "unmodified"
    group.mkdir()

    def enter() -> None:
        (group / "cgroup.procs").write_text(str(os.getpid()))

    found = generations(CHILDREN, "--in-place", number=2, preexec_fn=enter)
    pids = list(map(int, (Path(str(found[0]["place"])) / "children").read_text().split()))
    yield from differ("children that are left", (len(pids), [pid for pid in pids if alive(pid)]), (4, []))
    yield from differ("the cgroup has", (group / "cgroup.procs").read_text(), "")
    group.rmdir()


def pid_files() -> Iterator[str]:
    """Gone before the next generation, not before the first."""
    for options in (["--in-place"], ["--keeper"]):
        found = generations("open('pid', 'w').close(); os.chdir('/')", *options, "--pid-file", "pid")
        yield from differ("it was there", [one["pid_file"] for one in found], [False] * 3)
        found = generations("open('pid', 'w').close(); os.chdir('/')", *options)
        yield from differ("without the option", [one["pid_file"] for one in found], [False, True, True])


def back_off() -> Iterator[str]:
    """Who dies at its start is started later and later, in place and afresh, and can be ended meanwhile."""
    for fault in ("kill -SEGV $$", "exec sh -c 'kill -SEGV $$'"):       # what is executed next is not registered
        with tempfile.TemporaryDirectory(dir=scratch) as place:
            begun = time.monotonic()
            done = ktap.output(CTL, "run", *LIMIT[:4], "--delay", "400", "sh", "-c", f"echo $$ >>{place}/starts; n=0; while read -r _; do n=$((n+1)); done <{place}/starts; [ $n = 4 ] && exit 0; {fault}")
            # On a machine that is slow enough one may take two seconds, and is the first of others then
            pauses = re.findall(r"the next one is in (\d+) ms", done)
            yield from differ(f"pauses {pauses} are doubled", all(p in ("400", str(2 * int(q))) for q, p in zip(["200", *pauses], pauses)) and "800" in pauses, True)
            yield from differ("waited", time.monotonic() - begun >= sum(map(int, pauses)) / 1000, True)
            yield from differ("processes", len(set((Path(place) / "starts").read_text().split())), 4 if "exec" in fault else 1)
            process = subprocess.Popen([CTL, "run", *LIMIT[:4], "--delay", "60000", "sh", "-c", fault], stderr=subprocess.PIPE, text=True)
            assert process.stderr
            while "the next one is in 60000 ms" not in process.stderr.readline():
                assert process.poll() is None
            process.terminate()
            yield from differ("SIGTERM while it waits", process.wait(30), -signal.SIGTERM)


def limit() -> Iterator[str]:
    """It holds for what is started afresh, too, and the end is that of the program."""
    found = generations("import ctypes; ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)", "--burst", 2, "--interval", 1000000, number=9, status=-signal.SIGSEGV, says="once too often|cannot be")
    yield from differ("generations", len(found), 3)
    found = generations("import ctypes; ctypes.CDLL(None).prctl(38, 1, 0, 0, 0); sys.exit(7)", "--on-exit", "--burst", 1, "--interval", 1000000, number=9, status=7)
    yield from differ("generations of one that exits", len(found), 2)


def asked_to_end() -> Iterator[str]:
    """SIGTERM at any moment of a restart ends the program."""
    for options in (["--in-place"], ["--keeper"]):
        for deed in ("", "import ctypes; ctypes.CDLL(None).prctl(38, 1, 0, 0, 0); "):
            if deed and "--in-place" in options:
                continue
            for number in range(5):
                text = deed + "import os, signal, time; time.sleep(0.1); os.kill(os.getpid(), signal.SIGSEGV); time.sleep(60)"
                process = subprocess.Popen([CTL, "run", *LIMIT, *options, sys.executable, "-I", "-S", "-c", text], stderr=subprocess.DEVNULL)
                time.sleep(0.3 + 0.15 * number)
                process.terminate()
                try:
                    yield from differ(f"end {number}, {options} {deed}", process.wait(20), -signal.SIGTERM)
                except subprocess.TimeoutExpired:
                    process.kill()
                    yield f"SIGTERM {number} has no effect, {options} {deed}"


def signals() -> Iterator[str]:
    """What a keeper is sent is for the program, once; and a program ends as its keeper does."""
    with tempfile.TemporaryDirectory(dir=scratch) as place:
        text = ("import os, signal, sys, time\nseen = []\nfor s in (1, 10, 12):\n signal.signal(s, lambda n, f: seen.append(n))\n"
                f"signal.signal(15, lambda n, f: (open('{place}/seen', 'w').write(str(seen)), sys.exit(5)))\nopen('{place}/pid', 'w').write(str(os.getpid()))\n"
                "while True: time.sleep(0.05)")
        process = subprocess.Popen([CTL, "run", "--keeper", sys.executable, "-c", text])
        while not (Path(place) / "pid").exists():
            time.sleep(0.05)
        time.sleep(0.5)
        for sig in (1, 10, 12):
            process.send_signal(sig)
            time.sleep(0.5)
        process.terminate()
        yield from differ("status", process.wait(30), 5)
        yield from differ("signals", (Path(place) / "seen").read_text(), "[1, 10, 12]")
    process = subprocess.Popen([CTL, "run", "--keeper", "sleep", "300"])
    time.sleep(1)
    pid = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
    process.kill()
    process.wait()
    for _ in range(100):
        if not alive(pid):
            break
        time.sleep(0.1)
    yield from differ("lives without its keeper", alive(pid), False)


PORTS = r"""
import os, signal, socket, sys
kind, where = sys.argv[1:3]
family = {"4": socket.AF_INET, "6": socket.AF_INET6}.get(kind, socket.AF_UNIX)
s = socket.socket(family)
if len(sys.argv) > 3:
    exec(sys.argv[3])
s.bind(("127.0.0.1" if kind == "4" else "::1", int(where)) if kind in "46" else where)
s.listen(5)
while True:
    with s.accept()[0] as c:
        asked = c.recv(1)
        if asked == b"x":
            os.abort()
        if asked:
            c.sendall(b"%d %d" % (os.getpid(), os.fstat(s.fileno()).st_ino))
"""


def error_of(server: "subprocess.Popen[bytes]") -> str:
    server.kill()
    return server.communicate(timeout=30)[1].decode()[-1000:]


def ports() -> Iterator[str]:
    """
    The sockets of IP that a program opens itself: the same one in each generation, also if one has died before it asked for it. A Unix
    socket is opened again.
    """
    path = f"{scratch}/socket"
    dies = f"path = '{scratch}/starts' + where; open(path, 'a').write('x'); os.path.getsize(path) == 2 and os.abort()"
    # No REUSEADDR, REUSEADDR, REUSEPORT
    for number, (kind, deed) in enumerate((("4", ""), ("4", dies), ("4", "s.setsockopt(1, 2, 1)"), ("4", "s.setsockopt(1, 15, 1)"), ("6", ""), ("6", "s.setsockopt(41, 26, 1)"),
                                           ("u", "os.path.exists(where) and os.unlink(where)"))):
        for drop in ("", f"; os.setresuid({NOBODY}, {NOBODY}, {NOBODY})"):
            if drop and (kind == "u" or deed not in ("", dies)):
                continue        # enough, and a directory of root's
            where = path if kind == "u" else PORT + 5 + 2 * number + bool(drop)
            server = subprocess.Popen([CTL, "run", *LIMIT, "--", sys.executable, "-c", PORTS.replace("s.listen(5)", "s.listen(5)" + drop), kind, str(where), deed],
                                      stderr=subprocess.PIPE)

            seen: list[list[bytes]] = []

            def connect() -> socket.socket:
                s = socket.socket({"4": socket.AF_INET, "6": socket.AF_INET6}.get(kind, socket.AF_UNIX))
                s.settimeout(60)
                s.connect(("127.0.0.1" if kind == "4" else "::1", where) if kind in "46" else where)
                return s

            def asked() -> list[bytes]:
                """What it answers; one that has a new socket may need longer than that."""
                for more in range(600 if kind == "u" and seen else 1, 0, -1):
                    try:
                        with connect() as s:
                            s.sendall(b"a")
                            if answer := s.recv(100).split():
                                return answer
                    except OSError:
                        if more == 1:
                            raise
                    time.sleep(0.05)
                return []

            try:
                for _ in range(600):
                    try:
                        connect().close()
                        break
                    except OSError:
                        time.sleep(0.05)
                for _ in range(3):
                    if kind == "u" and seen:
                        time.sleep(3)       # it may refuse us for a moment
                    seen.append(asked())
                    with connect() as s:
                        s.sendall(b"x")
                        yield from differ(f"the end, {kind} {deed}", s.recv(1), b"")
            except OSError as e:
                yield f"{kind} {deed} {drop}: {e}, after {seen}; it said: {error_of(server)}"
            else:
                yield from differ(f"sockets, {kind} {deed} {drop}", len({inode for _, inode in seen}), 3 if kind == "u" else 1)
                yield from differ(f"processes, {kind} {deed} {drop}", len({pid for pid, _ in seen}), 3 if drop else 1)
            finally:
                server.terminate()
                try:
                    server.communicate(timeout=30)
                except subprocess.TimeoutExpired:
                    yield f"SIGTERM does not end it, {kind} {deed} {drop}"
                    server.kill()
                    server.communicate()


def main() -> int:
    Path("/proc/sys/kernel/restart/min_interval_ms").write_text("0")
    os.chmod(scratch, 0o755)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 4096))
    checks = (as_at_the_start, sockets, lost, privileges, children, cgroup, pid_files, back_off, limit, asked_to_end, signals, ports)
    return ktap.run(*(check for check in checks if not sys.argv[1:] or check.__name__ in sys.argv[1:]))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="start-") as scratch:
        sys.exit(main())
