#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What a client may say to a server, and what it is told."""

import json
import socket
import threading
import time

from replay import PLACE, Server, Session, ctl, equal, main

server = Server("one", "session_ttl = 1d").start()


def sessions() -> None:
    """A request that is sent again has the same reply, and is executed once"""
    s = Session(server)
    equal(s.call("add", "a 5"), (200, "5 1\n"))
    for _ in range(3):
        status, headers, text = s.once("add", "a 5", 1)
        equal((status, text, headers["Replay-Answer"], headers["Replay-Sequence"]), (200, "5 1\n", "ok", "1"))
    equal(s.call("add", "a 2"), (200, "7 2\n"))
    equal(s.call("look", "a"), (200, "7\n"))
    equal(s.call("look", "nothing")[0], 404)


def sequence() -> None:
    """Not the next request, another one under the same number, no session: each is told apart"""
    s = Session(server)
    equal(s.call("add", "b 1")[0], 200)
    equal(s.call("add", "b 1")[0], 200)
    for wrong in 1, 4, 2 ** 64 - 1:
        status, headers, _ = s.once("add", "b 1", wrong)
        equal((status, headers["Replay-Answer"], headers["Replay-Sequence"]), (409, "sequence", "3"))
    status, headers, _ = s.once("add", "b 2", 2)
    equal((status, headers["Replay-Answer"]), (422, "changed"))
    status, headers, _ = s.once("look", "b 1", 2)
    equal((status, headers["Replay-Answer"]), (422, "changed"))
    name, s.name = s.name, s.name[:-1] + ("0" if s.name[-1] != "0" else "1")
    equal(s.once("add", "b 1")[0], 410)
    for s.name in "", "x", "0" * 49, name + "0", name.upper() if name != name.upper() else "y":
        status, headers, _ = s.once("add", "b 1")
        assert (status, headers["Replay-Answer"]) in ((410, "gone"), (400, "refused")), (s.name, status)
    s.name = name
    equal(s.call("look", "b"), (200, "2\n"))


def end() -> None:
    """A session that is ended is gone; ending it again does no harm"""
    s = Session(server)
    equal(s.call("add", "c 1")[0], 200)
    path, headers = f"/replay/sessions/{s.name}", {"Replay-Sequence": "2"}
    equal(server.ask("DELETE", path, {"Replay-Sequence": "9"})[0], 409)
    equal(server.ask("DELETE", path, {})[0], 400)
    equal(server.ask("DELETE", path, headers)[0], 204)
    server.again()
    equal(s.once("add", "c 1")[0], 410)
    equal(server.ask("DELETE", path, headers)[0], 204)


def keys() -> None:
    """A key instead of a session"""
    def add(key: str, body: str = "d 1") -> tuple[int, str]:
        status, _, text = server.ask("POST", "/add", {"Idempotency-Key": key}, body)
        return status, text

    equal(add("k1"), (200, "1 1\n"))
    equal(add("k1"), (200, "1 1\n"))
    equal(add("k2"), (200, "2 1\n"))
    equal(add("k1", "d 3")[0], 422)
    equal(add("k" * 255), (200, "3 1\n"))
    equal(add("k" * 256)[0], 400)
    equal(add("")[0], 400)
    server.again()
    equal(add("k1"), (200, "1 1\n"))
    equal(add("k3"), (200, "4 1\n"))


def refused() -> None:
    """What is not understood is refused, with what to do"""
    s = Session(server)
    for method, path, headers, want in (
            ("POST", "/add", {}, "Idempotency-Key"),
            ("POST", "/add", {"Replay-Session": s.name}, "Replay-Sequence"),
            ("POST", "/add", {"Replay-Session": s.name, "Replay-Sequence": "-1"}, "Replay-Sequence"),
            ("POST", "/add", {"Replay-Session": s.name, "Replay-Sequence": " 1x"}, "Replay-Sequence"),
            ("POST", "/add", {"Replay-Session": s.name, "Replay-Sequence": str(2 ** 64)}, "Replay-Sequence"),
            ("POST", "/nothing", {"Idempotency-Key": "x"}, "no such method"),
            ("POST", "/", {"Idempotency-Key": "x"}, "no such method"),
            ("POST", "/replay/flush", {"Replay-State": "0/1/1"}, "sessions"),
            ("POST", "/replay/recovered", {}, "sessions"),
            ("GET", "/add", {}, "POST"), ("PUT", "/replay/sessions", {}, "POST")):
        status, answer, text = server.ask(method, path, headers)
        equal((status, answer["Replay-Answer"]), (400, "refused"))
        assert want in text, (path, text)
    # What only a member of the domain may say changes nothing for a client
    status, answer, _ = server.ask("POST", "/add", {"Idempotency-Key": "forged", "Replay-From": "0", "Replay-Depends": "1/99/99"}, "e 1")
    equal(status, 200)
    assert "Replay-Depends" not in answer


