# SPDX-License-Identifier: LGPL-2.1-or-later
"""Services that outlive their own faults: libperdure for Python. See perdure(7).

    import perdure

    info = perdure.info()
    if info is None:
        perdure.register()              # from now on a fault restarts this program, with every file open
    elif info.is_restarted:
        ...                             # the same process, another generation: go on where the old one was
    state = perdure.State("service", 4096)
    data = perdure.hread(sock, 4096)    # held until it is released: a fault in between, and it is read again
    perdure.lwrite(sock, answer)        # counted: iolog(sock).written says how much has left
    perdure.release(sock, len(data))

Errors are OSError, with the errno of the call: ENOSYS on a kernel without zero-loss restart, EOPNOTSUPP where it is
switched off. Files are descriptors, or anything with fileno().

Servers need less: HeldSocket is a socket with all of this in it, Restartable makes a server of socketserver or http.server
restartable, perdure.aio is for asyncio, perdure.wsgi a server for WSGI. On any other kernel they are plain.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_int32, c_size_t, c_ssize_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Union

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["AnswerDiffers", "COMPLETED", "Fault", "HeldSocket", "Info", "Inherited", "IOLog", "Policy", "Restartable", "Shared", "State", "UNDONE",
           "abi_version", "available", "close_leftovers", "discard_state", "get_policy", "heartbeat", "hread", "hread_into", "info", "inherited",
           "iolog", "lsendfile", "lwrite", "path", "pending", "protect", "protected", "recover_threads", "register", "release",
           "remove_shared", "rescue", "rescue_sockets", "set_policy", "unregister"]


class HasFileno(Protocol):
    def fileno(self) -> int: ...


File = Union[int, HasFileno]
Buffer = Union[bytes, bytearray, memoryview]


class _RegInfo(ctypes.Structure):
    _fields_ = [("is_restarted", c_uint32), ("child_id", c_int32), ("generation", c_uint64), ("signo", c_int32),
                ("code", c_int32), ("fault_addr", c_uint64), ("fault_tid", c_int32), ("suspect_fd", c_int32),
                ("fault_time_ns", c_uint64), ("retain_ns", c_uint64), ("exec_ns", c_uint64), ("restore_ns", c_uint64),
                ("restarts", c_uint64), ("flags", c_uint32), ("core_pid", c_int32)]


class _Policy(ctypes.Structure):
    _fields_ = [("flags", c_uint32), ("burst", c_uint32), ("interval_ms", c_uint32), ("reserved", c_uint32),
                ("heartbeat_ns", c_uint64)]


_LIMIT, _QUARANTINE, _ON_EXIT, _CORE = 1, 2, 4, 8


class _IOLog(ctypes.Structure):
    _fields_ = [(name, c_uint64) for name in ("read", "released", "held", "unread", "written")]


@dataclass(frozen=True)
class Info:
    """A registration, and the fault that started this generation: struct reg_info of getreginfo(2)."""
    is_restarted: bool
    child_id: int
    generation: int
    signo: int
    code: int
    fault_addr: int
    fault_tid: int
    suspect_fd: int
    fault_time_ns: int
    retain_ns: int
    exec_ns: int
    restore_ns: int
    restarts: int
    flags: int
    core_pid: int


@dataclass(frozen=True)
class Policy:
    """When a registered process is restarted: see restartctl(2). Times are in seconds.

    burst restarts in any interval (None: 1 in kernel.restart.min_interval_ms); quarantine: once more when the suspect file is
    the same again; on_exit: an exit status other than 0 is a fault; core: dump one at a restart; heartbeat: the time
    that may pass between two calls of heartbeat() (None: no limit).
    """
    burst: int | None = None
    interval: float = 60
    quarantine: bool = False
    on_exit: bool = False
    core: bool = False
    heartbeat: float | None = None


@dataclass(frozen=True)
class IOLog:
    """How far reading and writing are on an open file: struct io_log of getiolog(2)."""
    read: int
    released: int
    held: int
    unread: int
    written: int


_lib = ctypes.CDLL("libperdure.so.0", use_errno=True)


def _function(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(_lib, name)
    function.restype, function.argtypes = result, arguments
    return function


_reregist = _function("reregist", c_ssize_t, c_char_p, POINTER(c_char_p), POINTER(c_char_p), c_int)
_unregister = _function("perdure_unregister", c_int)
_getreginfo = _function("perdure_getreginfo", c_int, c_void_p, c_size_t)
_regpath = _function("perdure_regpath", c_ssize_t, c_void_p, c_size_t)
_abi_version = _function("perdure_abi_version", c_int)
_setpolicy = _function("perdure_setpolicy", c_int, c_void_p, c_size_t)
_getpolicy = _function("perdure_getpolicy", c_int, c_void_p, c_size_t)
_heartbeat = _function("perdure_heartbeat", c_int)
_hread = _function("hread", c_ssize_t, c_int, c_void_p, c_size_t, c_size_t)
_lwrite = _function("lwrite", c_ssize_t, c_int, c_void_p, c_size_t)
_lsendfile = _function("lsendfile", c_ssize_t, c_int, c_int, c_void_p, c_size_t)
_getiolog = _function("perdure_getiolog", c_int, c_int, c_void_p, c_size_t)
_pending = _function("perdure_pending", c_int, POINTER(POINTER(c_int)))
_state_open = _function("perdure_state_open", c_void_p, c_char_p, c_size_t, c_uint32, c_void_p, c_void_p)
_state_stage = _function("perdure_state_stage", c_int, c_void_p, c_void_p, c_void_p, c_size_t)
_state_update = _function("perdure_state_update", c_int, c_void_p, c_void_p, c_void_p, c_size_t)
_state_commit = _function("perdure_state_commit", None, c_void_p)
_state_fd = _function("perdure_state_fd", c_int, c_void_p)
_state_close = _function("perdure_state_close", None, c_void_p)
_state_discard = _function("perdure_state_discard", c_int, c_char_p)
_shared_open = _function("perdure_shared_open", c_void_p, c_char_p, c_size_t, c_uint32, c_void_p)
_shared_begin = _function("perdure_shared_begin", c_int, c_void_p, c_int)
_shared_stage = _function("perdure_shared_stage", c_int, c_void_p, c_void_p, c_void_p, c_size_t)
_shared_commit = _function("perdure_shared_commit", c_int, c_void_p)
_shared_cancel = _function("perdure_shared_cancel", c_int, c_void_p)
_shared_close = _function("perdure_shared_close", None, c_void_p)
_shared_remove = _function("perdure_shared_remove", c_int, c_char_p)
_rescue_sockets = _function("perdure_rescue_sockets", c_int, c_int)
_free = ctypes.CDLL(None).free
_free.argtypes = [c_void_p]


def _call(function: Any, *arguments: Any) -> int:
    """Calls again after a signal whose Python handler did not raise, as Python's own functions do (PEP 475)."""
    result: int
    while (result := function(*arguments)) == -1:
        error = ctypes.get_errno()
        if error != errno.EINTR:
            raise OSError(error, os.strerror(error))
    return result


