#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Servers that are killed while they work: each request is executed once. crash.py SESSIONS REQUESTS KILLS"""

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from replay import LOAD, Server, Session, ctl, domain_of, equal, main

SESSIONS, REQUESTS, KILLS = (int(a) for a in sys.argv[1:4])


def under_kills(servers: list[Server], client: Callable[[int], None]) -> int:
    """How often the client had what it wanted, one round after the other, until servers had been killed KILLS times."""
    failed: list[BaseException] = []
    rounds = 0
    enough = threading.Event()

    def guarded() -> None:
        nonlocal rounds
        try:
            while not rounds or not enough.is_set():
                client(rounds)
                rounds += 1
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    for _ in range(KILLS):
        time.sleep(random.uniform(0.05, 0.5))
        victims = random.sample(servers, random.randint(1, len(servers)))
        for victim in victims:
            victim.kill()
        for victim in victims:
            victim.start()
        if failed:
            break
    enough.set()
    thread.join()
    if failed:
        raise failed[0]
    return rounds


def load(server: Server, method: str, body: str) -> None:
    done = subprocess.run([LOAD, str(server.port), str(SESSIONS), str(REQUESTS), method, body], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    print("".join(f"# {line}\n" for line in done.stdout.splitlines()[-5:]), end="", flush=True)
    equal(done.returncode, 0)


def alone() -> None:
    """One server under kill -9: every acknowledged request has been executed once"""
    server = Server("alone", "server_checkpoint = 256k\nsession_checkpoint = 16k", size="8M").start()
    rounds = under_kills([server], lambda number: load(server, "add", f"total{number} 1"))
    print(f"# {rounds} rounds", flush=True)
    s = Session(server)
    for number in range(rounds):
        equal(s.call("look", f"total{number}"), (200, f"{SESSIONS * REQUESTS}\n"))
    figures = server.figures()
    assert figures["log"]["used"] < figures["log"]["size"], figures
    server.stop()
    assert ": whole" in ctl("verify", server.log)


def together() -> None:
    """Two servers of a domain, both killed: what one asks the other for is executed once, too"""
    servers = domain_of("front", "back")
    for server in servers:
        server.start()
    rounds = under_kills(servers, lambda number: load_forward(servers[0], number))
    print(f"# {rounds} rounds; {[s.figures()['counts'] for s in servers]}", flush=True)
    s = Session(servers[1])
    for number in range(rounds):
        equal(s.call("look", f"through{number}"), (200, f"{FORWARDED}\n"))
    known = json.loads(ctl("domain", servers[0].control, "--json"))
    equal([one["name"] for one in known], ["back"])
    for server in servers:
        server.stop()


FORWARDED = SESSIONS * REQUESTS // 20


def load_forward(server: Server, number: int) -> None:
    """Clients whose requests go through one server to another; each sees its own count there grow by one."""
    each = FORWARDED // 10
    wrong: list[str] = []

    def client(count: int) -> None:
        try:
            s = Session(server)
        except (OSError, AssertionError, KeyError):
            time.sleep(0.1)
            return client(count)
        for i in range(count):
            status, text = s.call("forward", f"back add through{number} 1", patience=120)
            if status != 200 or text.split()[1] != str(i + 1):
                wrong.append(f"request {i + 1}: {status} {text}")
        return None

    threads = [threading.Thread(target=client, args=(each + (FORWARDED % 10 if i == 0 else 0),)) for i in range(10)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong, wrong[:5]


main(alone, together)
