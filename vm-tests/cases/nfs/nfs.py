#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The tests of frem with all files on NFS: a guest that serves them to itself."""

import platform
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "harness"))
from points import BUILD, TOP, mirror, run  # noqa: E402
import splats  # noqa: E402
import vm  # noqa: E402

HERE = Path(__file__).resolve().parent
WORK = BUILD / "test" / "nfs"


def server() -> Path:
    """The server's programs in a tree of their own: installed, they would serve this machine's files."""
    root = WORK / "root"
    if not root.exists():
        release = platform.freedesktop_os_release()["VERSION_CODENAME"]
        new = root.with_suffix(".new")
        shutil.rmtree(new, ignore_errors=True)
        run("mmdebstrap", "--quiet", "--variant=extract",
            "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr", "--include=nfs-kernel-server,mount", release, new, f"deb {mirror()} {release} main")
        new.rename(root)
    return root


def main() -> None:
    WORK.mkdir(parents=True, exist_ok=True)
    run(TOP / "scripts/setup.sh", "packages")
    console = BUILD / "log" / "test" / "nfs.console"
    err = bytearray()
    job = vm.Job([str(HERE / "serve.sh"), str(server()), sys.executable, str(HERE / "inside.py"), *sys.argv[1:]], "/",
                 vm.environment(PERDURE_GUEST="1"))
    result = vm.run(job, vm.Machine(BUILD / "kernel" / "perdure-nfs" / "vmlinux", console, memory="3G", timeout=1800),
                    lambda data: print(data.decode(), end="", flush=True), err.extend)
    problems = [result.why] if result.why else []
    for problem in problems + splats.scan(console, died=bool(result.why)):
        print(f"# {problem}")
        result.status = 1
    if result.status:
        print("".join(f"# {line}\n" for line in err.decode().splitlines()[-20:]), end="")
    sys.exit(bool(result.status))


if __name__ == "__main__":
    main()
