# SPDX-License-Identifier: GPL-2.0-or-later
"""In the guest: runs one program of other people's, with a network of its own, and says how it ended."""

import os
import signal
import subprocess
from pathlib import Path

NETWORK = 'ip link set lo up 2>/dev/null; exec "$@"'


def run(command: list[str], directory: Path, limit: float, words: dict[int, str]) -> tuple[str, str]:
    """The word for its exit status, "fail" for others, "late" after the limit; and what it said. Nothing of it is left."""
    with open("/tmp/limited.log", "w+b") as log:
        process = subprocess.Popen(["unshare", "-n", "sh", "-c", NETWORK, "sh", *command], cwd=directory,
                                   stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        try:
            word = words.get(process.wait(limit), "fail")
        except subprocess.TimeoutExpired:
            word = "late"
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        log.seek(0)
        return word, log.read(1 << 20).decode(errors="replace")
