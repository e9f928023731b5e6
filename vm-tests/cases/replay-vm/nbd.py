# SPDX-License-Identifier: GPL-2.0-or-later
"""A disk with a write cache that a power cut empties: an NBD server that keeps writes apart until they are flushed."""

import random
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

SECTOR = 512
FLAGS = 1 | 4 | 8           # flags are there; FLUSH and FUA are understood
READ, WRITE, LEAVE, FLUSH = range(4)
FUA = 1
EIO, EINVAL = 5, 22


def receive(s: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = s.recv(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


class Disk:
    """
    `stable` is what a power cut leaves. `cache` has all that was written to a sector since the last flush: a disk may write any
    of it at any time. One host at a time: whoever comes later is refused until fence() has cut the other one off.
    """

    def __init__(self, size: int, address: Path | None = None) -> None:
        self.stable, self.cache = bytearray(size), dict[int, list[bytes]]()
        self.lock = threading.Lock()
        self.writes = self.flushes = self.lost = self.refused = 0
        self.dark = False               # no power: no command is answered
        self.left: int | None = None    # sectors that are written before it goes dark
        self.left_flushes: int | None = None
        self.went = threading.Event()
        self.failing: Callable[[int], bool] = lambda kind: False
        self.flushed: Callable[[], None] = lambda: None     # after each flush
        self.holder: socket.socket | None = None
        if address:
            self.listener = socket.socket(socket.AF_UNIX)
            self.listener.bind(str(address))
        else:
            self.listener = socket.socket()
            self.listener.bind(("127.0.0.1", 0))
        self.listener.listen()
        threading.Thread(target=self.accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def accept(self) -> None:
        while True:
            s, _ = self.listener.accept()
            threading.Thread(target=self.attend, args=(s,), daemon=True).start()

    def attend(self, s: socket.socket) -> None:
        with s:
            with self.lock:
                if self.holder:
                    self.refused += 1
                    return
                self.holder = s
            try:
                with suppress(OSError, EOFError):
                    if self.greet(s):
                        while self.command(s):
                            pass
            finally:
                with self.lock:
                    if self.holder is s:
                        self.holder = None

    def greet(self, s: socket.socket) -> bool:
        """The newstyle handshake; false: the client wants no disk."""
        s.sendall(b"NBDMAGICIHAVEOPT" + struct.pack(">H", 3))
        plain = not struct.unpack(">I", receive(s, 4))[0] & 2
        while True:
            _, option, length = struct.unpack(">QII", receive(s, 16))
            receive(s, length)
            if option == 1:             # by name, the old way
                s.sendall(struct.pack(">QH", len(self.stable), FLAGS) + bytes(124 * plain))
                return True
            if option == 7:             # GO
                info = struct.pack(">HQH", 0, len(self.stable), FLAGS)
                s.sendall(struct.pack(">QIII", 0x3E889045565A9, option, 3, len(info)) + info)
                s.sendall(struct.pack(">QIII", 0x3E889045565A9, option, 1, 0))
                return True
            if option == 2:
                return False
            s.sendall(struct.pack(">QIII", 0x3E889045565A9, option, 1 << 31 | 1, 0))

    def command(self, s: socket.socket) -> bool:
        _, flags, kind, cookie, place, length = struct.unpack(">IHHQQI", receive(s, 28))
        data = receive(s, length) if kind == WRITE else b""
        if kind == LEAVE:
            return False
        with self.lock:
            if self.holder is not s:
                return False
            error, out = self.execute(kind, flags, place, length, data)
            dark = self.dark
        if dark:
            # Nobody hears of an error: there is no power
            self.went.set()
            receive(s, 1 << 30)
        s.sendall(struct.pack(">IIQ", 0x67446698, error, cookie) + (out if not error else b""))
        return True

    def execute(self, kind: int, flags: int, place: int, length: int, data: bytes) -> tuple[int, bytes]:
        if place % SECTOR or length % SECTOR or place + length > len(self.stable) or kind not in (READ, WRITE, FLUSH):
            return EINVAL, b""
        if self.failing(kind):
            return EIO, b""
        sectors = range(place // SECTOR, (place + length) // SECTOR)
        if kind == READ:
            return 0, b"".join(self.sector(n) for n in sectors)
        if kind == WRITE:
            self.writes += 1
            for i, n in enumerate(sectors):
                if self.left is not None:
                    self.dark |= self.left <= 0
                    self.left -= 1
                if self.dark:
                    return 0, b""
                self.cache.setdefault(n, []).append(data[i * SECTOR:(i + 1) * SECTOR])
        if kind == FLUSH or flags & FUA:
            if self.left_flushes is not None:
                self.dark |= self.left_flushes <= 0
                self.left_flushes -= 1
            if self.dark:
                return 0, b""
            self.flushes += 1
            for n in list(self.cache) if kind == FLUSH else sectors:
                self.stable[n * SECTOR:(n + 1) * SECTOR] = self.cache.pop(n)[-1]
            self.flushed()
        return 0, b""

    def sector(self, n: int) -> bytes:
        return self.cache[n][-1] if n in self.cache else bytes(self.stable[n * SECTOR:(n + 1) * SECTOR])

    def go_dark(self, sectors: int | None = None, flushes: int | None = None) -> None:
        """No power from now on, or when so many sectors more have been written, or so many flushes more are done."""
        with self.lock:
            self.left, self.left_flushes = sectors, flushes
            self.dark |= sectors is None and flushes is None

    def power(self, draw: random.Random | None) -> None:
        """Power again: of what was in the cache a part has been written (None: nothing), each sector for itself."""
        with self.lock:
            for n, versions in self.cache.items():
                old = bytes(self.stable[n * SECTOR:(n + 1) * SECTOR])
                new = draw.choice([old, *versions]) if draw else old
                self.lost += new != versions[-1]
                self.stable[n * SECTOR:(n + 1) * SECTOR] = new
            self.cache.clear()
            self.dark, self.left, self.left_flushes = False, None, None
            self.went.clear()

    def fence(self) -> None:
        """Cuts off who has the disk: nothing of his arrives from now on, even if it is under way."""
        with self.lock:
            holder, self.holder = self.holder, None
        if holder:
            with suppress(OSError):
                holder.shutdown(socket.SHUT_RDWR)

    def save(self, path: Path) -> Path:
        """What is on it, in a file."""
        with self.lock:
            path.write_bytes(self.stable)
        return path
