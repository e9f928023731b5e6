#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""This test checks perdurectl: programs that know nothing of it restart, what it tells is true, what it refuses is said."""

import json
import os
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "hygiene"))
import ktap  # noqa: E402
from ctl import CTL, ctl, run  # noqa: E402
from ktap import differ  # noqa: E402

BUILD = Path(os.environ["PERDURE_BUILD"]) / "userspace"
STATIC = BUILD / "vm-tests/cases/restart/restart-target-static"     # exits with 42: generation 2, restarted, two arguments
COMPLETION = Path(os.environ["PERDURE_TOP"]) / "userspace/tools/perdurectl.bash"
SYSCTL = Path("/proc/sys/kernel/restart")
PORT = 7010
NOBODY = 65534
os.environ["PATH"] = f"{CTL.parent}:{os.environ['PATH']}"


def program(text: str, name: str = "program") -> str:
    path = Path(scratch) / name
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def restarts() -> Iterator[str]:
    """--keep: a script, a static program: the same process, files and arguments, and its own exit status."""
    script = program("#!/bin/sh\n"
                     "echo $$ $# \"$1\" $A >>$TMP/trace; exec 9>>$TMP/nine; ls /proc/$$/fd | grep -cx 9 >>$TMP/fds\n"
                     "[ $(wc -l <$TMP/trace) = 4 ] && exit 7; kill -$SIG $$; sleep 9\n")
    for sig in ("SEGV", "ABRT"):
        for name in ("trace", "nine", "fds"):
            (Path(scratch) / name).unlink(missing_ok=True)
        process = subprocess.Popen([CTL, "run", "--keep", "--child-id=-5", script, "a b", "--burst"],
                                   env=os.environ | {"A": "c d", "TMP": scratch, "SIG": sig})
        yield from differ("status", process.wait(60), 7)
        yield from differ("generations", (Path(scratch) / "trace").read_text(), f"{process.pid} 2 a b c d\n" * 4)
    # In each generation, argv[1] and [2]
    killed = subprocess.Popen([CTL, "run", "--keep", "sh", "-c", "kill -STOP $$; kill -SEGV $$", "x"])
    os.waitid(os.P_PID, killed.pid, os.WSTOPPED)
    os.kill(killed.pid, signal.SIGSEGV)
    os.kill(killed.pid, signal.SIGCONT)
    os.waitid(os.P_PID, killed.pid, os.WSTOPPED)
    killed.kill()
    yield from differ("status", killed.wait(60), -signal.SIGKILL)
    # Not restarted yet, a static program says so with 41
    yield from run("run", STATIC, "1", "2", status=41)
    yield from run("run", "-i", "3", "--", "sh", "-c", "exit 3", status=3)


SERVER = """
import os, socket, sys
if sys.argv[1] == "own":
    listener = socket.create_server(("127.0.0.1", %d))
    listener.set_inheritable(True)      # so that it outlives an execve(2), too
else:
    assert os.environ["LISTEN_FDS"] == "2" and os.environ["LISTEN_PID"] == str(os.getpid())
    listener = socket.socket(fileno=3)
    second = socket.socket(fileno=4)
    assert second.getsockname()[1] == %d
while True:
    client = listener.accept()[0]
    if client.recv(1) == b"x":
        os.abort()
    client.sendall(b"%%d" %% os.getpid())
    client.close()
""" % (PORT, PORT + 1)


def connect(data: bytes) -> socket.socket:
    for _ in range(300):
        try:
            client = socket.create_connection(("127.0.0.1", PORT), timeout=30)
            client.sendall(data)
            return client
        except ConnectionRefusedError:
            time.sleep(0.1)
    raise RuntimeError("the server does not listen")


def ask(own: bool) -> tuple[bytes, bytes]:
    """The answer, and the end of it. Who meets a socket of the server's own just before that is closed is reset, and tries again."""
    for _ in range(300):
        try:
            with connect(b"a") as client:
                return client.recv(100), client.recv(1)
        except (ConnectionResetError, BrokenPipeError):
            if not own:
                raise
    raise RuntimeError("the server resets everybody")


