# SPDX-License-Identifier: LGPL-2.1-or-later
"""HeldSocket: a socket with the books of perdure.books in it."""

from __future__ import annotations

import errno
import io
import os
import select
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import IO, Any, NoReturn

from . import books, protected
from .books import ANY_PORT, CHUNK, Books, Record, cookie_of, table
from .left import LEFT

_by_fd: weakref.WeakValueDictionary[int, HeldSocket] = weakref.WeakValueDictionary()


def held_at(fd: int) -> HeldSocket | None:
    """The socket that has the books of a descriptor"""
    return _by_fd.get(fd)


def _after_fork() -> None:
    """A child is not registered."""
    books.forget()
    LEFT.forget()
    for s in list(_by_fd.values()):
        s._books = None
    _by_fd.clear()


os.register_at_fork(after_in_child=_after_fork)


class HeldSocket(socket.socket):
    """A socket for servers, of which no request and no byte of an answer is lost in a restart: see the text of
    perdure.held.

    One that listens accepts connections that are held, and bind() gives it the listening socket that the last
    generation had at that address, with all who wait there; inherited() then gives the connections that it had
    accepted. Read, answer, and say with release() which input is answered; what is not is read again by the next
    generation, and the answer has to come out the same. Nothing is held where protected() is False when the
    connection is made: then this is socket.socket. """

    spool_limit = 64 << 20
    """Bytes of requests beyond what the kernel holds (kernel.restart.held_bytes_max) that are kept for all
    connections of the process. A request for which there is no room is read on; a fault in it resets its
    connection."""

    def __init__(self, family: int = -1, type: int = -1, proto: int = -1, fileno: int | None = None) -> None:
        super().__init__(family, type, proto, fileno)
        self._books: Books | None = None
        self._peeking = False
        self._files: list[Any] = []
        if fileno is None or not protected() or self.type != socket.SOCK_STREAM:
            return
        try:
            self.getpeername()
        except OSError:
            return                      # it listens, or has lost its peer
        self._hold()

    def _hold(self) -> None:
        fd = self.fileno()
        cookie, inherited = cookie_of(self), LEFT.claim(fd)
        try:
            self._books = Books(fd, cookie, inherited, LEFT.spool(cookie) if inherited else -1, self.spool_limit)
        except ConnectionAbortedError:
            self.reset()
            raise
        _by_fd[fd] = self

    def accept(self) -> tuple[HeldSocket, Any]:
        fd, address = self._accept()    # type: ignore[attr-defined]
        connection = HeldSocket(self.family, self.type, self.proto, fileno=fd)
        if socket.getdefaulttimeout() is None and self.gettimeout():
            connection.setblocking(True)
        return connection, address

    def bind(self, address: Any) -> None:
        """As of any socket; in a new generation this becomes the socket that the last one had bound to the address."""
        if self.type == socket.SOCK_STREAM and protected():
            if (found := LEFT.bound(self.family, address)) is not None:
                os.dup2(found, self.fileno(), inheritable=False)
                os.close(found)
                self.settimeout(self.gettimeout())
            else:
                super().bind(address)
            if self.family in (socket.AF_INET, socket.AF_INET6) and address[1] == 0:
                table().store(self.fileno(), Record(cookie_of(self), ANY_PORT))
        else:
            super().bind(address)

    def inherited(self, suspect: Callable[[HeldSocket], object] | None = None) -> list[tuple[HeldSocket, Any]]:
        """The connections that the last generation had accepted from this address, once each, as accept() would give
        them. What cannot be gone on with has been reset. So is a connection whose request is suspected of a fault for
        the second time (not of one by kill(2)): suspect is called with it before."""
        return LEFT.accepted(self.family, self.getsockname(), suspect)

    # ---- both ways ----

    def _wait(self, event: int, deadline: float | None) -> None:
        """For a socket that does not block but has a timeout"""
        timeout = self.gettimeout()
        if timeout == 0:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        left = None
        if deadline is not None and (left := deadline - time.monotonic()) <= 0:
            raise socket.timeout("timed out")
        poll = select.poll()
        poll.register(self.fileno(), event)
        poll.poll(None if left is None else left * 1000)

    def _deadline(self) -> float | None:
        timeout = self.gettimeout()
        return None if timeout is None else time.monotonic() + timeout

    def _plain(self, books: Books) -> None:
        """It has been switched off (kernel.restart.enabled): on as any socket, if nothing is left between."""
        books.lose()
        if books.position < books.released or books.tail or not books.checked:
            raise ConnectionAbortedError("restart has been switched off in the middle of a replay")
        self._books = None

    def _call(self, held: Callable[[memoryview], int], plain: Callable[[memoryview], int], view: memoryview, event: int,
              deadline: float | None) -> int:
        """held, when it does not block; or plain, since it has been switched off"""
        books = self._books
        assert books is not None
        while True:
            try:
                return held(view)
            except BlockingIOError:
                self._wait(event, deadline)
            except OSError as e:
                if e.errno != errno.EOPNOTSUPP:
                    raise
                self._plain(books)
                return plain(view)

    # ---- input ----

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        books = self._books
        if books is None:
            return super().recv_into(buffer, nbytes, flags)
        if self._peeking:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        view = memoryview(buffer).cast("B")
        if nbytes < 0:
            raise ValueError("negative buffersize in recv_into")
        view = view[:nbytes] if nbytes else view
        if flags == socket.MSG_PEEK and books.position < books.released:
            data = books.peek(len(view))
            view[:len(data)] = data
            return len(data)
        if flags == socket.MSG_PEEK or not len(view):
            return super().recv_into(view, 0, flags)
        if flags:
            raise OSError(errno.EOPNOTSUPP, "a HeldSocket receives without flags, or with MSG_PEEK")
        return self._call(books.read_into, super().recv_into, view, select.POLLIN, self._deadline())

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        if self._books is None:
            return super().recv(bufsize, flags)
        if bufsize < 0:
            raise ValueError("negative buffersize in recv")
        buffer = _scratch(bufsize)
        return buffer[:self.recv_into(buffer, 0, flags)].tobytes()

    def recvfrom(self, bufsize: int, flags: int = 0) -> tuple[bytes, Any]:
        return super().recvfrom(bufsize, flags) if self._books is None else (self.recv(bufsize, flags), None)

    def recvfrom_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> tuple[int, Any]:
        if self._books is None:
            return super().recvfrom_into(buffer, nbytes, flags)
        return self.recv_into(buffer, nbytes, flags), None

    def recvmsg(self, *args: Any) -> Any:
        return super().recvmsg(*args) if self._books is None else self._cannot("recvmsg")

    def recvmsg_into(self, *args: Any) -> Any:
        return super().recvmsg_into(*args) if self._books is None else self._cannot("recvmsg_into")

    def _cannot(self, what: str) -> NoReturn:
        raise OSError(errno.EOPNOTSUPP, f"{what} of a HeldSocket: it cannot hold what is read, count what is written")

    def makefile(self, mode: str = "r", buffering: int | None = None, **kwargs: Any) -> Any:
        file = super().makefile(mode, buffering, **kwargs)      # type: ignore[call-overload]
        if self._books is not None and "r" in mode:
            self._files.append(weakref.ref(file))
        return file

    def _buffered(self) -> int:
        """Bytes that files of makefile() have read ahead"""
        count = 0
        for reference in self._files:
            file = reference()
            if file is None or file.closed or isinstance(file, io.RawIOBase):
                continue
            if not isinstance(file, io.BufferedReader):
                raise ValueError("release() needs a number of bytes: files in text mode, or for both ways, do not tell")
            self._peeking = True
            try:
                count += len(file.peek())
            finally:
                self._peeking = False
        return count

    def release(self, size: int | None = None) -> None:
        """The oldest size bytes of input that were not released are answered, by all that has been written: they will
        not be read again. By default that is all that was read, without what files of makefile() have read ahead.
        Call it before anything of the next answer is written."""
        if (books := self._books) is not None:
            self._release(size, books.sent)

    def _release(self, size: int | None, at: int, ahead: int = 0) -> None:
        books = self._books
        if books is None or books.aborted:
            return
        begin = books.marks[-1][0] if books.marks else books.begin
        try:
            books.mark(books.position - self._buffered() - ahead if size is None else begin + size, at)
        except OSError as e:
            if e.errno != errno.EOPNOTSUPP:
                raise
            self._plain(books)

    @property
    def began(self) -> float:
        """When the present request was first there, as time.time() says it, in whichever generation: for a Date that
        stays the same."""
        if (books := self._books) is None:
            return time.time()
        if books.began is None:
            books.began = time.time()
        return books.began

    @property
    def answered(self) -> bool:
        """Whether something of an answer to the present request has been written"""
        return self._books is not None and self._books.written > self._books.start

    # ---- output ----

    def send(self, data: Any, flags: int = 0) -> int:
        if self._books is None:
            return super().send(data, flags)
        return self._send(memoryview(data).cast("B"), flags, self._deadline())

    def _send(self, data: memoryview, flags: int, deadline: float | None) -> int:
        books = self._books
        if books is None:
            return super().send(data, flags)
        if flags & ~socket.MSG_NOSIGNAL:
            raise OSError(errno.EOPNOTSUPP, "a HeldSocket sends without flags")
        return self._call(books.write, super().send, data, select.POLLOUT, deadline)

    def sendall(self, data: Any, flags: int = 0) -> None:
        if self._books is None:
            return super().sendall(data, flags)
        view, deadline = memoryview(data).cast("B"), self._deadline()
        while len(view):
            view = view[self._send(view, flags, deadline):]

    def sendmsg(self, buffers: Iterable[Any], *args: Any) -> int:
        if self._books is None:
            return super().sendmsg(buffers, *args)
        if args and (args[0] or any(args[1:])):
            self._cannot("sendmsg with ancillary data or flags")
        data = bytearray()
        for buffer in buffers:
            data += buffer
            if len(data) >= CHUNK:
                break
        return self.send(data)

    def sendto(self, *args: Any) -> int:
        return super().sendto(*args) if self._books is None else self._cannot("sendto")

    def sendfile(self, file: IO[bytes], offset: int = 0, count: int | None = None) -> int:    # type: ignore[override]
        if self._books is None:
            return super().sendfile(file, offset, count)
        if offset:
            file.seek(offset)
        total = 0
        while count is None or total < count:
            data = file.read(CHUNK if count is None else min(CHUNK, count - total))
            if not data:
                break
            self.sendall(data)
            total += len(data)
        return total

    # ---- the end ----

    def shutdown(self, how: int) -> None:
        if self._books is None or not self._books.aborted:
            super().shutdown(how)       # otherwise the peer would take what it has for the whole

    def reset(self) -> None:
        """Close it so that the peer knows that it has not got all."""
        if self._books is not None:
            self._books.lose()
        else:
            self._linger()
        self.close()

    def _linger(self) -> None:
        try:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except OSError:
            pass                        # no TCP

    def _real_close(self, *args: Any) -> None:
        if (books := self._books) is not None:
            if books.aborted:
                self._linger()
            books.close()
            _by_fd.pop(books.fd, None)
            self._books = None
        super()._real_close(*args)      # type: ignore[misc]

    def detach(self) -> int:
        """Whoever gets the descriptor keeps no books: a fault now resets the connection."""
        if (books := self._books) is not None:
            books.lose()
            self._books = None
        return super().detach()

    def dup(self) -> HeldSocket:
        if self._books is not None:
            self._cannot("dup")
        return super().dup()


_memory = threading.local()


def _scratch(size: int) -> memoryview:
    """Memory of this thread to read into"""
    size = min(size, 256 << 10)
    have: memoryview | None = getattr(_memory, "view", None)
    if have is None or len(have) < size:
        have = _memory.view = memoryview(bytearray(size))
    return have[:size]
