#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The servers of servers.py: served.py KIND PORT. What is asked of them says where they are to fault, once for each
MARK:

    /data/SIZE                      bytes that are known
    /fault/WAY/WHERE/MARK/SIZE      the same, with a fault before, within or after the answer
    /differs/MARK                   an answer that is another one each time, with a fault within
    /poison                         faults whenever it is read
    /upload/MARK                    the hash of the body; a fault in the middle of the body unless MARK is "-"
    /generation
"""

import asyncio
import ctypes
import hashlib
import os
import signal
import socket
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import perdure
import perdure.aio

perdure.HeldSocket.spool_limit = int(os.environ.get("SPOOL", perdure.HeldSocket.spool_limit))
MARKS = Path(os.environ.get("MARKS", "/tmp"))
WAYS: dict[str, Callable[[], object]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGSEGV), "null": lambda: ctypes.string_at(0), "abort": os.abort,
    "thread": lambda: (threading.Thread(target=ctypes.string_at, args=(0,)).start(), threading.Event().wait(20))}


def once(way: str, mark: str) -> None:
    """A fault, unless the one of this mark has been"""
    try:
        os.close(os.open(MARKS / mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    WAYS[way]()


def known(size: int) -> bytes:
    return hashlib.shake_128(str(size).encode()).digest(size)


def generation() -> int:
    info = perdure.info() if perdure.available() else None
    return info.generation if info else 0


def answer(path: str) -> Iterator[bytes]:
    """The body, in the parts in which it is to be written"""
    what, *words = path.strip("/").split("/")
    if what == "data":
        yield known(int(words[0]))
    elif what == "fault":
        way, where, mark, size = words
        body = known(int(size))
        if where == "before":
            once(way, mark)
        yield body[:len(body) // 2]
        if where == "within":
            once(way, mark)
        yield body[len(body) // 2:]
        if where == "after":
            once(way, mark)
    elif what == "differs":
        yield b"%10d" % generation() * 1000
        once("null", words[0])
        yield b"x" * 10000
    elif what == "poison":
        ctypes.string_at(0)
    elif what == "generation":
        yield b"%d" % generation()


def length(path: str) -> int:
    what, *words = path.strip("/").split("/")
    return {"data": lambda: int(words[0]), "fault": lambda: int(words[3]), "differs": lambda: 20000,
            "poison": lambda: len(ctypes.string_at(0)), "generation": lambda: len(str(generation())),
            "upload": lambda: 64}[what]()


def upload(read: Callable[[int], bytes], size: int, mark: str) -> bytes:
    sha, left = hashlib.sha256(), size
    while left:
        data = read(min(left, 30000))
        if not data:
            break
        sha.update(data)
        left -= len(data)
        if left < size // 2 and mark != "-":
            once("null", mark)
    return sha.hexdigest().encode()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = float(os.environ["TIMEOUT"]) if "TIMEOUT" in os.environ else None

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(length(self.path)))
        self.end_headers()
        for part in answer(self.path):
            self.wfile.write(part)

    def do_POST(self) -> None:
        body = upload(self.rfile.read, int(self.headers["Content-Length"]), self.path.split("/")[-1])
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Server(perdure.Restartable, ThreadingHTTPServer):
    request_queue_size = 100

    def get_request(self) -> tuple[socket.socket, object]:
        if "ACCEPT" not in os.environ:
            return super().get_request()
        fd, address = self.socket._accept()     # and nothing else yet
        if (MARKS / "armed").exists():
            once("null", "accept")
        return perdure.HeldSocket(fileno=fd), address


# ---- WSGI ----

def application(environ: dict, start_response: Callable) -> Iterator[bytes]:
    path = environ["PATH_INFO"]
    if environ["REQUEST_METHOD"] == "POST":
        body = upload(environ["wsgi.input"].read, int(environ["CONTENT_LENGTH"]), path.split("/")[-1])
        start_response("200 OK", [])
        return iter([body])
    start_response("200 OK", [("Content-Length", str(length(path)))] if environ.get("HTTP_X_LENGTH") else [])
    return answer(path)


# ---- asyncio: HTTP as far as this test needs it ----

def header(size: int) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size


async def streams(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            path = head[0].split()[1]
            if head[0].startswith("POST"):
                size = int(next(line.split(":")[1] for line in head if line.lower().startswith("content-length")))
                sha, left = hashlib.sha256(), size
                while left:
                    data = await reader.read(min(left, 30000))
                    sha.update(data)
                    left -= len(data)
                    if left < size // 2 and path.split("/")[-1] != "-":
                        once("null", path.split("/")[-1])
                writer.write(header(64) + sha.hexdigest().encode())
            else:
                writer.write(header(length(path)))
                for part in answer(path):
                    writer.write(part)
                    if "slow" not in path:
                        await writer.drain()
            perdure.aio.release(reader, writer)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


class Protocol(asyncio.Protocol):
    """Answers all requests that are there at once, whether what was answered before has left or not."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self.transport, self.data = transport, b""

    def data_received(self, data: bytes) -> None:
        self.data += data
        while b"\r\n\r\n" in self.data:
            head, _, self.data = self.data.partition(b"\r\n\r\n")
            path = head.split()[1].decode()
            self.transport.write(header(length(path)))
            for part in answer(path):
                self.transport.write(part)
            perdure.aio.release(self.transport, len(head) + 4)


async def serve(kind: str, port: int) -> None:
    server = await (perdure.aio.start_server(streams, "127.0.0.1", port) if kind == "streams" else
                    perdure.aio.create_server(Protocol, "127.0.0.1", port))
    perdure.close_leftovers()
    await server.serve_forever()


# ---- lines: not HTTP ----

class Lines(socketserver.StreamRequestHandler):
    """The sum of the numbers of the connection so far: the whole connection is replayed."""

    def handle(self) -> None:
        total = 0
        for line in self.rfile:
            if line.startswith(b"fault"):
                once("null", line.split()[1].decode())
                continue
            total += int(line)
            self.wfile.write(b"%d\n" % total)


class LineServer(perdure.Restartable, socketserver.ThreadingTCPServer):
    allow_reuse_address = True


def main() -> None:
    kind, port = sys.argv[1], int(sys.argv[2])
    if kind in ("streams", "protocol"):
        asyncio.run(serve(kind, port))
    else:
        server: socketserver.TCPServer = {"http": Server, "lines": LineServer, "wrapped": Server}[kind](
            ("127.0.0.1", port), {"http": Handler, "lines": Lines, "wrapped": Handler}[kind])
        if kind == "wrapped":               # as TLS does
            server.socket = socket.socket(fileno=server.socket.detach())
        server.serve_forever()


if __name__ == "__main__":
    main()
