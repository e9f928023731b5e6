# SPDX-License-Identifier: LGPL-2.1-or-later
"""A server for WSGI applications (PEP 3333) that outlives their faults: wsgiref's, with threads, kept connections and
a graceful end.

    python3 -m perdure.wsgi shop:app --port 8000

A fault of an extension module restarts the program; requests that were not answered are executed again, and what
clients have of their answers is not sent twice. So an application has to answer the same the second time, or the
connection is reset; environ has "perdure.began", when the request was first there as time.time() says it, for what
would depend on the time. SIGTERM and SIGINT end it: requests that are there are answered, for at most --grace
seconds. """

from __future__ import annotations

import argparse
import importlib
import io
import logging
import os
import signal
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler
from typing import Any
from wsgiref.simple_server import ServerHandler, WSGIRequestHandler, WSGIServer

from . import Policy, State, close_leftovers, protect, protected
from .held import HeldSocket
from .serve import Restartable

_UNREAD_MAX = 256 << 10         # of a body that the application has left: more, and the connection is closed


class _Body(io.RawIOBase):
    """So much of the connection, and no more."""

    def __init__(self, file: Any, size: int) -> None:
        self._file, self.left = file, size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read1(min(self.left, len(buffer))) if self.left else b""
        buffer[:len(data)] = data
        self.left -= len(data)
        return len(data)


class _Application(ServerHandler):
    """One request. wsgiref leaves the framing to the end of the connection; here it can be kept."""

    http_version = "1.1"
    server_software = "perdure.wsgi"
    request_handler: _Handler
    chunked = finished = sent = bodiless = False
    expected: int | None = None
    headers: Any
    status: Any
    headers_sent: Any
    bytes_sent: Any

    def cleanup_headers(self) -> None:
        handler = self.request_handler
        bodiless = self.status[:1] == "1" or self.status[:3] in ("204", "304")
        if not bodiless:
            super().cleanup_headers()
        elif self.status[:3] != "304":
            del self.headers["Content-Length"]
        if "Content-Length" in self.headers:
            self.expected = int(str(self.headers["Content-Length"]))
        elif not bodiless and handler.request_version == "HTTP/1.1":
            self.headers["Transfer-Encoding"] = "chunked"
            self.chunked = True
        elif not bodiless:
            handler.close_connection = True
        # Not when the server stops: an answer made again has to be the same
        if handler.close_connection:
            self.headers["Connection"] = "close"
        elif handler.request_version == "HTTP/1.0":
            self.headers["Connection"] = "keep-alive"
        self.headers.setdefault("Date", handler.date_time_string())
        if handler.command == "HEAD" or bodiless:
            self.chunked, self.expected = False, None
        self.bodiless, self.sent = bodiless or handler.command == "HEAD", True

    def write(self, data: bytes) -> None:
        if not isinstance(data, bytes):
            raise TypeError(f"the application gave {type(data).__name__}, not bytes")
        if not self.status:
            raise AssertionError("write() before start_response()")
        self.bytes_sent = (self.bytes_sent or 0) + len(data)
        if not self.headers_sent:
            self.send_headers()
        if self.expected is not None and self.bytes_sent > self.expected:
            raise AssertionError(f"the application gave more than its Content-Length of {self.expected}")
        if data and not self.bodiless:
            self._write(b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data)
        self._flush()

    def finish_content(self) -> None:
        super().finish_content()
        if self.expected not in (None, self.bytes_sent or 0):
            raise AssertionError(f"the application gave {self.bytes_sent} bytes, Content-Length is {self.expected}")
        if self.chunked:
            self._write(b"0\r\n\r\n")
        self._flush()
        self.finished = True

    def close(self) -> None:
        if self.status and self.request_handler.server.access_log:
            super().close()
        else:
            super(ServerHandler, self).close()


