#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""In the guest of bench/run restore: checkpoints programs in the middle of their work, and restores each from each disk
in four ways: CRIU, CRIU with its lazy-pages daemon, frem, frem --preload; from the first disk in a fifth: frem --preload of a
checkpoint whose window had none before it to adapt to. Prints one JSON object for each restore.

usage: restore-guest.py PROGRAM,… RATE…: the disks, /dev/vda and so on, by the MB/s that they read (0: no limit)
"""

import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

WORK = Path("/tmp/bench")

# Each has a store of some hundred megabytes, and then serves requests from it, most of them to a part that moves slowly.
PYTHON = """
import sys
heap = [bytearray(b"%06d" % n * 150) for n in range(135000)]
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
NUMPY = """
import sys, numpy
a = numpy.arange(18_200_000, dtype=float).reshape(2600, 7000)
open("ready", "w")
for n in range(1 << 60):
    at = n // 20 * 10 % 2000
    b = a[at:at + 120]
    b += numpy.sqrt(abs(b[:, :120] @ b)) % 7
    sys.stdout.write(f"{b.sum()}\\n")
    sys.stdout.flush()
"""
PERL = """
my %h; $h{$_} = "value $_ " x 20 for 1 .. 420000;
open(my $f, ">", "ready"); close $f;
$| = 1;
for (my $n = 0; ; $n++) {
    my $sum = 0;
    for my $i (1 .. 500) { $h{$i + $n % 20000} .= "x"; $sum += length $h{$i * 20}; }
    print "$sum\\n";
}
"""
RUBY = """
h = {}
420000.times { |n| h[n] = "value #{n} " * 20 }
File.write("ready", "")
$stdout.sync = true
(0..).each { |n| puts (0...300).sum { |i| h[(n * 7 + i) % 30000] = "new #{n} " * 30; h[i * 9].size } }
"""
LUA = """
local t = {}
for n = 1, 420000 do t[n] = {n, string.rep("value " .. n, 15)} end
io.open("ready", "w"):close()
io.stdout:setvbuf("no")
for n = 1, math.huge do
    local sum = 0
    for i = 1, 300 do local e = t[(n * 5 + i) % 25000 + 1]; e[1] = e[1] + 1; sum = sum + #e[2] end
    print(sum)
end
"""
PHP = """
ini_set("memory_limit", "-1");
$t = [];
for ($n = 0; $n < 490000; $n++) $t[] = str_repeat("value $n", 20);
touch("ready");
for ($n = 0;; $n++) {
    $sum = 0;
    for ($i = 0; $i < 300; $i++) { $t[($n * 5 + $i) % 25000][7] = "x"; $sum += strlen($t[$i * 11]); }
    echo $sum, "\\n";
}
"""
GAWK = """
BEGIN {
    for (n = 0; n < 500000; n++) { v = "value " n; t[n] = v v v v v v v v v v v v v v v v }
    printf "" > "ready"; close("ready")
    for (n = 0;; n++) {
        sum = 0
        for (i = 0; i < 300; i++) { t[(n * 5 + i) % 20000] = "new " n " " i; sum += length(t[i * 13]) }
        print sum; fflush()
    }
}
"""
NODE = """
const fs = require("fs"), m = new Map();
for (let n = 0; n < 150000; n++) m.set(n, {n, text: Buffer.alloc(500, "value " + n), tags: [n, n + 1]});
fs.writeFileSync("ready", "");
function turn(n) {
    let sum = 0;
    for (let i = 0; i < 300; i++) { const e = m.get((n * 5 + i) % 15000); e.tags[0]++; sum += e.text[i]; }
    fs.writeSync(1, sum + "\\n");
    setImmediate(turn, n + 1);
}
turn(0);
"""
TCL = """
for {set n 0} {$n < 200000} {incr n} { set t($n) [string repeat "value $n " 30] }
close [open ready w]
for {set n 0} 1 {incr n} {
    set sum 0
    for {set i 0} {$i < 200} {incr i} {
        append t([expr {($n * 5 + $i) % 20000}]) x
        incr sum [string length $t([expr {$i * 9}])]
    }
    puts $sum; flush stdout
}
"""
SQLITE = """
create table t (id integer primary key, name text, value text);
insert into t select value, 'name ' || value, printf('%0*d', 500, value) from generate_series(0, 269999);
.shell touch ready
"""


