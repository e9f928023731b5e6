# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the last generation left: descriptors by kind, and who takes them over."""

from __future__ import annotations

import errno
import os
import socket
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from signal import Signals
from typing import TYPE_CHECKING, Any, NamedTuple

from . import info, iolog
from .books import ANY_PORT, CLOSING, cookie_of, log, spool_name, table

if TYPE_CHECKING:
    from .held import HeldSocket

_SENT = (0, -1)                     # si_code of a signal by kill(2), sigqueue(3)


@dataclass
class Inherited:
    """Descriptors that the last generation left, by kind. Whoever has asked for them closes them."""
    listening: list[socket.socket] = field(default_factory=list)
    accepted: list[HeldSocket] = field(default_factory=list)
    outgoing: list[socket.socket] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)


class _Found(NamedTuple):
    fd: int
    kind: str
    family: int = -1
    place: Any = None                   # of the listening socket: what its connections have in common with it
    name: Any = None
    any_port: bool = False


def _place(family: int, name: Any) -> Any:
    return name[1] if family in (socket.AF_INET, socket.AF_INET6) else name


class Left:
    """Looked for when perdure is imported: what is open then, and was not passed on to this program by an execve, is
    of the last generation. (It has close-on-exec, as all that Python opens.)"""

    def __init__(self) -> None:
        self.fds: dict[int, tuple[int, int]] = {}
        self.spools: dict[str, int] = {}
        self.places: set[tuple[int, Any]] = set()       # of listening sockets that were taken over
        self.lock = threading.RLock()
        try:
            registration = info()
        except OSError:
            return
        if registration is None or not registration.is_restarted:
            return
        self.info = registration
        for name in os.listdir("/proc/self/fd"):
            try:
                fd, link = int(name), os.readlink(f"/proc/self/fd/{name}")
                mine = link.startswith("/memfd:perdure-") and not link.startswith("/memfd:perdure-spool-")
                if fd > 2 and not mine and not os.get_inheritable(fd):
                    self.fds[fd] = self._identity(fd)
                    if link.startswith("/memfd:perdure-spool-"):
                        self.spools[link] = fd
            except OSError:
                pass                    # listdir's own

    @staticmethod
    def _identity(fd: int) -> tuple[int, int]:
        status = os.fstat(fd)
        return status.st_dev, status.st_ino

    def forget(self) -> None:
        self.fds, self.lock = {}, threading.RLock()

    def claim(self, fd: int) -> bool:
        """Whether the descriptor is one of those; from now on it is not."""
        with self.lock:
            there = self.fds.pop(fd, None)
            try:
                return there is not None and there == self._identity(fd)
            except OSError:
                return False            # closed meanwhile

    def _links(self) -> dict[int, str]:
        with self.lock:
            fds = list(self.fds.items())
        links = {}
        for fd, identity in fds:
            try:
                if self._identity(fd) == identity:
                    links[fd] = os.readlink(f"/proc/self/fd/{fd}")
            except OSError:
                pass
        return links

    def spool(self, cookie: int) -> int:
        fd = self.spools.pop(f"/memfd:{spool_name(cookie)} (deleted)", -1)
        return fd if self.claim(fd) else -1

    def find(self) -> list[_Found]:
        found: list[_Found] = []
        connected: list[tuple[int, int, Any, bool]] = []
        for fd, link in self._links().items():
            if link.startswith("/memfd:perdure-spool-"):
                continue                # with its connection
            if not link.startswith("socket:"):
                found.append(_Found(fd, "unknown"))
                continue
            s = socket.socket(fileno=fd)
            try:
                family, name, cookie = int(s.family), s.getsockname(), cookie_of(s)
                record = table().load(fd, cookie)
                if s.type != socket.SOCK_STREAM:
                    found.append(_Found(fd, "unknown"))
                    continue
                try:
                    s.getpeername()
                    connected.append((fd, family, name, record is not None))
                    continue
                except OSError as e:
                    if e.errno != errno.ENOTCONN:
                        raise
                listens = s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                any_port = record is not None and bool(record.flags & ANY_PORT)
                if listens or any_port:
                    found.append(_Found(fd, "listening", family, _place(family, name), name, any_port))
                elif record is not None or _place(family, name):
                    # Its peer has gone, perhaps just now
                    connected.append((fd, family, name, record is not None))
                else:
                    found.append(_Found(fd, "unknown"))
            except OSError:
                found.append(_Found(fd, "unknown"))
            finally:
                s.detach()
        places = {(f.family, f.place) for f in found if f.kind == "listening"} | self.places | _given()
        for fd, family, name, known in connected:
            place = _place(family, name)
            kind = "accepted" if known or (place and (family, place) in places) else \
                "outgoing" if place or family != socket.AF_UNIX else "unknown"
            found.append(_Found(fd, kind, family, place, name))
        return found

    def bound(self, family: int, address: Any) -> int | None:
        """The descriptor of the listening socket at this address"""
        if not self.fds:
            return None
        with self.lock:
            there = [f for f in self.find() if f.kind == "listening" and f.family == family]
            if family not in (socket.AF_INET, socket.AF_INET6):
                there = [f for f in there if f.name == address]
            else:
                host, port = address[:2]
                hosts = {_binary(family, str(a[4][0])) for a in socket.getaddrinfo(
                    host or None, port, family, socket.SOCK_STREAM, 0, socket.AI_PASSIVE)}
                there = [f for f in there if _binary(family, f.name[0]) in hosts and port in (0, f.name[1])]
                if port == 0:
                    chosen = [f for f in there if f.any_port]
                    there = chosen or (there if len(there) == 1 else [])
            if not there or not self.claim(there[0].fd):
                return None
            self.places.add((there[0].family, there[0].place))
            return there[0].fd

    def accepted(self, family: int, name: Any,
                 suspect: Callable[[HeldSocket], object] | None = None) -> list[tuple[HeldSocket, Any]]:
        """With family -1 those of all addresses."""
        from .held import HeldSocket
        if not self.fds:
            return []
        with self.lock:
            place = None if family == -1 else (int(family), _place(family, name))
            if place is not None:
                self.places.add(place)
            found = [f for f in self.find() if f.kind == "accepted" and place in (None, (f.family, f.place))]
        # A signal that somebody sent says nothing of a request; an exit is none
        sent = self.info.signo and self.info.code in _SENT
        suspected = -1 if sent else self.info.suspect_fd
        kept, lost, closed = [], 0, 0
        for f in found:
            s = socket.socket(fileno=f.fd)
            record = table().load(f.fd, cookie_of(s))
            s.setblocking(True)
            s.detach()
            if record is not None and record.flags & CLOSING:
                self.claim(f.fd)
                os.close(f.fd)
                closed += 1
                continue
            connection = None
            try:
                connection = HeldSocket(fileno=f.fd)
                if connection._books is None:           # the peer has gone
                    raise ConnectionResetError
                if f.fd == suspected and iolog(f.fd).held and connection._books.blame():
                    log.warning("descriptor %d: its request has faulted twice, it is dropped", f.fd)
                    if suspect is not None:
                        suspect(connection)
                    connection.reset()
                    lost += 1
                    continue
                kept.append((connection, connection.getpeername()))
            except OSError as e:
                if not isinstance(e, ConnectionResetError):
                    log.warning("descriptor %d: reset: %s", f.fd, e)
                    lost += 1
                self.claim(f.fd)
                if connection is not None:
                    connection.close()
        cause = f"exit status {self.info.code}" if not self.info.signo else Signals(self.info.signo).name
        log.warning("generation %d after %s: %d connections kept, %d reset, %d closed", self.info.generation, cause,
                    len(kept), lost, closed)
        return kept

    def settle(self) -> None:
        """Close what no server will ask for: what is outgoing or unknown, and spools whose connection has gone."""
        if not self.fds:
            return
        with self.lock:
            there = self.find()
            cookies = set()
            for f in there:
                if f.kind in ("outgoing", "unknown"):
                    if self.claim(f.fd):
                        os.close(f.fd)
                elif f.kind == "accepted":
                    s = socket.socket(fileno=f.fd)
                    cookies.add(spool_name(cookie_of(s)))
                    s.detach()
            for fd, link in self._links().items():
                if link.startswith("/memfd:perdure-spool-") and link[7:].split(" ")[0] not in cookies:
                    if self.claim(fd):
                        os.close(fd)

    def close(self) -> None:
        """All that is left. A connection of which the client has a part of an answer is reset."""
        from .held import HeldSocket
        if not self.fds:
            return
        self.settle()
        with self.lock:
            for f in self.find():
                if f.kind == "accepted":
                    try:
                        connection = HeldSocket(fileno=f.fd)
                        if connection.answered:
                            connection.reset()
                        else:
                            if connection._books is not None:
                                connection._books.checked = True
                            connection.close()
                    except OSError:
                        pass            # it has reset itself
                elif self.claim(f.fd):
                    os.close(f.fd)
            for fd in self._links():
                if self.claim(fd):
                    os.close(fd)


