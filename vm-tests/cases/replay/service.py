#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""A server in Python for the tests: each method is one thing that a method can do. service.py CONFIG"""

import os
import sys
import time

from perdure import replay

server = replay.Server()


@server.method
def echo(call: replay.Call) -> replay.Result:
    return replay.Reply(call.body, type="application/x-echo")


@server.method
def kinds(_call: replay.Call, kind: str) -> replay.Result:
    found: dict[str, replay.Result] = {"text": "grüße", "bytes": b"\0\xff", "none": None, "json": {"a": [1, None, "ü"]}, "number": 7,
                                       "reply": replay.Reply(b"teapot", 418), "type": replay.Reply(b"", 200, "x\ny")}
    return found[kind]


@server.method
def typed(_call: replay.Call, text: str, whole: int, part: float = 0.5, flag: bool = False, many: list[int] | None = None) -> replay.Result:
    return {"text": text, "whole": whole, "part": part, "flag": flag, "many": many}


@server.method("deep/name", version=int(os.environ.get("VERSION", "1")))
def versioned(_call: replay.Call) -> replay.Result:
    return os.environ.get("VERSION", "1")


@server.method
def variables(call: replay.Call, shared: bool) -> replay.Result:
    v = call.shared if shared else call.session
    said = [v.get("x"), v.get("x", 5), "x" in v]
    try:
        v["x"]
    except KeyError as e:
        said.append(f"KeyError {e}")
    v["x"] = {"ü": [1, 2.5, None]}
    said += [v["x"], "x" in v]
    v.set_bytes("raw", b"\0\1")
    said.append((v.get_bytes("raw") or b"").hex())
    v["empty"] = ""
    said.append(v["empty"])
    del v["x"]
    del v["x"]
    said.append("x" in v)
    for name in "", "n" * 256, "a\0b":
        try:
            v[name] = 1
        except (OSError, ValueError) as e:
            said.append(type(e).__name__)
    try:
        v["large"] = "x" * (1 << 20)
    except OSError as e:
        said.append(e.errno)
    return said


@server.method
def steps(call: replay.Call) -> replay.Result:
    said = [call.shared.add("n"), call.shared.add("n", -5), call.shared.number("n"), call.shared.number("none")]
    said.append(call.shared.update("list", lambda old: old + [len(old)], []))
    said.append(len(call.shared.update("long", lambda old: "x" * 100000, "")))
    for function in (lambda old: 1 // 0, lambda old: "x" * (1 << 20), lambda old: {1, 2}):
        try:
            call.shared.update("list", function)
        except (ArithmeticError, OSError, TypeError) as e:
            said.append(type(e).__name__)
    said.append(call.shared["list"])
    try:
        call.shared.add("list")
    except OSError as e:
        said.append(e.errno)
    return said


@server.method
def logged(call: replay.Call) -> replay.Result:
    return [call.time_ns(), call.time(), call.random_bytes(4).hex(), call.random().random(), str(call.uuid())]


@server.method
def fails(call: replay.Call) -> replay.Result:
    call.session["before"] = 1
    raise RuntimeError("of the method")


@server.method
def before(call: replay.Call) -> replay.Result:
    return call.session.get("before")


@server.method
def ask(call: replay.Call, service: str, method: str) -> replay.Result:
    try:
        reply = call.request(service, method, n=call.shared.add("asked"))
    except OSError as e:
        return f"{type(e).__name__} {e.errno}"
    return [reply.status, reply.body.decode("latin-1")]


@server.method
def fickle(call: replay.Call) -> replay.Result:
    call.shared[f"pid-{os.getpid()}"] = 1
    return "not reached in a replay"


@server.method
def swallows(call: replay.Call) -> replay.Result:
    """One that lets nothing pass: what it says then does not count."""
    for i in range(100):
        try:
            call.shared.add("swallowed")
            time.sleep(0 if call.replaying else 0.01)
        except BaseException:
            pass
    return "done"


if __name__ == "__main__":
    server.run(sys.argv[1])