def _fd(file: File) -> int:
    return file if isinstance(file, int) else file.fileno()


def _string(string: str | bytes) -> bytes:
    raw = os.fsencode(string)
    if 0 in raw:    # where it would end in C
        raise ValueError(f"embedded null byte in {string!r}")
    return raw


def _strings(strings: Sequence[str]) -> Any:
    return (c_char_p * (len(strings) + 1))(*map(_string, strings), None)


# ---- rescue ----

# These keep the interpreter's lock: a scope that releases it gives itself up
_held = ctypes.PyDLL("libperdure.so.0", use_errno=True)
_enter, _enter_deadline, _enter_cork, _enter_cascade = (getattr(_held, f"perdure_rescue{name}")
                                                       for name in ("", "_deadline", "_cork", "_cascade"))
_enter_deadline.argtypes = c_int, ctypes.c_uint
_rescue_leave = _held.perdure_rescue_leave


class Fault(Exception):
    """What rescue() has called has faulted, and was undone."""


def rescue(function: Callable[..., Any], /, *args: Any, deadline: float | None = None, cork: bool = False, cascade: bool = False,
           **kwargs: Any) -> Any:
    """Call a function, as one of a module in C, with a scope around it: see perdure_rescue(2). When it faults, all that it has done
    is undone, that of the interpreter included, and Fault is raised here. With a deadline, in seconds, it is a fault to take longer. With
    cork, what it sends on stream sockets and pipes waits until it has returned. With cascade, peers that take part go back, too. OSError
    when there is no scope: EOPNOTSUPP when other threads are busy, ENOSYS on a kernel without rescue points."""
    if (deadline is not None) + cork + cascade > 1:
        raise ValueError("a scope has one of deadline, cork and cascade")
    if deadline is not None and not 0.001 <= deadline < 4294967.296:
        raise ValueError(f"a deadline of {deadline} seconds: 0.001 to 4294967.295")
    begun = _enter_cork(errno.EIO) if cork else _enter_cascade(errno.EIO) if cascade else \
        _enter(errno.EIO) if deadline is None else _enter_deadline(errno.EIO, int(deadline * 1000))
    if begun:
        error = ctypes.get_errno()
        if error == errno.EIO:
            raise Fault(f"{getattr(function, '__qualname__', function)} has faulted, and was undone")
        raise OSError(error, os.strerror(error))
    try:
        return function(*args, **kwargs)
    finally:
        _rescue_leave()