class _Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "perdure.wsgi"
    sys_version = ""
    server: Server
    handle = BaseHTTPRequestHandler.handle

    def setup(self) -> None:
        super().setup()
        self.server.enter(self.connection, True)

    def finish(self) -> None:
        self.server.leave(self.connection)
        super().finish()

    def __getattr__(self, name: str) -> Callable[[], None]:
        if name.startswith("do_"):              # every method is the application's
            return self._run
        raise AttributeError(name)

    def handle_one_request(self) -> None:
        self.server.enter(self.connection, True)
        super().handle_one_request()

    def parse_request(self) -> bool:
        self.server.enter(self.connection, False)
        return super().parse_request()

    def log_message(self, format: str, *args: Any) -> None:
        if self.server.access_log:
            super().log_message(format, *args)

    def get_environ(self) -> dict[str, Any]:
        for name in list(self.headers):         # X_Y and X-Y would be one
            if "_" in name:
                del self.headers[name]
        environ: dict[str, Any] = super().get_environ()
        environ["perdure.began"] = getattr(self.connection, "began", None) or time.time()
        return environ

    def _length(self) -> int | None:
        """Of the body; None: the request is refused, and nobody knows where the next one would begin"""
        lengths = set(self.headers.get_all("content-length", ["0"]))
        if self.headers.get("transfer-encoding"):
            self.send_error(411, explain="Send the body with a Content-Length.")
        elif len(lengths) == 1 and (length := lengths.pop()).isascii() and length.isdigit():
            return int(length)
        else:
            self.send_error(400, "Bad Content-Length")
        return None

    def _run(self) -> None:
        length = self._length()
        if length is None:
            self.close_connection = True
            return
        raw = _Body(self.rfile, length)
        body = io.BufferedReader(raw)
        answer: Any = self.wfile
        application = _Application(body, answer, self.get_stderr(), self.get_environ(), multithread=True)
        application.request_handler = self
        application.run(self.server.get_app())    # type: ignore[arg-type]
        if not application.finished:
            self.close_connection = True
            if application.sent:                # the client must not take what it has for the whole
                self.connection.reset()
        elif not self.close_connection:
            while raw.left and (raw.left <= _UNREAD_MAX) and raw.readinto(bytearray(65536)):
                pass
            if raw.left:
                self.close_connection = True


