#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Servers with a parser that has mistakes (seeded/parse.c): each kills; with a point it is an error of one request."""

import shutil
import subprocess
import sys
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / place) for place in ("harness", "rescue")]
from httpd import BUILD  # noqa: E402
from points import equal, main, run  # noqa: E402
from servers import PLACE, Http, Nginx, Postgres, Redis, connect, judge, point, until  # noqa: E402

RIGHT = "copy=5:hello"
FAULTS = {
    "an input that is not checked, a NULL pointer": "copy",
    "a length that is believed, the stack protector": "copy=200:" + 200 * "x",
    "a length that is believed, past the end of the stack": "copy=16777216:hello",
    "an index that is believed, an unmapped page": "slot=-1099511627776",
    "abort()": "check=0",
}
ERROR = "it cannot be parsed"     # PARSE_ERROR of seeded/parse.h
IN_A_ROW = 1000
EVERY = 10
OTHERS = 3

Answer = tuple[int, int] | None     # a process, and how many requests it has had; or an error


class Client(Protocol):
    """Of one connection: raises OSError when it is lost."""

    def ask(self, text: str) -> Answer: ...


class Parser(Protocol):
    """A server that has loaded it, as the file `module`."""

    module: Path

    def client(self) -> Client: ...

    def died(self) -> int: ...

    def serves(self) -> bool: ...


def module(server: str) -> Path:
    """A copy that users other than root can read"""
    name = f"seeded_{server}.so"
    return Path(shutil.copy(BUILD / "userspace/vm-tests/cases/rescue-long" / name, PLACE / name))


# ---- What all of them do


def lost(client: Client, text: str) -> bool:
    try:
        client.ask(text)
    except OSError:
        return True
    return False


def kills(server: Parser, what: str) -> None:
    """Without a point: of others, too, the connections are lost"""
    died = server.died()
    client, other = server.client(), server.client()
    assert other.ask(RIGHT)
    assert lost(client, FAULTS[what]), what
    until(lambda: lost(other, RIGHT), "the end of another connection")
    until(lambda: server.died() == died + 1, f"a death of {what}")
    until(server.serves, "a server after it")


def each(client: Client) -> int:
    """Each kind is an error; the process goes on, and has not had this request. How many requests that were"""
    for what, text in FAULTS.items():
        before = client.ask(RIGHT)
        assert before, what
        equal((client.ask(text), client.ask(RIGHT)), (None, (before[0], before[1] + 1)))
    return 3 * len(FAULTS)


def until_end(client: Client, end: threading.Event) -> list[Answer]:
    answers = []
    while not end.is_set():
        answers.append(client.ask(RIGHT))
    return answers