def rescue_sockets(on: bool) -> None:
    """Whether TCP connections that this process and its children make from now on can go back with a peer, or have one go back."""
    _call(_rescue_sockets, on)


# ---- registration ----

def abi_version() -> int:
    """The version of the kernel's interface, 1 or more."""
    return _call(_abi_version)


def available() -> bool:
    """Whether this kernel restarts what is registered. The functions raise OSError where it does not."""
    try:
        return abi_version() > 0
    except OSError:
        return False


def register(path: str | None = None, argv: Sequence[str] | None = None, env: Mapping[str, str] | None = None,
             child_id: int = 0) -> None:
    """Have the kernel execute path with argv and env in place of this process when a fault is about to kill it. By
    default that is this program as it was started: interpreter, arguments and environment."""
    if path is None:
        path = sys.executable
    if argv is None:
        argv = getattr(sys, "orig_argv", None)
    if argv is None:        # Python 3.9
        with open("/proc/self/cmdline", "rb") as file:
            argv = [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
    strings = [f"{name}={value}" for name, value in (os.environ if env is None else env).items()]
    _call(_reregist, _string(path), _strings(argv), _strings(strings), child_id)


def protected() -> bool:
    """Whether a fault restarts this process: it is registered, and the kernel holds what it reads and counts what it writes."""
    try:
        if info() is None:
            return False
        _call(_getiolog, -1, None, 0)
    except OSError as e:
        return e.errno in (errno.EBADF, errno.EINVAL)
    return True


def protect(policy: Policy | None = None) -> bool:
    """Register this program as it was started, unless it is registered, and set its policy, if one is given. Returns protected(): False
    is no error, the program runs as on any kernel. The log "perdure" says why, unless it is for want of our kernel."""
    try:
        if info() is None:
            register()
        if policy is not None:
            set_policy(policy)
    except OSError as e:
        level = logging.INFO if e.errno in (errno.ENOSYS, errno.EOPNOTSUPP) else logging.WARNING
        logging.getLogger("perdure").log(level, "not protected, a fault ends this process: %s", e)
    return protected()


def unregister() -> None:
    """Let faults kill this process again."""
    _call(_unregister)


def info() -> Info | None:
    """The registration of this process, or None."""
    raw = _RegInfo()
    if not _call(_getreginfo, byref(raw), ctypes.sizeof(raw)):
        return None
    values = {field[0]: getattr(raw, field[0]) for field in raw._fields_}
    return Info(**values | {"is_restarted": bool(raw.is_restarted)})


def path() -> str | None:
    """The program that a fault will execute, or None when this process is not registered."""
    buf = ctypes.create_string_buffer(4096)
    return os.fsdecode(buf.value) if _call(_regpath, buf, len(buf)) else None


def set_policy(policy: Policy) -> None:
    """Say when this process, which must be registered, is restarted."""
    flags = _QUARANTINE * policy.quarantine | _ON_EXIT * policy.on_exit | _CORE * policy.core
    raw = _Policy(flags, 0, 0, 0, round((policy.heartbeat or 0) * 1e9))
    if policy.burst is not None:
        if not 0 <= policy.burst < 1 << 32 or not 0 <= policy.interval * 1000 < 1 << 32:
            raise OverflowError(f"{policy.burst} restarts in {policy.interval} seconds: more than 32 bits")
        raw.flags, raw.burst, raw.interval_ms = flags | _LIMIT, policy.burst, round(policy.interval * 1000)
    _call(_setpolicy, byref(raw), ctypes.sizeof(raw))


def get_policy() -> Policy:
    """The policy of this process."""
    raw = _Policy()
    _call(_getpolicy, byref(raw), ctypes.sizeof(raw))
    limit = {"burst": raw.burst, "interval": raw.interval_ms / 1000} if raw.flags & _LIMIT else {}
    return Policy(quarantine=bool(raw.flags & _QUARANTINE), on_exit=bool(raw.flags & _ON_EXIT), core=bool(raw.flags & _CORE),
                  heartbeat=raw.heartbeat_ns / 1e9 if raw.heartbeat_ns else None, **limit)


def heartbeat() -> None:
    """The process is well: to be called at least as often as Policy.heartbeat says."""
    _call(_heartbeat)


# ---- input and output ----

def hread_into(file: File, buffer: bytearray | memoryview, release: int = 0) -> int:
    """Read into buffer and hold what was read; release so many bytes, the oldest first. Returns the number read, 0 at the
    end of the file."""
    view = memoryview(buffer).cast("B")
    if not len(view):
        return _call(_hread, _fd(file), None, 0, release)
    return _call(_hread, _fd(file), (c_char * len(view)).from_buffer(view), len(view), release)


def hread(file: File, size: int, release: int = 0) -> bytes:
    """As hread_into(), up to size bytes; empty at the end of the file."""
    buf = bytearray(size)
    return bytes(memoryview(buf)[:hread_into(file, buf, release)])


def release(file: File, size: int) -> None:
    """Release so many bytes of what was read, the oldest first: they will not be read again."""
    _call(_hread, _fd(file), None, 0, size)


def lwrite(file: File, data: Buffer) -> int:
    """Write, and have the kernel count what was written. May write less than all."""
    raw = bytes(data)
    return _call(_lwrite, _fd(file), raw, len(raw))


def lsendfile(out: File, source: File, offset: int | None, count: int) -> int:
    """os.sendfile(), counted as by lwrite()."""
    at = None if offset is None else byref(ctypes.c_int64(offset))
    return _call(_lsendfile, _fd(out), _fd(source), at, count)


def iolog(file: File) -> IOLog:
    """What has been read, released, held and written on the open file."""
    raw = _IOLog()
    _call(_getiolog, _fd(file), byref(raw), ctypes.sizeof(raw))
    return IOLog(*(getattr(raw, field[0]) for field in raw._fields_))


def pending() -> list[int]:
    """The descriptors with something to read again: the requests that the old generation had not finished."""
    fds = POINTER(c_int)()
    count = _call(_pending, byref(fds))
    try:
        return fds[:count]
    finally:
        _free(fds)


def recover_threads(start: Callable[[int], object], fds: Sequence[int] | None = None) -> list[threading.Thread]:
    """Start a thread for each descriptor, by default for those of pending(), that calls start(descriptor). When one cannot be
    started, none of them calls it."""
    all_there = threading.Event()
    calls: list[Callable[[int], object]] = []

    def run(fd: int) -> None:
        all_there.wait()
        for call in calls:
            call(fd)

    threads = [threading.Thread(target=run, args=(fd,)) for fd in (pending() if fds is None else fds)]
    try:
        for thread in threads:
            thread.start()
        calls.append(start)
    finally:
        all_there.set()
    return threads


# ---- state ----

class _Area:
    """Memory of the library's, of which data is a view to read from."""

    def __init__(self, address: int | None, size: int, name: str, close: Callable[[int], None]) -> None:
        self._area, self._name, self._close = address, name, close
        if not address:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), name)
        self._look((c_char * size).from_address(address))

    def _look(self, memory: ctypes.Array[c_char]) -> None:
        self._memory = memory
        self.data = memoryview(memory).cast("B").toreadonly()

    def _open(self) -> int:
        if not self._area:
            raise ValueError(f"the area {self._name} is closed")
        return self._area

    def _range(self, offset: int, data: Buffer) -> tuple[int, int, bytes, int]:
        area, raw = self._open(), bytes(data)
        if offset < 0 or offset + len(raw) > len(self.data):
            raise ValueError(f"{len(raw)} bytes at {offset} are not in an area of {len(self.data)}")
        return area, area + offset, raw, len(raw)

    def close(self) -> None:
        """BufferError while there are other views of data: what comes there next is not for them."""
        if self._area:
            memory = weakref.ref(self._memory)
            self.data.release()
            del self._memory
            if (still := memory()) is not None:
                self._look(still)
                raise BufferError(f"parts of the data of {self._name} are still in use")
            self._close(self._area)
            self._area = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class State(_Area):
    """Memory that outlives restarts: see perdure_state(3). close() destroys it.

    data is a view of it, to read from. update() changes a range all or nothing: whatever stops the process, the next
    generation finds the old bytes or the new ones. stage() records a range to be changed together with others at the next
    commit() or update(). inherited says whether an earlier generation left the area.
    """

    def __init__(self, name: str, size: int, layout: int = 1, address: int | None = None) -> None:
        inherited = c_int()
        super().__init__(_state_open(_string(name.encode()), size, layout, address, byref(inherited)), size, name, _state_close)
        self.inherited = bool(inherited.value)

    def update(self, offset: int, data: Buffer) -> None:
        _call(_state_update, *self._range(offset, data))

    def stage(self, offset: int, data: Buffer) -> None:
        _call(_state_stage, *self._range(offset, data))

    def commit(self) -> None:
        _state_commit(self._open())

    def fileno(self) -> int:
        """The descriptor that keeps the area: not to be closed with those left over."""
        return int(_state_fd(self._open()))


