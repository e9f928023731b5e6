# SPDX-License-Identifier: LGPL-2.1-or-later
"""Servers whose requests are executed exactly once: libreplay for Python. See replay(7).

    from perdure import replay

    shop = replay.Server()

    @shop.method
    def buy(call: replay.Call, item: str, count: int = 1) -> replay.JSON:
        price = call.request("prices", "price", item=item).json()
        cart = call.session.get("cart", [])
        call.session["cart"] = cart + [[item, count, price]]
        call.shared.add("sold", count)
        return {"items": len(cart) + 1}

    shop.run("cart.conf")

A method takes all that it does not compute from its call: variables, replies of other servers, time, random numbers. After a
crash it runs again on what was logged, so it does the same whenever it is given the same: no time.time(), no global
variables that change, no order of a set.

Functions of a call are for the thread that its method runs on, until the method returns. Errors are OSError.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import inspect
import json
import os
import random
import sys
import traceback
import uuid
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_ssize_t, c_uint, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any, Dict, List, TypeVar, Union, get_type_hints, overload

__all__ = ["Call", "Canceled", "JSON", "Reply", "Server", "Session", "Shared"]

JSON = Union[None, bool, int, float, str, List[Any], Dict[str, Any]]

ROOM, ROOM_MAX = 64 << 10, 1 << 20


class Canceled(BaseException):
    """The method has been taken back, or the server stops. Let it pass: what the method does after it does not count."""


@dataclass(frozen=True)
class Reply:
    """What a method answers, or has been answered."""
    body: bytes
    status: int = 200
    type: str | None = None

    def json(self) -> Any:
        return json.loads(self.body)


Result = Union[Reply, JSON, bytes]
Function = TypeVar("Function", bound=Callable[..., Any])

_lib = ctypes.CDLL("libreplay.so.0", use_errno=True)


def _function(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(_lib, name)
    function.restype, function.argtypes = result, arguments
    return function


_METHOD = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, c_void_p)
_UPDATE = ctypes.CFUNCTYPE(c_ssize_t, c_void_p, c_void_p, c_size_t, c_void_p, c_size_t)

_new = _function("replay_new", c_void_p)
_method = _function("replay_method", c_int, c_void_p, c_char_p, c_uint, _METHOD, c_void_p)
_start = _function("replay_start", c_int, c_void_p, c_char_p)
_error = _function("replay_error", c_char_p, c_void_p)
_stop = _function("replay_stop", None, c_void_p)
_free = _function("replay_free", None, c_void_p)
_main = _function("replay_main", c_int, c_void_p, c_char_p)
_get = _function("replay_get", c_int, c_void_p, c_char_p, POINTER(c_void_p), POINTER(c_size_t))
_set = _function("replay_set", c_int, c_void_p, c_char_p, c_char_p, c_size_t)
_unset = _function("replay_unset", c_int, c_void_p, c_char_p)
_read = _function("replay_read", c_int, c_void_p, c_char_p, POINTER(c_void_p), POINTER(c_size_t))
_write = _function("replay_write", c_int, c_void_p, c_char_p, c_char_p, c_size_t)
_remove = _function("replay_remove", c_int, c_void_p, c_char_p)
_update = _function("replay_update", c_int, c_void_p, c_char_p, c_size_t, _UPDATE, c_void_p)
_add = _function("replay_add", c_int, c_void_p, c_char_p, c_int64, POINTER(c_int64))
_request = _function("replay_call_method", c_int, c_void_p, c_char_p, c_char_p, c_char_p, c_size_t, POINTER(c_int),
                     POINTER(c_void_p), POINTER(c_size_t))
_time = _function("replay_time", c_int, c_void_p, POINTER(c_uint64))
_random = _function("replay_random", c_int, c_void_p, c_void_p, c_size_t)
_uuid = _function("replay_uuid", c_int, c_void_p, c_char_p)
_reply = _function("replay_reply", c_int, c_void_p, c_char_p, c_char_p, c_size_t)
_replaying = _function("replay_replaying", c_int, c_void_p)


def _text(text: str) -> bytes:
    raw = text.encode()
    if 0 in raw:    # where it would end in C
        raise ValueError(f"embedded null byte in {text!r}")
    return raw


def _call(what: str, function: Any, *arguments: Any) -> None:
    if function(*arguments) == 0:
        return
    error = ctypes.get_errno()
    if error == errno.ECANCELED:
        raise Canceled
    raise OSError(error, os.strerror(error), what)


def _dump(value: JSON) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


class _Variables:
    """Named values, as JSON; get_bytes() and set_bytes() for those that are not."""

    def __init__(self, call: int, get: Any, put: Any, remove: Any) -> None:
        self._handle, self._get, self._put, self._remove = call, get, put, remove

    def get_bytes(self, name: str) -> bytes | None:
        value, size = c_void_p(), c_size_t()
        try:
            _call(name, self._get, self._handle, _text(name), byref(value), byref(size))
        except FileNotFoundError:
            return None
        return ctypes.string_at(value.value or 0, size.value) if size.value else b""

    def set_bytes(self, name: str, value: bytes) -> None:
        _call(name, self._put, self._handle, _text(name), value, len(value))

    def get(self, name: str, default: Any = None) -> Any:
        raw = self.get_bytes(name)
        return default if raw is None else json.loads(raw)

    def __getitem__(self, name: str) -> Any:
        raw = self.get_bytes(name)
        if raw is None:
            raise KeyError(name)
        return json.loads(raw)

    def __setitem__(self, name: str, value: JSON) -> None:
        self.set_bytes(name, _dump(value))

    def __delitem__(self, name: str) -> None:
        _call(name, self._remove, self._handle, _text(name))

    def __contains__(self, name: str) -> bool:
        return self.get_bytes(name) is not None


class Session(_Variables):
    """The session's variables: they end with it. What is not there is removed without an error."""

    def __init__(self, call: int) -> None:
        super().__init__(call, _get, _set, _unset)


