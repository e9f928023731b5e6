#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""This test checks the Python module: each function, across restarts of Python programs, and the example service."""

import ctypes
import errno
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "hygiene"))
import ktap  # noqa: E402
from ktap import differ  # noqa: E402

TOP = Path(os.environ["PERDURE_TOP"])
MODULE = TOP / "userspace/python"
ADDER = MODULE / "adder.py"
PORT = 7008
os.environ["PYTHONPATH"] = str(MODULE)
sys.path.insert(0, str(MODULE))
import perdure  # noqa: E402


def fails(error: int, function: Callable, *args: object) -> Iterator[str]:
    try:
        yield f"{function.__name__}{args} gave {function(*args)!r}"
    except OSError as e:
        if e.errno != error:
            yield f"{function.__name__}{args}: {e}, not {errno.errorcode[error]}"


def calls() -> Iterator[str]:
    """What each function hands over and gives back."""
    yield from differ("available()", perdure.available(), True)
    yield from differ("info()", perdure.info(), None)
    yield from differ("path()", perdure.path(), None)
    yield from fails(errno.ENOENT, perdure.unregister)
    yield from fails(errno.ENOENT, perdure.register, "/nonexistent", ["x"])
    yield from fails(errno.EINVAL, perdure.register, "/bin/true", [])
    perdure.register("/bin/true", ["true", "\udcff"], {"A": "b"}, child_id=-3)
    info = perdure.info()
    yield from differ("info()", info and (info.child_id, info.generation, info.is_restarted, info.suspect_fd), (-3, 1, False, -1))
    yield from differ("path()", perdure.path(), "/bin/true")
    perdure.unregister()
    for function, *args in ((perdure.register, "/bin/true\0"), (perdure.register, "/bin/true", ["a\0"]), (perdure.State, "a\0", 1),
                            (perdure.register, "/bin/true", ["a"], {"A": "\0"}), (perdure.discard_state, "a\0"), (perdure.remove_shared, "a\0")):
        try:
            yield f"{function.__name__}{args} gave {function(*args)!r}"
        except ValueError as e:
            yield from differ("error", "null byte" in str(e), True)

    one, other = socket.socketpair()
    with one, other:
        other.sendall(b"abcdef")
        yield from differ("hread", perdure.hread(one, 4), b"abcd")
        yield from differ("hread and release", perdure.hread(one.fileno(), 4, 3), b"ef")
        yield from fails(errno.EINVAL, perdure.release, one, 4)
        perdure.release(one, 1)
        into = bytearray(8)
        other.sendall(b"gh")
        yield from differ("hread_into", (perdure.hread_into(one, memoryview(into)[2:]), bytes(into)), (2, b"\0\0gh\0\0\0\0"))
        yield from differ("lwrite", perdure.lwrite(one, b"12"), 2)
        yield from differ("lwrite", perdure.lwrite(one, bytearray(b"345")), 3)
        with open("/etc/passwd", "rb") as file:
            yield from differ("lsendfile", perdure.lsendfile(one, file, 1, 4), 4)
            yield from differ("lsendfile", perdure.lsendfile(one, file, None, 3), 3)
            yield from differ("offset", file.seek(0, os.SEEK_CUR), 3)
            file.seek(0)
            text = file.read(5)
        yield from differ("sent", other.recv(100), b"12345" + text[1:5] + text[:3])
        yield from differ("iolog", perdure.iolog(one), perdure.IOLog(read=8, released=4, held=4, unread=0, written=12))
        yield from differ("pending()", perdure.pending(), [])
        other.close()
        yield from differ("end", perdure.hread(one, 4), b"")
    one, other = socket.socketpair()
    with one, other:
        one.setblocking(False)
        for function, *args in ((perdure.hread, one, 1), (perdure.lwrite, one, b"x" * 1000)):
            try:
                while function(*args):
                    pass
                yield f"{function.__name__} gave nothing"
            except BlockingIOError:
                pass
    yield from fails(errno.EBADF, perdure.hread, 999, 1)


def undone(function: Callable[..., object], *args: object, **how: Any) -> Iterator[str]:
    try:
        yield f"no fault: {perdure.rescue(function, *args, **how)}"
    except perdure.Fault:
        pass


