#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The Python module: what each function hands over and gives back, before and after a crash; the example shop."""

import errno
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

from replay import BUILD, PLACE, Server, Session, equal, main, run

TOP = Path(os.environ["PERDURE_TOP"])
LIBRARIES = BUILD / "userspace/userspace"
ENV = {"PYTHONPATH": str(TOP / "userspace/python"), "LD_LIBRARY_PATH": f"{LIBRARIES / 'replay'}:{LIBRARIES / 'libperdure'}",
       "PATH": f"{LIBRARIES / 'replay'}:{os.environ['PATH']}"}
server = Server("python", "\n[service self]\nurl = http://127.0.0.1:1\ntimeout = 100ms\n",
                size="64M",
                program=[sys.executable, Path(__file__).with_name("service.py")]).start(ENV)


def said(client: Session, method: str, **arguments: object) -> object:
    """What it says, which is the same after a crash."""
    status, text = client.call(method, json.dumps(arguments))
    assert status == 200, f"{text}\n{server.stop()}"
    return json.loads(text.encode("latin-1"))


def again(client: Session, text: object, method: str, **arguments: object) -> None:
    server.again(ENV)
    equal(json.loads(client.once(method, json.dumps(arguments), client.next - 1)[2].encode("latin-1")), text)


def kinds() -> None:
    """What a method returns, and what the client gets"""
    def get(kind: str) -> tuple[int, str | None, bytes]:
        status, headers, text = Session(server).once("kinds", json.dumps({"kind": kind}))
        return status, headers.get("Content-Type"), text.encode("latin-1")

    equal(get("text"), (200, "text/plain; charset=utf-8", "grüße".encode()))
    equal(get("bytes"), (200, "application/octet-stream", b"\0\xff"))
    equal(get("none"), (204, None, b""))
    equal(get("json"), (200, "application/json", '{"a":[1,null,"ü"]}'.encode()))
    equal(get("number"), (200, "application/json", b"7"))
    equal(get("reply"), (418, None, b"teapot"))
    equal(get("type")[0], 500)
    equal(get("nothing")[0], 500)
    body = bytes(range(256)) * 100
    status, headers, text = Session(server).once("echo", body)
    equal((status, headers["Content-Type"], text.encode("latin-1")), (200, "application/x-echo", body))


def arguments() -> None:
    """Parameters of a method are members of the body; another body is refused, with what is wrong"""
    client = Session(server)
    equal(said(client, "typed", text="a", whole=1), {"text": "a", "whole": 1, "part": 0.5, "flag": False, "many": None})
    equal(said(client, "typed", text="a", whole=1, part=2, flag=True, many=[1]),
          {"text": "a", "whole": 1, "part": 2, "flag": True, "many": [1]})
    for body, want in ((b"", "missing"), (b"{", "JSON"), (b"[]", "JSON"), (b"\xff", "JSON"), (b"[" * 500000, "JSON"),
                       (b'{"text": "a"}', "whole"), (b'{"text": 1, "whole": 1}', "text is to be text"),
                       (b'{"text": "a", "whole": 1.5}', "whole is to be an integer"),
                       (b'{"text": "a", "whole": true}', "whole is to be an integer"),
                       (b'{"text": "a", "whole": 1, "flag": 1}', "flag is to be"), (b'{"text": "a", "whole": 1, "other": 1}', "other"),
                       (b'{"text": "a", "whole": 1, "_call": 1}', "_call")):
        status, text = client.call("typed", body)
        equal(status, 400)
        assert want in text, (body[:50], text)


def variables() -> None:
    """Variables of a session and shared ones"""
    for shared in False, True:
        client = Session(server)
        got = said(client, "variables", shared=shared)
        equal(got, [None, 5, False, "KeyError 'x'", {"ü": [1, 2.5, None]}, True, "0001", "", False, "OSError", "OSError", "ValueError",
                    errno.EFBIG])
        again(client, got, "variables", shared=shared)


def steps() -> None:
    """What is one step: numbers, and functions, also those that fail"""
    client = Session(server)
    got = said(client, "steps")
    equal(got, [1, -4, -4, 0, [0], 100000, "ZeroDivisionError", "OSError", "TypeError", [0], errno.EINVAL])
    again(client, got, "steps")
    clients = [Session(server) for _ in range(8)]

    def count(client: Session) -> None:
        for _ in range(25):
            client.call("steps")

    threads = [threading.Thread(target=count, args=(client,)) for client in clients]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    final = said(client, "steps")
    assert isinstance(final, list)
    equal((final[2], len(final[4])), (-4 * 202, 202))


