#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""In the guest of bench/run restore: checkpoints programs in the middle of their work, and restores each from each disk
in three ways: CRIU, CRIU with its lazy-pages daemon, frem. Prints one JSON object for each restore.

usage: restore-guest.py PROGRAM,… RATE[=NAME]…: the disks, /dev/vda and so on, by the MB/s that they read (0: no limit)
"""

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

WORK = Path("/tmp/bench")

PYTHON = """
import sys
heap = [bytearray(b"%06d" % n * 150) for n in range(70000)]
index = {n: str(n) * 3 for n in range(100000)}
open("ready", "w")
total = 0
for n in range(1 << 60):
    for block in heap[n * 500 % 7000:n * 500 % 7000 + 500]:
        block[n % 900] = n & 127
        total += block[0] + len(index[n % 9000])
    sys.stdout.write(f"{total}\\n")
    sys.stdout.flush()
"""
SQLITE = """
import sqlite3, sys
db = sqlite3.connect(":memory:")
db.execute("create table t (id integer primary key, name text, value text)")
for n in range(0, 160000, 4000):
    db.executemany("insert into t values (?, ?, ?)", ((i, f"name {i}", "x" * 500) for i in range(n, n + 4000)))
open("ready", "w")
for n in range(1 << 60):
    at = n * 37 % 30000
    found = db.execute("select sum(length(value)) from t where id between ? and ?", (at, at + 50)).fetchone()
    db.execute("update t set name = ? where id = ?", (f"changed {n}", at))
    sys.stdout.write(f"{found}\\n")
    sys.stdout.flush()
"""
PERL = """
my %h; $h{$_} = "value $_ " x 20 for 1 .. 250000;
open(my $f, ">", "ready"); close $f;
$| = 1;
for (my $n = 0; ; $n++) {
    my $sum = 0;
    for my $i (1 .. 500) { $h{$i + $n % 20000} .= "x"; $sum += length $h{$i * 20}; }
    print "$sum\\n";
}
"""

# What runs, and the megabytes that it must have when it is checkpointed (0: it says itself when it is ready)
PROGRAMS: dict[str, tuple[list[str], int]] = {
    "python3": (["python3", "-c", PYTHON], 0),
    "sqlite": (["python3", "-c", SQLITE], 0),
    "perl": (["perl", "-e", PERL], 0),
    "xz": (["xz", "-6", "-T1", "-c"], 70),
    "sort": (["sort", "-S", "300M", "--parallel=1", "-r"], 150),
    "cc1": (["/usr/lib/gcc/x86_64-linux-gnu/12/cc1", "-quiet", "-O1", "-o", "/dev/stdout", "-"], 150),
}


def source(name: str) -> Path:
    """What the programs that filter read: more than they get through in our time."""
    path = WORK / f"{name}.in"
    if path.exists():
        return path
    with path.open("w") as file:
        if name == "cc1":
            for n in range(9000):
                file.write(f"int f{n}(int *a, int n)\n{{\n\tint i, s = {n};\n\tfor (i = 0; i < n; i++)\n"
                           f"\t\tif (a[i] % {n % 97 + 2}) s += a[i] * {n}; else s ^= a[i] >> {n % 7};\n\treturn s;\n}}\n")
        else:
            seed = 1
            for n in range(400000 if name == "sort" else 250000):
                seed = seed * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
                file.write(f"{seed:020d} {seed >> 40:x} a line of text number {n} {seed % 1000:03d} {'abcdef'[n % 6] * 20}\n")
    return path


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at


def fields(data: bytes) -> dict[int, int | bytes]:
    found: dict[int, int | bytes] = {}
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            found[key >> 3], at = varint(data, at)
        elif key & 7 == 2:
            size, at = varint(data, at)
            found[key >> 3] = data[at:at + size]
            at += size
        else:
            at += 8 if key & 7 == 1 else 4
    return found


def positions_in(directory: Path) -> int:
    """The sum of all file positions in a checkpoint: it has worked when it differs."""
    data = (directory / "files.img").read_bytes()
    at, total = 8, 0
    while at < len(data):
        size, = struct.unpack_from("<I", data, at)
        regular = fields(data[at + 4:at + 4 + size]).get(3)
        if isinstance(regular, bytes):
            position = fields(regular).get(3, 0)
            assert isinstance(position, int)
            total += position
        at += 4 + size
    return total


def positions_of(pid: int) -> int | None:
    total = 0
    try:
        for path in Path(f"/proc/{pid}/fdinfo").iterdir():
            total += int(path.read_text().split()[1])
    except (OSError, IndexError):
        return None
    return total


def major_faults(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[9])
    except OSError:
        return 0


class Watch(threading.Thread):
    """When the process has done something: a file position that is not the checkpoint's, after it was."""

    def __init__(self, pid: int, before: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.before, self.first, self.stop = pid, before, 0.0, False
        self.start()

    def run(self) -> None:
        seen = False
        while not self.first and not self.stop:
            now = positions_of(self.pid)
            if now == self.before:
                seen = True
            elif seen and now is not None and now > self.before:
                self.first = time.monotonic()
            time.sleep(0.01)


def end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
        while True:
            os.kill(pid, 0)
            time.sleep(0.01)
    except ProcessLookupError:
        pass


def memory(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) / 1024


def start(name: str) -> subprocess.Popen:
    command, wanted = PROGRAMS[name]
    place = WORK / name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    with (source(name) if wanted else Path("/dev/null")).open("rb") as stdin, (place / "out").open("ab") as out:
        process = subprocess.Popen(command, cwd=place, stdin=stdin, stdout=out, stderr=subprocess.DEVNULL,
                                   start_new_session=True)
    deadline = time.monotonic() + 400
    while not (memory(process.pid) >= wanted if wanted else (place / "ready").exists()):
        if process.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"{name}: not in the middle of its work: status {process.poll()}")
        time.sleep(0.2)
    time.sleep(2)
    return process