def rescue() -> Iterator[str]:
    """What a function has done is undone with its fault: objects, files, the interpreter; and it can be called again and again."""
    libc = ctypes.CDLL(None, use_errno=True)
    seen: list[object] = []
    table = {"a": 1}

    def damage(fault: Callable[[], object]) -> str:
        seen.extend(object() for _ in range(1000))
        table["a"] += 1
        table.clear()
        open("/etc/passwd").read()
        fault()
        return "done"

    def loop() -> None:
        while True:
            pass

    files = len(os.listdir("/proc/self/fd"))
    for number in range(20):
        for fault in (lambda: ctypes.string_at(8), libc.abort):
            try:
                yield f"a fault gave {perdure.rescue(damage, fault)!r}"
            except perdure.Fault as e:
                yield from differ("it says", str(e), "rescue.<locals>.damage has faulted, and was undone")
        yield from differ("state", (seen, table, len(os.listdir("/proc/self/fd"))), ([], {"a": 1}, files))
    yield from undone(loop, deadline=0.2)
    try:
        perdure.rescue(damage, lambda: 1 / 0)
        yield "an exception is lost"
    except ZeroDivisionError:
        yield from differ("after an exception", (len(seen), table), (1000, {}))
    table["a"] = 0
    yield from differ("value", perdure.rescue(damage, fault=lambda: None, deadline=60), "done")
    yield from differ("after it", (len(seen), table), (2000, {}))
    for wrong in ({"deadline": 0}, {"deadline": 1e9}, {"deadline": 1, "cascade": True}, {"cork": True, "cascade": True}):
        try:
            yield f"{wrong} gives {perdure.rescue(damage, lambda: None, **wrong)}"
        except ValueError:
            pass
    # What is sent waits until it is certain
    read, write = os.pipe()

    def tell(fault: Callable[[], object]) -> None:
        os.write(write, b"x")
        fault()

    yield from undone(tell, lambda: ctypes.string_at(8), cork=True)
    yield from differ("there", select.select([read], [], [], 0)[0], [])
    perdure.rescue(tell, lambda: None, cork=True)
    yield from differ("there at last", os.read(read, 10), b"x")
    os.close(read)
    os.close(write)
    # Peers: what is sent on a connection that both offer is marked, and comes when it is certain
    perdure.rescue_sockets(True)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as one:
        perdure.rescue_sockets(False)
        other, _ = listener.accept()
        with other:
            yield from differ("agreed", one.getsockopt(socket.IPPROTO_TCP, 501), 1)

            def ask(fault: Callable[[], object]) -> None:
                one.send(b"x")
                fault()

            yield from undone(ask, lambda: ctypes.string_at(8), cascade=True)
            perdure.rescue(ask, lambda: None, cascade=True)
            other.settimeout(10)
            yield from differ("came", other.recv(10), b"x")


def policy() -> Iterator[str]:
    """What is set is in force, as the kernel tells it; a heartbeat that stops is a fault."""
    yield from fails(errno.ENOENT, perdure.set_policy, perdure.Policy())
    perdure.register("/bin/true", ["true"])
    for wanted in (perdure.Policy(), perdure.Policy(burst=3, interval=1.5, quarantine=True, on_exit=True, core=True, heartbeat=30)):
        perdure.set_policy(wanted)
        yield from differ("policy", perdure.get_policy(), wanted)
    told = dict(line.split(":\t") for line in Path("/proc/self/restart").read_text().splitlines())
    yield from differ("told", [told[key] for key in ("policy", "burst", "interval_ms", "heartbeat_ns")],
                      ["limit quarantine exit core", "3", "1500", "30000000000"])
    yield from fails(errno.EINVAL, perdure.set_policy, perdure.Policy(burst=0))
    try:
        perdure.set_policy(perdure.Policy(burst=1, interval=5e6))
        yield "an interval of more than 32 bits is accepted"
    except OverflowError:
        pass
    perdure.heartbeat()
    perdure.unregister()
    done = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=180)
    yield from differ("after the heartbeat has stopped", (done.returncode, done.stdout, done.stderr), (0, "SIGABRT 2\n", ""))


