#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Shows a web server that crashes in the middle of a download: today, and with Perdure. Needs root: ./build.sh demo."""

import hashlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

SIZE = 5_000_000
FAULT_AT = 3_000_000
LIMIT_S = 60

failures: list[str] = []


def say(text: str = "") -> None:
    print(text, flush=True)


def check(good: bool, what: str) -> str:
    if not good:
        failures.append(what)
    return what if good else f"{what}: WRONG"


def stop(text: str) -> None:
    sys.exit(f"demo: {text}")


class Server:
    """zhttpd, with a NULL pointer that it dereferences at the points given."""

    def __init__(self, root: Path, faults: str, *options: str) -> None:
        program = shutil.which("zhttpd-faults")
        if not program:
            stop("zhttpd-faults is not in PATH: run ./build.sh demo, which builds it and sets PATH")
        self.process = subprocess.Popen([str(program), "-p", "0", "-a", "127.0.0.1", "-d", str(root), *options],
                                        stderr=subprocess.PIPE, text=True, env={**os.environ, "ZHTTPD_FAULT": faults})
        self.pid = self.process.pid
        self.messages: list[str] = []
        assert self.process.stderr
        for line in self.process.stderr:
            self.messages.append(line.rstrip())
            if m := re.search(r"on port (\d+)", line):
                self.port = int(m[1])
                break
        else:
            stop(f"the server does not start: {self.messages}")
        self.url = f"http://127.0.0.1:{self.port}/big.bin"
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stderr
        self.messages += [line.rstrip() for line in self.process.stderr]

    def end(self) -> str:
        """Stops it, unless it has died before; tells how it ended."""
        try:
            self.process.wait(0.2)
            name = f"killed by {signal.Signals(-self.process.returncode).name}" if self.process.returncode < 0 else "?"
        except subprocess.TimeoutExpired:
            self.process.terminate()
            name = "alive" if self.process.wait(LIMIT_S) == 0 else f"status {self.process.returncode}"
        self.reader.join(LIMIT_S)
        return name

    def restarts(self) -> list[re.Match[str]]:
        """Of the messages after restarts: generation, time from fault to main() in ms, and the kernel's parts of it."""
        pattern = (r"\[(\d+)\]: generation (\d+) after (\w+), .* back in ([\d.]+) ms "
                   r"\(retain ([\d.]+), exec ([\d.]+), restore ([\d.]+);")
        return [m for line in self.messages if (m := re.search(pattern, line))]


def download(server: Server, *files: Path) -> str:
    """Downloads to all the files at once. Returns curl's verdict."""
    outputs = [arg for file in files for arg in ("-o", str(file), server.url)]
    done = subprocess.run(["curl", "-sS", "--parallel", "--parallel-immediate", *outputs],
                          capture_output=True, text=True, timeout=LIMIT_S)
    if not done.returncode:
        return "ok"
    error = re.search(r"curl: .*", done.stderr)     # some versions show their progress, too
    return error[0] if error else f"curl: status {done.returncode}"


def raw(server: Server, *parts: bytes) -> bytes:
    """Sends the parts, with a moment between them; returns all that comes back."""
    answer = b""
    with socket.create_connection(("127.0.0.1", server.port), LIMIT_S) as s:
        for part in parts:
            s.sendall(part)
            threading.Event().wait(0.1)
        while data := s.recv(65536):
            answer += data
    return answer


