#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Clients that mean harm, and clients that send what is unusual: nothing is lost, and others are served meanwhile."""

import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from replay import Server, Session, ctl, equal, main

TIME = 10.0         # that an answer may take: that of a client who waits for MHD's idle limit takes 75 s

resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
server = Server("many", "connections = 4000").start()


def post(path: str, *lines: str, body: bytes = b"", version: str = "1.1", method: str = "POST", length: bool = True) -> bytes:
    all_lines = [f"{method} {path} HTTP/{version}", "Host: x", *lines, *([f"Content-Length: {len(body)}"] if length else [])]
    return "\r\n".join(all_lines).encode() + b"\r\n\r\n" + body


def of(s: Session, number: int) -> tuple[str, str]:
    return f"Replay-Session: {s.name}", f"Replay-Sequence: {number}"


def connect() -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), TIME)


@contextmanager
def others_are_served() -> Iterator[None]:
    """Meanwhile one client asks on new connections, another on the one that it has; each has its right answer in its time."""
    stop = threading.Event()
    failed: list[BaseException] = []
    counts = [0, 0]

    def one(kind: int) -> None:
        try:
            s = Session(server)
            c = connect()
            while not stop.is_set() or counts[kind] < 5:
                begin = time.monotonic()
                text = post("/add", *of(s, counts[kind] + 1), body=f"others{kind} 0".encode())
                if not kind:
                    c.close()
                    c = connect()
                c.sendall(text)
                got = c.recv(4096)
                assert got.endswith(f"\r\n\r\n0 {counts[kind] + 1}\n".encode()), got
                counts[kind] += 1
                assert time.monotonic() - begin < TIME, time.monotonic() - begin
                time.sleep(0.02)
            c.close()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=one, args=(kind,)) for kind in (0, 1)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if failed:
        raise failed[0]


def slow_loris() -> None:
    """Half a header, half a body, byte by byte, for seconds: nothing of it is executed, and others are served"""
    s = Session(server)
    whole = post("/add", *of(s, 1), body=b"loris 1")
    with others_are_served():
        all_of = [connect() for _ in range(300)]
        for i in range(12):
            for number, c in enumerate(all_of):
                # A third stops in the header, a third in the body, a third goes on and on
                at = (20, len(whole) - 2, 5 * (i + 1))[number % 3]
                c.sendall(whole[at * (i > 0) if number % 3 < 2 else 5 * i:at])
            time.sleep(0.2)
        for c in all_of:
            c.close()
    equal(s.call("add", "loris 1"), (200, "1 1\n"))


def many() -> None:
    """2000 connections at once: each is answered; and as many that say nothing keep nobody from an answer"""
    s = Session(server)
    connections = [connect() for _ in range(2000)]
    with others_are_served():
        time.sleep(1)
    for number, c in enumerate(connections):
        c.sendall(post("/add", f"Idempotency-Key: many-{number}", body=b"many 1"))
    sums = set()
    for c in connections:
        c.settimeout(60)
        got = c.recv(4096)
        assert got.startswith(b"HTTP/1.1 200 "), got
        sums.add(int(got.split(b"\r\n\r\n")[1].split()[0]))
        c.close()
    equal(sums, set(range(1, 2001)))
    equal(s.call("look", "many"), (200, "2000\n"))


def too_many() -> None:
    """More connections than may be: those that are there are served, and new ones when others have gone"""
    small = Server("few", "connections = 20").start()
    s = Session(small)
    with socket.create_connection(("127.0.0.1", small.port), TIME) as mine:
        mine.sendall(post("/add", *of(s, 1), body=b"few 1"))
        assert mine.recv(4096).endswith(b"\r\n\r\n1 1\n")
        idle = [socket.create_connection(("127.0.0.1", small.port), TIME) for _ in range(60)]
        for number in 2, 3:
            mine.sendall(post("/add", *of(s, number), body=b"few 1"))
            assert mine.recv(4096).endswith(f"\r\n\r\n{number} {number}\n".encode())
        for c in idle:
            c.close()
    s.next = 4
    equal(s.call("add", "few 1", patience=30), (200, "4 4\n"))
    small.stop()