class Program(NamedTuple):
    command: list[str]
    megabytes: int = 0      # what it must have when it is checkpointed; 0: it says itself when it is ready
    package: str = ""       # Debian's


CC1 = next(iter(sorted(map(str, Path("/usr/lib/gcc").glob("x86_64-linux-gnu/*/cc1")))), "/usr/lib/gcc/cc1")
PROGRAMS = {
    "perl": Program(["perl", "-e", PERL], package="perl"),
    "python3": Program(["python3", "-c", PYTHON], package="python3"),
    # By name only: it takes a quarter of an hour
    "python3-1g": Program(["python3", "-c", PYTHON.replace("135000", "930000")], package="python3"),
    "numpy": Program(["/usr/bin/python3", "-c", NUMPY], package="python3-numpy"),
    "ruby": Program(["ruby", "-e", RUBY], package="ruby"),
    "lua": Program(["lua5.4", "-e", LUA], package="lua5.4"),
    "php": Program(["php", "-r", PHP], package="php-cli"),
    "gawk": Program(["gawk", GAWK], package="gawk"),
    "node": Program(["node", "-e", NODE], package="nodejs"),
    "tcl": Program(["tclsh", "program"], package="tcl"),
    "sqlite3": Program(["sqlite3", "-batch", ":memory:"], package="sqlite3"),
    "xz": Program(["xz", "-7", "-T1", "-c"], 150, "xz-utils"),
    "zstd": Program(["zstd", "-q", "-12", "--long=27", "-c"], 160, "zstd"),
    "cc1": Program([CC1, "-quiet", "-O1", "-o", "-", "-"], 120, "gcc"),
}


def source(name: str) -> Path:
    """What it reads: more than it gets through in our time."""
    path = WORK / f"{name}.in"
    if path.exists():
        return path
    with path.open("w") as file:
        if name == "cc1":
            for n in range(9000):
                file.write(f"int f{n}(int *a, int n)\n{{\n\tint i, s = {n};\n\tfor (i = 0; i < n; i++)\n"
                           f"\t\tif (a[i] % {n % 97 + 2}) s += a[i] * {n}; else s ^= a[i] >> {n % 7};\n\treturn s;\n}}\n")
        elif name == "sqlite3":
            file.write(SQLITE)
            for n in range(400000):
                at = n * 37 % 30000
                file.write(f"select sum(length(value)) from t where id between {at} and {at + 50};\n"
                           f"update t set name = 'changed {n}' where id = {at};\n")
        elif PROGRAMS[name].megabytes:
            seed = 1
            for n in range(1200000 if name == "zstd" else 400000):
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


Positions = dict[str, int]      # of what it reads and writes, by path


def positions_in(directory: Path) -> Positions:
    """As they were at the checkpoint: it has worked when one differs."""
    data = (directory / "files.img").read_bytes()
    at, found = 8, {}
    while at < len(data):
        size, = struct.unpack_from("<I", data, at)
        regular = fields(data[at + 4:at + 4 + size]).get(3)
        if isinstance(regular, bytes):
            known = fields(regular)
            position, name = known.get(3, 0), known.get(6, b"")
            assert isinstance(position, int) and isinstance(name, bytes)
            found[name.decode()] = position
        at += 4 + size
    return found


def progress(pid: int, before: Positions) -> int:
    """Bytes that it has read and written since then"""
    done = 0
    for number in 0, 1:
        try:
            path = os.readlink(f"/proc/{pid}/fd/{number}")
            now = int(Path(f"/proc/{pid}/fdinfo/{number}").read_text().split()[1])
        except (OSError, IndexError):
            continue
        if path.startswith(str(WORK)):
            done += max(0, now - before.get(path, 0 if not before else now))
    return done


def pace(pid: int) -> float:
    """Bytes in a second, of an undisturbed process"""
    before, seconds = progress(pid, {}), 4
    time.sleep(seconds)
    return (progress(pid, {}) - before) / seconds


