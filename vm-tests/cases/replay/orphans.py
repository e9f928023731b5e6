#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""A shared variable that has become an orphan, and all threads of the pool that read it at once. orphans.py ROUNDS"""

import sys
import threading
import time

from replay import Session, domain_of, equal, main, until

ROUNDS = int(sys.argv[1])
THREADS = 4
READERS = 3 * THREADS

# The pool does not grow: nobody takes the place of a thread that waits
front, back = domain_of("front", "back", special={"front": f"threads = {THREADS}\nthreads_max = {THREADS}", "back": "batch = 10s"})


class Reader:
    """Reads the variable all the time; each answer is noted."""

    def __init__(self) -> None:
        self.session, self.said, self.failed = Session(front), [], None
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run)

    session: Session
    said: list[str]
    failed: BaseException | None

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                self.said.append(self.session.call("show", "kept", patience=120)[1])
        except BaseException as error:
            self.failed = error


def read_at_once() -> None:
    """All threads read an orphan: no deadlock, all are answered, and nobody sees what was lost"""
    front.start()
    back.start()
    writer = Session(front)
    value = writer.call("keep", "kept back values")[1]
    lost_before = front.figures()["counts"]
    for number in range(ROUNDS):
        readers = [Reader() for _ in range(READERS)]
        # Written with what the other has not made durable: for ten seconds it takes its time
        got: list[tuple[int, str]] = []
        thread = threading.Thread(target=lambda: got.append(writer.call("keep", "kept back values", patience=120)))
        before = front.log.read_bytes().count(b"values of back")
        thread.start()
        until(lambda: front.log.read_bytes().count(b"values of back") > before)
        # Half of the readers have the orphan before it is one, half come to it afterwards
        for reader in readers[::2]:
            reader.thread.start()
        time.sleep(0.1 * (number % 3))
        back.kill()
        for reader in readers[1::2]:
            reader.thread.start()
        time.sleep(0.1 * (number // 3 % 2))
        back.start()
        thread.join()
        (status, new), = got
        equal(status, 200)
        begin = time.monotonic()
        for reader in readers:
            reader.stop.set()
        for reader in readers:
            reader.thread.join()
            if reader.failed:
                raise reader.failed
            assert reader.said, "a reader was not answered"
            # First the value before, then the new one; never the one that was lost
            assert set(reader.said) <= {value, new}, (value, new, reader.said)
            equal(sorted(reader.said, key=(value, new).index), reader.said)
        assert time.monotonic() - begin < 60
        equal(writer.call("show", "kept"), (200, new))
        equal(Session(front).call("show", "kept"), (200, new))
        value = new
    counts = front.figures()["counts"]
    print(f"# {lost_before} {counts}", flush=True)
    # The writer at least lost something each time
    assert counts["orphans"] - lost_before["orphans"] >= ROUNDS and counts["rolled_back"] - lost_before["rolled_back"] >= ROUNDS, counts
    front.again()
    equal(writer.call("show", "kept"), (200, value))
    for server in front, back:
        server.stop()


main(read_at_once)