def half() -> None:
    """Bodies that stop half way, with the end of the connection or without: not executed"""
    s = Session(server)
    with others_are_served():
        for abrupt in False, True:
            for body in post("/add", *of(s, 1), body=b"half 1"), post("/echo", *of(s, 1), body=b"h" * 900000):
                c = connect()
                c.sendall(body[:-3])
                if abrupt:
                    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                time.sleep(0.1)
                c.close()
    equal(s.call("add", "half 1"), (200, "1 1\n"))


def pipelined() -> None:
    """Fifty requests of a session in one piece: each is executed, in order; the same fifty once more, none"""
    s = Session(server)
    text = b"".join(post("/add", *of(s, i + 1), body=b"piped 1") for i in range(50))
    with connect() as c:
        c.sendall(text)
        got = b""
        while got.count(b"HTTP/1.1 ") < 50 or not got.endswith(b"50 50\n"):
            piece = c.recv(65536)
            assert piece, got[-300:]
            got += piece
        equal([one.split(b"\r\n\r\n")[1] for one in got.split(b"HTTP/1.1 200 ")[1:]], [b"%d %d\n" % (i, i) for i in range(1, 51)])
        c.sendall(text)
        got = c.recv(65536)
        assert got.startswith(b"HTTP/1.1 409 "), got
    equal(s.once("look", "piped", 51)[2], "50\n")


def chunked() -> None:
    """A chunked body is a body; one without an end is cut off, and so is a chunk that lies"""
    s = Session(server)
    head = post("/add", *of(s, 1), "Transfer-Encoding: chunked", length=False)
    for bad in b"zz\r\nchunk 1\r\n0\r\n\r\n", b"-1\r\nx\r\n", b"ffffffffffffffffff\r\n", b"7\r\nchunk 1\r\n":
        with connect() as c:
            c.sendall(head + bad)
            c.settimeout(0.3)
            try:
                got = c.recv(4096)
            except OSError:
                got = b""
            assert not got or got.startswith(b"HTTP/1.1 4"), got
    with others_are_served(), connect() as c:
        try:
            c.sendall(post("/echo", *of(s, 1), "Transfer-Encoding: chunked", length=False))
            for _ in range(100000):
                c.sendall(b"1000\r\n" + b"y" * 4096 + b"\r\n")
            raise AssertionError("400 MB were taken")
        except ConnectionError:
            pass
    got = server.raw(head + b"3\r\nchu\r\n4\r\nnk 1\r\n0\r\nTrailer: x\r\n\r\n" + post("/look", *of(s, 2), "Connection: close", body=b"chunk"))
    assert b"\r\n\r\n1 1\n" in got and got.endswith(b"\r\n\r\n1\n"), got
    # libmicrohttpd 1.0 refuses extensions, and then nothing is executed
    got = server.raw(post("/add", *of(s, 3), "Transfer-Encoding: chunked", "Connection: close", length=False) + b"7;ext=1\r\nchunk 1\r\n0\r\n\r\n")
    taken = got.startswith(b"HTTP/1.1 200 ")
    assert taken or got.startswith(b"HTTP/1.1 400 "), got
    equal(s.once("look", "chunk", 3 + taken)[2], f"{1 + taken}\n")


def headers() -> None:
    """Headers that are large, many, double or wrong: refused or answered, never executed twice"""
    s = Session(server)
    for lines in ([f"X: {'x' * 65536}"], [f"X{i}: {'y' * 100}" for i in range(600)], [f"Replay-Session: {'0' * 65536}"]):
        got = server.raw(post("/add", *lines, *of(s, 1), body=b"head 1"))
        assert not got or got.startswith((b"HTTP/1.1 413 ", b"HTTP/1.1 431 ")), got[:200]
    for length in "-1", "abc", "5, 5", "99999999999999999999", "0x6", "+6", "6 6", "":
        got = server.raw(post("/add", *of(s, 1), f"Content-Length: {length}", body=b"head 1", length=False))
        assert not got or got.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 413 ")), (length, got[:200])
    for text in (post("/add", *of(s, 1), "Content-Length: 6", "Content-Length: 60", body=b"head 1", length=False),
                 post("/add", *of(s, 1), "Content-Length: 6", "Transfer-Encoding: chunked", body=b"head 1", length=False)):
        with connect() as c:
            c.sendall(text)
            c.settimeout(0.3)
            try:
                c.recv(4096)
            except TimeoutError:
                pass
    status, said = Session(server).call("look", "head")
    assert status == 404 or said == "1\n", (status, said)