def discard_state(name: str) -> None:
    """Destroy the area called name, which is not open."""
    _call(_state_discard, _string(name.encode()))


# What Shared.begin() has done about an update that its process did not live to finish: none of it is there, or all
UNDONE, COMPLETED = 1, 2


class Shared(_Area):
    """Memory that processes share and that outlives them: see perdure_shared(3).

    data is a view of it. It changes in updates, in which no two processes or threads are at a time, whoever dies or is restarted
    in the middle: begin(), stage() what changes, commit(), all or nothing; or "with area.update():", which cancels on an exception.
    Read there, too, what must not change meanwhile. existed says whether it was there; remove_shared() removes it.
    """

    def __init__(self, name: str, size: int, layout: int = 1) -> None:
        existed = c_int()
        super().__init__(_shared_open(_string(name.encode()), size, layout, byref(existed)), size, name, _shared_close)
        self.existed = bool(existed.value)

    def begin(self, timeout: float | None = None) -> int:
        """0, UNDONE or COMPLETED. BlockingIOError when others are in updates for longer than timeout seconds (None: for ever)."""
        return _call(_shared_begin, self._open(), -1 if timeout is None else min(round(max(timeout, 0) * 1000), 0x7fffffff))

    def stage(self, offset: int, data: Buffer) -> None:
        _call(_shared_stage, *self._range(offset, data))

    def commit(self) -> None:
        _call(_shared_commit, self._open())

    def cancel(self) -> None:
        _call(_shared_cancel, self._open())

    @contextmanager
    def update(self, timeout: float | None = None) -> Iterator[int]:
        """The value is that of begin()."""
        result = self.begin(timeout)
        try:
            yield result
        except BaseException:
            self.cancel()
            raise
        self.commit()


def remove_shared(name: str) -> None:
    """Remove the shared area called name. Who has it open can read it on, and not update it."""
    _call(_shared_remove, _string(name.encode()))


from .books import AnswerDiffers  # noqa: E402
from .held import HeldSocket  # noqa: E402
from .left import Inherited, close_leftovers, inherited  # noqa: E402

if TYPE_CHECKING:
    from .serve import Restartable
else:
    def __getattr__(name: str) -> Any:      # imported by those who need it: it is what makes starting slow, and so a restart
        if name != "Restartable":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from .serve import Restartable
        return Restartable
