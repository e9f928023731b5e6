#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What an operator sees and does: verdict records, sessions that are stuck, a service that does not answer, browsers."""

import contextlib
import json
import os
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from replay import BUILD, PLACE, PROGRAMS, SERVICE, Server, Session, ctl, equal, free_port, main, run, running, until

PERDURECTL = BUILD / "userspace/userspace/tools/perdurectl"


def verdicts(server: Server) -> list[dict[str, str]]:
    lines = server.control.with_suffix(".verdicts").read_text().splitlines()
    return [dict(pair.split("=", 1) for pair in line.split()) for line in lines]


def recovered() -> None:
    """A recovery leaves a record, in the journal and for perdurectl"""
    s = Server("recovered").start()
    clients = [Session(s) for _ in range(3)]
    for client in clients:
        client.call("add", "x 1")
    assert not s.control.with_suffix(".verdicts").exists()
    s.kill()
    s.start()
    for client in clients:
        client.call("add", "x 1")
    record = verdicts(s)[-1]
    equal((record["rung"], record["cause"], record["outcome"]), ("replay", "start", "replayed"))
    equal((record["comm"], record["sessions"], record["requests"]), ("recovered", "3", "3"))
    assert s.process and record["pid"] == str(s.process.pid)
    assert 0 < int(record["took_ns"]) < 60e9 and abs(int(record["time_ns"]) / 1e9 - time.time()) < 60
    text = s.stop()
    assert "replay: recovered: replayed, 3 sessions, 3 requests" in text, text


def many() -> None:
    """The records' file does not grow for ever, and one that cannot be written does no harm"""
    s = Server("many").start()
    client = Session(s)
    client.call("add", "x 1")
    path = s.control.with_suffix(".verdicts")
    path.write_text("old\n" * 20000)
    s.again()
    client.call("add", "x 1")
    assert path.stat().st_size < 1000 and path.with_name(path.name + ".old").stat().st_size == 80000
    path.unlink()
    path.mkdir()
    s.again()
    equal(client.call("add", "x 1"), (200, "3 3\n"))
    path.rmdir()
    # Nobody may have it write into another file
    (PLACE / "victim").write_text("")
    path.symlink_to(PLACE / "victim")
    s.again()
    equal(client.call("add", "x 1"), (200, "4 4\n"))
    assert "Too many levels" in s.stop()
    equal((PLACE / "victim").read_text(), "")


def perdurectl() -> None:
    """perdurectl log shows the records of all servers, by time, and watch shows them as they come"""
    env = {"PERDURE_VERDICTS": str(PLACE)}
    for old in PLACE.glob("*.verdicts*"):
        old.unlink()
    servers = [Server(name).start() for name in ("zebra", "ant", "mule")]
    clients = [Session(s) for s in servers]
    (PLACE / "other.verdicts").write_text("")
    with running([PERDURECTL, "watch"], env=os.environ | env, stdout=subprocess.PIPE) as watch:
        # It waits in poll(2): what was there has been read
        until(lambda: Path(f"/proc/{watch.pid}/syscall").read_text().startswith("7 "))
        for s, client in zip(servers, clients):
            s.again()
            client.call("add", "x 1")
        assert watch.stdout
        for s in servers:
            line = watch.stdout.readline()
            assert f"{s.name}[" in line and "start  replay: replayed, 1 sessions" in line, line
        watch.terminate()
    found = [json.loads(line) for line in run(PERDURECTL, "--json", "log", env=env).splitlines()]
    equal([(one["comm"], one["rung"], one["outcome"], one["sessions"]) for one in found],
          [(s.name, "replay", "replayed", 1) for s in servers])
    assert servers[1].process
    pid = servers[1].process.pid
    equal([one["comm"] for one in map(json.loads, run(PERDURECTL, "--json", "log", pid, env=env).splitlines())], ["ant"])
    assert "mule[" in run(PERDURECTL, "log", "-n", "1", env=env)
    # What others put there does neither hang nor fool who looks
    os.mkfifo(PLACE / "fifo.verdicts")
    (PLACE / "link.verdicts").symlink_to("/etc/passwd")
    (PLACE / "escape.verdicts").write_bytes(b"time_ns=1 pid=1 comm=\x1b[2J rung=replay cause=\xff outcome=x\nnothing\n")
    text = run(PERDURECTL, "log", env=env)
    equal(len(text.splitlines()), 4)
    assert "\x1b" not in text and "?[2J[1]" in text
    for s in servers:
        s.stop()


