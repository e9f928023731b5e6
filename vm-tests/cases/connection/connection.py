#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The books of connections: whatever stops a server wherever, each answer arrives once and whole, or the client sees that it does not."""

import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "harness"))
from points import BUILD, equal, main  # noqa: E402

SERVER = BUILD / "userspace/vm-tests/cases/connection/connection-server"
PORT = 7300
NEVER = 1 << 30
SYSCTL = Path("/proc/sys/kernel/restart")
scratch = tempfile.TemporaryDirectory(prefix="connection-")
PLACE = Path(scratch.name)
QUICK = os.environ.get("PERDURE_PROFILE") == "debug" or "quick" in sys.argv


def expected(n: int, seed: int) -> bytes:
    mask = (1 << 64) - 1
    return bytes(97 + ((at * 2654435761 & mask) + seed * 40503 & mask) // 65536 % 26 for at in range(n))


class Client:
    def __init__(self) -> None:
        self.socket = socket.create_connection(("127.0.0.1", PORT), timeout=60)
        self.file = self.socket.makefile("rb")

    def send(self, *lines: str, data: bytes = b"") -> None:
        self.socket.sendall("".join(f"{line}\n" for line in lines).encode() + data)

    def answer(self) -> bytes:
        line = self.file.readline()
        if not line.endswith(b"\n"):
            raise EOFError(line)
        text = self.file.read(int(line))
        if len(text) != int(line):
            raise EOFError(line + text)
        return text

    def ask(self, line: str) -> bytes:
        self.send(line)
        return self.answer()

    def ended(self) -> bool:
        """Is there an end, and no reset?"""
        return self.file.read() == b""

    def close(self) -> None:
        self.file.close()
        self.socket.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Server:
    def __init__(self, threads: bool, fault_at: int) -> None:
        self.errors = (PLACE / "errors").open("w+")
        self.process = subprocess.Popen([SERVER, str(PORT), str(int(threads)), str(PLACE)], stderr=self.errors,
                                        env=os.environ | ({"FAULT_AT": str(fault_at)} if fault_at else {}))
        deadline = time.monotonic() + 60
        while True:
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", PORT)) == 0:
                    break
            assert self.process.poll() is None and time.monotonic() < deadline, "the server does not begin"
            time.sleep(0.02)

    def generation(self) -> int:
        text = Path(f"/proc/{self.process.pid}/restart").read_text()
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("generation"))

    def files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def kill(self) -> None:
        """A fault, and wait until the next generation is there."""
        before = self.generation()
        self.process.send_signal(signal.SIGSEGV)
        deadline = time.monotonic() + 30
        while self.generation() == before:
            assert self.process.poll() is None and time.monotonic() < deadline, "there is no next generation"
            time.sleep(0.001)


@contextmanager
def server(threads: bool = False, fault_at: int = 0) -> Iterator[Server]:
    it = Server(threads, fault_at)
    try:
        yield it
        equal(it.process.poll(), None)
    finally:
        it.process.kill()
        it.process.wait()


REQUESTS = [("bytes 10 1", expected(10, 1)), ("vector 9000 2", expected(9000, 2)), ("file big", b""), ("bytes 7000 3", expected(7000, 3)), ("bye", b"bye")]


def big() -> bytes:
    return bytes(random.Random(5).randbytes(120_000))


def each_call(threads: bool) -> None:
    """Three connections: pipelined requests, one whose requests come in pieces, one at its end."""
    (PLACE / "big").write_bytes(big())
    answers = [big() if line == "file big" else text for line, text in REQUESTS]

    def talk(it: Server) -> int:
        with Client() as row, Client() as last, Client() as pieces:
            row.send(*(line for line, _ in REQUESTS))
            pieces.socket.sendall(b"bytes 5")
            last.send("last")
            equal(last.answer(), b"bye")
            assert last.ended()
            pieces.socket.sendall(b"0 9\nby")
            equal(pieces.answer(), expected(50, 9))
            pieces.socket.sendall(b"e\n")
            equal(pieces.answer(), b"bye")
            for want in answers:
                equal(row.answer(), want)
            equal(row.ask("bye"), b"bye")
            return int(row.ask("calls")) - 1

    with server(threads, NEVER) as it:
        calls = talk(it)
    faults = 0
    for at in range(1, calls, 5 if QUICK else 1):
        with server(threads, at) as it:
            talk(it)
            faults += it.generation() - 1
    print(f"# {faults} faults before {calls} calls of the library")
    # With threads, which of them is the nth is not said
    assert faults >= calls // (6 if QUICK else 1) * 9 // 10 >= 5, faults