# The next generation begins with the same deadline, in which Python has to start
HANGS = """
import os, signal, time
import perdure

slow = 4 if os.environ.get("PERDURE_PROFILE") == "debug" else 1
if info := perdure.info():
    print(signal.Signals(info.signo).name, info.generation)
else:
    perdure.register()
    perdure.set_policy(perdure.Policy(heartbeat=6 * slow))
    for _ in range(16):
        perdure.heartbeat()
        time.sleep(0.5 * slow)
    assert perdure.info().generation == 1
    while True:
        pass
"""


def interrupted() -> Iterator[str]:
    """A signal handler runs, and the call goes on; one that raises ends it."""
    ran = []
    signal.signal(signal.SIGALRM, lambda *_: ran.append(1))
    one, other = socket.socketpair()
    with one, other:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        late = threading.Timer(1, other.sendall, [b"late"])
        late.start()
        yield from differ("hread", perdure.hread(one, 10), b"late")
        yield from differ("handlers that ran", ran, [1])
        late.join()

        def stop(*_: object) -> None:
            raise InterruptedError("by the handler")

        signal.signal(signal.SIGALRM, stop)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            yield f"hread gave {perdure.hread(one, 10)!r}"
        except InterruptedError as e:
            yield from differ("exception", str(e), "by the handler")


def state() -> Iterator[str]:
    """Updates, all or nothing, and what is refused."""
    with perdure.State("unit", 100, layout=3) as s:
        yield from differ("inherited", s.inherited, False)
        s.update(10, b"abc")
        s.stage(20, b"xyz")
        yield from differ("staged", bytes(s.data[10:23]), b"abc" + bytes(10))
        s.commit()
        yield from differ("committed", bytes(s.data[20:23]), b"xyz")
        # Bytes count, not elements
        numbers = array("I", [1, 2, 3])
        s.update(30, memoryview(numbers))
        yield from differ("numbers", bytes(s.data[30:42]), numbers.tobytes())
        for at, data in ((98, b"abc"), (-1, b"a"), (101, b""), (92, memoryview(numbers))):
            try:
                s.update(at, data)
                yield f"update({at}, {data!r}) is accepted"
            except ValueError:
                pass
        try:
            s.data[0] = 1
            yield "data is writable"
        except TypeError:
            pass
        yield from differ("file", "perdure-unit" in os.readlink(f"/proc/self/fd/{s.fileno()}"), True)
        part = s.data[20:23]
        try:
            s.close()
            yield "an area is closed that is looked at"
        except BufferError:
            yield from differ("refused to close", (bytes(part), bytes(s.data[10:13])), (b"xyz", b"abc"))
        part.release()
    try:
        s.update(0, b"a")
        yield "a closed area is updated"
    except ValueError:
        pass
    yield from fails(errno.ENOENT, perdure.discard_state, "unit")


def shared() -> Iterator[str]:
    """Updates of several ranges, all or none; what is refused; who waits for whom."""
    with perdure.Shared("unit", 100, layout=3) as s:
        yield from differ("existed", s.existed, False)
        with s.update() as result:
            s.stage(10, b"abc")
            s.stage(20, b"xyz")
            yield from differ("staged", bytes(s.data[10:23]), bytes(13))
        yield from differ("committed", (result, bytes(s.data[10:13]), bytes(s.data[20:23])), (0, b"abc", b"xyz"))
        try:
            with s.update():
                s.stage(10, b"def")
                raise KeyError
        except KeyError:
            yield from differ("canceled", bytes(s.data[10:13]), b"abc")
        yield from fails(errno.EEXIST, perdure.Shared, "unit", 100, 3)
        for at, data in ((98, b"abc"), (-1, b"a"), (101, b"")):
            try:
                s.stage(at, data)
                yield f"stage({at}, {data!r}) is accepted"
            except ValueError:
                pass
        yield from differ("begin", s.begin(), 0)
        child = os.fork()
        if not child:
            try:
                s.begin(0.2)
            except BlockingIOError:
                os._exit(77)
            finally:
                os._exit(1)
        yield from differ("another one", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 77)
        s.cancel()
        perdure.remove_shared("unit")
        yield from differ("still there", bytes(s.data[10:13]), b"abc")
    try:
        s.begin()
        yield "a closed area is updated"
    except ValueError:
        pass
    yield from fails(errno.ENOENT, perdure.remove_shared, "unit")
    yield from fails(errno.EINVAL, perdure.Shared, "a/b", 10)