def sizes() -> None:
    """1 MiB, and not one byte more, whether its length is said before or not"""
    s = Session(server)
    status, text = s.call("echo", b"x" * 1000000)
    equal((status, len(text)), (200, 1000000))
    # It is told before it has sent the body
    with socket.create_connection(("127.0.0.1", server.port)) as c:
        c.sendall(f"POST /echo HTTP/1.1\r\nHost: x\r\nReplay-Session: {s.name}\r\nReplay-Sequence: {s.next}\r\n"
                  f"Content-Length: {1024 * 1024 + 1}\r\n\r\n".encode())
        got = c.recv(1000)
        assert got.startswith(b"HTTP/1.1 413 ") and b"Replay-Answer: refused" in got, got
    with socket.create_connection(("127.0.0.1", server.port)) as c:
        c.sendall(f"POST /echo HTTP/1.1\r\nHost: x\r\nReplay-Session: {s.name}\r\nReplay-Sequence: {s.next}\r\n"
                  "Transfer-Encoding: chunked\r\n\r\n".encode())
        try:
            for _ in range(40):
                c.sendall(b"10000\r\n" + b"y" * 65536 + b"\r\n")
            c.sendall(b"0\r\n\r\n")
            got = c.recv(1000)
        except OSError:
            got = b""
        # Cut off, before it has filled the memory
        equal(got, b"")
    equal(s.call("add", "f 1"), (200, "1 1\n"))


def hostile() -> None:
    """Half requests, rubbish, and many idle connections do not keep others from being served"""
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
    for i, c in enumerate(idle):
        c.sendall((b"POST /add HT", b"\0\xff\r\n\r\n" * 20, b"POST /add HTTP/1.1\r\nContent-Length: 5\r\n\r\nx", b"GET")[i % 4])
    s = Session(server)
    equal(s.call("add", "g 1"), (200, "1 1\n"))
    for c in idle:
        c.close()
    equal(s.call("add", "g 1"), (200, "2 2\n"))


def values() -> None:
    """Time, random numbers and uuids are the same after a crash"""
    s = Session(server)
    first = s.call("values")
    second = s.call("values")
    assert first[1] != second[1]
    server.again()
    equal(s.once("values", b"", 2)[2], second[1])


def numbers() -> None:
    """A number is one, and a text is none"""
    s = Session(server)
    equal(s.call("put", "j -9223372036854775808")[0], 200)
    equal(s.call("look", "j"), (200, "-9223372036854775808\n"))
    equal(s.call("add", "j 7"), (200, "-9223372036854775801 1\n"))
    equal(s.call("put", "j text")[0], 200)
    equal(s.call("look", "j")[0], 422)
    equal(s.call("add", "j 7")[0], 422)
    server.again()
    equal(s.once("add", "j 7", 6)[0], 422)


def joined() -> None:
    """The same request at the same time, many times: executed once, and every one is answered or told to ask again"""
    s = Session(server)
    got: list[tuple[int, str]] = []

    def one() -> None:
        status, _, text = s.once("slow", "300", 1)
        got.append((status, text))

    threads = [threading.Thread(target=one) for _ in range(20)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(status == 503 or text == "1\n" for status, text in got), got
    assert sum(status == 200 for status, _ in got) >= 8, got
    s.next = 2
    equal(s.call("look", "slept"), (200, "1\n"))


def control() -> None:
    """replayctl says what the server does"""
    figures = server.figures()
    equal(figures["state"], "serving")
    s = Session(server)
    s.call("add", "h 1")
    before = server.figures()["counts"]["executed"]
    s.call("add", "h 1")
    equal(server.figures()["counts"]["executed"], before + 1)
    listed = json.loads(ctl("sessions", server.control, "--json"))
    mine = [one for one in listed if one["session"] == s.name[:16]]
    equal([(one["state"], one["next"]) for one in mine], [("idle", 3)])
    assert s.name[17:] not in ctl("sessions", server.control), "the token of a session is shown"
    text = ctl("metrics", server.control)
    assert f"\nreplay_requests_total {before + 1}\n" in text, text
    checkpoints = server.figures()["counts"]["checkpoints"]
    for _ in range(6):
        ctl("checkpoint", server.control)
    assert server.figures()["counts"]["checkpoints"] > checkpoints
    assert "is the server running" in ctl("status", PLACE / "nothing.sock", ok=1)
    equal(oct(server.control.stat().st_mode & 0o777), "0o660")


def stops() -> None:
    """SIGTERM ends it at once, and it goes on where it was"""
    s = Session(server)
    s.call("add", "i 1")
    begin = time.monotonic()
    text = server.stop()
    assert "stops" in text and time.monotonic() - begin < 10, text
    assert not server.control.exists()
    server.start()
    equal(s.call("add", "i 1"), (200, "2 2\n"))
    server.stop()


main(sessions, sequence, end, keys, refused, sizes, hostile, values, numbers, joined, control, stops)
