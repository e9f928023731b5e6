# SPDX-License-Identifier: GPL-2.0-or-later
"""MariaDB, from nothing in an empty directory, as root, and without a network unless an option says otherwise."""

import subprocess
import time
from pathlib import Path

MARIADB = "/usr/sbin/mariadbd"


class Database:
    def __init__(self, place: Path, *options: str, runner: tuple[str, ...] = ()) -> None:
        self.place, self.socket = place, place / "socket"
        self.options, self.runner = options, runner
        self._output("mariadb-install-db", "--no-defaults", f"--datadir={place / 'data'}", "--user=root",
                     "--auth-root-authentication-method=normal", "--skip-test-db")
        self.start()

    @staticmethod
    def _output(*argv: str) -> str:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert not done.returncode, f"{argv[0]}: status {done.returncode}\n{done.stdout[-2000:]}"
        return done.stdout

    def start(self) -> None:
        self.process = subprocess.Popen([*self.runner, MARIADB, "--no-defaults", f"--datadir={self.place / 'data'}", f"--socket={self.socket}",
                                         "--skip-networking", "--user=root", "--innodb-flush-log-at-trx-commit=0",
                                         f"--log-error={self.place / 'errors'}", *self.options], stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + 300
        while self.query("SELECT 1").returncode:
            assert self.process.poll() is None and time.monotonic() < deadline, \
                f"MariaDB does not start:\n{(self.place / 'errors').read_text()[-2000:]}"
            time.sleep(0.5)

    def query(self, *texts: str) -> subprocess.CompletedProcess[str]:
        """All of them in one connection, though one fails."""
        return subprocess.run(["mariadb", "--no-defaults", f"--socket={self.socket}", "--user=root", "--force", "--skip-reconnect",
                               "--batch", "--skip-column-names", "-e", "; ".join(texts)], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def right(self, *texts: str) -> str:
        done = self.query(*texts)
        assert not done.returncode, f"{texts}: {done.stdout}"
        return done.stdout

    def selects(self, *options: str, port: int = 0) -> list[str]:
        """The command of sysbench's selects by a key, in a table of 1000 rows; it stops at the first error. At its socket, without a port."""
        where = ["--mysql-host=127.0.0.1", f"--mysql-port={port}"] if port else [f"--mysql-socket={self.socket}"]
        return ["sysbench", "oltp_point_select", "--db-driver=mysql", "--mysql-user=root", *where,
                "--mysql-ignore-errors=none", "--tables=1", "--table-size=1000", *options]

    def prepare(self) -> None:
        self.right("CREATE DATABASE sbtest")
        self._output(*self.selects("prepare"))

    def stop(self) -> None:
        self.right("SHUTDOWN")
        status = self.process.wait(60)
        assert not status, f"MariaDB ended with status {status}"