def logged() -> None:
    """Time, random numbers and uuids are the same in a replay"""
    client = Session(server)
    got = said(client, "logged")
    again(client, got, "logged")
    assert got != said(client, "logged")


def exceptions() -> None:
    """An exception is a status, its traceback is in the journal once, and what was done before it stays"""
    client = Session(server)
    status, text = client.call("fails")
    equal((status, text), (500, "fails: RuntimeError\n"))
    assert server.process
    server.kill()
    journal = server.said
    assert journal.count("RuntimeError: of the method") == 1, journal
    server.start(ENV)
    equal(client.call("before"), (200, "1"))
    server.kill()
    assert "of the method" not in server.said
    server.start(ENV)


def others() -> None:
    """Calls of other servers, and their errors"""
    client = Session(server)
    equal(client.call("ask", b'{"service": "self", "method": "x"}'), (200, f"TimeoutError {errno.ETIMEDOUT}"))
    equal(client.call("ask", b'{"service": "nobody", "method": "x"}'), (200, f"OSError {errno.EHOSTUNREACH}"))
    equal(client.call("ask", b'{"service": "self", "method": "../x y"}'), (200, f"OSError {errno.EINVAL}"))


def divergence() -> None:
    """A method that does something else in a replay stops its session, and no exception hides it"""
    client, other = Session(server), Session(server)
    equal(client.call("fickle")[0], 200)
    equal(client.call("swallows"), (200, "done"))
    equal(other.call("swallows"), (200, "done"))
    server.again(ENV)
    status, headers, text = client.once("swallows", b"", 2)
    equal((status, headers["Replay-Answer"]), (500, "stuck"))
    assert "method fickle" in text and "pid-" in text, text
    equal(other.once("swallows", b"", 1)[2], "done")


def versions() -> None:
    """A session that was begun with an old version stops when that is not there; its method's name may be a path"""
    client = Session(server)
    equal(client.call("deep/name"), (200, "1"))
    server.again(ENV | {"VERSION": "2"})
    status, _, text = client.once("deep/name", b"", 2)
    equal(status, 500)
    assert "version 1" in text
    server.again(ENV)
    equal(client.call("deep/name"), (200, "1"))


def stops() -> None:
    """SIGTERM in the middle of a request: it ends at once, and the request is executed to its end afterwards"""
    client = Session(server)
    thread = threading.Thread(target=client.call, args=("swallows",))
    thread.start()
    text = server.stop()
    assert "stops" in text and "Traceback" not in text, text
    server.start(ENV)
    thread.join()
    equal(client.call("swallows"), (200, "done"))


def memory() -> None:
    """24,000 requests leave nothing behind"""
    def used() -> int:
        assert server.process
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])

    client = Session(server)
    for i in range(8000):
        client.call("steps" if i % 100 == 0 else "logged")
    before = used()
    for i in range(16000):
        client.call("steps" if i % 100 == 0 else "logged")
    assert used() < before + 4096, (before, used())
    server.stop()


def mistakes() -> None:
    """What does not start, or is no method: an exception that says why"""
    script = """
import sys
from perdure import replay
server = replay.Server()
def f(call: replay.Call) -> None: ...
for name, version in (("", 1), ("/x", 1), ("replay/x", 1), ("x y", 1), ("x", 0), ("x" * 256, 1)):
    try:
        server.method(name, version=version)(f)
        print("taken:", name)
    except OSError as e:
        print(e.errno, e.strerror)
server.method(f)
for what in lambda: server.method(f), lambda: server.start(sys.argv[1]), lambda: server.start("/nonexistent"):
    try:
        what()
        print("it did")
    except OSError as e:
        print(e.errno, e.strerror)
"""
    (PLACE / "bad.conf").write_text("[server]\nname = x\n")
    text = run(sys.executable, "-c", script, PLACE / "bad.conf", env=ENV)
    lines = text.splitlines()
    equal(len(lines), 9)
    assert all(line.startswith(f"{errno.EINVAL} a method has a name") for line in lines[:6] if line[0] != "t"), text
    assert "taken" not in text and "it did" not in text, text
    assert lines[6].startswith(f"{errno.EEXIST} ") and "wants a log" in lines[7] and "No such file" in lines[8], text


def shop() -> None:
    """The example: three servers that are killed while clients buy"""
    done = subprocess.run([sys.executable, TOP / "userspace/python/shop.py", "--seconds", "8"], env=os.environ | ENV, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=200)
    equal(done.returncode, 0)
    assert "each order is there once" in done.stdout and done.stdout.count("is killed") >= 3, done.stdout


main(kinds, arguments, variables, steps, logged, exceptions, others, divergence, versions, stops, memory, mistakes, shop)