def row(client: Client, others: list[Client]) -> int:
    """Of many in a row each tenth faults, while others ask, too. How many requests that were"""
    bad = list(FAULTS.values())
    texts = [bad[nr // EVERY % len(bad)] if nr % EVERY == EVERY - 1 else RIGHT for nr in range(IN_A_ROW)]
    first = [c.ask(RIGHT) for c in (client, *others)]
    end = threading.Event()
    with ThreadPoolExecutor(len(others)) as pool:
        futures = [pool.submit(until_end, other, end) for other in others]
        try:
            answers = [client.ask(text) for text in texts]
        finally:
            end.set()
    equal([answer is None for answer in answers], [text != RIGHT for text in texts])
    meanwhile = [future.result() for future in futures]
    print(f"# others had {[len(said) for said in meanwhile]} answers meanwhile")
    assert min(len(said) for said in meanwhile) > EVERY, "they had to wait"
    everything = [*first, *answers, *(answer for said in meanwhile for answer in said)]
    equal(everything.count(None), IN_A_ROW // EVERY)
    # The processes are those of before, and have had what they have answered, each once
    had = defaultdict(list)
    for pid, n in filter(None, everything):
        had[pid].append(n)
    equal(set(had), {answer[0] for answer in first if answer})
    for numbers in had.values():
        equal(sorted(numbers), list(range(min(numbers), min(numbers) + len(numbers))))
    return len(everything)


def check(server: Parser, *may: str) -> None:
    """may: of judge()."""
    for what in FAULTS:
        kills(server, what)
    died = server.died()
    with point(server.module, "seeded_parse", -1, "--burst", 1000000) as counts:
        client, *others = (server.client() for _ in range(1 + OTHERS))
        requests = each(client)
        requests += row(client, others)
        counted = counts()
        judge(counted, len(FAULTS) + IN_A_ROW // EVERY, requests, *may)
        equal(counted["entered"] + counted.get("refused_threads", 0), requests)
    equal(server.died(), died)
    # Without it again
    kills(server, next(iter(FAULTS)))


# ---- nginx: one worker, which all have


class HttpClient(Http):
    def ask(self, text: str) -> Answer:
        self.socket.sendall(f"GET /?{text} HTTP/1.1\r\nHost: service.example\r\n\r\n".encode())
        status, answer = self.answer()
        if status != 200:
            equal(status, 500)
            self.connect()
            return None
        pid, n = answer.split()
        return int(pid), int(n)


class SeededNginx(Nginx):
    def __init__(self) -> None:
        self.module = module("nginx")
        super().__init__(PLACE / "nginx", "", f"load_module {self.module};", workers=1)

    def client(self) -> Client:
        return HttpClient()

    def died(self) -> int:
        return self.errors().count("exited on signal")


def nginx() -> None:
    """nginx: what faults is answered 500"""
    with SeededNginx() as server:
        check(server)
        server.stop()


# ---- redis: one process


class RedisClient:
    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.socket = connect()
        self.file = self.socket.makefile("rb")

    def ask(self, text: str) -> Answer:
        self.socket.sendall(f"PARSE {text}\r\n".encode())
        line = self.file.readline()
        if not line:
            raise ConnectionError("no answer")
        if not line.startswith(b":"):
            equal(line, f"-ERR {ERROR}\r\n".encode())
            return None
        return self.pid, int(line[1:])


class SeededRedis(Redis):
    def __init__(self) -> None:
        self.module = module("redis")
        super().__init__(PLACE / "redis", "--loadmodule", self.module)
        self.ended = 0

    def client(self) -> Client:
        return RedisClient(self.process.pid)

    def died(self) -> int:
        """Nobody else starts it again"""
        if self.process.poll() is not None:
            self.ended += 1
            self.start()
        return self.ended


def redis() -> None:
    """redis: what faults is answered by an error"""
    with SeededRedis() as server:
        # Its other threads stand still for 0.1 s at most: less than a busy host may let a guest wait
        check(server, "given_up_threads", "refused_threads")
        server.stop()


# ---- PostgreSQL: a process for each connection, all of which go when one dies


class SqlClient:
    def __init__(self, server: Postgres) -> None:
        argv = server.psql("-v", "VERBOSITY=terse")
        self.process = subprocess.Popen(argv, text=True, bufsize=1, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT)

    def ask(self, text: str) -> Answer:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"SELECT pg_backend_pid() || ' ' || parse('{text}');\n")
        line = self.process.stdout.readline()
        if line == f"ERROR:  {ERROR}\n":
            return None
        if not line[:1].isdigit():
            raise ConnectionError(line)
        pid, n = line.split()
        return int(pid), int(n)


class SeededPostgres(Postgres):
    def __init__(self) -> None:
        self.module = module("postgresql")
        super().__init__(PLACE / "postgresql")

    def start(self) -> None:
        super().start()
        run(*self.psql("-c", f"CREATE FUNCTION parse(cstring) RETURNS bigint AS '{self.module}' LANGUAGE C STRICT"))

    def client(self) -> Client:
        return SqlClient(self)

    def died(self) -> int:
        return self.errors().count("was terminated by signal")


def postgresql() -> None:
    """PostgreSQL: a query that faults fails"""
    with SeededPostgres() as server:
        check(server)
        server.stop()


main(nginx, redis, postgresql)
