#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
A day of requests as fast as they are served: day.py SESSIONS REQUESTS KILLS, in a log of 16 MiB. The first half is under kills; in
the second the server lives, and must not grow.
"""

import json
import random
import statistics
import subprocess
import sys
import threading
import time

from replay import LOAD, Server, Session, ctl, equal, main

SESSIONS, REQUESTS, KILLS = (int(a) for a in sys.argv[1:4])
HALF = REQUESTS // 2
GROWTH = 1.05       # of the memory, from the second quarter of the time to the last one: what malloc keeps differs by less


def half(server: Server, number: int) -> subprocess.Popen[str]:
    return subprocess.Popen([str(a) for a in (LOAD, server.port, SESSIONS, HALF, "add", f"half{number} 1")], stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)


def bounded(server: Server) -> None:
    log = server.figures()["log"]
    assert log["used"] <= log["size"], log


def finished(load: subprocess.Popen[str]) -> None:
    said = load.communicate()[0]
    print("".join(f"# {line}\n" for line in said.splitlines()[-5:]), end="", flush=True)
    equal(load.returncode, 0)
    equal(json.loads(said.splitlines()[-1])["requests"], SESSIONS * HALF)


def day() -> None:
    """All of a day's requests, each once, in a small log, under kills; and the memory is the same at the end"""
    server = Server("day", "server_checkpoint = 512k\nsession_checkpoint = 32k\nsession_ttl = 1d", size="16M").start()
    begin = time.monotonic()
    load = half(server, 0)
    draw = random.Random(7)
    for _ in range(KILLS):
        time.sleep(draw.uniform(0.5, 3))
        assert load.poll() is None, "it was over before all kills"
        bounded(server)
        server.again()
    finished(load)
    epoch, memory = server.figures()["epoch"], []
    load = half(server, 1)
    waiting = threading.Event()
    while load.poll() is None:
        memory.append(server.resident() / 1024)
        bounded(server)
        waiting.wait(0.2)
    finished(load)
    quarter = len(memory) // 4
    assert quarter >= 5, "too short to say anything"
    early, late = (statistics.median(memory[n * quarter:(n + 1) * quarter]) for n in (1, 3))
    figures = server.figures()
    equal(figures["epoch"], epoch)
    print(f"# {2 * HALF * SESSIONS} requests, {KILLS} kills, {time.monotonic() - begin:.0f} s; KiB: {early:.0f}, then {late:.0f}; the log went round "
          f"{figures['log']['end'] // figures['log']['size']} times", flush=True)
    assert figures["log"]["end"] > 3 * figures["log"]["size"], figures
    assert late < early * GROWTH, (early, late)
    s = Session(server)
    for number in 0, 1:
        equal(s.call("look", f"half{number}"), (200, f"{SESSIONS * HALF}\n"))
    server.stop()
    assert ": whole" in ctl("verify", server.log)


main(day)