def servers() -> Iterator[str]:
    """One that is given its sockets, whose waiting clients are not refused; one that opens its own. Nobody waits for the old generation."""
    listen = ["-l", f"127.0.0.1:{PORT}", "--listen", f"[::1]:{PORT + 1}"]
    for options in (["--in-place", *listen], ["--in-place", "--no-ports"], ["--in-place"], [*listen, "--keep"]):
        given, keep = "-l" in options, "--keep" in options
        server = subprocess.Popen([CTL, "run", *options, "--", sys.executable, "-c", SERVER, "given" if given else "own"])
        files, kept = [], []
        try:
            for number in range(3):
                yield from differ(f"answer {number}", ask(not given), (b"%d" % server.pid, b""))
                files.append(len(os.listdir(f"/proc/{server.pid}/fd")))
                client = connect(b"x")
                if given:
                    # Connected while the server dies: in the queue of the socket, which is kept
                    with connect(b"a") as waiting:
                        yield from differ(f"answer to one that waited, {number}", waiting.recv(100), b"%d" % server.pid)
                if keep:
                    kept.append(client)
                else:
                    # Its connection was its own: closed with the generation
                    yield from differ("end", client.recv(1), b"")
                    client.close()
            yield from differ("descriptors", [n - files[0] for n in files], [0, 1, 2] if keep else [0, 0, 0])
            yield from differ("status", server.poll(), None)
        finally:
            server.kill()
            server.wait()
            for client in kept:
                client.close()


def limits() -> Iterator[str]:
    """The limit counts restarts of a program that is executed by way of perdurectl, too; they come later and later."""
    for options in (["--in-place"], ["--keeper"]):
        count = Path(scratch) / f"count{options[0]}"
        begun = time.monotonic()
        process = subprocess.Popen([CTL, "run", *options, "-b", "2", "-t", "1000000", "-d", "1000", "sh", "-c",
                                    f"echo $$ >>{count}; kill -SEGV $$; sleep 9"], stderr=subprocess.PIPE, text=True)
        said = process.communicate(timeout=60)[1]
        yield from differ("status", process.returncode, -signal.SIGSEGV)
        starts = count.read_text().split()
        yield from differ("starts, processes", (len(starts), len(set(starts))), (3, 1))
        yield from differ("is it perdurectl's", starts[0] == str(process.pid), "--in-place" in options)
        yield from differ("waits", re.findall(r"the next one is in (\d+) ms", said), ["1000", "2000"])
        yield from differ("waited", time.monotonic() - begun > 3, True)


def moved() -> Iterator[str]:
    """A program that changes its directory is found again, under the name that it was called by."""
    shutil.copy(sys.executable, Path(scratch) / "moves")
    text = ("import os, sys\nos.chdir('/')\nname = open('/proc/self/cmdline').read().split(chr(0))[0]\n"
            "n = os.write(1, name.encode() + b' ')\nif os.lseek(1, 0, 1) < 20:\n os.abort()\nsys.exit(9)\n")
    for name, path in (("./moves", os.environ["PATH"]), ("moves", f".:{os.environ['PATH']}")):
        with tempfile.TemporaryFile() as out:
            done = subprocess.run([CTL, "run", "--delay", "0", "--", name, "-c", text], cwd=scratch, stdout=out, stderr=subprocess.PIPE,
                                  timeout=60, env=os.environ | {"PATH": path})
            yield from differ("status", (done.returncode, done.stderr), (9, b""))
            out.seek(0)
            said = out.read().decode().split()
            yield from differ("names", (set(said), len(said) > 2), ({name}, True))


