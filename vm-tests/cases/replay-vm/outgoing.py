#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
A server that calls another one of its domain is restarted in place: what it asked for is executed once, and what its generations
had open is closed. outgoing.py RESTARTS, and in the guest: outgoing.py inside RESTARTS
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

from guest import CTL, SERVICE, Guest, equal, main
from restart import PORT, Client, wait

SLACK = 6       # connections of one member to the other come and go


class Forwarder(Client):
    def send(self) -> None:
        self.connection.send("forward", {"Replay-Session": self.session, "Replay-Sequence": self.next}, "back add total 1")


def start(name: str, number: int, under: list[str]) -> "subprocess.Popen[bytes]":
    config, log = Path(f"/tmp/{name}.conf"), f"/tmp/{name}.log"
    config.write_text(f"[server]\nname = {name}\nlog = {log}\nlisten = 127.0.0.1:{PORT + number}\n"
                      f"[domain]\nlisten = 127.0.0.1:{9080 + number}\nkey = /tmp/key\n"
                      "[member front]\nnumber = 0\nurl = http://127.0.0.1:9080\n[member back]\nnumber = 1\nurl = http://127.0.0.1:9081\n")
    subprocess.run([CTL, "format", log, "--size", "8M"], check=True, stdout=subprocess.DEVNULL)
    return subprocess.Popen([*under, SERVICE, config], stdin=subprocess.DEVNULL)


def calls() -> None:
    """Restarts of a server that calls another one: each call is executed once, and no file of an old generation stays open"""
    restarts = int(sys.argv[2])
    Path("/tmp/key").write_text("0123456789abcdef0123456789abcdef\n")
    back = start("back", 1, [])
    front = start("front", 0, ["perdurectl", "run", "--keep", "--burst", "64", "--interval", "1", "--"])

    def generation() -> int:
        text = Path(f"/proc/{front.pid}/restart").read_text()
        assert "generation:" in text, front.wait(10)
        return int(text.partition("generation:")[2].split()[0])

    def there() -> bool:
        rows = Path("/proc/net/tcp").read_text()
        return all(f":{PORT + number:04X} 00000000:0000 0A" in rows for number in (0, 1))

    wait("both listen", there)
    client = Forwarder()
    equal(client.call(), 1)
    files = len(os.listdir(f"/proc/{front.pid}/fd"))
    for number in range(2, restarts + 2):
        before = generation()
        os.kill(front.pid, signal.SIGSEGV)
        wait("it is restarted", lambda: generation() > before)
        equal(client.call(), number)
    now = len(os.listdir(f"/proc/{front.pid}/fd"))
    print(f"# {restarts} restarts; {files} files open before, {now} after; {client.lost} connections lost", flush=True)
    equal(client.lost, 0)
    # As soon as it has called, a generation has opened three for that alone: a connection, and the pair that wakes its thread
    assert restarts * 3 > 2 * SLACK and now <= files + SLACK, (files, now)
    for process in front, back:
        process.terminate()
        equal(process.wait(60), 0)


def guest() -> None:
    job = Guest("outgoing", [sys.executable, Path(__file__).resolve(), "inside", sys.argv[1]], memory="1G", timeout=3000)
    job.exit()


if __name__ == "__main__":
    if sys.argv[1] == "inside":
        main(calls)
    guest()