class Watch(threading.Thread):
    """When the process has done something, and when as much as it does in a second."""

    def __init__(self, pid: int, before: Positions, second: float) -> None:
        super().__init__(daemon=True)
        self.pid, self.before, self.amount, self.stop = pid, before, second, False
        self.first = self.second = 0.0
        self.begin = 0
        self.start()

    def run(self) -> None:
        while not self.second and not self.stop:
            done = progress(self.pid, self.before)
            if done and not self.first:
                # What it appends goes behind what it wrote after the checkpoint: that is none of this work
                self.begin, self.first = done, time.monotonic()
            if self.first and done >= self.begin + self.amount:
                self.second = time.monotonic()
            time.sleep(0.02)

    def done(self) -> int:
        """Bytes of its work until now"""
        return max(0, progress(self.pid, self.before) - self.begin) if self.first else 0


def end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
        while True:
            os.kill(pid, 0)
            time.sleep(0.01)
    except ProcessLookupError:
        pass


def memory(pid: int) -> float:
    """In megabytes; 0 when it has ended."""
    found = re.search(r"^VmRSS:\s*(\d+)", Path(f"/proc/{pid}/status").read_text(), re.M)
    return int(found[1]) / 1024 if found else 0


def huge(pid: int) -> float:
    """Huge pages of its own, in megabytes"""
    found = re.search(r"^AnonHugePages:\s*(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)
    return int(found[1]) / 1024 if found else 0


def start(name: str) -> subprocess.Popen:
    command, wanted, _ = PROGRAMS[name]
    place = WORK / name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    if name == "tcl":
        (place / "program").write_text(TCL)
    with source(name).open("rb") as stdin, (place / "out").open("ab") as out, (place / "errors").open("ab") as errors:
        process = subprocess.Popen(command, cwd=place, stdin=stdin, stdout=out, stderr=errors, start_new_session=True)
    deadline = time.monotonic() + 900
    while not (memory(process.pid) >= wanted if wanted else (place / "ready").exists()):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise Skip(f"it did not get to the middle of its work: status {process.poll()}, "
                       f"{(place / 'errors').read_text()[-300:]}")
        time.sleep(0.2)
    time.sleep(2)
    return process


class Skip(Exception):
    """Why a program is not measured."""


def read_from(disk: Path) -> int:
    """Bytes, since the start."""
    device = os.stat(disk).st_dev
    text = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat").read_text()
    return int(text.split()[2]) * 512


def last_error(log: Path) -> str:
    return (re.findall(r"Error .*", log.read_text(errors="replace")) or [""])[-1]


def restore(way: str, options: list[str], directory: Path, pid: int, second: float) -> dict:
    subprocess.run(["sh", "-c", "sync; echo 3 >/proc/sys/vm/drop_caches"], check=True)
    for program in ("criu", "frem"):    # the programs themselves are on no such disk
        subprocess.run([program, "--help"], stdout=subprocess.DEVNULL, check=False)
    work = WORK / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    watch = Watch(pid, positions_in(directory), second)
    common = ["-D", str(directory), "-W", str(work), "-o", str(work / "log")]
    result: dict = {"faults": 0}
    read = read_from(directory)
    begin = time.monotonic()
    if way == "CRIU":
        subprocess.run(["criu", "restore", "-d", *common], check=True)
        result["running"] = result["loaded"] = time.monotonic() - begin
    elif way == "lazy-pages":
        daemon = subprocess.Popen(["criu", "lazy-pages", "-v4", "-D", str(directory), "-W", str(work),
                                   "-o", str(work / "lazy.log")])
        try:
            while not (work / "lazy-pages.socket").exists() and daemon.poll() is None:
                time.sleep(0.005)
            subprocess.run(["criu", "restore", "-d", "--lazy-pages", *common], check=True)
            result["running"] = time.monotonic() - begin
            if daemon.wait(900):
                raise Skip(f"the daemon ended with status {daemon.returncode}: {last_error(work / 'lazy.log')}")
            result["loaded"] = time.monotonic() - begin
        finally:
            daemon.kill()
        result["faults"] = len(re.findall("#PF at", (work / "lazy.log").read_text()))
    else:
        done = subprocess.run(["frem", "restore", "--json", "--dir", str(directory), *options],
                              stdout=subprocess.PIPE, check=True, timeout=900)
        whole = time.monotonic() - begin
        told = json.loads(done.stdout)
        if told["mode"] != "lazy":
            raise Skip(f"frem fell back: {told['why']}")
        result["loaded"] = whole
        result["running"] = whole - told["loaded_s"] + told["running_s"]
        result["faults"] = told["loader"]["faults"]
        result["loader"] = told["loader"]
        result["phases"] = {"started": whole - told["loaded_s"], **told["phases"]}
    done_meanwhile = watch.done()
    result["read"] = read_from(directory) - read
    end_of_watch = time.monotonic() + 60
    while not watch.second and time.monotonic() < end_of_watch and os.path.exists(f"/proc/{pid}"):
        time.sleep(0.01)
    watch.stop = True
    result["work"] = watch.first - begin if watch.first else None
    result["second"] = watch.second - begin if watch.second else None
    # How much later it is, when all is loaded, than if all had been there since it ran: its own pace right afterwards says so
    after = pace(pid) if os.path.exists(f"/proc/{pid}") else 0
    if after:
        result["pace"], result["huge"] = after / second, huge(pid)
    result["cost"] = result["loaded"] - result["running"] - done_meanwhile / after if after else None
    end(pid)
    return result


def checkpoint(pid: int, directory: Path, rate: str, former: Path | None) -> dict:
    taken = subprocess.run(["frem", "checkpoint", str(pid), "--dir", str(directory), "--json",
                            *(["--rate", rate] if rate != "0" else []), *(["--after", str(former)] if former else [])],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if taken.returncode:
        raise Skip(taken.stderr)
    return json.loads(taken.stdout)


def measure(name: str, disks: list[tuple[str, Path]]) -> None:
    process = start(name)
    told: dict[str, dict] = {}
    former = disks[0][1] / f"{name}-first"
    second, had = pace(process.pid), huge(process.pid)
    try:
        # The windows adapt to the checkpoint before
        first = checkpoint(process.pid, former, disks[0][0], None)
        for rate, place in disks:
            told[rate] = checkpoint(process.pid, place / name, rate, former)
        if process.poll() is not None:
            raise Skip("it ended before it was checkpointed")
    finally:
        process.kill()
        process.wait()
    ways = [(rate, way, options, place / name, told[rate]) for rate, place in disks for way, options in (
        ("CRIU", []), ("lazy-pages", []), ("frem", []), ("frem --preload", ["--preload"]))]
    for rate, way, options, directory, taken in [*ways, (disks[0][0], "conservative", ["--preload"], former, first)]:
        try:
            result = restore(way, options, directory, process.pid, second)
        except (Skip, subprocess.SubprocessError) as e:
            result = {"failed": str(e).strip()}
            end(process.pid)
        print(json.dumps({"bench": "restore", "program": name, "rate": rate, "way": way, "bytes": taken["bytes"],
                          "touched": taken["touched_bytes"], "window": taken.get("window_s"), "dump": taken["dump_s"],
                          "tracking": taken["tracking"], "had_huge": had, **result}), flush=True)
    for directory in former, *(place / name for _, place in disks):
        shutil.rmtree(directory)


def main() -> None:
    names, *rates = sys.argv[1:]
    WORK.mkdir()
    disks = []
    for number, rate in enumerate(rates):
        device, place = f"/dev/vd{'abcdefgh'[number]}", Path(f"/tmp/disk{number}")
        place.mkdir()
        subprocess.run(["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard", device], check=True)
        subprocess.run(["mount", device, str(place)], check=True)
        disks.append((rate, place))
    for name in names.split(","):
        why = "" if shutil.which(PROGRAMS[name].command[0]) else f"install {PROGRAMS[name].package}"
        try:
            if not why:
                measure(name, disks)
        except (Skip, subprocess.SubprocessError) as e:
            why = str(e).strip()
        if why:
            print(json.dumps({"bench": "restore", "program": name, "skipped": why}), flush=True)


if __name__ == "__main__":
    main()
