#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Sessions that nobody uses: when they are ended, and when not."""

import json
import threading
import time

from replay import Server, Session, at_once, ctl, equal, main, until

TTL = 2.0


def begun(name: str) -> Server:
    return Server(name, f"session_ttl = {TTL:.0f}s\nkey_ttl = {TTL:.0f}s\nthreads = 1").start()


def listed(server: Server) -> dict[str, str]:
    """The states of the sessions that the server has, by the visible part of their names."""
    return {one["session"]: one["state"] for one in json.loads(ctl("sessions", server.control, "--json"))}


def there(s: Session) -> bool:
    return s.name[:16] in listed(s.server)


def idle() -> None:
    """An idle session is ended and says so, one that is used is not, and a key that is sent again is a new request"""
    server = begun("idle")
    used, unused = Session(server), Session(server)
    equal(unused.call("add", "i 1"), (200, "1 1\n"))
    key = {"Idempotency-Key": "once"}
    equal(server.ask("POST", "/add", key, "key 1")[2], "1 1\n")
    begin = time.monotonic()
    count = 0
    while there(unused):
        assert time.monotonic() < begin + 60
        count += 1
        equal(used.call("add", "j 1"), (200, f"{count} {count}\n"))
        time.sleep(0.1)
    assert time.monotonic() - begin > TTL - 0.2, time.monotonic() - begin
    status, headers, _ = unused.once("add", "i 1")
    equal((status, headers["Replay-Answer"]), (410, "gone"))
    until(lambda: list(listed(server)) == [used.name[:16]] or used.call("look", "j")[0] != 200)
    equal(server.ask("POST", "/add", key, "key 1")[2], "2 1\n")
    # What it wrote for all stays
    equal(used.call("look", "i"), (200, "1\n"))
    server.stop()


def asked() -> None:
    """One with a request stays, however long that takes, and the time counts from its answer"""
    server = begun("asked")
    s = Session(server)
    got: list[tuple[int, str]] = []
    thread = threading.Thread(target=lambda: got.append(s.call("slow", f"{(TTL + 2) * 1000:.0f}")))
    thread.start()
    thread.join()
    equal(got, [(200, "1\n")])
    time.sleep(TTL / 2)
    equal(s.call("look", "slept"), (200, "1\n"))
    server.stop()


def late() -> None:
    """A request that comes when the session's time is over, and it has not been ended yet, begins its time anew"""
    server = begun("late")
    s, other = Session(server), Session(server)
    equal(s.call("add", "l 1"), (200, "1 1\n"))
    # The only thread is busy meanwhile
    thread = threading.Thread(target=lambda: other.call("slow", f"{(TTL + 2.5) * 1000:.0f}"))
    thread.start()
    until(lambda: "executing" in listed(server).values())
    time.sleep(TTL + 1.5)
    equal(s.call("add", "l 1"), (200, "2 2\n"))
    thread.join()
    equal(s.call("add", "l 1"), (200, "3 3\n"))
    server.stop()


def stuck() -> None:
    """One that cannot be replayed is kept for who mends it; after a crash the time of all begins anew"""
    server = begun("stuck")
    bad, good = Session(server), Session(server)
    equal(bad.call("fickle")[0], 200)
    equal(good.call("add", "s 1"), (200, "1 1\n"))
    time.sleep(TTL / 2)
    server.again()
    begin = time.monotonic()
    until(lambda: listed(server).get(bad.name[:16]) == "stuck")
    until(lambda: not there(good))
    assert time.monotonic() - begin > TTL - 0.3, time.monotonic() - begin
    time.sleep(TTL)
    equal(listed(server), {bad.name[:16]: "stuck"})
    equal(bad.once("fickle", b"", 2)[1]["Replay-Answer"], "stuck")
    # It makes all that it tells of durable
    ctl("checkpoint", server.control)
    server.again()
    status, headers, _ = good.once("add", "s 1")
    equal((status, headers["Replay-Answer"]), (410, "gone"))
    server.stop()


main(*at_once(idle, asked, late, stuck))