def refusals() -> Iterator[str]:
    """What cannot be run says why, with the status that a shell would give."""
    yield from run("run", "nonexistent-program", status=127, says="nonexistent-program: No such file")
    yield from run("run", "/nonexistent/program", status=127, says="No such file")
    yield from run("run", "/etc/passwd", status=126, says="Permission denied")
    yield from run("run", program("echo no first line\n", "bare"), status=126, says="#!/bin/sh")
    yield from run("run", status=2, says="which program")
    yield from run("run", "--burst", "0", "true", status=2, says="1 to 64")
    yield from run("run", "-i", "x", "true", status=2, says="not a number")
    yield from run("run", "--nonsense", "true", status=2, says="usage")
    yield from run("run", "-l", "127.0.0.1:notaport", "true", status=125, says="--listen 127.0.0.1:notaport")
    for port in "99999", "127.0.0.1:65536", "0", "184467440737095516160":
        yield from run("run", "-l", port, "true", status=2, says="--listen .*: not a number from 1 to 65535")
    yield from run("run", "--keep", "--no-ports", "true", status=2, says="nothing is ended")
    yield from run("run", "--keeper", "--in-place", "true", status=2, says="--keeper: not with")
    yield from run("run", "-l", "1", "true", status=2, says="LISTEN_FDS", env=os.environ | {"LISTEN_FDS": "1"})
    yield from run("run", "true", status=125, says="128 KiB", env=os.environ | {"A": "a" * 131000})
    for how, end in (("--in-place", "a fault will be the end"), ("--keeper", "another one is started"), ("--keep", "a fault will be")):
        yield from run("run", "--try", how, "sh", "-c", "exit 6", status=6, says=f"128 KiB.*{end}",
                       env=os.environ | {"A": "a" * 131000})
    yield from run("nonsense", status=2, says="no such command: nonsense")
    yield from run(status=2, says="usage")
    yield from run("show", status=2, says="process id")
    yield from run("show", "abc", status=2, says="not a process id")
    yield from run("show", "999999", status=1, says="no process 999999")
    yield from run("list", "x", status=2, says="show PID")
    yield from run("log", "-n", "0", status=2, says="not a number")
    yield from run("list", "-n", "1", status=2, says="for log")
    # A program with privileges that its starter has not: a user, a group, a capability (effective and permitted, CAP_NET_BIND_SERVICE)
    gains = program("", "gains")
    shutil.copy(STATIC, gains)
    os.chown(gains, 2002, 2002)
    os.chmod(scratch, 0o755)
    for mode, capability in ((0o4755, False), (0o2755, False), (0o6755, False), (0o755, True)):
        os.chmod(gains, mode)
        if capability:
            os.setxattr(gains, "security.capability", struct.pack("<5I", 0x02000001, 1 << 10, 0, 0, 0))
        yield from run("run", gains, status=126, says="gets privileges", user=NOBODY, group=NOBODY)
    # Root has them all
    yield from run("run", gains, "1", "2", status=41)
    os.removexattr(gains, "security.capability")
    # Without the group's right to execute it, the bit means something else
    for mode in (0o2705, 0o755):
        os.chmod(gains, mode)
        yield from run("run", gains, "1", "2", status=41, user=NOBODY, group=NOBODY)