def each_call_in_a_loop() -> None:
    """A server with one thread that faults before or after each call of the library"""
    each_call(False)


def each_call_in_threads() -> None:
    """A server with a thread for each connection does so, too"""
    each_call(True)


def at_random(threads: bool) -> None:
    (PLACE / "big").write_bytes(big())
    answers = [big() if line == "file big" else text for line, text in REQUESTS]
    rng = random.Random(int(os.environ.get("PERDURE_SEED", "1")))
    stop, problems, answered = threading.Event(), [], []

    def work(n: int) -> None:
        mine = random.Random(n)
        try:
            with Client() as client:
                while not stop.is_set():
                    asked = [mine.randrange(len(REQUESTS)) for _ in range(mine.randrange(1, 6))]
                    client.send(*(REQUESTS[i][0] for i in asked))
                    for i in asked:
                        equal(client.answer() == answers[i], True)
                        answered.append(i)
        except Exception as e:
            problems.append(f"client {n}: {type(e).__name__}: {e}")

    with server(threads) as it:
        workers = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for worker in workers:
            worker.start()
        before = 0
        for _ in range(10 if QUICK else 60):
            time.sleep(rng.uniform(0, 0.2))
            it.kill()
            before = before or it.files()
        stop.set()
        for worker in workers:
            worker.join()
        # The ends of connections that it has not noticed yet
        end = time.monotonic() + 20
        while (after := it.files()) > before and time.monotonic() < end:
            time.sleep(0.05)
    equal(problems, [])
    assert after <= before, f"{after} descriptors, {before} after the first fault"
    print(f"# {len(answered)} answers")
    assert len(answered) > (20 if QUICK else 100), len(answered)


def random_in_a_loop() -> None:
    """A server with one thread is killed at random under load: all answers are right, and nothing leaks"""
    at_random(False)


def random_in_threads() -> None:
    """So is one with threads"""
    at_random(True)


def answers_that_differ() -> None:
    """An answer that is not the same the second time is cut off by a reset, and never mixed"""
    cut = 0
    with server() as it, Client() as other:
        for n in range(4 if QUICK else 10):
            with Client() as client:
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                # In small writes; or in one, of which the fault cuts the rest off
                client.send("time 400000" if n % 2 else "moment 400000")
                got = client.socket.recv(100)
                it.kill()
                # What it has kept in its pocket until the reset is from one generation
                with suppress(ConnectionResetError):
                    while more := client.socket.recv(1 << 16):
                        got += more
                        assert len(got) < 8_000_000, "it has come to its end"
                    assert False, "an end without a reset"
                cut += 1
                body = got.partition(b"\n")[2]
                equal({body[i:i + 20] for i in range(0, len(body) - 19, 20)}, {body[:20]} if len(body) >= 20 else set())
            equal(other.ask("bytes 10 1"), expected(10, 1))
    print(f"# {cut} connections were reset")


def noted() -> None:
    """What a server notes in the tag is the same in all generations"""
    with server() as it:
        with Client() as client:
            # More than both sides' buffers hold; a window below a segment of loopback would wait for timers
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)
            seen = set()
            for _ in range(2):
                client.send("noted 300000")
                length = int(client.file.readline())
                got = client.file.read(1000)
                for _ in range(3):
                    it.kill()
                    got += client.file.read(1000)
                got += client.file.read(length - len(got))
                equal({got[i:i + 20] for i in range(0, length, 20)}, {got[:20]})
                seen.add(got[:20])
            equal(len(seen), 2)


