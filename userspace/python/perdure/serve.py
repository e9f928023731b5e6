# SPDX-License-Identifier: LGPL-2.1-or-later
"""Servers of the standard library, made restartable."""

from __future__ import annotations

import functools
import http.server
import socket
import socketserver
from typing import Any

from . import protect
from .held import HeldSocket
from .left import LEFT

_FAILED = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class _HTTP(http.server.BaseHTTPRequestHandler):
    """A request is released when it is answered, and its Date is when it came."""

    def handle_one_request(self) -> None:
        super().handle_one_request()
        if not self.close_connection:
            self.wfile.flush()
            if isinstance(self.connection, HeldSocket):     # and not wrapped in TLS
                self.connection.release()

    def date_time_string(self, timestamp: float | None = None) -> str:
        when: Any = timestamp
        if when is None and isinstance(self.connection, HeldSocket):
            when = self.connection.began
        return super().date_time_string(when)


def _for_http(handler: Any) -> Any:
    if isinstance(handler, functools.partial):
        return functools.partial(_for_http(handler.func), *handler.args, **handler.keywords)
    if isinstance(handler, type) and issubclass(handler, http.server.BaseHTTPRequestHandler):
        return type(handler.__name__, (_HTTP, handler), {"__module__": handler.__module__, "__doc__": handler.__doc__})
    return handler


def answer_500(connection: HeldSocket) -> None:
    """To a request that has faulted twice"""
    if not connection.answered:
        connection.settimeout(1)
        connection.sendall(_FAILED)
        connection.shutdown(1)


class Restartable(socketserver.TCPServer):
    """Before the class of a server, it makes it restartable:

        class Server(perdure.Restartable, http.server.ThreadingHTTPServer):
            pass

    The program is registered, unless it is, its connections are held, and those of the last generation go on when
    serve_forever() begins. Handlers of http.server release each request that they have answered. Others, when a
    connection has more than one, call self.request.release() after each; what has not been released is handled again
    after a fault. """

    def __init__(self, server_address: Any, RequestHandlerClass: Any, bind_and_activate: bool = True) -> None:
        protect()
        LEFT.settle()
        super().__init__(server_address, _for_http(RequestHandlerClass), False)
        self.socket.close()
        self.socket: socket.socket = HeldSocket(self.address_family, self.socket_type)
        if bind_and_activate:
            try:
                self.server_bind()
                self.server_activate()
            except BaseException:
                self.server_close()
                raise

    def resume(self) -> None:
        """Go on with the connections of the last generation."""
        is_http = isinstance(self.RequestHandlerClass, type) and issubclass(self.RequestHandlerClass, _HTTP)
        if not isinstance(self.socket, HeldSocket):         # wrapped in TLS, whose keys have gone
            for connection, _ in LEFT.accepted(self.address_family, self.socket.getsockname()):
                connection.reset()
            return
        on_suspect = answer_500 if is_http else None
        # All there are when it does not listen any more
        connections = self.socket.inherited(on_suspect) if self._listens() else LEFT.accepted(-1, None, on_suspect)
        for request, client_address in connections:
            try:
                if self.verify_request(request, client_address):
                    self.process_request(request, client_address)
                else:
                    self.shutdown_request(request)
            except Exception:
                self.handle_error(request, client_address)
                self.shutdown_request(request)

    def _listens(self) -> bool:
        return self.socket.fileno() >= 0 and bool(self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))

    def serve_forever(self, poll_interval: float = 0.5) -> None:
        self.resume()
        super().serve_forever(poll_interval)
