#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
In a guest: "serve PORT..." answers lines of "offset length" with these bytes of a text that all know. "read ADDRESS PORT SECONDS LONG SHORT
IDLE" reads them for ever, with so many clients of each kind, none of which waits longer than that, and checks them by their hash. It says each
second how many answers each client has had; each pause of which a client notices, in ms; and what was wrong.
"""

import asyncio
import hashlib
import random
import resource
import socket
import sys
import time
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")
TEXT = random.Random(7).randbytes(1 << 20) * 2
PAUSE_S = 0.2       # shorter ones are not told
# Of an answer, what is read at once, then how long nothing is read, answers of a connection, the time between two
LONG = (300_000, 8_000, 0.05, 2, 0)
SHORT = (2_000, 2_000, 0, 8, 0.2)
IDLE = (5_000, 5_000, 0, 1 << 30, 4)
IDLE_RATE = 100     # answers a second, of all that are idle, at most


async def serve(*ports: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                offset, length = map(int, line.split())
                writer.write(TEXT[offset:offset + length])
                await writer.drain()
            writer.close()
        except OSError:
            writer.transport.abort()

    servers = [await asyncio.start_server(answer, address, int(port), backlog=4096) for port in ports for address in ("0.0.0.0", "::")]
    print("listens", flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


class Clients:
    def __init__(self, address: str, port: int, seconds: float) -> None:
        self.address, self.port, self.seconds = address, port, seconds
        self.answers: list[int] = []

    async def waits(self, what: Awaitable[T]) -> T:
        begun = time.monotonic()
        result = await asyncio.wait_for(what, self.seconds)
        took = time.monotonic() - begun
        if took >= PAUSE_S:
            print(f"pause {took * 1000:.0f}", flush=True)
        return result

    async def client(self, length: int, part: int, pace: float, number: int, between: float) -> None:
        me = len(self.answers)
        self.answers.append(0)
        draw = random.Random(me)
        loop = asyncio.get_running_loop()
        await asyncio.sleep(draw.random() * max(between, 0.5))
        while True:
            with socket.socket(socket.AF_INET6 if ":" in self.address else socket.AF_INET) as s:
                s.setblocking(False)
                # So small that it cannot hide a pause
                s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
                await self.waits(loop.sock_connect(s, (self.address, self.port)))
                for _ in range(number):
                    offset, left = draw.randrange(1 << 20), length
                    await loop.sock_sendall(s, f"{offset} {length}\n".encode())
                    got = hashlib.sha256()
                    while left:
                        data = await self.waits(loop.sock_recv(s, min(left, part)))
                        assert data, f"the connection ends, {left} bytes before the end"
                        got.update(data)
                        left -= len(data)
                        await asyncio.sleep(pace)
                    assert got.digest() == hashlib.sha256(TEXT[offset:offset + length]).digest(), "other bytes"
                    self.answers[me] += 1
                    await asyncio.sleep(between)

    async def run(self, kind: tuple[int, int, float, int, float]) -> None:
        try:
            await self.client(*kind)
        except Exception as error:
            print(f"error {type(error).__name__}: {error}", flush=True)

    async def tell(self) -> None:
        while True:
            print("answers", *self.answers, flush=True)
            await asyncio.sleep(1)


async def read(address: str, port: str, seconds: str, *counts: str) -> None:
    clients = Clients(address, int(port), float(seconds))
    # Very many are to be there, not to be more than a machine that emulates three others can answer
    idle = (*IDLE[:-1], max(IDLE[-1], int(counts[-1]) / IDLE_RATE))
    kinds = [kind for kind, count in zip((LONG, SHORT, idle), counts) for _ in range(int(count))]
    await asyncio.gather(clients.tell(), *map(clients.run, kinds))


resource.setrlimit(resource.RLIMIT_NOFILE, (20_000, 20_000))
asyncio.run(serve(*sys.argv[2:]) if sys.argv[1] == "serve" else read(*sys.argv[2:]))
