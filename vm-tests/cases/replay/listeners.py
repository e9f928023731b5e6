#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Sockets that the service manager opens, Prometheus' page, and who may speak to the control socket."""

import atexit
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

from replay import KEY, PLACE, SERVICE, Server, Session, ctl, equal, free_port, main, run, until

# Becomes the server, with these sockets from descriptor 3 on
PASS = """
import os, sys
names, argv, fds = sys.argv[1], sys.argv[3:], [int(fd) for fd in sys.argv[2].split(",")]
high = [os.dup2(fd, 100 + i) for i, fd in enumerate(fds)]
for i, fd in enumerate(high):
    os.dup2(fd, 3 + i)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(fds)))
if names != "-":
    os.environ["LISTEN_FDNAMES"] = names
os.execv(argv[0], argv)
"""


def listening(family: int, where: str | tuple[str, int]) -> socket.socket:
    s = socket.socket(family)
    s.bind(where)
    s.listen(100)
    return s


def options(server: Server, metrics: int, domain: int) -> None:
    (PLACE / "key").write_text(f"{KEY}\n")
    text = server.config.read_text().replace("[server]\n", f"[server]\nmetrics = 127.0.0.1:{metrics}\n")
    server.config.write_text(f"{text}[domain]\nlisten = 127.0.0.1:{domain}\nkey = {PLACE}/key\n[member {server.name}]\nnumber = 3\n"
                             f"url = http://127.0.0.1:{domain}\n")


def launch(server: Server, names: str, sockets: list[socket.socket]) -> None:
    """With these sockets, as a service manager starts it."""
    fds = [s.fileno() for s in sockets]
    server.process = subprocess.Popen([sys.executable, "-c", PASS, names, ",".join(map(str, fds)), str(SERVICE), str(server.config)],
                                      pass_fds=fds, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    atexit.register(server.process.kill)


def answers(port: int, head: str) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 30) as c:
        c.sendall(f"{head}\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        got = b""
        while piece := c.recv(65536):
            got += piece
        return got


def closed(port: int) -> bool:
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) != 0


def activation() -> None:
    """Sockets of the names clients, domain, control and metrics are used for what they are, in any order, and not what the file says"""
    server = Server("activated")
    unused = [free_port() for _ in range(3)]
    given = [free_port() for _ in range(3)]
    options(server, unused[0], unused[1])
    server.config.write_text(server.config.read_text().replace(f":{server.port}", f":{unused[2]}"))
    server.port, server.domain_port, metrics = given
    path = PLACE / "manager.sock"
    sockets = {"clients": listening(socket.AF_INET, ("127.0.0.1", server.port)),
               "domain": listening(socket.AF_INET, ("127.0.0.1", server.domain_port)),
               "metrics": listening(socket.AF_INET, ("127.0.0.1", metrics)), "control": listening(socket.AF_UNIX, str(path))}
    for order in ("clients:domain:control:metrics", "metrics:control:domain:clients", "control:metrics:clients:domain"):
        launch(server, order, [sockets[name] for name in order.split(":")])
        until(lambda: server.ask("POST", "/replay/sessions")[0] == 201)
        equal(Session(server).call("add", "x 0")[0], 200)
        assert b"replay_epoch" in answers(metrics, "GET /metrics HTTP/1.1")
        assert b"key is another" in answers(server.domain_port, "POST /replay/sessions HTTP/1.1")
        assert "serving" in ctl("status", path)
        assert not server.control.exists() and all(closed(port) for port in unused)
        server.stop()
        # Nobody else can make it again
        assert path.exists(), "the manager's socket has been removed"
    equal(ctl("verify", server.log).count("whole"), 1)