def switched_off() -> Iterator[str]:
    """kernel.restart.enabled = 0: says how to switch it on, and what it knows; with --try the program runs."""
    process = subprocess.Popen([CTL, "run", "--keep", "sh", "-c", "kill -STOP $$; exit 3"])
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    os.kill(process.pid, signal.SIGSEGV)
    os.kill(process.pid, signal.SIGCONT)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    says = "sysctl kernel.restart.enabled=1"
    (SYSCTL / "enabled").write_text("0")
    try:
        for command in (["list", "--json"], ["log", "--json", process.pid], ["show", "--json", process.pid]):
            done = ctl(*command)
            yield from differ(f"{command}", (done.returncode, "faults kill: " + says in done.stderr), (0, True))
            told = json.loads(done.stdout)
            told = told[0] if isinstance(told, list) else told
            yield from differ("told", (told["pid"], told["generation"], told["signo"]), (process.pid, 2, 11))
        watch = subprocess.Popen([CTL, "watch", str(process.pid)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert watch.stderr and watch.stdout
        yield from differ("watch", says in watch.stderr.readline(), True)
        yield from run("check", status=1, says=says)
        yield from run("run", "true", status=125, says=f"{says}.*--try")
        yield from run("run", "--try", "sh", "-c", "exit 5", status=5, says="another one is started")
    finally:
        (SYSCTL / "enabled").write_text("1")
    # It goes on to watch; where it was only asked to begin with, it may see the fault before as well
    process.send_signal(signal.SIGSEGV)
    process.send_signal(signal.SIGCONT)
    yield from differ("seen", f"sh[{process.pid}]  SIGSEGV" in watch.stdout.readline(), True)
    watch.kill()
    watch.communicate()
    process.kill()
    process.wait()


def checks() -> Iterator[str]:
    told = json.loads(ctl("check", "--json").stdout)
    known = {"abi": told["abi"], "enabled": 1, "min_interval_ms": 0, "cap_burst": 64, "cap_interval_ms": 0,
             "held_bytes_max": 1048576}
    yield from differ("check --json", told, known)
    yield from differ("check", dict(line.split() for line in ctl("check").stdout.splitlines()),
                      {name: str(value) for name, value in told.items()})


def tells() -> Iterator[str]:
    """list and show: what is registered, for people and for programs; paths only for the owner."""
    yield from run("list", status=0, says="no process is registered")
    yield from differ("list --json", json.loads(ctl("list", "--json").stdout), [])
    name = program("#!/bin/sh\nkill -STOP $$\n", 'a "strange\\ name\u00e9')
    process = subprocess.Popen([CTL, "run", "--keep", "-i", "7", "--burst", "3", "-t", "90000", "-q", name, "two words", "", "\t", "-", ""])
    try:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        os.kill(process.pid, signal.SIGSEGV)
        os.kill(process.pid, signal.SIGCONT)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        listed = json.loads(ctl("list", "--json").stdout)
        shown = json.loads(ctl("--json", "show", process.pid).stdout)
        yield from differ("one is listed", [one["pid"] for one in listed], [process.pid])
        want = {"registered": 1, "child_id": 7, "generation": 2, "signo": 11, "cause": "fault", "burst": 3,
                "interval_ms": 90000, "left": 2, "policy": ["limit", "quarantine"], "pid": process.pid}
        for one in (*listed, shown):
            yield from differ("told", {key: one.get(key) for key in want}, want)
            yield from differ("path", one["path"], name.encode().decode("latin-1"))
            yield from differ("argv", one["argv"][1:], ["two words", "", "\t", "-", ""])
        text = ctl("show", process.pid).stdout
        yield from differ("show", dict(re.findall(r"^(\w+) +(.*)$", text, re.M))["generation"], "2")
        lines = ctl("list").stdout.splitlines()
        yield from differ("list", [len(lines), lines[1].split()[0]], [2, str(process.pid)])
        other = ctl("show", process.pid, "--json", user=NOBODY, group=NOBODY)
        yield from differ("for others", "path" in json.loads(other.stdout), False)
        yield from run("show", "1", status=0, says="process 1 is not registered")
    finally:
        process.kill()
        process.wait()


def names() -> Iterator[str]:
    """A process may call itself what it likes: as JSON that is it, in words it does not reach the terminal."""
    shutil.copy("/bin/sh", Path(scratch) / "7")
    stops = "import ctypes, os, signal; ctypes.CDLL(None).prctl(15, %r, 0, 0, 0); os.kill(os.getpid(), signal.SIGSTOP)"
    for comm in (b"7", b"a\\101 \\", b"\x1b[31m\xc3\xa9", b"two\nlines\n"):
        process = subprocess.Popen([CTL, "run", "--keep", sys.executable, "-c", stops % comm])
        try:
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            for one in (*json.loads(ctl("list", "--json").stdout), json.loads(ctl("show", process.pid, "--json").stdout)):
                yield from differ("comm", one["comm"], comm.decode("latin-1"))
            text = re.sub(rb"[^ -~]", b"?", comm).decode()
            yield from differ("show", re.findall(r"^comm +(.*)$", ctl("show", process.pid).stdout, re.M), [text])
            yield from differ("list", f"  {text}  " in ctl("list").stdout, True)
        finally:
            process.kill()
            process.wait()
    seen = len(ctl("log", "--json").stdout.splitlines())
    process = subprocess.Popen([CTL, "run", "--keep", "-b", "1", "./7", "-c", "kill -SEGV $$"], cwd=scratch)
    process.wait(60)
    for line in ctl("log", "--json").stdout.splitlines()[seen:]:
        yield from differ("comm in the log", json.loads(line)["comm"], "7")


def log() -> Iterator[str]:
    """Records: as many as there were faults, as JSON and in words, as they come, of one process."""
    seen = len(ctl("log", "--json").stdout.splitlines())
    go = Path(scratch) / "go"
    # The limit: two restarts, then death
    process = subprocess.Popen([CTL, "run", "--keep", "-b", "2", "-t", "100000", "sh", "-c",
                                f"until [ -e {go} ]; do sleep 0.1; done; kill -BUS $$; sleep 9"])
    watch, words, his, others = (subprocess.Popen([CTL, "watch", *more], stdout=subprocess.PIPE, text=True)
                                 for more in (["--json"], [], [str(process.pid)], ["1"]))
    time.sleep(1)
    go.touch()
    yield from differ("status", process.wait(60), -signal.SIGBUS)
    assert watch.stdout and words.stdout and his.stdout
    live = [json.loads(watch.stdout.readline()) for _ in range(3)]
    spoken = [words.stdout.readline() for _ in range(3)]
    yield from differ("watch PID", [his.stdout.readline() for _ in range(3)], spoken)
    for w in (watch, words, his, others):
        w.kill()
    yield from differ("watch of another", others.communicate()[0], "")
    for w in (watch, words, his):
        w.communicate()
    want = [("restarted", 2), ("restarted", 3), ("limit", 3)]
    records = [json.loads(line) for line in ctl("log", "--json").stdout.splitlines()][seen:]
    yield from differ("records", records, live)
    yield from differ("outcomes", [(r["outcome"], r["generation"]) for r in records], want)
    yield from differ("of whom", {(r["pid"], r["signo"], r["comm"], r["cause"]) for r in records}, {(process.pid, 7, "sh", "fault")})
    for line, says in zip(spoken, ("SIGBUS  restart: generation 2 after", "SIGBUS  restart: generation 3 after", "SIGBUS  dead: one fault too many")):
        if says not in line or f"sh[{process.pid}]" not in line:
            yield f"in words: {line!r}, not {says!r}"
    yield from differ("log -n 2", ctl("log", "-n", "2").stdout, "".join(spoken[1:]))
    yield from differ("log PID", ctl("log", process.pid).stdout, "".join(spoken))
    yield from run("log", "1", status=0, says="no fault")
    # What others have done is not for everybody
    yield from differ("for others", ctl("log", "--json", user=NOBODY, group=NOBODY).stdout, "")


def exit_policy() -> Iterator[str]:
    """--on-exit: a status is a fault, 0 is none."""
    script = program("#!/bin/sh\necho $$ >>$TMP/exits; exit $(wc -l <$TMP/exits | grep -vx 3 || echo 0)\n", "exits.sh")
    process = subprocess.Popen([CTL, "run", "--keep", "--on-exit", "--burst", "5", script], env=os.environ | {"TMP": scratch})
    yield from differ("status", process.wait(60), 0)
    yield from differ("starts", (Path(scratch) / "exits").read_text(), f"{process.pid}\n" * 3)


def policies() -> Iterator[str]:
    """What run asks for is the kernel's policy: who hangs is restarted, and a fault leaves a core."""
    show = 'while read -r line; do echo "$line"; done </proc/$$/restart'
    done = ctl("run", "--burst", 3, "--interval", 5000, "--quarantine", "--on-exit", "--core", "--heartbeat", 60000, "sh", "-c", show)
    said = dict(line.split(":", 1) for line in done.stdout.splitlines())
    for key, want in (("burst", "3"), ("interval_ms", "5000"), ("heartbeat_ns", "60000000000"), ("policy", "limit exit quarantine core")):
        yield from differ(key, sorted(said[key].split()), sorted(want.split()))
    hang = program(f"#!/bin/sh\necho >>{scratch}/hangs; [ $(wc -l <{scratch}/hangs) = 2 ] && exit 5; while :; do :; done\n", "hang")
    yield from run("run", "--heartbeat", 3000, hang, status=5)
    pattern = Path("/proc/sys/kernel/core_pattern")
    before = pattern.read_text()
    pattern.write_text(f"{scratch}/core")
    try:
        fault = program(f"#!/bin/sh\n[ -e {scratch}/faulted ] && exit 6; echo >{scratch}/faulted; kill -SEGV $$\n", "fault")
        yield from run("run", "--core", "--delay", 0, fault, status=6, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (1 << 30, 1 << 30)))
        core = next(Path(scratch).glob("core*"), None)
        yield from differ("core", core and core.read_bytes()[:4], b"\x7fELF")
    finally:
        pattern.write_text(before)


def drop_in() -> Iterator[str]:
    """The line in the systemd example is one that perdurectl takes."""
    text = (COMPLETION.parent.parent / "examples/systemd/perdure.conf").read_text()
    line = re.findall(r"^ExecStart=/usr/bin/perdurectl (.+) -- /usr/sbin/NAME", text, re.M)
    yield from differ("lines", len(line), 1)
    yield from run(*line[0].split(), "--", "sh", "-c", "exit 4", status=4)


def completion() -> Iterator[str]:
    """bash offers commands, options and programs."""
    for words, want in ((["li"], ["list"]), (["--j"], ["--json"]), (["run", "--no"], ["--no-ports"]), (["run", "--", "perdurec"], ["perdurectl"]),
                        (["run", "-i", "3", "perdurec"], ["perdurectl"]), (["run", "sh", "/etc/passw"], ["/etc/passwd", "/etc/passwd-"]),
                        (["log", "--l"], ["--lines"]), (["show", "--l"], [])):
        line = " ".join(f"'{w}'" for w in ["perdurectl", *words])
        done = subprocess.run(["bash", "-c", f'. "{COMPLETION}"; COMP_WORDS=({line}); COMP_CWORD={len(words)}; _perdurectl; printf "%s\\n" "${{COMPREPLY[@]}}"'],
                              capture_output=True, text=True)
        yield from differ(f"completion of {words}", sorted(filter(None, done.stdout.splitlines())), want)
        yield from differ("errors", done.stderr, "")


def main() -> int:
    (SYSCTL / "min_interval_ms").write_text("0")
    return ktap.run(checks, tells, names, log, restarts, servers, limits, moved, refusals, switched_off, exit_policy, policies, drop_in, completion)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        sys.exit(main())
