#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Debian's stress-ng with --verify, a stressor at a time, on our kernel and on the stock kernel: the same verdicts.

usage: stress.py [STRESSOR...]"""

import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.environ["PERDURE_TOP"] + "/vm-tests/lib")
import compare  # noqa: E402

STRESSORS = """
    sem sem-sysv shm shm-sysv msg mq futex
    sigabrt sigchld sigfd sigfpe sigio signal signest sigpending sigpipe sigq sigrt sigsegv sigsuspend sigtrap kill
    exec fork vfork vforkmany clone daemon zombie wait exit-group pidfd ptrace seccomp
    poll epoll eventfd inotify timerfd aio io-uring
    sock sockabuse sockfd sockmany sockpair udp udp-flood
    pipe pipeherd fifo splice tee vm-splice sendfile
    vm vm-addr vm-rw mmap mmapaddr mmapfixed mmapfork mmapmany brk stack madvise mremap mprotect mincore mlock mlockmany msync
    munmap remap userfaultfd
""".split()
# At once, and for how long: the guest is emulated and small
ARGUMENTS = ("3", "2")
LIMIT_S = 90
LEAST = 40


def known() -> set[str]:
    """Those that this version of stress-ng has."""
    done = subprocess.run(["stress-ng", "--stressors"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return set(done.stdout.split())


def main() -> None:
    if not shutil.which("stress-ng"):
        sys.exit("stress-ng is missing: run ./build.sh setup stress")
    there = known()
    chosen = [name for name in sys.argv[1:] or STRESSORS if name in there]
    for name in STRESSORS:
        if name not in there:
            print(f"# {name}: not in this version of stress-ng")
    least = LEAST if not sys.argv[1:] else 1
    sys.exit(compare.compare("stress", [compare.here(__file__), str(LIMIT_S), *ARGUMENTS], chosen, LIMIT_S, least))


if __name__ == "__main__":
    main()
