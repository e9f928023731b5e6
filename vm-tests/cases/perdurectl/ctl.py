# SPDX-License-Identifier: GPL-2.0-or-later
"""perdurectl, as tests call it"""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CTL = Path(os.environ["PERDURE_BUILD"]) / "userspace/userspace/tools/perdurectl"
LIMIT_S = 60     # unless it is said otherwise


def ctl(*args: object, timeout: float = LIMIT_S, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([CTL, *map(str, args)], capture_output=True, text=True, timeout=timeout, **more)


def run(*args: object, status: int, says: str = "", **more: Any) -> Iterator[str]:
    """perdurectl, its exit status, and what it says to people."""
    done = ctl(*args, **more)
    if done.returncode != status or not re.search(says, done.stderr) or (not says and done.stderr):
        yield f"{args}: status {done.returncode}, not {status}: {done.stderr!r}"