def _binary(family: int, host: str) -> bytes:
    return socket.inet_pton(family, host.split("%")[0])


def _given() -> set[tuple[int, Any]]:
    """Where sockets listen that this program was started with: a service manager's"""
    places = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            fd = int(name)
            if fd < 3 or not stat.S_ISSOCK(os.fstat(fd).st_mode) or not os.get_inheritable(fd):
                continue
            s = socket.socket(fileno=fd)
            try:
                if s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    places.add((int(s.family), _place(s.family, s.getsockname())))
            finally:
                s.detach()
        except OSError:
            pass                        # listdir's own
    return places


def inherited() -> Inherited:
    """Take over all descriptors that the last generation left and nobody has taken yet. Those of standard input,
    output and error, and those with which the program was started, are none. Import perdure before what opens files:
    what was open then counts."""
    from .held import HeldSocket
    result = Inherited()
    for f in LEFT.find():
        if f.kind == "accepted":
            try:
                result.accepted.append(HeldSocket(fileno=f.fd))
            except OSError:
                pass                    # it was reset
        elif LEFT.claim(f.fd):
            if f.kind == "listening":
                result.listening.append(HeldSocket(fileno=f.fd))
            elif f.kind == "outgoing":
                result.outgoing.append(socket.socket(fileno=f.fd))
            else:
                result.unknown.append(f.fd)
    return result


def close_leftovers() -> None:
    """Close what the last generation left and nobody has taken: when all servers of the program have been set up."""
    LEFT.close()


LEFT = Left()
