# SPDX-License-Identifier: LGPL-2.1-or-later
"""Servers of asyncio that outlive their own faults.

    async def handle(reader, writer):
        while line := await reader.readline():
            writer.write(answer_to(line))
            perdure.aio.release(reader, writer)     # this line is answered; what is not is read again after a fault
            await writer.drain()
        writer.close()

    server = await perdure.aio.start_server(handle, "127.0.0.1", 8000)

create_server() is the same for protocols. Both register the program, unless it is, and begin with the connections of
the last generation. The event loop has to be one of asyncio's own, which read and write by the socket's methods:
others, as uvloop's, do so past its books. """

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Union, overload

from . import protect
from .held import HeldSocket, held_at
from .left import LEFT

__all__ = ["create_server", "release", "start_server"]

Connected = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Union[Awaitable[None], None]]


def _held(transport: asyncio.BaseTransport) -> HeldSocket | None:
    s = transport.get_extra_info("socket")
    return None if s is None or s.fileno() < 0 else held_at(s.fileno())


def _listener(host: str | None, port: int | None, backlog: int, sock: socket.socket | None) -> HeldSocket:
    if sock is not None:
        if isinstance(sock, HeldSocket):
            return sock
        return HeldSocket(sock.family, sock.type, sock.proto, fileno=sock.detach())
    found = socket.getaddrinfo(host or None, port, 0, socket.SOCK_STREAM, 0, socket.AI_PASSIVE)
    family, kind, proto, _, address = found[0]
    listener = HeldSocket(family, kind, proto)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(backlog)
    except BaseException:
        listener.close()
        raise
    return listener


def _no_sendfile(transport: asyncio.BaseTransport) -> None:
    """loop.sendfile() would write past the books: it has to read and write."""
    mode = getattr(transport, "_sendfile_compatible", None)
    if mode is not None:
        transport._sendfile_compatible = type(mode).FALLBACK    # type: ignore[attr-defined]


async def create_server(protocol_factory: Callable[[], asyncio.BaseProtocol], host: str | None = None,
                        port: int | None = None, *, sock: socket.socket | None = None,
                        backlog: int = 100) -> asyncio.AbstractServer:
    """As loop.create_server(): at one address, the first that host has, or with a HeldSocket that is bound, or a
    socket that the program was started with."""
    loop = asyncio.get_running_loop()
    if protect() and not isinstance(loop, asyncio.SelectorEventLoop):
        raise RuntimeError(f"{type(loop).__name__} writes past the books of a HeldSocket: use asyncio's own event loop")
    LEFT.settle()

    def factory() -> asyncio.BaseProtocol:
        protocol = protocol_factory()
        made = protocol.connection_made

        def connection_made(transport: asyncio.BaseTransport) -> None:
            if _held(transport) is not None:
                _no_sendfile(transport)
            made(transport)

        try:
            setattr(protocol, "connection_made", connection_made)
        except AttributeError:
            pass                # it has slots: if it uses sendfile(), a fault resets the connection
        return protocol

    listener = _listener(host, port, backlog, sock)
    server = await loop.create_server(factory, sock=listener, backlog=backlog)
    if isinstance(loop, asyncio.BaseEventLoop):
        for connection, _ in listener.inherited():
            await loop.connect_accepted_socket(factory, connection)
    return server


async def start_server(client_connected_cb: Connected, host: str | None = None, port: int | None = None, *,
                       sock: socket.socket | None = None, limit: int = 1 << 16,
                       backlog: int = 100) -> asyncio.AbstractServer:
    """As asyncio.start_server(), at one address"""
    loop = asyncio.get_running_loop()

    def factory() -> asyncio.StreamReaderProtocol:
        reader = asyncio.StreamReader(limit=limit, loop=loop)
        return asyncio.StreamReaderProtocol(reader, client_connected_cb, loop=loop)

    return await create_server(factory, host, port, sock=sock, backlog=backlog)


@overload
def release(first: asyncio.StreamReader, second: asyncio.StreamWriter) -> None: ...


@overload
def release(first: asyncio.WriteTransport, second: int) -> None: ...


def release(first: Any, second: Any) -> None:
    """The requests so far are answered by what has been written so far: all that was taken from the StreamReader
    first, whose StreamWriter is second; or the oldest second bytes that the protocol of the transport first was given
    and that were not released. Call it before anything of the next answer is written. They are released once that has
    left. Does nothing where the connection is not held."""
    transport = second.transport if isinstance(first, asyncio.StreamReader) else first
    s = _held(transport)
    if s is None or s._books is None:
        return
    at = s._books.sent + transport.get_write_buffer_size()
    if isinstance(first, asyncio.StreamReader):
        s._release(None, at, len(first._buffer))    # type: ignore[attr-defined]
    else:
        s._release(second, at)