def stuck() -> None:
    """A session that cannot be replayed is said in the journal; the operator can give it up, and no other"""
    s = Server("halted").start()
    bad, good = Session(s), Session(s)
    equal(bad.call("fickle")[0], 200)
    equal(good.call("add", "x 1")[0], 200)
    s.again()
    equal(bad.once("look", "x", 2)[0], 500)
    equal([one["outcome"] for one in verdicts(s)].count("stuck"), 1)
    listed = {one["session"]: one for one in json.loads(ctl("sessions", s.control, "--json"))}
    key, other = bad.name[:16], good.name[:16]
    assert "pid-" in listed[key]["why"]
    assert "not stuck" in ctl("end", s.control, other, ok=1)
    assert "no such session" in ctl("end", s.control, "0" * 16, ok=1)
    assert "16 hexadecimal" in ctl("end", s.control, key[:-1], ok=1)
    assert "16 hexadecimal" in ctl("end", s.control, "../../status/1234", ok=1)
    ctl("end", s.control, key)
    status, headers, _ = bad.once("look", "x", 2)
    equal((status, headers["Replay-Answer"]), (410, "gone"))
    equal(s.figures()["stuck"], 0)
    s.again()
    equal(s.figures()["stuck"], 0)
    equal(bad.once("look", "x", 2)[0], 410)
    equal(good.call("add", "x 1"), (200, "2 2\n"))
    text = s.stop()
    assert "stuck" not in text, text


def crowd() -> None:
    """Who begins sessions and leaves them is told to wait, by their number and by their room; sessions that there are go on"""
    s = Server("crowd", "sessions = 50").start()
    first = [Session(s) for _ in range(50)]
    for one in first:
        equal(one.call("look", "x")[0], 404)
    equal(s.ask("POST", "/replay/sessions")[0], 503)
    status, headers, _ = s.ask("POST", "/add", {"Idempotency-Key": "k"}, "x 1")
    equal((status, headers["Replay-Answer"]), (503, "retry"))
    equal(first[0].call("add", "x 1"), (200, "1 1\n"))
    equal(s.ask("DELETE", f"/replay/sessions/{first[1].name}", {"Replay-Sequence": "2"})[0], 204)
    end = time.monotonic() + 30
    while (found := s.ask("POST", "/replay/sessions"))[0] != 201:
        assert time.monotonic() < end, "the place of a session that has ended stays taken"
    # One that nobody has asked anything goes first
    while s.ask("POST", "/replay/sessions")[0] != 201:
        assert time.monotonic() < end, "the place of a session that is not used stays taken"
    status, headers, _ = s.ask("POST", "/look", {"Replay-Session": found[1]["Replay-Session"], "Replay-Sequence": "1"}, "x")
    equal((status, headers["Replay-Answer"]), (410, "gone"))
    for one in first[2:]:
        one.call("look", "x")
    while "full" not in (found := [one["cause"] for one in verdicts(s)] if s.control.with_suffix(".verdicts").exists() else []):
        assert time.monotonic() < end, "nobody is told"
        s.ask("POST", "/add", {"Idempotency-Key": str(time.monotonic())}, "x 1")
        # Others work meanwhile
        first[0].call("look", "x")
        time.sleep(0.1)
    equal(found, ["full"])
    assert "as `sessions` allows" in s.stop()
    s = Server("room", "request_log = 32k\nserver_checkpoint = 64k\nsession_checkpoint = 32k", size="1100k").start()
    client, begun, refused = Session(s), 0, 0
    while refused < 20:
        assert begun < 200
        status, headers, _ = s.ask("POST", "/echo", {"Idempotency-Key": f"left-{begun}"}, b"z" * 20000)
        begun += status == 200
        refused = refused + 1 if status == 503 else 0
        time.sleep(0.05)
    assert begun > 20
    for i in range(60):
        equal(client.call("echo", b"y" * 5000)[0], 200)
    s.again()
    equal(client.call("add", "x 1"), (200, "1 1\n"))
    s.stop()