def main() -> int:
    sysctl = Path("/proc/sys/kernel/restart/min_interval_ms")
    if not sysctl.exists():
        stop("this kernel has no zero-loss restart: run ./build.sh demo, which boots one that has")
    emulated = "TCG" in Path("/proc/cpuinfo").read_text()
    with tempfile.TemporaryDirectory() as tmp:
        root = Path(tmp) / "www"
        root.mkdir()
        big, small = random.randbytes(SIZE), b"Hello, still here.\n"
        (root / "big.bin").write_bytes(big)
        (root / "small.txt").write_bytes(small)
        digest = hashlib.sha256(big).hexdigest()

        say(f"Perdure on Linux {os.uname().release}: a web server crashes in the middle of a download")
        say()
        say(f"The file has {SIZE:,} bytes, SHA-256 {digest[:16]}... The server dereferences a NULL pointer")
        say(f"when it has sent {FAULT_AT:,} bytes of the answer, in both cases below.")
        say()

        say("(a) Today: an ordinary server")
        today = Server(root, f"sent:{FAULT_AT}", "-n")
        say(f"    server  zhttpd -n, process {today.pid}")
        say(f"    client  curl {today.url}")
        verdict = download(today, Path(tmp) / "today")
        got_today = (Path(tmp) / "today").read_bytes()
        ended = today.end()
        say(f"    server  {check(ended == 'killed by SIGSEGV', ended)}")
        say(f"    client  {check('curl: (18)' in verdict, verdict)}")
        say()

        say("(b) Perdure: the same server, registered for a restart")
        sysctl.write_text("0")      # else a second fault within a minute would not count as transient, and kill
        ours = Server(root, f"sent:{FAULT_AT}")
        say(f"    server  zhttpd, process {ours.pid}")
        say(f"    client  curl {ours.url}")
        verdict = download(ours, Path(tmp) / "ours")
        got_ours = (Path(tmp) / "ours").read_bytes()
        ended_ours = ours.end()
        found = ours.restarts()
        if len(found) != 1:
            say("\n".join(ours.messages))
            stop("the server was not restarted once")
        pid, generation, signo, total, retain, exec_, restore = found[0].groups()
        same = hashlib.sha256(got_ours).hexdigest() == digest
        say(f"    server  SIG{signo}, and it goes on: process {pid}, generation {generation}")
        say(f"    client  {check(verdict == 'ok', verdict)}, SHA-256 {hashlib.sha256(got_ours).hexdigest()[:16]}...")
        say()
        rows = [("", "today", "Perdure"),
                ("client", "curl: (18), partial file", check(verdict == "ok", "ok")),
                ("bytes received", f"{len(got_today):,} of {SIZE:,}",
                 check(len(got_ours) == SIZE, f"{len(got_ours):,} of {SIZE:,}")),
                ("SHA-256", check(got_today != big, "differs"), check(same, "equal")),
                ("server", ended, check(ended_ours == "alive", ended_ours)),
                ("process", f"{today.pid}, gone", check(int(pid) == ours.pid, f"{ours.pid}, the same")),
                ("generation", "-", check(generation == "2", generation)),
                ("fault to main()", "-", f"{total} ms, of which"),
                ("", "", f"{retain} ms retain, {exec_} ms exec, {restore} ms restore")]
        for row in rows:
            say(f"    {row[0]:16} {row[1]:26} {row[2]}".rstrip())
        say(f"    (wall time of the guest{', an emulated machine, which is slow' if emulated else ''})")
        say()

        say("(c) The same fault at worse moments")
        get = b"GET /small.txt HTTP/1.1\r\nHost: demo\r\n"
        last = get + b"Connection: close\r\n\r\n"
        s = Server(root, "input:20")
        answer = raw(s, last[:20], last[20:])
        s.end()
        good = answer.endswith(b"\r\n\r\n" + small) and answer.count(b"HTTP/1.1 200 OK") == 1 and len(s.restarts()) == 1
        say(f"    half of a request sent              {check(good, 'answered, once')}")

        s = Server(root, "request_parsed:2")
        answer = raw(s, get + b"\r\n" + get + b"\r\n" + last)
        s.end()
        good = answer.count(b"HTTP/1.1 200 OK") == 3 == answer.count(b"\r\n\r\n" + small) and len(s.restarts()) == 1
        say(f"    the second of three pipelined ones  {check(good, 'three answers, in order')}")

        points = [random.randrange(1000, SIZE) for _ in range(5)]
        s = Server(root, ",".join(f"sent:{p}" for p in points))
        files = [Path(tmp) / f"parallel-{n}" for n in range(10)]
        verdict = download(s, *files)
        s.end()
        equal = sum(f.exists() and f.read_bytes() == big for f in files)
        restarts = s.restarts()
        good = verdict == "ok" and equal == 10 and len(restarts) == len(points)
        say(f"    ten downloads at once, {len(points)} faults     {check(good, f'{equal} of 10 files equal')}, "
            f"process {s.pid} in generation {restarts[-1][2] if restarts else 1}")
        say()
    if failures:
        say(f"Something is WRONG: {'; '.join(failures)}")
        return 1
    say("Not one byte lost. See perdure(7), and userspace/zhttpd for how a server is made to do this.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
