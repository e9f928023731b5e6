#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Apache with a module that faults: without a rescue point a connection breaks, with one it is answered 500."""

import http.client
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "harness"))
from httpd import FAULTS, HTTPD, RESCUECTL, Server, connect, get  # noqa: E402
from points import equal, main, run  # noqa: E402

scratch = tempfile.TemporaryDirectory(prefix="rescue-")


def point() -> dict[str, int]:
    said = subprocess.run([str(RESCUECTL), "list", "--json"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return next(p for p in json.loads(said) if p["name"] == "apache")


def add(*options: str) -> None:
    run(RESCUECTL, "add", HTTPD, "ap_run_handler", "--value", 500, "--name", "apache", "--burst", 1000000, *options)


def count(served: dict[int, int], connection: http.client.HTTPConnection) -> None:
    """A request that is right: each worker counts its own, and none that has faulted."""
    status, text = get(connection, "/fault/none")
    equal(status, 200)
    pid, n = (int(word) for word in text.split())
    equal(n, served.get(pid, n - 1) + 1)
    served[pid] = n


def start() -> None:
    """Apache serves"""
    global server
    server = Server(Path(scratch.name))
    (server.files / "file").write_bytes(b"x" * 100000)


def without() -> None:
    """Without a point each fault kills the worker, and its connection"""
    before = server.died()
    for fault in FAULTS:
        try:
            said = get(connect(), f"/fault/{fault}")
        except (http.client.HTTPException, OSError):
            continue
        raise AssertionError(f"{fault}: {said}")
    deadline = time.monotonic() + 20
    while server.died() < before + len(FAULTS):
        assert time.monotonic() < deadline, (server.place / "errors").read_text()
        time.sleep(0.1)


def rescued() -> None:
    """With one it is answered 500, the worker lives, and nothing is half done"""
    before = server.died()
    add()
    connection = connect()
    served: dict[int, int] = {}
    for _ in range(10):
        for fault in FAULTS:
            count(served, connection)
            # Apache closes the connection behind such an answer, as it says
            status, text = get(connection, f"/fault/{fault}")
            equal(status, 500)
            assert b"Internal Server Error" in text, text
            count(served, connection)
    equal(get(connection, "/file"), (200, b"x" * 100000))
    equal(point()["rescued"], 10 * len(FAULTS))
    equal(server.died(), before)
    print(f"# {point()}")


def others() -> None:
    """Requests of others go on meanwhile: only those that fault fail"""
    def ask(fault: str, times: int) -> list[int]:
        statuses = []
        for _ in range(times):
            connection = connect()
            statuses.append(get(connection, f"/fault/{fault}")[0])
            connection.close()
        return statuses

    with ThreadPoolExecutor(4) as pool:
        bad = pool.submit(ask, "null", 60)
        good = [pool.submit(ask, "none", 80) for _ in range(3)]
        equal(bad.result(), [500] * 60)
        equal([future.result() for future in good], [[200] * 80] * 3)


def late() -> None:
    """What has been sent cannot be undone, unless it waits: then the answer is whole"""
    before = server.died()
    try:
        said = get(connect(), "/fault/late")
    except (http.client.HTTPException, OSError):
        said = None
    assert not said, f"of half an answer: {said}"
    deadline = time.monotonic() + 20
    while server.died() == before:
        assert time.monotonic() < deadline, (server.place / "errors").read_text()
        time.sleep(0.1)
    run(RESCUECTL, "remove", "apache")
    add("--output", "cork")
    connection = connect()
    served: dict[int, int] = {}
    for _ in range(10):
        count(served, connection)
        status, text = get(connection, "/fault/late")
        equal(status, 500)
        assert b"half done" not in text, text
        count(served, connection)
        equal(get(connection, "/file"), (200, b"x" * 100000))
    counted = point()
    equal(counted["rescued"], 10)
    equal(server.died(), before + 1)
    print(f"# {counted}")


def removed() -> None:
    """Without it again, a fault kills again"""
    run(RESCUECTL, "remove", "apache")
    without()


def stop() -> None:
    """Apache ends"""
    server.stop()


main(start, without, rescued, others, late, removed, stop)