# Counts to COUNT in two places, and faults once in between
COUNT = 40
COUNTS = """
import ctypes, sys
import perdure

count = int(sys.argv[1])
area = perdure.Shared("counts", 16)
info = perdure.info()
begun = 0
if info is None:
    perdure.register(child_id=int(sys.argv[2]))
else:
    begun = info.child_id
for n in range(begun, count):
    with area.update() as result:
        number = int.from_bytes(area.data[:8], "little") + 1
        assert area.data[:8] == area.data[8:], bytes(area.data)
        area.stage(0, number.to_bytes(8, "little"))
        if n == int(sys.argv[2]) and info is None:
            ctypes.string_at(0)
        if info is not None and n == begun:
            assert result == perdure.UNDONE, result
        area.stage(8, number.to_bytes(8, "little"))
"""


def shared_faults() -> Iterator[str]:
    """Four processes count together, and each of them faults in the middle of an update."""
    places = (5, 12, 20, 33)
    with perdure.Shared("counts", 16):
        pass
    with perdure.Shared("counts", 16) as area:
        yield from differ("existed", area.existed, True)
        workers = [subprocess.Popen([sys.executable, "-c", COUNTS, str(COUNT), str(place)]) for place in places]
        for worker in workers:
            yield from differ("status", worker.wait(120), 0)
        total = COUNT * len(places)
        yield from differ("counted", (int.from_bytes(area.data[:8], "little"), int.from_bytes(area.data[8:], "little")), (total, total))
    perdure.remove_shared("counts")


# A program that faults once in each way, and knows in each generation where it was
FAULTS = """
import ctypes, faulthandler, os, signal, socket, sys, threading
import perdure

WAYS = [lambda: ctypes.string_at(0), os.abort, lambda: os.kill(os.getpid(), signal.SIGBUS), lambda: faulthandler._sigfpe(),
        lambda: faulthandler._stack_overflow(), lambda: threading.Thread(target=ctypes.string_at, args=(0,)).start()]
info = perdure.info()
state = perdure.State("faults", 16)
if info is None:
    perdure.register(child_id=5)
    a, b = socket.socketpair()
    b.sendall(b"held")
    os.dup2(a.fileno(), 77)
    a.close()
    generation = 1
else:
    assert info.is_restarted and info.child_id == 5 and state.inherited and bytes(state.data[:1]) == bytes([info.generation - 1])
    generation = info.generation
    print(f"{os.getpid()} {generation} {signal.Signals(info.signo).name}", flush=True)
    assert perdure.pending() == [77], perdure.pending()
assert sys.argv[1:] == ["an argument"] and os.environ["GIVEN"] == "1"
state.update(0, bytes([generation]))
assert perdure.hread(77, 10) == b"held"
if generation <= len(WAYS):
    WAYS[generation - 1]()
    threading.Event().wait(20)
    raise SystemExit("survived")
"""


def faults() -> Iterator[str]:
    """Null pointers, abort(), signals, a stack overflow, a fault in a thread: with faulthandler, and without."""
    names = ["SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGSEGV", "SIGSEGV"]
    for handler in ("", "1"):
        done = subprocess.run([sys.executable, "-c", FAULTS, "an argument"], capture_output=True, text=True, timeout=100,
                              env=os.environ | {"GIVEN": "1", "PYTHONFAULTHANDLER": handler})
        lines = [line.split() for line in done.stdout.splitlines()]
        yield from differ("signals", [line[2] for line in lines], names)
        yield from differ("generations", [line[1] for line in lines], [str(n) for n in range(2, len(names) + 2)])
        yield from differ("processes", len({line[0] for line in lines}), 1)
        yield from differ("faulthandler spoke", "Fatal Python error: Segmentation fault" in done.stderr, handler == "1")
        if done.returncode:
            yield f"status {done.returncode}: {done.stderr[-1000:]}"


