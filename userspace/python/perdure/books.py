# SPDX-License-Identifier: LGPL-2.1-or-later
"""Connections that outlive faults by replay and skip.

What is read of a connection is held until its answer is released; what is written is counted. The next generation
reads the request again (replay), makes the answer again, and what the client has of it already is not sent twice
(skip). A record of each connection says where the present request begins in the input, where its answer begins in the
output, and the hash of the answer as far as it was tried to send it. An answer that is not the same the second time
is never mixed with the first: the connection is reset.

How the record and the kernel's counts agree at every instant:

- Before bytes are written, the record has the hash up to the last of them. So the count is never beyond what is
  hashed. An answer made again is sent on only when it has come as far as the hash, and has the same one.
- Before a request is released, the record has where the next one begins, beside where the present one does. The
  kernel's count of released bytes says which of them holds.
- A request that is bigger than what the kernel holds is kept in a memfd, its spool, before it is released. Its place
  there is its place in the input.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import socket
import struct
import threading
import time
import zlib
from collections import deque
from typing import Any, Deque, NamedTuple, NoReturn

from . import State, _call, _hread, discard_state, hread_into, iolog, lwrite

log = logging.getLogger("perdure")

_SO_COOKIE = 57
CHUNK = 128 << 10                  # of what one write hands over, and is hashed
_SLOTS = 1 << 16                    # descriptors that can have a record
_SLOT = 104
_RECORD = struct.Struct("=QQQQQ16sdQQQ")
LOST, CLOSING, ANY_PORT = 1, 2, 4


def _hash() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=16)


_NOTHING = _hash().digest()


class AnswerDiffers(ConnectionAbortedError):
    """The answer made again is not the one of which the client has a part: its connection is reset."""


class Record(NamedTuple):
    cookie: int                     # of the socket: whose record it is
    flags: int = 0
    begin: int = 0                  # of the present request, in the input
    start: int = 0                  # of its answer, in the output
    known: int = 0                  # how far the answer is hashed
    digest: bytes = _NOTHING
    began: float = 0                # when it was first there: what a second answer must say, too
    next_begin: int = 0             # once so much is released, the present request is another one,
    next_start: int = 0             # whose answer starts here
    blamed: int = 0                 # where the connection was when it was suspected of a fault, and 1


class Table:
    """The records of this process: one for each descriptor, in memory that outlives it."""

    def __init__(self) -> None:
        name = f"held-{os.getpid()}"        # a forked process that registers has its own
        try:
            self.state = State(name, _SLOTS * _SLOT, layout=1)
        except OSError as e:
            if e.errno not in (errno.ESTALE, errno.EBADMSG):
                raise
            discard_state(name)             # damaged: connections that it knew are reset
            self.state = State(name, _SLOTS * _SLOT, layout=1)
        self.lock = threading.Lock()
        self.spooled = 0                    # bytes, of all connections
        try:
            with open("/proc/sys/kernel/restart/held_bytes_max") as file:
                limit = int(file.read())
        except OSError:
            limit = 1 << 20
        self.threshold = min(limit // 2, 512 << 10)

    def load(self, fd: int, cookie: int) -> Record | None:
        """None: there is none of this socket. One that is damaged is as good as lost."""
        raw = bytes(self.state.data[fd * _SLOT:(fd + 1) * _SLOT]) if fd < _SLOTS else bytes(_SLOT)
        record = Record(*_RECORD.unpack_from(raw))
        if record.cookie != cookie:
            return None
        if zlib.crc32(raw[:_RECORD.size]) != int.from_bytes(raw[_RECORD.size:_RECORD.size + 4], "little"):
            return Record(cookie, LOST)
        return record

    def store(self, fd: int, record: Record) -> None:
        if fd < _SLOTS:
            raw = _RECORD.pack(*record)
            with self.lock:
                self.state.update(fd * _SLOT, raw + zlib.crc32(raw).to_bytes(4, "little"))


_the_table: Table | None = None
_lock = threading.Lock()


def table() -> Table:
    global _the_table
    with _lock:
        if _the_table is None:
            _the_table = Table()
        return _the_table


def forget() -> None:
    """In a child, which does not see the area: its files are those of the parent, who has the books."""
    global _the_table, _lock
    _the_table, _lock = None, threading.Lock()


def cookie_of(s: socket.socket) -> int:
    return int.from_bytes(s.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, 8), "little")


def _uncounted(fd: int, written: int) -> bool:
    """Whether TCP has had more bytes than were counted: by a plain send(), before or beside the books"""
    s = socket.socket(fileno=fd)
    try:
        raw = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 208)
    except OSError:
        return False                # no TCP
    finally:
        s.detach()
    acknowledged = struct.unpack_from("Q", raw, 120)[0]
    sent = struct.unpack_from("Q", raw, 200)[0] if len(raw) >= 208 else 0
    return bool(acknowledged > written + 2 or (not written and sent))      # SYN and FIN have a number each


def spool_name(cookie: int) -> str:
    return f"perdure-spool-{cookie:x}"


class Books:
    """What is known of one connection. position: in the input, of the next read; sent: in the output, of the next
    write."""

    begin: int
    start: int
    known: int
    digest: bytes
    released: int
    written: int
    position: int
    sent: int
    checked: bool

    def __init__(self, fd: int, cookie: int, inherited: bool, spool: int, spool_limit: int) -> None:
        self.fd, self.cookie, self.table, self.spool_limit = fd, cookie, table(), spool_limit
        self.lock, self.sending = threading.RLock(), threading.Lock()
        self.marks: Deque[tuple[int, int]] = deque()    # requests that are released once so much is sent
        self.kept: Deque[bytes] = deque()               # what is held, released to position, if it must be spooled
        self.kept_size = 0
        self.spool, self.spooled = spool, 0             # a descriptor, bytes
        self.tail = b""                                 # accepted from the program, not written yet
        self.aborted = False
        self.began: float | None = None
        counts = iolog(fd)
        record = self.table.load(fd, cookie) if inherited else None
        if not inherited:
            if held := counts.read - counts.unread - counts.released:
                _call(_hread, fd, None, 0, held)        # whoever has read it before
            counts = iolog(fd)
        elif _uncounted(fd, counts.written) or (record is None and (counts.released or counts.written)):
            raise ConnectionAbortedError(f"descriptor {fd} has no record of all that was read and written")
        elif record is not None and record.flags & LOST:
            raise ConnectionAbortedError(f"the books of descriptor {fd} are lost")
        self.released, self.written = counts.released, counts.written
        if record is None:
            record = Record(cookie, 0, self.released, self.written, self.written)
        elif record.next_begin > record.begin and self.released >= record.next_begin:
            record = Record(cookie, 0, record.next_begin, record.next_start, record.next_start)
        self.flags = 0
        self.begin, self.start, self.known, self.digest = record.begin, record.start, record.known, record.digest
        self.blamed = record.blamed
        if not (self.begin <= self.released and self.start <= self.written <= self.known):
            raise ConnectionAbortedError(f"the record of descriptor {fd} does not agree with the kernel's counts")
        if self.known > self.start:
            self.began = record.began
        self.position, self.sent, self.hash = self.begin, self.start, _hash()
        self.checked = self.known == self.start         # nothing to compare with
        if inherited:
            if self.position < self.released:
                if self.spool < 0:
                    raise ConnectionAbortedError(f"the spool of descriptor {fd} is not there")
                self.spooled = self.released - self.begin
                with self.table.lock:
                    self.table.spooled += self.spooled
        else:
            self.store()

    def store(self, **changes: Any) -> None:
        self.table.store(self.fd, Record(self.cookie, self.flags, self.begin, self.start, self.known, self.digest,
                                          self.began or 0, blamed=self.blamed)._replace(**changes))

    def blame(self) -> bool:
        """The present request is suspected of a fault. Returns whether it is so again, and has come no further."""
        blamed, self.blamed = self.blamed, self.begin + self.written + 1
        self.store()
        return blamed == self.blamed

    # ---- input ----

    def read_into(self, view: memoryview) -> int:
        if self.position < self.released:
            n = os.preadv(self.spool, [view[:self.released - self.position]], self.position)
            if not n:
                raise ConnectionAbortedError("the spool is shorter than what was released")
            self.position += n
            return n
        try:
            n = hread_into(self.fd, view)
        except OSError as e:
            if e.errno != errno.ENOBUFS or not self.kept:
                raise
            with self.lock:
                self._spool()
            n = hread_into(self.fd, view)
        with self.lock:
            self.position += n
            if self.flags & LOST:
                self._release(self.position)
            elif n:
                self.kept.append(view[:n].tobytes())
                self.kept_size += n
                if self.kept_size > self.table.threshold:
                    self._spool()
        return n

    def peek(self, size: int) -> bytes:
        return os.pread(self.spool, min(size, self.released - self.position), self.position)

    def _release(self, to: int) -> None:
        if to > self.released:
            _call(_hread, self.fd, None, 0, to - self.released)
            self.released = to

    def _spool(self) -> None:
        """The kernel holds as much as it may: what it holds goes to the spool. Beyond the limit the request cannot be
        replayed."""
        more = self.position - self.released
        with self.table.lock:
            fits = self.table.spooled + more <= self.spool_limit
            self.table.spooled += more if fits else 0
        if fits:
            self.spooled += more
            if self.spool < 0:
                self.spool = os.memfd_create(spool_name(self.cookie))
            at = self.released
            for part in self.kept:
                while part:
                    n = os.pwrite(self.spool, part, at)
                    at, part = at + n, part[n:]
        else:
            log.warning("descriptor %d: a request of more than %d bytes so far is not kept, a fault now resets its "
                        "connection (HeldSocket.spool_limit)", self.fd, self.position - self.begin)
            self.flags |= LOST
            self.store()
        self.kept.clear()
        self.kept_size = 0
        self._release(self.position)
        if not fits:
            self._empty_spool()

    def _empty_spool(self) -> None:
        """Nobody reads it again"""
        if self.spool >= 0:
            with self.table.lock:
                self.table.spooled -= self.spooled
            self.spooled = 0
            os.ftruncate(self.spool, 0)

    # ---- releasing ----

    def mark(self, begin: int, at: int) -> None:
        """All input before begin is answered once the output is sent up to at."""
        with self.lock:
            last, after = self.marks[-1] if self.marks else (self.begin, self.start)
            if not last <= begin <= self.position:
                raise ValueError(f"{begin - last} bytes cannot be released: {self.position - last} have been read")
            if (begin, at) == (last, after):
                return
            if not self.checked and at < self.known:
                self.abort("it is shorter")
            self.marks.append((begin, at))
            self._apply()

    def _apply(self) -> None:
        while self.marks and self.marks[0][1] == self.sent and not self.tail and \
                (self.checked or self.sent >= self.known):
            begin, at = self.marks.popleft()
            if self.flags & LOST and begin == self.released:
                self.flags &= ~LOST
            if begin > self.released:
                self.store(next_begin=begin, next_start=at)
                dropped = begin - self.released
                self._release(begin)
                while dropped > 0:
                    part = self.kept.popleft()
                    if len(part) > dropped:
                        self.kept.appendleft(part[dropped:])
                    self.kept_size -= min(len(part), dropped)
                    dropped -= len(part)
                self.begin, self.start = begin, at
            else:
                self.begin, self.start = begin, at
                self.store(known=at, digest=_NOTHING, began=0, blamed=0)
            self.known, self.digest, self.hash, self.checked, self.began = at, _NOTHING, _hash(), True, None
            self.blamed = 0
            if begin >= self.released:
                self._empty_spool()

    # ---- output ----

    def abort(self, how: str) -> NoReturn:
        self.lose()
        error = AnswerDiffers(f"descriptor {self.fd}: the answer made again is not the one of which the client has "
                              f"{self.written - self.start} bytes, {how}: its connection is reset")
        log.warning("%s", error)
        raise error

    def lose(self) -> None:
        """From now on the connection can only be reset."""
        self.aborted = True
        self.flags |= LOST
        self.store()

    def write(self, data: memoryview) -> int:
        """As send(): how many bytes were accepted. BlockingIOError when there is no room, and the file does not
        block."""
        if not len(data):
            return 0
        with self.sending:
            with self.lock:
                if self.aborted:
                    raise ConnectionAbortedError("the connection is being reset")
                data = data[:CHUNK]
                if self.marks:
                    data = data[:self.marks[0][1] - self.sent]
                if not self.checked and not self._compare(data):
                    return len(data)
                if self.sent < self.written:
                    return self._skip(data)
                if self.began is None:
                    self.began = time.time()
                after = self.hash.copy()
                after.update(data)
                self.known, self.digest = self.sent + len(data), after.digest()
                self.store()
            while True:
                n = lwrite(self.fd, self.tail + data.tobytes())
                with self.lock:
                    self.written += n
                    accepted = n - len(self.tail)
                    self.tail = self.tail[n:]
                    if accepted <= 0 and (self.tail or data):     # again, which blocks or raises
                        continue
                    if accepted < len(data):
                        self.hash.update(data[:accepted])
                    else:
                        self.hash = after
                    self.sent += accepted
                    self._apply()
                return accepted

    def _compare(self, data: memoryview) -> bool:
        """With output of an answer that another generation began. False: it is taken, and the hash is of more than
        there is so far."""
        left = self.known - self.sent
        if len(data) < left:
            self.hash.update(data)
            self.tail += data[max(self.written - self.sent, 0):].tobytes()
            self.sent += len(data)
            return False
        whole = self.hash.copy()
        whole.update(data[:left])
        if whole.digest() != self.digest:
            self.abort("it differs")
        self.checked = True
        return True

    def _skip(self, data: memoryview) -> int:
        n = min(self.written - self.sent, len(data))
        self.hash.update(data[:n])
        self.sent += n
        self._apply()
        return n

    def close(self) -> None:
        with self.lock:
            if not self.aborted and (self.tail or not self.checked):
                log.warning("descriptor %d: the answer made again is shorter than what was begun, its connection "
                            "is reset", self.fd)
                self.lose()
            if not self.aborted:
                self.flags |= CLOSING
                self.store()
            if self.spool >= 0:
                self._empty_spool()
                os.close(self.spool)
                self.spool = -1
