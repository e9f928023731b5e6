#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""CRIU's own tests (zdtm), with frem in CRIU's place: each is checkpointed in the middle, ended, restored, and then says itself
whether all is as it was. What fails is tried once more with CRIU alone: a test that fails with both is not ours.

PERDURE_CRIU_SOURCE names a source tree of CRIU; without it, apt-get source fetches the one of the installed criu.
PERDURE_ZDTM chooses tests."""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

TOP = Path(os.environ["PERDURE_TOP"])
BUILD = Path(os.environ["PERDURE_BUILD"])
VMLINUX = Path(os.environ.get("PERDURE_VMLINUX") or BUILD / "kernel" / "perdure-vm" / "vmlinux")
sys.path.insert(0, str(TOP / "vm-tests" / "lib"))
import splats  # noqa: E402
import vm  # noqa: E402

PLACE = BUILD / "test" / "zdtm"
TESTS = """
    maps01 maps02 maps04 maps05 maps09 maps10 mem-touch grow_map grow_map02 grow_map03 mprotect00 thp_disable
    memfd00 memfd01 memfd02 memfd03 shm shm-mp sem msgque vdso00 vdso01 aio00
    busyloop00 sleeping00 pid00 wait00 zombie00 zombie01 zombie_leader pstree vfork00 clone_fs session00 session01 session02
    child_subreaper helper_zombie_child stopped stopped01 stopped02 stopped12
    pthread00 pthread01 pthread02 pthread_timers futex futex-rl rseq00 membarrier fpu00 mmx00 sse00 sse20
    timers timerfd posix_timers sigpending sigaltstack signalfd00
    pipe00 pipe01 pipe02 sockets_spair socket_queues socket_listen socket_udp scm00 scm01 scm02 eventfs00 epoll poll fd
    file_fown file_cloexec proc-self caps00 groups rlimits00 seccomp_filter
""".split()
if chosen := os.environ.get("PERDURE_ZDTM", "").split():
    TESTS = chosen
FEWEST = min(40, len(TESTS))    # that must pass; less would be no test


def source() -> Path:
    if given := os.environ.get("PERDURE_CRIU_SOURCE"):
        return Path(given)
    fetched = PLACE / "source"
    if not list(fetched.glob("criu-*/test/zdtm")):
        shutil.rmtree(fetched, ignore_errors=True)
        (fetched / "lists" / "partial").mkdir(parents=True)
        # The archives that are in use, but their sources
        text = "".join(path.read_text().replace("Types: deb\n", "Types: deb-src\n") + "\n"
                       for path in Path("/etc/apt/sources.list.d").glob("*.sources"))
        (fetched / "src.sources").write_text(text)
        lines = [f"deb-src{line[3:]}" for path in [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*.list")]
                 if path.exists() for line in path.read_text().splitlines() if line.startswith("deb ")]
        (fetched / "src.list").write_text("\n".join(lines) + "\n")
        apt = ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "-o", "Dir::Etc::SourceList=/dev/null",
               "-o", f"Dir::Etc::SourceParts={fetched}", "-o", f"Dir::State::Lists={fetched / 'lists'}"]
        for args in ["update"], ["source", "--download-only", "criu"]:
            done = subprocess.run([*apt, *args], cwd=fetched, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True)
            if done.returncode:
                sys.exit(f"apt-get {args[0]}: {done.stdout[-600:]}\nNo source of CRIU in the archives of this system: set "
                         "PERDURE_CRIU_SOURCE to a source tree of CRIU")
        subprocess.run(["tar", "-xf", *fetched.glob("criu_*.orig.tar.*")], cwd=fetched, check=True)
    return next(fetched.glob("criu-*"))


def build(criu: Path) -> list[dict]:
    """What could be built, with the options for CRIU that its description asks for."""
    if not (criu / "test/zdtm/static").is_dir():
        sys.exit(f"{criu} is no source tree of CRIU: there is no test/zdtm")
    tree = PLACE / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(criu / "test" / "zdtm", tree / "test" / "zdtm", symlinks=True)
    shutil.copytree(criu / "include", tree / "include", symlinks=True)
    static = tree / "test" / "zdtm" / "static"
    with (PLACE / "make.log").open("wb") as log:
        subprocess.run(["make", "-k", f"-j{os.cpu_count()}", "-C", static, "USERCFLAGS=-Wno-error", *TESTS],
                       stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    found = []
    for name in TESTS:
        text = static / f"{name}.desc"
        desc = ast.literal_eval(text.read_text()) if text.exists() else {}
        if os.access(static / name, os.X_OK):
            found.append({"name": name, "program": str(static / name),
                          "options": f"{desc.get('opts', '')} {desc.get('dopts', '')}".split(), "again": desc.get("ropts", "").split()})
    if len(found) < FEWEST:
        sys.exit(f"{len(found)} of {len(TESTS)} tests could be built: see {PLACE / 'make.log'}")
    return found


def main() -> None:
    PLACE.mkdir(parents=True, exist_ok=True)
    tests = build(source())
    (PLACE / "tests.json").write_text(json.dumps(tests))
    console = BUILD / "log" / "test" / "zdtm.console"
    out, err = bytearray(), bytearray()
    print(f"KTAP version 1\n1..{len(tests) + 1}", flush=True)

    def hear(data: bytes) -> None:
        out.extend(data)
        print(f"# {len(out.splitlines())} of {len(tests)} tests ran", flush=True)

    job = vm.Job(["python3", str(Path(__file__).resolve().parent / "inside.py"), str(PLACE / "tests.json")], "/",
                 vm.environment(PERDURE_GUEST="1"))
    result = vm.run(job, vm.Machine(VMLINUX, console, memory="3G", timeout=3600), hear, err.extend)
    said = {entry["name"]: entry for entry in map(json.loads, out.decode().splitlines())}
    problems = [result.why or err.decode()[-400:]] if result.status else []
    problems += splats.scan(console, died=bool(result.why))

    bad = 0
    for number, test in enumerate(tests, 1):
        entry = said.get(test["name"], {"frem": "nothing was said"})
        ok = entry["frem"] == "pass" or entry.get("criu", "pass") != "pass"
        bad += not ok
        note = "" if entry["frem"] == "pass" else f" # SKIP as with CRIU alone: {entry['criu']}" if ok else f" # {entry['frem']}"
        print(f"{'ok' if ok else 'not ok'} {number} {test['name']}{note}")
        print(f"# {entry.get('mode', '')} {entry.get('faults', '')} faults, {entry.get('seconds', 0)} s")
    for problem in problems:
        print(f"# {problem}")
    passed = sum(entry["frem"] == "pass" for entry in said.values())
    enough = not problems and passed >= FEWEST
    print(f"{'ok' if enough else 'not ok'} {len(tests) + 1} {passed} tests pass, the kernel does not complain")
    sys.exit(bool(bad or not enough))


if __name__ == "__main__":
    main()