THREADS = """
import os, socket, threading
import perdure

info = perdure.info()
if info is None:
    perdure.register()
    for n in range(8):
        ours, theirs = socket.socketpair()
        os.dup2(ours.fileno(), 50 + n)
        os.dup2(theirs.fileno(), 150 + n)
        theirs.sendall(b"%d" % n)
        perdure.hread(50 + n, 10)
        for s in (ours, theirs):
            s.close()
    os.abort()
together = threading.Barrier(8)
got = {}
def serve(fd):
    together.wait(30)
    got[fd] = perdure.hread(fd, 10, 1)
for t in perdure.recover_threads(serve):
    t.join()
assert got == {50 + n: b"%d" % n for n in range(8)}, got
assert perdure.recover_threads(serve) == []
"""


def threads() -> Iterator[str]:
    """Each pending request gets its thread."""
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, timeout=60)
    if done.returncode:
        yield f"status {done.returncode}: {done.stderr[-1000:]}"


def all_or_none() -> Iterator[str]:
    """No thread runs when one of them cannot be started."""
    called: list[int] = []
    threads_before = set(threading.enumerate())
    start, starts = threading.Thread.start, iter([True, True, False])

    def limited(thread: threading.Thread) -> None:
        if not next(starts):
            raise RuntimeError("can't start new thread")
        start(thread)

    threading.Thread.start = limited    # type: ignore[method-assign]
    try:
        perdure.recover_threads(called.append, [7, 8, 9])
        yield "all three were started"
    except RuntimeError:
        pass
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]
    for thread in set(threading.enumerate()) - threads_before:
        thread.join(10)
    yield from differ("called", called, [])


def adder() -> Iterator[str]:
    """The example: right sums, once each, across a null pointer, an abort and signals from outside."""
    server = subprocess.Popen([ADDER, str(PORT)], stdout=subprocess.PIPE, text=True)
    try:
        for _ in range(300):
            try:
                client = socket.create_connection(("127.0.0.1", PORT), timeout=30)
                break
            except ConnectionRefusedError:
                time.sleep(0.1)
        total = 0
        with client, client.makefile("rb") as answers:
            for number in range(60):
                if number == 40:
                    client.sendall(b"123")      # half a line, over a fault
                    os.kill(server.pid, signal.SIGSEGV)
                    client.sendall(b"4\n")
                    total += 1234
                    yield from differ("answer to half a line", answers.readline(), b"%d\n" % total)
                line = {20: b"crash\n", 30: b"abort\n"}.get(number)
                client.sendall(line or b"%d\n" % number)
                total += 0 if line else number
                yield from differ(f"answer {number}", answers.readline(), b"%d\n" % total)
            client.shutdown(socket.SHUT_WR)
            yield from differ("rest", answers.read(), b"")
        # One that goes away in the middle takes nobody along, whatever the service is doing
        for lines in (0, 1, 100000):
            client = socket.create_connection(("127.0.0.1", PORT), timeout=30)
            client.setblocking(False)
            try:
                client.sendall(b"1\n" * lines)
            except BlockingIOError:
                pass                # it waits for us to read its answers
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            with socket.create_connection(("127.0.0.1", PORT), timeout=30) as client, client.makefile("rb") as answers:
                client.sendall(b"5\n")
                yield from differ(f"answer after a reset in {lines} lines", answers.readline(), b"5\n")
        yield from differ("status", server.poll(), None)
        server.kill()
        out = server.communicate()[0].splitlines()
        yield from differ("generations", out, [f"generation {n}: signal {s}, 1 client" for n, s in ((2, 11), (3, 6), (4, 11))])
    finally:
        server.kill()
        server.wait()


def main() -> int:
    Path("/proc/sys/kernel/restart/min_interval_ms").write_text("0")
    return ktap.run(calls, rescue, policy, interrupted, state, shared, shared_faults, faults, threads, all_or_none, adder)


if __name__ == "__main__":
    sys.exit(main())