class Shared(_Variables):
    """Variables that all sessions share. Between a read and a write others may write: update() and add() are one step."""

    def __init__(self, call: int) -> None:
        super().__init__(call, _read, _write, _remove)

    def update(self, name: str, function: Callable[[Any], JSON], default: Any = None) -> Any:
        """The new value: function's of the old one, or of the default. It may run again, and calls nothing of a call. It runs
        while no other request makes a step: it has to be quick."""
        new: list[JSON] = []
        failed: list[BaseException] = []

        def change(_arg: int, old: int | None, size: int, out: int, room: int) -> int:
            try:
                value = default if old is None else json.loads(ctypes.string_at(old, size))
                new[:] = [function(value)]
                raw = _dump(new[0])
            except BaseException as e:
                failed[:] = [e]
                return -1
            if len(raw) <= room:
                ctypes.memmove(out, raw, len(raw))
            return len(raw)

        change_c = _UPDATE(change)
        for room in ROOM, ROOM_MAX:
            try:
                _call(name, _update, self._handle, _text(name), room, change_c, None)
            except OSError as e:
                if e.errno != errno.EFBIG or room == ROOM_MAX:
                    raise
                continue
            break
        if failed:
            raise failed[0]
        return new[0]

    def add(self, name: str, by: int = 1) -> int:
        """Adds to a number, which is 0 if it is not there, and returns the sum. It is no JSON: number() reads it."""
        if not -1 << 63 <= by < 1 << 63:
            raise OverflowError(f"{by} is no number of 64 bits")
        total = c_int64()
        _call(name, _add, self._handle, _text(name), by, byref(total))
        return total.value

    def number(self, name: str) -> int:
        raw = self.get_bytes(name)
        return int.from_bytes(raw, "little", signed=True) if raw is not None else 0


class Call:
    """A request that is being executed."""

    def __init__(self, handle: int, method: str, body: bytes) -> None:
        self._handle = handle
        self.method = method
        self.body = body
        self.session = Session(handle)
        self.shared = Shared(handle)

    @property
    def replaying(self) -> bool:
        """For logs and metrics, which would count twice; not for what a method does."""
        return bool(_replaying(self._handle))

    def json(self) -> Any:
        return json.loads(self.body)

    def request(self, service: str, method: str, body: bytes | None = None, /, **arguments: JSON) -> Reply:
        """Calls a method of another server, exactly once. The body, or what is to be its arguments. TimeoutError: it has not
        answered in the time that the file of options gives it."""
        if body is None:
            body = _dump(arguments)
        elif arguments:
            raise TypeError("a body and arguments")
        status, reply, size = c_int(), c_void_p(), c_size_t()
        _call(f"{service}/{method}", _request, self._handle, _text(service), _text(method), body, len(body), byref(status),
              byref(reply), byref(size))
        return Reply(ctypes.string_at(reply.value or 0, size.value) if size.value else b"", status.value)

    def time_ns(self) -> int:
        """Since 1970, in ns"""
        ns = c_uint64()
        _call("time", _time, self._handle, byref(ns))
        return ns.value

    def time(self) -> float:
        """Since 1970, in s"""
        return self.time_ns() / 1e9

    def random_bytes(self, size: int) -> bytes:
        """At most 64 KiB"""
        data = ctypes.create_string_buffer(size)
        _call("random", _random, self._handle, data, size)
        return data.raw

    def random(self) -> random.Random:
        """A generator that a replay seeds again as it was"""
        return random.Random(self.random_bytes(16))

    def uuid(self) -> uuid.UUID:
        text = ctypes.create_string_buffer(37)
        _call("uuid", _uuid, self._handle, text)
        return uuid.UUID(text.value.decode())