def late() -> None:
    """A service that does not answer: the method is told so in time, and again in a replay; then it is asked anew"""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = free_port()
        services = (f"[service silent]\nurl = http://127.0.0.1:{silent.getsockname()[1]}\ntimeout = 300ms\n"
                    f"[service absent]\nurl = http://127.0.0.1:{port}\ntimeout = 500ms\n")
        s = Server("late", more=services).start()
        client = Session(s)
        for name, least in (("silent", 0.3), ("absent", 0.5)):
            begin = time.monotonic()
            equal(client.call("forward", f"{name} look x"), (502, "ETIMEDOUT\n"))
            assert least <= time.monotonic() - begin < least + 10
    back = Server("back")
    back.config.write_text(back.config.read_text().replace(f":{back.port}", f":{port}"))
    back.port = port
    back.start()
    s.again()
    # What it was told stays, though the service is there now
    equal(client.once("forward", "absent look x", 2)[2], "ETIMEDOUT\n")
    equal(client.call("forward", "absent add x 4"), (200, "4 1\n"))
    equal(client.call("forward", "absent add x 4"), (200, "8 2\n"))
    s.stop()
    back.stop()


def moves() -> None:
    """A log moves to a larger file, and its server goes on; there are never two"""
    s = Server("moves", "server_checkpoint = 64k\nsession_checkpoint = 16k\nrequest_log = 64k", size="2M").start()
    client = Session(s)
    # Several times round
    for _ in range(120):
        client.call("echo", b"z" * 30000)
    client.call("add", "x 1")
    new, small = PLACE / "larger.log", PLACE / "smaller.log"
    assert "open" in ctl("move", s.log, new, ok=1)
    s.stop()
    before = ctl("verify", s.log)
    assert "too small" in ctl("move", s.log, small, "--size", "1100k", ok=1) and not small.exists()
    new.write_text("something else" * 10000)
    assert "has another size" in ctl("move", s.log, new, "--size", "4M", ok=1)
    os.truncate(new, 4 << 20)
    assert "is no log: --force" in ctl("move", s.log, new, "--size", "4M", ok=1)
    equal(ctl("verify", s.log), before)
    ctl("move", s.log, new, "--size", "4M", "--force")
    assert "it is no log" in ctl("verify", s.log, ok=1) and "it is no log" in s.fails()
    after = ctl("verify", new).splitlines()
    equal(after[2:], before.splitlines()[2:])
    s.log = new
    s.config.write_text(s.config.read_text().replace("/moves.log", "/larger.log"))
    s.start()
    equal(client.once("add", "x 1", client.next - 1)[2], "1 1\n")
    equal(client.call("add", "x 1"), (200, "2 2\n"))
    for _ in range(200):
        client.call("echo", b"z" * 30000)
    s.again()
    equal(client.call("add", "x 1"), (200, "3 3\n"))
    s.stop()
    # Back to a file of the same size, without saying it
    same = PLACE / "same.log"
    ctl("move", new, same)
    equal(same.stat().st_size, 4 << 20)
    for wrong in ["move", str(same)], ["move", str(same), "a", "b"]:
        ctl(*wrong, ok=2)


def absent() -> None:
    """Requests that wait for a service that is away keep nobody else from being served"""
    s = Server("absent", "threads = 4", more=f"[service away]\nurl = http://127.0.0.1:{free_port()}").start()

    def wait(one: Session) -> None:
        # Until the server stops
        with contextlib.suppress(OSError):
            one.once("forward", "away look x")

    for waiting in [Session(s) for _ in range(40)]:
        threading.Thread(target=wait, args=(waiting,), daemon=True).start()
    client = Session(s)
    for _ in range(20):
        equal(client.call("look", "x", patience=10)[0], 404)
        time.sleep(0.1)
    blocked = next(line for line in ctl("metrics", s.control).splitlines() if line.startswith("replay_threads_blocked "))
    assert int(blocked.split()[1]) >= 36, blocked
    begin = time.monotonic()
    s.stop()
    assert time.monotonic() - begin < 15