def verbs() -> None:
    """Other methods of HTTP, other versions and paths that climb: nothing is executed that was not asked for"""
    s = Session(server)
    for method in "GET", "HEAD", "PUT", "PATCH", "TRACE", "add", "post":
        got = server.raw(post("/add", *of(s, 1), "Connection: close", body=b"verb 1", method=method))
        assert got.startswith(b"HTTP/1.1 400 "), (method, got)
        assert method != "HEAD" or got.endswith(b"\r\n\r\n"), got
    for path in ("/../add", "/./add", "//add", "/add/", "/add/../add", "/%2e%2e/add", "/%2fadd", "/ADD", "/add%20", "/add%0d%0aX:%20y", "/" + "a" * 300,
                 "/add%ff", "/%", "/%zz", "*", "add", "/replay", "/replay/", "/replay/sessions/", "/replay/sessions/%00", "/replay/../add"):
        got = server.raw(post(path, *of(s, 1), "Connection: close", body=b"verb 1"))
        assert got.startswith(b"HTTP/1.1 400 "), (path, got)
    equal(s.call("look", "verb")[0], 404)
    s = Session(server)
    got = server.raw(post("/add", *of(s, 1), body=b"verb 1", version="1.0"))
    assert got.startswith((b"HTTP/1.0 200 ", b"HTTP/1.1 200 ")) and got.endswith(b"\r\n\r\n1 1\n"), got
    # A question mark is no part of a method's name
    got = server.raw(post("/add?x=1", *of(s, 2), "Connection: close", body=b"verb 1"))
    assert got.endswith(b"\r\n\r\n2 2\n"), got
    for version in "1.2", "2.0", "0.9", "x":
        got = server.raw(post("/add", *of(s, 3), body=b"verb 1", version=version))
        assert got.startswith((b"HTTP/1.1 505 ", b"HTTP/1.1 400 ", b"HTTP/1.1 200 ")) or not got, (version, got)


def nul() -> None:
    """A name with a NUL in it is not the name before the NUL"""
    s = Session(server)
    for path in "/add%00", "/add%00x", "/%00add", "/%00":
        got = server.raw(post(path, *of(s, 1), "Connection: close", body=b"nul 1"))
        assert got.startswith(b"HTTP/1.1 400 "), (path, got)
    equal(s.call("look", "nul")[0], 404)


def said(s: Session, number: int, method: str, body: bytes) -> bytes:
    """The answer, byte by byte, but for the time of day."""
    got = server.raw(post(f"/{method}", *of(s, number), "Connection: close", body=body))
    return b"\r\n".join(line for line in got.split(b"\r\n") if not line.startswith(b"Date: "))


def the_same() -> None:
    """Whatever is in a body, the reply after a crash is the same, byte by byte, with its headers"""
    bodies = ("Grüße, 世界 🎉".encode(), b"", b"\0", b"a\0b\0\0c\r\n\r\n\xff\xfe", bytes(range(256)) * 40, b"x" * 1000000)
    sessions = [Session(server) for _ in bodies]
    first = [said(s, 1, "echo", body) for s, body in zip(sessions, bodies)]
    for answer, body in zip(first, bodies):
        assert answer.startswith(b"HTTP/1.1 200 ") and answer.split(b"\r\n\r\n", 1)[1] == body, answer[:300]
        equal(b"\r\nContent-Type: application/x-echo\r\n" in answer, bool(body))
    other = Session(server)
    plain = [said(other, 1, "add", b"same 1"), said(other, 2, "look", b"none")]
    assert b"\r\nContent-Type: text/plain\r\n" in plain[0] and plain[1].startswith(b"HTTP/1.1 404 "), plain
    for _ in range(2):
        server.again()
        equal([said(s, 1, "echo", body) for s, body in zip(sessions, bodies)], first)
        equal(said(other, 2, "look", b"none"), plain[1])
    # From a checkpoint, too
    before = server.figures()["counts"]["checkpoints"]
    for _ in range(6):
        ctl("checkpoint", server.control)
    assert server.figures()["counts"]["checkpoints"] >= before + len(bodies)
    server.again()
    equal([said(s, 1, "echo", body) for s, body in zip(sessions, bodies)], first)
    server.stop()


main(slow_loris, many, too_many, half, pipelined, chunked, headers, verbs, nul, the_same)
