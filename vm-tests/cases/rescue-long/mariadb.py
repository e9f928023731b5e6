#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""MariaDB, a server of threads, with functions that fault: without a rescue point it dies, with one a query fails."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / place) for place in ("harness", "rescue")]
from database import MARIADB, Database  # noqa: E402
from httpd import BUILD, RESCUECTL  # noqa: E402
from points import equal, main, run  # noqa: E402

FAULTS = ("fault_null", "fault_abort", "fault_overflow")
ROUNDS = 20
scratch = tempfile.TemporaryDirectory(prefix="mariadb-")


def start() -> None:
    """MariaDB serves, and has the functions"""
    global server
    # Its own I/O by io_uring is its threads'; a point's thread has none
    server = Database(Path(scratch.name), f"--plugin-dir={BUILD / 'userspace/vm-tests/cases/rescue-long'}")
    server.prepare()
    for name in (*FAULTS, "fault_none"):
        server.right(f"CREATE FUNCTION {name} RETURNS INTEGER SONAME 'udf_fault.so'")


def point() -> dict[str, int]:
    return next(p for p in json.loads(run(RESCUECTL, "list", "--json")) if p["name"] == "query")


def without() -> None:
    """Without a point a query that faults ends the server"""
    for fault in FAULTS:
        assert server.query(f"SELECT {fault}()").returncode
        assert server.process.wait(60), "it has not died"
        server.start()


def rescued() -> None:
    """With one the query fails; its connection, and those of others, go on"""
    run(RESCUECTL, "add", MARIADB, "_ZN4JOIN4execEv", "--value", 1, "--name", "query", "--burst", 1000000)
    others = subprocess.Popen(server.selects("--threads=4", "--time=3600", "run"), stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
    before = int(server.right("SELECT fault_none()"))
    for _ in range(ROUNDS):
        for fault in FAULTS:
            said = server.query(f"SELECT {fault}() FROM sbtest.sbtest1 WHERE id = 5", "SELECT 'next'")
            assert said.stdout.endswith("next\n"), f"{fault}: {said.stdout}"
            assert server.process.poll() is None, "it has died"
            assert others.poll() is None, others.stdout and others.stdout.read()
    print(f"# {point()}")
    # What had been counted was undone
    equal(int(server.right("SELECT fault_none()")), before + 1)
    equal(point()["rescued"], ROUNDS * len(FAULTS))
    others.terminate()
    others.wait()
    run(RESCUECTL, "remove", "query")


def intact() -> None:
    """Its tables are whole, and it ends as it should"""
    assert "OK" in server.right("CHECK TABLE sbtest.sbtest1")
    equal(server.right("SELECT COUNT(*) FROM sbtest.sbtest1").strip(), "1000")
    server.stop()


main(start, without, rescued, intact)