def together() -> None:
    """A hundred requests wait for another server at a time"""
    # By their keys: one that is asked twice counts once
    waiting: set[str] = set()
    everybody = threading.Event()

    class Slow(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            waiting.add(self.headers["Idempotency-Key"])
            if len(waiting) == 100:
                everybody.set()
            self.send_response(200 if everybody.wait(60) else 500)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    class Crowded(ThreadingHTTPServer):
        request_queue_size = 200    # it listens when it is made

    slow = Crowded(("127.0.0.1", 0), Slow)
    threading.Thread(target=slow.serve_forever, daemon=True).start()
    s = Server("together", more=f"[service slow]\nurl = http://127.0.0.1:{slow.server_port}\nprotocol = idempotency-key").start()
    clients = [Session(s) for _ in range(100)]
    with ThreadPoolExecutor(100) as pool:
        answers = list(pool.map(lambda client: client.call("forward", "slow x y"), clients))
    equal(answers, [(200, "")] * 100)
    slow.shutdown()
    s.stop()


def chatter() -> None:
    """Requests that log more at a time than was expected of them wait for room, and are executed"""
    s = Server("chatter", "request_log = 128k\nserver_checkpoint = 128k\nthreads = 12", size="1100k").start()
    clients = [Session(s) for _ in range(12)]
    last: dict[str, str] = {}

    def talk(client: Session) -> None:
        for _ in range(3):
            status, text = client.call("chatter", "50")
            equal(status, 200)
            last[client.name] = text

    with ThreadPoolExecutor(12) as pool:
        for done in [pool.submit(talk, client) for client in clients]:
            done.result()
    s.again()
    for client in clients:
        equal(client.once("chatter", "50", 3)[2], last[client.name])
    s.stop()


def control() -> None:
    """A control socket that a server listens on is not taken from it; one that a dead one has left is"""
    s, other = Server("mine").start(), Server("yours")
    other.config.write_text(other.config.read_text().replace(str(other.control), str(s.control)))
    assert "another server listens there" in other.fails()
    equal(s.figures()["state"], "serving")
    s.again()
    equal(s.figures()["state"], "serving")
    s.stop()


def browsers() -> None:
    """A page of the origin that is named may call, and see what the answer says; without the option nobody's may"""
    preflight = {"Origin": "https://shop.example", "Access-Control-Request-Method": "POST"}
    s = Server("browsers", "cors = https://shop.example").start()
    status, headers, _ = s.ask("OPTIONS", "/add", preflight)
    equal((status, headers["Access-Control-Allow-Origin"]), (204, "https://shop.example"))
    for name in "Replay-Session", "Replay-Sequence", "Idempotency-Key", "Content-Type":
        assert name in headers["Access-Control-Allow-Headers"]
    assert "POST" in headers["Access-Control-Allow-Methods"]
    for key, path in (("k", "/add"), ("k", "/nothing")):
        _, headers, _ = s.ask("POST", path, {"Idempotency-Key": key}, "x 1")
        equal(headers["Access-Control-Allow-Origin"], "https://shop.example")
        for name in "Replay-Answer", "Replay-Session", "Replay-Sequence":
            assert name in headers["Access-Control-Expose-Headers"]
    s.stop()
    s.config.write_text(s.config.read_text().replace("cors = https://shop.example\n", ""))
    s.start()
    status, headers, _ = s.ask("OPTIONS", "/add", preflight)
    equal(status, 400)
    assert not any(name.startswith("Access-Control") for name in headers)
    s.stop()
    s.config.write_text(s.config.read_text().replace("[server]\n", "[server]\ncors = shop\n"))
    assert "cors = shop" in s.fails()


def reading() -> None:
    """While the log is read, replayctl and Prometheus are told so, and clients to ask again"""
    if "TSAN_OPTIONS" in os.environ:
        return              # it has the call itself that a slow disk is made of
    s = Server("reading", "server_checkpoint = 1G\nrequest_log = 1M", size="256M").start()
    client = Session(s)
    for _ in range(100):
        client.call("echo", b"z" * 1000000)
    s.kill()
    # The reading is not to be over before it is looked at
    slow = os.environ | {"LD_PRELOAD": str(PROGRAMS / "libslow-read.so")}
    seen = set()
    with running([SERVICE, s.config], env=slow, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        end = time.monotonic() + 60
        while time.monotonic() < end and "serving" not in seen:
            try:
                figures = s.figures()
            except AssertionError:
                continue
            if figures["state"] == "reading":
                assert 0 <= int(str(figures["read_percent"])) <= 100
                metrics = ctl("metrics", s.control)
                status, headers, _ = s.ask("POST", "/add", {"Idempotency-Key": "k"}, "x 1")
                # It may be over by now
                if s.figures()["state"] == "reading":
                    assert "replay_ready 0\n" in metrics and (status, headers["Replay-Answer"]) == (503, "retry")
                    seen.add("asked")
            seen.add(str(figures["state"]))
        assert {"reading", "asked", "serving"} <= seen, seen
        assert "replay_ready 1\n" in ctl("metrics", s.control)
        process.terminate()
        process.communicate()


main(recovered, many, perdurectl, stuck, crowd, moves, late, absent, together, chatter, control, browsers, reading)