class _BadRequest(Exception):
    pass


_CHECKED = {str: "text", int: "an integer", float: "a number", bool: "true or false", list: "a list", dict: "an object"}


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """With annotations that are no text any more (eval_str does that, from Python 3.10 on)"""
    signature, hints = inspect.signature(function), get_type_hints(function)
    return signature.replace(parameters=[p.replace(annotation=hints.get(name, p.annotation)) for name, p in signature.parameters.items()])


def _arguments(call: Call, signature: inspect.Signature) -> dict[str, Any]:
    """A method that has parameters besides the call finds them in a JSON object, the body."""
    try:
        given = json.loads(call.body) if call.body else {}
    except (ValueError, RecursionError):
        raise _BadRequest("the body is to be a JSON object") from None
    if not isinstance(given, dict):
        raise _BadRequest("the body is to be a JSON object")
    try:
        signature.bind(call, **given)
    except TypeError as e:
        raise _BadRequest(str(e)) from None
    for name, value in given.items():
        kind: Any = signature.parameters[name].annotation if name in signature.parameters else None
        right = isinstance(value, (int, float) if kind is float else kind) if kind in _CHECKED else True
        if not right or (kind in (int, float) and isinstance(value, bool)):
            raise _BadRequest(f"{name} is to be {_CHECKED[kind]}")
    return given


def _answer(result: Result) -> Reply:
    if isinstance(result, Reply):
        return result
    if result is None:
        return Reply(b"", 204)
    if isinstance(result, bytes):
        return Reply(result, type="application/octet-stream")
    if isinstance(result, str):
        return Reply(result.encode(), type="text/plain; charset=utf-8")
    return Reply(_dump(result), type="application/json")


class Server:
    """A server: its methods, then run() or start()."""

    def __init__(self) -> None:
        self._handle: int | None = _new()
        if self._handle is None:
            raise MemoryError
        self._kept: list[Any] = []      # what C calls must stay

    def _failed(self) -> OSError:
        error = ctypes.get_errno()
        return OSError(error, _error(self._handle).decode(errors="replace"))

    @overload
    def method(self, function: Function, /) -> Function: ...

    @overload
    def method(self, name: str | None = None, /, *, version: int = 1) -> Callable[[Function], Function]: ...

    def method(self, function: Any = None, /, *, version: int = 1) -> Any:
        """Decorates a function that executes requests, under its own name or another:

            @server.method
            @server.method("items/add", version=2)

        Its first parameter is the Call; others are members of the JSON object that the body is. It returns a Reply, bytes,
        text, None, or what is to be JSON. New requests are executed by the highest version, those that are replayed by
        that which executed them. An exception is the status 500, and its traceback goes to standard error; what the method had
        done stays done."""
        if callable(function):
            return self._register(function, function.__name__, version)
        return lambda decorated: self._register(decorated, decorated.__name__ if function is None else function, version)

    def _register(self, function: Any, name: str, version: int) -> Any:
        signature = _signature(function)
        plain = len(signature.parameters) < 2

        def run(handle: int, body: int | None, size: int, _arg: int) -> int:
            call = Call(handle, name, ctypes.string_at(body or 0, size) if size else b"")
            try:
                try:
                    answer = _answer(function(call) if plain else function(call, **_arguments(call, signature)))
                except _BadRequest as e:
                    answer = Reply(f"{name}: {e}\n".encode(), 400, "text/plain; charset=utf-8")
                except Exception as e:
                    if not call.replaying:
                        traceback.print_exc()
                    answer = Reply(f"{name}: {type(e).__name__}\n".encode(), 500, "text/plain; charset=utf-8")
                kind = None if answer.type is None else _text(answer.type)
                _call("reply", _reply, handle, kind, answer.body, len(answer.body))
                return answer.status
            except Canceled:
                return 500
            except BaseException:
                traceback.print_exc()
                return 500

        run_c = _METHOD(run)
        if _method(self._handle, _text(name), version, run_c, None):
            raise self._failed()
        self._kept.append(run_c)
        return function

    def start(self, path: str | os.PathLike[str]) -> None:
        """Recovers what the log says, and serves. OSError says what is wrong with the file of options, the log or a socket."""
        if _start(self._handle, os.fsencode(path)):
            raise self._failed()
        # Threads that are not Python's own must not outlive it
        atexit.register(self.stop)

    def stop(self) -> None:
        """Takes nothing more. Sessions go on when the log is opened the next time."""
        _stop(self._handle)
        atexit.unregister(self.stop)

    def run(self, path: str | os.PathLike[str]) -> None:
        """start(), until SIGTERM or SIGINT; then exits, with 1 and a message if it cannot start. For the main thread."""
        sys.exit(_main(self._handle, os.fsencode(path)))

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            _free(self._handle)
            self._handle = None