def unnamed() -> None:
    """One socket without a name is for clients; systemd-socket-activate's is, too; a name that is not ours is"""
    server = Server("unnamed")
    for names in "-", "unknown", "something.socket", "clients":
        with listening(socket.AF_INET, ("127.0.0.1", 0)) as given:
            launch(server, names, [given])
            server.port = given.getsockname()[1]
            until(lambda: server.ask("POST", "/add", {"Idempotency-Key": names}, "u 1")[0] == 200)
            server.stop()
    # Of another process: not for us
    port = free_port()
    server.config.write_text(re.sub(r"listen = .*", f"listen = 127.0.0.1:{port}", server.config.read_text()))
    server.port = port
    server.start({"LISTEN_PID": "1", "LISTEN_FDS": "1"})
    server.stop()
    activate = "/usr/bin/systemd-socket-activate"
    if Path(activate).exists():
        server.port = free_port()
        server.process = subprocess.Popen([activate, f"--listen=127.0.0.1:{server.port}", "--fdname=clients", SERVICE, server.config],
                                          stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        until(lambda: not closed(server.port))
        until(lambda: server.ask("POST", "/look", {"Idempotency-Key": "last"}, "u")[0] == 200)
        equal(server.ask("POST", "/look", {"Idempotency-Key": "last"}, "u")[2], "4\n")
        server.stop()


def parsed(text: str) -> dict[str, int]:
    """Prometheus' text format, as strict as its scraper: HELP and TYPE before each value, no name twice."""
    found: dict[str, int] = {}
    lines = text.splitlines()
    assert text.endswith("\n")
    for help_line, type_line, value in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        match = re.fullmatch(r"([a-zA-Z_:][a-zA-Z0-9_:]*) ([0-9]+)", value)
        assert match, value
        name = match[1]
        assert help_line.startswith(f"# HELP {name} ") and re.fullmatch(rf"# TYPE {name} (counter|gauge)", type_line), (help_line, type_line)
        equal(name.endswith("_total"), type_line.endswith("counter"))
        assert name not in found
        found[name] = int(match[2])
    return found


def metrics() -> None:
    """What Prometheus gets is its format, and counts what was done; the listener has nothing else"""
    server = Server("metrics")
    port = free_port()
    options(server, port, free_port())
    server.start()

    def scrape() -> dict[str, int]:
        got = answers(port, "GET /metrics HTTP/1.1")
        assert got.startswith(b"HTTP/1.1 200 ") and b"\r\nContent-Type: text/plain; version=0.0.4\r\n" in got, got[:300]
        return parsed(got.split(b"\r\n\r\n", 1)[1].decode())

    before = scrape()
    sessions = [Session(server) for _ in range(5)]
    for s in sessions:
        for i in range(4):
            equal(s.call("add", f"metric{s is sessions[0]} 1")[0], 200)
        s.once("add", "again 1", 4)
    equal(sessions[0].call("fickle")[0], 200)
    after = scrape()
    equal({name: after[f"replay_{name}"] - before[f"replay_{name}"] for name in ("requests_total", "sessions", "variables", "replayed_total", "sessions_stuck")},
          {"requests_total": 21, "sessions": 5, "variables": 3, "replayed_total": 0, "sessions_stuck": 0})
    for grows in "log_flushes_total", "log_records_total", "log_written_bytes_total", "log_used_bytes":
        assert after[f"replay_{grows}"] > before[f"replay_{grows}"], grows
    assert after["replay_log_records_total"] - before["replay_log_records_total"] >= 5 + 2 * 21
    equal(after["replay_log_size_bytes"], server.figures()["log"]["size"])
    ctl("checkpoint", server.control)
    assert ctl("metrics", server.control).startswith("# HELP replay_")
    server.again()
    until(lambda: scrape()["replay_sessions_to_replay"] == 0)
    again = scrape()
    equal((again["replay_requests_total"], again["replay_replayed_total"], again["replay_sessions_stuck"], again["replay_epoch"]),
          (0, 21, 1, after["replay_epoch"] + 1))
    for head in ("GET / HTTP/1.1", "GET /status HTTP/1.1", "GET /sessions HTTP/1.1", "GET /domain HTTP/1.1", "POST /metrics HTTP/1.1", "POST /checkpoint HTTP/1.1",
                 "DELETE /metrics HTTP/1.1", "POST /add HTTP/1.1", "GET /metrics/ HTTP/1.1", "GET //metrics HTTP/1.1", "GET /metrics%00 HTTP/1.1"):
        got = answers(port, head)
        assert got.startswith(b"HTTP/1.1 404 ") and b"replay_" not in got and b"GET /metrics\n" in got, (head, got)
    equal(scrape()["replay_checkpoints_total"], again["replay_checkpoints_total"])
    server.stop()


def control() -> None:
    """The control socket is for its owner and its group: whoever else runs replayctl is refused, and cannot put another there"""
    server = Server("control")
    place = PLACE / "open"
    place.mkdir()
    socket_path = place / "control.sock"
    server.config.write_text(re.sub(r"control = .*", f"control = {socket_path}", server.config.read_text()))
    # What is left of the one before does no harm
    socket_path.touch(mode=0o666)
    server.control = socket_path
    assert "Address already in use" in server.fails()
    # It is somebody's
    socket_path.unlink()
    old = listening(socket.AF_UNIX, str(socket_path))
    old.close()
    old_mask = os.umask(0)
    try:
        server.start()
    finally:
        os.umask(old_mask)
    equal(oct(socket_path.stat().st_mode & 0o777), "0o660")
    ask = ("import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.sendall(b'GET /status HTTP/1.0\\r\\n\\r\\n'); "
           "sys.exit(b'serving' not in s.recv(65536))")
    os.chmod(PLACE, 0o755)
    python = "/usr/bin/python3"
    run(python, "-c", ask, socket_path)
    for who, status in (("--reuid=65534", "--regid=65534", "--clear-groups"), 1), (("--reuid=65534", "--regid=0", "--clear-groups"), 0):
        text = run("setpriv", *who, python, "-c", ask, socket_path, ok=status)
        equal("PermissionError" in text, bool(status))
    # Nothing that a client may ask works here, and nothing of it by another method
    for path in "/add", "/replay/sessions", "/", "/checkpoint", "/sessions/":
        got = subprocess.run(["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "--unix-socket", socket_path, f"http://x{path}"],
                             capture_output=True, text=True)
        equal(got.stdout, "404")
    server.stop()
    assert not socket_path.exists()


main(activation, unnamed, metrics, control)