class Server(Restartable, socketserver.ThreadingMixIn, WSGIServer):
    """A server at (host, port), or on the descriptor of a socket that listens, for an application."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], application: Callable[..., Any], fd: int | None = None,
                 connections: int = 200, idle: float = 30, access_log: bool = False, bind: bool = True) -> None:
        self.set_app(application)
        self.access_log = access_log
        self.stopping = threading.Event()
        self._room = threading.BoundedSemaphore(connections)
        self._connections: dict[HeldSocket, bool] = {}  # whether it is idle
        self._changed = threading.Condition()
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, type("_Handler", (_Handler,), {"timeout": idle}), bind and fd is None)
        if fd is not None:
            self.socket.close()
            self.socket = HeldSocket(fileno=fd)
            self.address_family = self.socket.family
            self.server_address = self.socket.getsockname()
        if fd is not None or not bind:
            self._named()

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)
        self._named()

    def _named(self) -> None:
        """Without a question to the name service"""
        unix = not isinstance(self.server_address, tuple)
        name, port = ("localhost", 0) if unix else self.server_address[:2]
        self.server_name, self.server_port = str(name), int(port)
        self.setup_environ()

    def enter(self, connection: HeldSocket, idle: bool) -> None:
        with self._changed:
            self._connections[connection] = idle
            if idle and self.stopping.is_set():
                self._wake(connection)

    def leave(self, connection: HeldSocket) -> None:
        with self._changed:
            self._connections.pop(connection, None)
            self._changed.notify_all()

    @staticmethod
    def _wake(connection: HeldSocket) -> None:
        try:
            connection.shutdown(socket.SHUT_RD)     # what has come is read, then it ends
        except OSError:
            pass

    def process_request(self, request: Any, client_address: Any) -> None:
        while not self._room.acquire(timeout=1):
            if self.stopping.is_set():
                self.shutdown_request(request)
                return
        with self._changed:
            self._connections[request] = False
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.leave(request)
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):      # clients come and go
            super().handle_error(request, client_address)

    def finish_all(self, grace: float) -> int:
        """Take no more connections, and let those that are there end. Returns how many have not."""
        self.stopping.set()
        self.socket.close()
        with self._changed:
            for connection, idle in self._connections.items():
                if idle:
                    self._wake(connection)
            self._changed.wait_for(lambda: not self._connections, grace)
            return len(self._connections)


def load(name: str) -> Callable[..., Any]:
    """The application called module:name"""
    module, _, attribute = name.partition(":")
    application: Any = importlib.import_module(module)
    for part in (attribute or "application").split("."):
        application = getattr(application, part)
    if not callable(application):
        raise TypeError(f"{name} cannot be called")
    return application      # type: ignore[no-any-return]


_STOPPING = 1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="perdure.wsgi", description="Serve a WSGI application; a fault restarts it, and no request is lost.")
    parser.add_argument("application", metavar="MODULE[:NAME]", help="what to serve; NAME is 'application' by default")
    parser.add_argument("--host", default="127.0.0.1", help="address (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="TCP port; 0: any (8000)")
    parser.add_argument("--fd", type=int,
                        help="descriptor of a socket that listens, in place of host and port; 3 is a unit's first")
    parser.add_argument("--connections", type=int, default=200, help="at once, each with a thread; others wait (200)")
    parser.add_argument("--timeout", type=float, default=30, help="seconds that a client may let the server wait (30)")
    parser.add_argument("--grace", type=float, default=30,
                        help="seconds for requests that are there at SIGTERM or SIGINT (30)")
    parser.add_argument("--burst", type=int,
                        help="restarts in any --interval; by default what kernel.restart says: 1 in a minute")
    parser.add_argument("--interval", type=float, default=60, help="seconds, for --burst (60)")
    parser.add_argument("--on-exit", action="store_true",
                        help="an exit of the program with a status other than 0 is a fault, too")
    parser.add_argument("--access-log", action="store_true", help="a line to standard error for each request")
    options = parser.parse_args(arguments)
    if options.connections < 1 or options.timeout <= 0 or not 0 <= options.port < 65536 or options.grace < 0:
        parser.error("--connections is at least 1, --timeout more than 0, --port 0 to 65535, --grace at least 0")
    logging.basicConfig(format="perdure.wsgi: %(message)s")
    sys.path.insert(0, os.getcwd())

    def ended(*_: object) -> None:
        if area is not None:                    # a fault from now on goes on with the end
            area.update(0, _STOPPING.to_bytes(4, "little"))
        # It waits for the loop that this thread is in
        threading.Thread(target=server.shutdown, daemon=True).start()

    try:
        protect(Policy(burst=options.burst, interval=options.interval, quarantine=True, on_exit=options.on_exit))
        area = State(f"wsgi-{os.getpid()}", 8) if protected() else None
        flags, port = (int.from_bytes(area.data[at:at + 4], "little") for at in (0, 4)) if area else (0, 0)
        application = load(options.application)
        stopping = bool(flags & _STOPPING)
        server = Server((options.host, port or options.port), application, options.fd, options.connections,
                        options.timeout, options.access_log, not stopping)
    except (ImportError, AttributeError, TypeError, OSError) as e:
        print(f"perdure.wsgi: {options.application}: {type(e).__name__}: {e}", file=sys.stderr)
        return 2
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ended)
    if stopping:
        server.stopping.set()
        server.resume()
        close_leftovers()
    else:
        if area is not None:
            area.update(4, server.server_port.to_bytes(4, "little"))
        print(f"perdure.wsgi: process {os.getpid()} on {server.server_name} port {server.server_port}, "
              + ("a fault restarts it" if area else "a fault ends it"), file=sys.stderr, flush=True)
        server.resume()
        close_leftovers()
        socketserver.TCPServer.serve_forever(server)
    left = server.finish_all(options.grace)
    if left:
        print(f"perdure.wsgi: {left} requests were not answered within {options.grace} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
