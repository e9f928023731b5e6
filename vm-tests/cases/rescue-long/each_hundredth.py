#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Servers as distributions have them: of 100,000 requests each hundredth meets a fault, and only those fail."""

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "harness"))
from points import equal, main, run  # noqa: E402
from servers import PLACE, Http, Nginx, Postgres, Redis, connect, judge, point, program  # noqa: E402

REQUESTS = 100_000
EVERY = 100
CLIENTS = 4
BATCH = 50      # requests of one client that are under way


def judge_injected(counts: dict[str, int], failed: int, *may: str) -> None:
    judge(counts, failed, REQUESTS, *may)
    equal(counts["injected"], failed)
    assert failed >= REQUESTS / EVERY, failed


# ---- nginx: the parser of paths with . and .. in them


def get(client: Http, nr: int) -> int:
    """How many of them failed"""
    failed = sent = 0
    while sent < nr:
        # What has not been answered when it closes has not been looked at
        batch = min(BATCH, nr - sent)
        client.socket.sendall(b"GET /a/./b/../c%20d HTTP/1.1\r\nHost: service.example\r\n\r\n" * batch)
        for _ in range(batch):
            status, text = client.answer()
            sent += 1
            if status == 200:
                equal(text, b"here it is\n")
                continue
            equal(status, 400)
            failed += 1
            client.connect()
            break
    return failed


def nginx() -> None:
    """nginx: a path that cannot be parsed is answered 400"""
    with Nginx(PLACE / "nginx", 'return 200 "here it is\\n";') as server:
        workers = server.workers()
        with point(program("nginx"), "ngx_http_parse_complex_uri", 11, "--inject", EVERY) as counts:
            clients = [Http() for _ in range(CLIENTS)]
            failed = sum(get(client, 500) for _ in range(REQUESTS // 500 // CLIENTS) for client in clients)
            judge_injected(counts(), failed)
        equal(server.workers(), workers)
        equal(server.errors(), "")
        server.stop()


# ---- redis: a number that is not one


def redis() -> None:
    """redis: a value that cannot be read is answered as an error, and nothing is added to it"""
    with Redis(PLACE / "redis") as server:
        sockets = [connect() for _ in range(CLIENTS)]
        files = [s.makefile("rb") for s in sockets]
        failed = 0
        with point(program("redis-server"), "getLongLongFromObject", -1, "--inject", EVERY) as counts:
            for _ in range(REQUESTS // BATCH // CLIENTS):
                for s in sockets:
                    s.sendall(b"INCRBY n 1\r\n" * BATCH)
                for file in files:
                    for _ in range(BATCH):
                        line = file.readline()
                        if line.startswith(b":"):
                            continue
                        equal(line, b"-ERR value is not an integer or out of range\r\n")
                        failed += 1
            judge_injected(counts(), failed)
        # Each that was answered was executed once, and no other one
        sockets[0].sendall(b"GET n\r\n")
        files[0].readline()
        equal(int(files[0].readline()), REQUESTS - failed)
        server.stop()


# ---- PostgreSQL: an address that is none


def postgresql() -> None:
    """PostgreSQL: an address that cannot be read is a query that fails, and its transaction is undone"""
    with Postgres(PLACE / "postgresql") as server:
        run(*server.psql("-c", "CREATE TABLE t (client int, address inet)"))
        with point(server.programs / "postgres", "pg_inet_net_pton", -1, "--inject", EVERY) as counts:
            clients = []
            for n in range(CLIENTS):
                script = PLACE / f"script{n}"
                script.write_text(f"INSERT INTO t VALUES ({n}, '10.1.2.3/8');\n" * (REQUESTS // CLIENTS))
                clients.append(subprocess.Popen(server.psql("-f", str(script)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
            said = [client.communicate()[0] for client in clients]
            equal([client.returncode for client in clients], [0] * CLIENTS)
            failed = sum(text.count("ERROR:  invalid input syntax for type inet") for text in said)
            assert sum(text.count("ERROR") for text in said) == failed, said[0][:1000]
            equal(sum(text.count("connection") for text in said), 0)
            # Its processes wake each other up by signals that have handlers
            judge_injected(counts(), failed, "given_up_signal")
        equal(run(*server.psql("-c", "SELECT count(*), count(DISTINCT address) FROM t")).strip(), f"{REQUESTS - failed}|1")
        equal(server.errors().count("terminated by signal"), 0)
        server.stop()


main(nginx, redis, postgresql)