def restore(way: str, directory: Path, pid: int) -> dict:
    subprocess.run(["sh", "-c", "sync; echo 3 >/proc/sys/vm/drop_caches"], check=True)
    warm = ["criu", "python3", "frem"]      # the programs themselves are on no such disk
    for program in warm:
        subprocess.run([program, "--version" if program != "frem" else "--help"], stdout=subprocess.DEVNULL, check=False)
    work = WORK / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    watch = Watch(pid, positions_in(directory))
    common = ["-D", str(directory), "-W", str(work), "-o", str(work / "log")]
    result: dict = {}
    begin = time.monotonic()
    if way == "CRIU":
        subprocess.run(["criu", "restore", "-d", *common], check=True)
        result["running"] = result["loaded"] = time.monotonic() - begin
    elif way == "lazy-pages":
        daemon = subprocess.Popen(["criu", "lazy-pages", "-D", str(directory), "-W", str(work),
                                   "-o", str(work / "lazy.log")])
        while not (work / "lazy-pages.socket").exists():
            time.sleep(0.005)
        subprocess.run(["criu", "restore", "-d", "--lazy-pages", *common], check=True)
        result["running"] = time.monotonic() - begin
        result["status"] = daemon.wait()
        result["loaded"] = time.monotonic() - begin
        result["faults"] = major_faults(pid)
    else:
        done = subprocess.run(["frem", "restore", "--json", "--dir", str(directory)], stdout=subprocess.PIPE, check=True,
                              timeout=900)
        whole = time.monotonic() - begin
        told = json.loads(done.stdout)
        if told["mode"] != "lazy":
            sys.exit(f"frem fell back: {told['why']}")
        result["loaded"] = whole
        result["running"] = whole - told["loaded_s"] + told["running_s"]
        result["faults"] = told["loader"]["faults"]
        result["loader"] = told["loader"]
    while not watch.first and time.monotonic() < begin + 300 and os.path.exists(f"/proc/{pid}"):
        time.sleep(0.01)
    watch.stop = True
    result["work"] = watch.first - begin if watch.first else None
    end(pid)
    return result


def main() -> None:
    names, *rates = sys.argv[1:]
    WORK.mkdir()
    disks = []
    for number, text in enumerate(rates):
        device, place = f"/dev/vd{'abcdefgh'[number]}", Path(f"/tmp/disk{number}")
        place.mkdir()
        subprocess.run(["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard", device], check=True)
        subprocess.run(["mount", device, str(place)], check=True)
        disks.append((text, place))
    for name in names.split(","):
        for rate, place in disks:
            directory = place / name
            process = start(name)
            taken = subprocess.run(["frem", "checkpoint", str(process.pid), "--dir", str(directory), "--json",
                                    *(["--rate", rate] if rate != "0" else [])], stdout=subprocess.PIPE, check=True)
            told = json.loads(taken.stdout)
            process.kill()
            process.wait()
            for way in ("CRIU", "lazy-pages", "frem"):
                result = restore(way, directory, process.pid)
                print(json.dumps({"bench": "restore", "program": name, "rate": rate, "way": way, "bytes": told["bytes"],
                                  "touched": told["touched_bytes"], "window": told.get("window_s"),
                                  "dump": told["dump_s"], **result}), flush=True)
            shutil.rmtree(directory)


if __name__ == "__main__":
    main()
