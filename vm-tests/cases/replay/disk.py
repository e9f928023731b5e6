#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""A disk that fails at each of its operations: what has been acknowledged is there afterwards. disk.py OPERATIONS"""

import signal
import subprocess
import sys
import threading
import time

from replay import CTL, DISK, KEY, Server, Session, ctl, domain_of, equal, main, until

LAST = int(sys.argv[1])
BODY = b"z" * 30000


def failing(faults: str) -> dict[str, str]:
    return {"LD_PRELOAD": str(DISK), "REPLAY_DISK": faults}


def work(s: Session, failed: bool) -> int:
    """How many of ten pairs of requests were acknowledged, before the server was gone."""
    for number in range(10):
        try:
            status, _, text = s.once("echo", BODY)
            equal((status, text.encode()), (200, BODY))
            s.next += 1
            status, _, text = s.once("add", "x 1")
            equal((status, text.split()[1]), (200, str(s.next // 2)))
            s.next += 1
            if number == 4:
                status = subprocess.run([CTL, "checkpoint", s.server.control], stdin=subprocess.DEVNULL, capture_output=True).returncode
                assert failed or not status
        except (OSError, AssertionError) as error:
            assert isinstance(error, OSError) or s.server.process and s.server.process.poll() is not None, error
            break
    return s.next - 1


def ended(server: Server, *wanted: str) -> None:
    assert server.process
    equal(server.process.wait(30), 1)
    text = server.errors()
    assert any(want in text for want in wanted) and "goes on from its log" in text, text


def each_write() -> None:
    """Each write fails once: with an error, torn, with holes; the server ends and says why, and goes on from what it has told"""
    server = Server("writes", size="2M").start()
    seen: set[int] = set()
    s = Session(server)
    for number in range(1, LAST + 1):
        for fault, why in ("eio", "Input/output error"), ("enospc", "No space left"), ("torn", "Input/"), ("holes", "Input/"):
            server.stop()
            assert server.process
            if number <= 2:
                # The anchors: it does not begin
                server.launch(failing(f"write {number} {fault}"))
                acknowledged = s.next - 1
            else:
                server.start(failing(f"write {number} {fault}"))
                acknowledged = work(s, True)
            seen.add(acknowledged)
            # A write that was not reached is no test
            ended(server, f"written: {why}")
            server.start()
            if acknowledged:
                odd = acknowledged % 2
                status, headers, text = s.once("echo" if odd else "add", BODY if odd else "x 1", acknowledged)
                if status == 409:
                    # The next one was stored, and only its answer was lost
                    equal(headers["Replay-Sequence"], str(acknowledged + 2))
                else:
                    equal((status, text), (200, BODY.decode() if odd else f"{acknowledged // 2} {acknowledged // 2}\n"))
            if acknowledged % 2:
                equal(s.call("add", "x 1"), (200, f"{s.next // 2} {s.next // 2}\n"))
    count = s.next // 2
    equal(s.call("look", "x"), (200, f"{count}\n"))
    assert len(seen) > LAST, seen
    server.stop()
    assert ": whole" in ctl("verify", server.log)


def short() -> None:
    """Writes and reads that do a part only are gone on with"""
    server = Server("short").start(failing("write 1+ short,read 1+ short"))
    s = Session(server)
    equal(work(s, False), 20)
    server.again(failing("write 1+ short,read 1+ short"))
    equal(s.call("add", "x 1"), (200, "11 11\n"))
    server.stop()
    assert ": whole" in ctl("verify", server.log)


def each_read() -> None:
    """Each read of a recovery fails once: it ends and says why, and nothing is lost when it is read the next time"""
    server = Server("reads", "log_cache = 0", size="2M").start()
    sessions = [Session(server) for _ in range(2)]
    for s in sessions:
        for _ in range(3):
            equal(s.call("echo", BODY)[0], 200)
            equal(s.call("add", "x 1")[0], 200)
    server.kill()
    number, early, late = 0, 0, 0
    while True:
        number += 1
        # No client: the recovery alone
        process = server.launch(failing(f"read {number} eio"))
        until(lambda: process.poll() is not None or ready(server))
        if process.poll() is None:
            # It recovered with fewer reads
            process.send_signal(signal.SIGTERM)
            equal(process.wait(30), 0)
            server.errors()
            # One of two anchors is enough
            if number <= 2:
                continue
            break
        equal(process.returncode, 1)
        text = server.errors()
        assert "Input/output error" in text, text
        early += "log cannot be read at" not in text
        late += "log cannot be read at" in text
    print(f"# {number - 1} reads: {early} of the scan, {late} of sessions", flush=True)
    assert early >= 2 and late >= 2 * 6, (early, late)
    server.start()
    for s in sessions:
        equal(s.once("add", "x 1", 6)[1]["Replay-Answer"], "ok")
        equal(s.call("add", "x 1")[1].split()[1], "4")
    equal(sessions[0].call("look", "x"), (200, "8\n"))
    server.stop()


def ready(server: Server) -> bool:
    done = subprocess.run([str(a) for a in (CTL, "status", server.control)], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return done.returncode == 0 and "serving" in done.stdout


def slow() -> None:
    """A server that is told to stop while its disk is slow stops, whoever waits for the disk"""
    server = Server("slow").start()
    s = Session(server)
    equal(s.call("add", "x 1")[0], 200)
    server.stop()
    server.start(failing("write 3+ slow"))
    assert server.process
    got: list[tuple[int, str]] = []
    client = threading.Thread(target=lambda: got.append(s.call("add", "x 1")))
    client.start()
    # One write is on its way: the server's checkpoint waits for the next one
    until(lambda: server.figures()["log"]["durable"] < server.figures()["log"]["end"])
    checkpoint = subprocess.Popen([str(a) for a in (CTL, "checkpoint", server.control)], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(0.3)
    server.process.send_signal(signal.SIGTERM)
    try:
        equal(server.process.wait(30), 0)
    finally:
        server.process.kill()
        checkpoint.wait(30)
    server.errors()
    server.start()
    client.join()
    equal(got, [(200, "2 2\n")])
    server.stop()


def slow_flush() -> None:
    """The same when it is another member of the domain that waits"""
    server = domain_of("flushed", "other")[0].start()
    sessions = [Session(server) for _ in range(2)]
    server.stop()
    server.start(failing("write 3+ slow"))
    assert server.process
    got: list[bytes] = []

    def flush() -> None:
        figures = server.figures()
        state = f"0/{figures['epoch']}/{figures['log']['end'] - 1}"
        got.append(server.raw(f"POST /replay/flush HTTP/1.1\r\nHost: x\r\nReplay-Domain-Key: {KEY}\r\nReplay-From: 1\r\nReplay-State: {state}\r\n"
                              "Content-Length: 0\r\nConnection: close\r\n\r\n".encode(), server.domain_port, 60))

    clients = [threading.Thread(target=s.call, args=("add", "x 1")) for s in sessions]
    clients[0].start()
    until(lambda: server.figures()["log"]["durable"] < server.figures()["log"]["end"])
    end = server.figures()["log"]["end"]
    # In the next block
    clients[1].start()
    until(lambda: server.figures()["log"]["end"] > end)
    other = threading.Thread(target=flush)
    other.start()
    time.sleep(0.2)
    server.process.send_signal(signal.SIGTERM)
    try:
        equal(server.process.wait(30), 0)
    finally:
        server.process.kill()
    other.join()
    assert got and (not got[0] or got[0].startswith((b"HTTP/1.1 204 ", b"HTTP/1.1 503 "))), got
    server.errors()
    server.start()
    for thread in clients:
        thread.join()
    equal(Session(server).call("look", "x"), (200, "2\n"))
    server.stop()


main(each_write, short, each_read, slow, slow_flush)
