#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""A service that knows Idempotency-Key only, and is not reliable: each key is executed once, whoever is killed. plain.py REQUESTS KILLS"""

import contextlib
import os
import random
import re
import sqlite3
import ssl
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from replay import PLACE, SERVICE, Server, Session, at_once, equal, main, run

REQUESTS, KILLS = int(sys.argv[1]), int(sys.argv[2])
CLIENTS = 8
SYSTEM_CA = Path("/etc/ssl/certs/ca-certificates.crt")


class Payment:
    """The service: what it has executed is in a database, under the key. Drawn anew each time: what goes wrong."""

    def __init__(self, name: str, certificate: Path | None = None) -> None:
        self.database = PLACE / f"{name}.db"
        with self.connect() as db:
            db.execute("CREATE TABLE paid (key TEXT PRIMARY KEY, body TEXT, reply TEXT)")
        self.draw = random.Random(5)
        self.wrong: dict[str, int] = {}
        self.reliable = False
        self.lock = threading.Lock()
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_POST(self) -> None:
                with contextlib.suppress(OSError):
                    service.answer(self)

        class Listener(ThreadingHTTPServer):
            request_queue_size = 100

            def handle_error(self, *_: object) -> None:
                pass

        self.http = Listener(("127.0.0.1", 0), Handler)
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.http.socket = context.wrap_socket(self.http.socket, server_side=True, do_handshake_on_connect=False)
        self.port = int(self.http.server_address[1])
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.database, timeout=60)

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers["Content-Length"])).decode()
        key = request.headers["Idempotency-Key"]
        assert "Replay-Session" not in request.headers and "Replay-Sequence" not in request.headers
        with self.lock:
            trouble = self.draw.choice(("409", "425", "429", "502", "503", "504", "garbage", "half", "close before", "close after", "lost", "", "", "", "", "", ""))
            if self.reliable:
                trouble = ""
            self.wrong[trouble] = self.wrong.get(trouble, 0) + 1
        if trouble == "close before":
            request.connection.close()
            request.close_connection = True
            return
        if trouble.isdigit():
            self.say(request, int(trouble), b"again\n")
            return
        if trouble == "garbage":
            request.wfile.write(os.urandom(300))
            request.close_connection = True
            return
        # One at a time, as databases do it: the key is there, or it is executed
        with self.lock, self.connect() as db:
            row = db.execute("SELECT body, reply FROM paid WHERE key = ?", (key,)).fetchone()
            if row is None:
                count = db.execute("SELECT COUNT(*) FROM paid").fetchone()[0] + 1
                row = body, "much " * 300000 if body == "large" else f"paid {count} for {body}"
                db.execute("INSERT INTO paid VALUES (?, ?, ?)", (key, *row))
        assert row[0] == body, (key, row, body)
        if trouble == "close after":
            request.close_connection = True
            return
        if trouble == "half":
            request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\npaid")
            request.close_connection = True
            return
        if trouble == "lost":
            # Executed, and it does not say so
            self.say(request, 503, b"lost\n")
            return
        self.say(request, 200, row[1].encode())

    def say(self, request: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
        request.send_response(status)
        request.send_header("Content-Type", "text/x-receipt")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def paid(self) -> list[tuple[str, str, str]]:
        with self.connect() as db:
            return db.execute("SELECT key, body, reply FROM paid").fetchall()


def served(server: Server, payment: Payment) -> None:
    """Clients under kills of the server; then the two sides are compared."""
    server.start()
    said: dict[str, str] = {}
    failed: list[BaseException] = []

    def client(number: int) -> None:
        try:
            while True:
                try:
                    s = Session(server)
                    break
                except (OSError, AssertionError):
                    time.sleep(0.05)
            for i in range(REQUESTS // CLIENTS):
                body = f"client-{number}-{i}"
                status, text = s.call("forward", f"payment pay {body}", patience=120)
                assert status == 200 and text.endswith(f" for {body}"), (status, text)
                said[body] = text
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    kills = 0
    draw = random.Random(6)
    while any(thread.is_alive() for thread in threads):
        asked = sum(payment.wrong.values())
        time.sleep(draw.uniform(0.02, 0.3))
        if kills < KILLS and sum(payment.wrong.values()) > asked:
            kills += 1
            server.again()
        elif kills == KILLS and len(payment.wrong) == 12:
            payment.reliable = True
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    server.stop()
    paid = payment.paid()
    print(f"# {kills} kills; {sorted(payment.wrong.items())}", flush=True)
    equal(len(said), REQUESTS // CLIENTS * CLIENTS)
    equal({body: reply for _, body, reply in paid}, said)
    equal(len(paid), len(said))
    assert all(re.fullmatch(r'"[0-9a-f]{32}-[0-9]+"', key) for key, _, _ in paid), paid[:3]
    assert kills == KILLS and len(payment.wrong) == 12, (kills, payment.wrong)


def plain() -> None:
    """Over http"""
    payment = Payment("plain")
    served(Server("plain", more=f"[service payment]\nurl = http://127.0.0.1:{payment.port}\nprotocol = idempotency-key"), payment)


def certificate() -> tuple[Path, Path]:
    """A CA of our own, and what it says of 127.0.0.1."""
    ca, key, one, both = (PLACE / name for name in ("ca.pem", "ca.key", "one.csr", "one.pem"))
    run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", ca, "-days", "2", "-subj", "/CN=A CA for a test")
    run("openssl", "req", "-newkey", "rsa:2048", "-nodes", "-keyout", PLACE / "one.key", "-out", one, "-subj", "/CN=127.0.0.1")
    (PLACE / "one.ext").write_text("subjectAltName = IP:127.0.0.1\n")
    run("openssl", "x509", "-req", "-in", one, "-CA", ca, "-CAkey", key, "-CAcreateserial", "-days", "2", "-extfile", PLACE / "one.ext", "-out", both)
    both.write_text(both.read_text() + (PLACE / "one.key").read_text())
    return ca, both


def tls() -> None:
    """Over https, with a CA that the system trusts; without it, nothing is sent"""
    ca, both = certificate()
    payment = Payment("tls", both)
    server = Server("tls", more=f"[service payment]\nurl = https://127.0.0.1:{payment.port}\nprotocol = idempotency-key")
    # The system's list, for this server alone
    script = f'cat {SYSTEM_CA} {ca} > {PLACE}/all.pem && mount --bind {PLACE}/all.pem {SYSTEM_CA} && exec "$@"'
    wrapper = PLACE / "trusting"
    wrapper.write_text(f"#!/bin/sh\nexec unshare --mount sh -c '{script}' sh {SERVICE} \"$@\"\n")
    wrapper.chmod(0o755)
    server.program = [wrapper]
    served(server, payment)
    # One that does not trust it says nothing to it
    before = len(payment.paid())
    server.program = [SERVICE]
    server.start()
    s = Session(server)
    body = b"payment pay mistrusted"
    head = f"POST /forward HTTP/1.1\r\nHost: x\r\nReplay-Session: {s.name}\r\nReplay-Sequence: 1\r\nContent-Length: {len(body)}\r\n\r\n"
    with contextlib.suppress(TimeoutError):
        raise AssertionError(server.raw(head.encode() + body, patience=3))
    equal(len(payment.paid()), before)
    server.stop()
    # Or the file of options names the CA
    named = Server("named", more=f"[service payment]\nurl = https://127.0.0.1:{payment.port}\nprotocol = idempotency-key\nca = {ca}").start()
    equal(Session(named).call("forward", "payment pay named")[0], 200)
    equal(len(payment.paid()), before + 1)
    # More than can be taken is said once
    s = Session(named)
    equal(s.call("forward", "payment pay large"), (502, "EFBIG\n"))
    equal(len(payment.paid()), before + 2)
    equal(s.call("forward", "payment pay small"), (200, f"paid {before + 3} for small"))
    named.stop()
    named.config.write_text(named.config.read_text().replace(f"ca = {ca}", f"ca = {PLACE}/none.pem"))
    assert "none.pem: No such file" in named.fails()


main(*at_once(plain, tls))
