#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""README's two commands in a fresh minimal Debian with nothing but git in it. What they say goes to build/test/distributions
too, beside the system, which stays there when it failed: its own logs are in root-RELEASE/root/perdure/build/log."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "harness"))
from points import BUILD, TOP, main, run  # noqa: E402

RELEASE = sys.argv[1]
WORK = BUILD / "test" / "distributions"
ROOT = WORK / f"root-{RELEASE}"
# Everything that is started in it ends with it. In a chroot no user namespace can be made, so it has a root of its own.
IN_ROOT = """mount --bind "$1" "$1"; mount -t proc proc "$1/proc"; mount -t sysfs sys "$1/sys"; mount --rbind /dev "$1/dev"
mount -t tmpfs tmp "$1/tmp"; mount -t tmpfs run "$1/run"; cd "$1"; shift; pivot_root . mnt
exec /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin sh -ec 'umount -l /mnt; cd /root/perdure; exec "$@"' sh "$@" """


def sources() -> list[str]:
    """As this machine's apt has them, of the other release."""
    here = re.findall(r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(), re.M)[0]
    found = run("apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages", "Origin: Debian", "Component: main")
    lines = [f"deb {uri} {release.replace(here, RELEASE)} main" for uri, release in
             (line.split() for line in found.splitlines()) if release.split("-")[0] == here]
    assert lines, "apt knows no Debian mirror: configure one in /etc/apt/sources.list.d"
    return lines


def settings() -> list[str]:
    """Of this machine's apt: how it reaches the mirror, and what it makes of the mirror's dates."""
    wanted = re.compile(r"Acquire::(Check-|https?::|ForceIPv|Retries)")
    return [line for line in run("apt-config", "dump").splitlines() if wanted.match(line)]


def command(*argv: str) -> str:
    """What it says as a newcomer, passed on as it comes."""
    name = "-".join(word for word in argv if word[0] not in "./-")
    log = WORK / f"{RELEASE}-{name}.log"
    print(f"# {' '.join(argv)}: log {log}", flush=True)
    with log.open("w") as out, subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", IN_ROOT, "sh", ROOT, *argv],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as process:
        assert process.stdout
        for line in process.stdout:
            out.write(line)
            out.flush()
            print(f"# {RELEASE}: {line.rstrip()}", flush=True)
    text = log.read_text()
    assert not process.returncode, f"status {process.returncode}: {text[-3000:]} (log: {log})"
    return text


def fresh() -> None:
    """A minimal system with git, and a clone."""
    run(TOP / "scripts/setup.sh", "packages")
    shutil.rmtree(ROOT, ignore_errors=True)
    WORK.mkdir(parents=True, exist_ok=True)
    # They stay in the system, too
    run("mmdebstrap", "--quiet", "--variant=minbase", "--include=git,ca-certificates", *[f"--aptopt={line}" for line in settings()],
        RELEASE, ROOT, *sources())
    shutil.copy("/etc/resolv.conf", ROOT / "etc/resolv.conf")
    run("git", "clone", "-q", "--no-hardlinks", TOP, ROOT / "root/perdure")


def demo() -> None:
    """./build.sh demo: no warning, and not one byte lost."""
    text = command("./build.sh", "demo")
    assert "Not one byte lost" in text, text[-3000:]
    assert "warning" not in text, [line for line in text.splitlines() if "warning" in line]


def tests() -> None:
    """./build.sh test: none fails."""
    text = command("./build.sh", "test", "--profile", "vm")
    assert re.search(r"^\d+ passed, 0 failed", text, re.M), text[-3000:]
    shutil.rmtree(ROOT)


if __name__ == "__main__":
    assert os.getuid() == 0, "needs root: it installs systems and changes into them"
    main(fresh, demo, tests)
