# SPDX-License-Identifier: GPL-2.0-or-later
"""Clients on the host, which know what has been acknowledged."""

import http.client
import random
import subprocess
import threading

from guest import LOAD, equal


class Clients:
    """Rounds of clients that never give up, until they are told that it is enough: no number may be missing or come twice."""

    def __init__(self, port: int, method: str, sessions: int, requests: int) -> None:
        self.port, self.method, self.sessions, self.requests = port, method, sessions, requests
        self.rounds, self.wrong, self.enough = 0, "", threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        while not self.wrong and (not self.rounds or not self.enough.is_set()):
            body = f"{self.method}{self.rounds} 1"
            done = subprocess.run([str(LOAD), str(self.port), str(self.sessions), str(self.requests), self.method,
                                   body if self.method == "add" else f"back add {body}"],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            print(f"# {self.method} {self.rounds}: {done.stdout.strip()[-300:]}", flush=True)
            if done.returncode:
                self.wrong = done.stdout[-2000:] or "?"
            else:
                self.rounds += 1

    @property
    def all(self) -> int:
        return self.rounds * self.sessions * self.requests

    def end(self) -> None:
        self.enough.set()
        self.thread.join(600)
        assert not self.thread.is_alive(), "the clients do not come to an end"
        assert not self.wrong, self.wrong

    def check(self, port: int) -> None:
        """The server says of each round what its clients have counted."""
        for number in range(self.rounds):
            equal(ask(port, "look", f"{self.method}{number}"), f"200 {self.sessions * self.requests}")


def ask(port: int, method: str, body: str, patience: int = 60) -> str:
    """Status and body; "000" when nobody answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=patience)
    try:
        connection.request("POST", f"/{method}", body, {"Idempotency-Key": str(random.random())})
        answer = connection.getresponse()
        return f"{answer.status} {answer.read().decode().strip()}".strip()
    except (OSError, http.client.HTTPException):
        return "000"
    finally:
        connection.close()
