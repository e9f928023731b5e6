# SPDX-License-Identifier: GPL-2.0-or-later
"""A systemd beside the tests, for units of theirs"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "hygiene"))
import ktap  # noqa: E402

START_S = 600           # an emulated machine is slow


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Systemd:
    """One of its own, in namespaces: it has nothing to do but our unit."""

    START = """
        echo 0 >"$1/cgroup.procs"
        exec unshare --mount --pid --fork --kill-child --cgroup --mount-proc sh -ec '
            umount /sys/fs/cgroup
            mount -t cgroup2 cgroup2 /sys/fs/cgroup
            mount -t tmpfs tmpfs /run
            mkdir -p /run/systemd/system
            echo "[Unit]\nDefaultDependencies=no" >/run/systemd/system/nothing.target
            exec env container=test /lib/systemd/systemd --system --unit=nothing.target --log-target=null --show-status=false'"""

    def __init__(self) -> None:
        self.cgroup = Path(tempfile.mkdtemp(prefix="systemd-", dir="/sys/fs/cgroup"))
        self.process = subprocess.Popen(["sh", "-ec", self.START, "sh", self.cgroup], stdin=subprocess.DEVNULL)
        begun = time.monotonic()
        while not (found := children(self.process.pid)) or not Path(f"/proc/{found[0]}/root/run/systemd/private").exists():
            assert self.process.poll() is None and time.monotonic() - begun < START_S, "systemd does not start"
            time.sleep(0.1)
        self.pid = found[0]
        self.units = Path(f"/proc/{self.pid}/root/run/systemd/system")

    def ctl(self, *words: str) -> str:
        return ktap.output("nsenter", "-t", self.pid, "-m", "-p", "-C", "systemctl", *words).strip()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