def file_replaced() -> None:
    """A file that is replaced during the restart is another answer; one that is not, is the same"""
    whole = os.urandom(6_000_000)
    for replaced, asked in ((False, "file"), (True, "file"), (False, "whole"), (True, "whole")):
        (PLACE / "other").write_bytes(whole)
        with server() as it, Client() as client:
            client.send(f"{asked} other")
            equal(int(client.file.readline()), len(whole))
            got = client.file.read(100_000)
            if replaced:
                (PLACE / "new").write_bytes(whole[:3_000_000] + os.urandom(3_000_000))
                (PLACE / "new").rename(PLACE / "other")
            it.kill()
            if not replaced:
                equal(got + client.file.read(len(whole) - len(got)) == whole, True)
                continue
            try:
                while more := client.file.read1(1 << 16):
                    got += more
                assert False, "an end without a reset"
            except ConnectionResetError:
                equal(got == whole[:len(got)], True)


def twice() -> None:
    """A request that faults twice is not executed a third time; others are served"""
    with server() as it, Client() as other:
        equal(other.ask("bytes 10 1"), expected(10, 1))
        with Client() as client:
            equal(client.ask("fault"), b"sick")
            equal(it.generation(), 3)
            equal(client.ask("bytes 10 2"), expected(10, 2))
        equal(other.ask("bytes 10 3"), expected(10, 3))


def killed_twice() -> None:
    """Who is killed twice by somebody suspects nobody"""
    with server() as it, Client() as client:
        client.socket.sendall(b"bytes 1")
        for _ in range(3):
            # It has read that by then
            time.sleep(0.5)
            it.kill()
        client.socket.sendall(b"0 1\n")
        equal(client.answer(), expected(10, 1))


def consumed() -> None:
    """An upload that is larger than what can be held is consumed; a fault in its midst resets the connection, and one behind it does not"""
    data = os.urandom(3_000_000)
    with server() as it:
        with Client() as client:
            client.send(f"load {len(data)}", data=data)
            equal(client.answer(), str(sum(data)).encode())
            it.kill()
            equal(client.ask("bytes 10 1"), expected(10, 1))
        with Client() as client:
            client.send(f"load {len(data)}", data=data[:1_000_000])
            time.sleep(0.5)
            it.kill()
            try:
                assert client.socket.recv(1) == b"", "an answer"
                assert False, "an end without a reset"
            except ConnectionResetError:
                pass


def accepted_only() -> None:
    """A connection of which nothing has been read is adopted, and so is one that has had its answer"""
    with server() as it, Client() as new, Client() as old:
        equal(old.ask("bytes 10 1"), expected(10, 1))
        for _ in range(3):
            it.kill()
        equal(new.ask("bytes 10 2"), expected(10, 2))
        equal(old.ask("bytes 10 3"), expected(10, 3))


def ended() -> None:
    """A connection whose last answer is out ends, also if there is a fault before it is closed"""
    with server() as it, Client() as client:
        equal(client.ask("end"), b"bye")
        assert client.ended()
        equal(it.generation(), 2)


def switched_off() -> None:
    """Where it is switched off in between, the next generation does not trust the books, and begins anew"""
    with server() as it:
        with Client() as client:
            equal(client.ask("bytes 10 1"), expected(10, 1))
            (SYSCTL / "enabled").write_text("0")
            try:
                equal(client.ask("bytes 5000 2"), expected(5000, 2))
            finally:
                (SYSCTL / "enabled").write_text("1")
            equal(client.ask("bytes 5000 3"), expected(5000, 3))
            it.kill()
            with suppress(ConnectionResetError):
                assert client.ended()
        deadline = time.monotonic() + 30
        while True:
            with suppress(ConnectionError), Client() as client:
                equal(client.ask("bytes 10 4"), expected(10, 4))
                break
            assert time.monotonic() < deadline
        it.kill()
        with Client() as client:
            equal(client.ask("bytes 10 5"), expected(10, 5))
    said = (PLACE / "errors").read_text()
    equal("the books are of no use" in said and "discard" not in said, True)


if __name__ == "__main__":
    (SYSCTL / "min_interval_ms").write_text("0")
    main(each_call_in_a_loop, each_call_in_threads, random_in_a_loop, random_in_threads, answers_that_differ, noted, file_replaced, twice,
         killed_twice, consumed, accepted_only, ended, switched_off)
