# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs one command in a virtual machine whose root is the host's file system, read-only below a layer in memory."""

import hashlib
import os
import pwd
import re
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import time
import tty
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
INIT = HERE / "vm-init"     # beside this file where it is installed, for perdure-vm; else compiled when it is needed
INSTALLED = INIT.exists()
TOP = HERE if INSTALLED else HERE.parents[1]


def find_cache() -> Path:
    """Never a name in /tmp that others can foresee."""
    if where := os.environ.get("XDG_CACHE_HOME"):
        return Path(where)
    homes = [os.environ.get("HOME", "")]
    with suppress(KeyError):
        homes.append(pwd.getpwuid(os.getuid()).pw_dir)
    for cache in (Path(home, ".cache") for home in homes if home):
        if os.access(cache if cache.exists() else cache.parent, os.W_OK):
            return cache
    return Path(tempfile.mkdtemp(prefix="perdure-"))


BUILD = find_cache() / "perdure" if INSTALLED else TOP / "build"
# Another architecture's guests have a directory of its own, and a root in it (scripts/guest-root.sh)
ARCH = os.environ.get("PERDURE_ARCH", "x86_64")
ROOT = Path("/")
if ARCH != "x86_64":
    BUILD /= ARCH
    ROOT = BUILD / "root"
LOG = BUILD / "log"

DIED = 125      # no verdict: the guest died or never came up
TIMEOUT = 124

# Covered by memory in the guest (vm-tests/init/init.c): what the job needs from there is bound back
COVERED = ("/tmp", "/run", "/var/tmp", "/dev/shm")


class Error(Exception):
    """Something outside of the guest is wrong; the text says what and what to do."""


@dataclass
class Job:
    argv: list[str]
    cwd: str
    env: dict[str, str] = field(default_factory=dict)
    rw: list[str] = field(default_factory=list)
    terminal: os.terminal_size | None = None


@dataclass
class Machine:
    vmlinux: Path
    console: Path
    memory: str = "1G"
    cpus: int = 2
    _: KW_ONLY
    icount: bool = False
    slow: int | None = None     # one processor that takes 2^slow ns for an instruction, by the wall clock
    timeout: float | None = None
    boot_timeout: float = 300
    drives: list["Drive"] = field(default_factory=list)
    accel: str | None = None    # "kvm" or "tcg"; by default what works
    append: str = ""            # to the kernel's command line
    more: list[str] = field(default_factory=list)   # arguments of QEMU's: devices of a test's own


@dataclass
class Drive:
    """A disk of the guest, /dev/vda and so on; what it reads in a second may be limited, and as much what it writes."""
    file: Path
    rate: int = 0       # bytes; 0: no limit


@dataclass
class Result:
    status: int         # of the command, or DIED or TIMEOUT
    why: str = ""       # one line, when there is no verdict


def short(path: Path) -> str:
    return os.path.relpath(path, TOP) if path.is_relative_to(TOP) else str(path)


def environment(**more: str) -> dict[str, str]:
    """The same in every guest, whatever the user has set."""
    user = BUILD / "userspace" / "userspace"
    # One of the examples is called echo
    tools = [str(d) for d in sorted(user.glob("*")) if d.is_dir() and d.name != "examples"] if user.is_dir() else []
    return {"PATH": ":".join([*tools, "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]),
            "LD_LIBRARY_PATH": str(user / "libperdure"), "HOME": "/root", "LANG": "C.UTF-8",
            "TERM": os.environ.get("TERM", "dumb"), "PYTHONDONTWRITEBYTECODE": "1",
            "PERDURE_TOP": str(TOP), "PERDURE_BUILD": str(BUILD), **more}


def init_program() -> Path:
    """The guest's process 1, compiled when its source changed."""
    if INSTALLED:
        return INIT
    source = TOP / "vm-tests" / "init" / "init.c"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    program = BUILD / "vm" / f"init-{digest}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        temporary = program.with_suffix(f".{os.getpid()}")
        compiler = "gcc" if ARCH == "x86_64" else "aarch64-linux-gnu-gcc"
        done = subprocess.run([compiler, "-static", "-O2", "-Wall", "-Wextra", "-o", str(temporary), str(source)],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            raise Error(f"cannot compile {short(source)}: {done.stderr.strip()[-300:]}")
        temporary.rename(program)
    return program


def cpio(files: dict[str, tuple[int, bytes]]) -> bytes:
    """A "newc" archive of files: name -> (mode, content)."""
    out = bytearray()
    for number, (name, (mode, data)) in enumerate([*files.items(), ("TRAILER!!!", (0, b""))], start=1):
        path = name.encode() + b"\0"
        header = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(path), 0)
        out += b"070701" + b"".join(b"%08X" % value for value in header) + path
        out += bytes(-len(out) % 4) + data
        out += bytes(-len(out) % 4)
    return bytes(out)


def mounted(job: Job) -> list[tuple[str, bool]]:
    """Directories of the host that the guest mounts beside its root, and whether it may write them."""
    # One that lies in another is mounted with that
    rw = [path for path in dict.fromkeys(job.rw) if not any(path != other and Path(path).is_relative_to(other) for other in job.rw)]
    return [(str(TOP), False)] * (ROOT != Path("/")) + [(path, True) for path in rw]


def initramfs(job: Job) -> bytes:
    shares = [path for path in dict.fromkeys([str(TOP), job.cwd])
              if ROOT == Path("/") and any(Path(path).is_relative_to(place) and path != place for place in COVERED)]
    shares = [path for path in shares if not any(path != other and Path(path).is_relative_to(other)
                                                 for other in shares)]
    items = [f"arg={a}" for a in job.argv] + [f"env={k}={v}" for k, v in job.env.items()]
    items += [f"share={path}" for path in shares] + [f"rw={path}" for path, _ in mounted(job)] + [f"cwd={job.cwd}"]
    if job.terminal:
        items.append(f"tty={job.terminal.lines}x{job.terminal.columns}")
    text = b"".join(os.fsencode(item) + b"\0" for item in items)
    return cpio({"init": (0o100755, init_program().read_bytes()), "job": (0o100644, text)})


def qemu() -> str:
    name = "qemu-system-x86_64" if ARCH == "x86_64" else "qemu-system-aarch64"
    path = shutil.which(name)
    if not path:
        raise Error(f"{name} is missing: " +
                    ("install QEMU (Debian: qemu-system-x86)" if INSTALLED else "run ./build.sh setup"))
    return path


def accelerator(vmlinux: Path) -> str:
    """KVM only after a guest has started under it: /dev/kvm may be there and not work. Probed once per boot."""
    if ARCH != "x86_64" or not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    cache = BUILD / "vm" / "accelerator"
    if cache.exists():
        known = cache.read_text().split()
        if known[:1] == [boot] and len(known) == 2:
            return known[1]
    print("vm: trying KVM", file=sys.stderr)
    machine = Machine(vmlinux, LOG / "kvm-probe.log", timeout=5, boot_timeout=3)
    result = run(Job(["true"], "/"), machine, accel="kvm")
    name = "kvm" if result.status == 0 else "tcg"
    print(f"vm: {'KVM works' if name == 'kvm' else 'guests do not start under KVM: using TCG, which is slower'}",
          file=sys.stderr)
    # The image may be what does not start
    if name == "tcg" and run(Job(["true"], "/"), Machine(vmlinux, LOG / "kvm-probe.log", boot_timeout=60), accel="tcg").status:
        return name
    cache.parent.mkdir(parents=True, exist_ok=True)
    cache.write_text(f"{boot} {name}\n")
    return name


def value(path: Path | str) -> str:
    """In an option of QEMU's, which are separated by commas."""
    return str(path).replace(",", ",,")


def command_line(job: Job, machine: Machine, accel: str, initrd: str, ports: dict[int, int]) -> list[str]:
    counted = machine.icount or machine.slow is not None
    if machine.icount:
        accelerated = ["-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off"]
    elif machine.slow is not None:
        accelerated = ["-accel", "tcg,thread=single", "-icount", f"shift={machine.slow},align=on"]
    else:
        accelerated = ["-accel", "tcg,thread=multi" if accel == "tcg" else accel]
    kernel, board, console, processor = machine.vmlinux, "q35,usb=off,vmport=off,smbus=off,sata=off", "ttyS0", "max"
    if INSTALLED:
        # QEMU 7.2 leaves wrong flags behind it, and kernels that are shipped allocate memory by it
        processor = "max,-cx16"
    if ARCH == "arm64":
        # What QEMU starts lies beside it. Signing pointers the architecture's way takes longer than all else
        kernel, board, console, processor = (kernel.parent / "arch/arm64/boot/Image", "virt", "ttyAMA0",
                                             "max,pauth-impdef=on")
    args = ["setpriv", "--pdeathsig", "KILL", qemu(), "-nodefaults", "-no-user-config", "-display", "none",
            "-no-reboot", "-machine", board, *accelerated,
            "-cpu", "host" if accel == "kvm" and not counted else processor,
            "-smp", "1" if counted else str(machine.cpus), "-m", machine.memory,
            "-kernel", str(kernel), "-initrd", initrd,
            "-append", f"console={console} panic=-1 oops=panic softlockup_all_cpu_backtrace=1 no_timer_check "
                       "random.trust_cpu=on"
                       # Exact when it counts instructions; else only the kernel's watchdog tells a wrong calibration
                       + (" tsc=reliable" if counted else "") + f" {machine.append}".rstrip(),
            "-chardev", f"file,id=console,path={value(machine.console)}", "-serial", "chardev:console",
            # The first of the virtio devices: its number is in the names of the ports
            "-device", "virtio-serial-pci,max_ports=8", "-device", "virtio-rng-pci",
            "-fsdev", f"local,id=root,path={value(ROOT)},security_model=none,readonly=on,multidevs=remap",
            "-device", "virtio-9p-pci,fsdev=root,mount_tag=root"]
    for number, (path, writable) in enumerate(mounted(job)):
        args += ["-fsdev", f"local,id=rw{number},path={value(path)},security_model=none,multidevs=remap"
                           + ("" if writable else ",readonly=on"),
                 "-device", f"virtio-9p-pci,fsdev=rw{number},mount_tag=rw{number}"]
    for number, drive in enumerate(machine.drives):
        limit = f",throttling.bps-read={drive.rate},throttling.bps-write={drive.rate}" if drive.rate else ""
        # Nothing on it outlives the run: the host need not write it out
        args += ["-drive", f"file={value(drive.file)},format=raw,if=none,id=drive{number},cache=unsafe{limit}",
                 "-device", f"virtio-blk-pci,drive=drive{number}"]
    args += machine.more
    for number, fd in ports.items():
        device = "virtconsole" if number == 0 else "virtserialport"
        args += ["-chardev", f"socket,id=port{number},fd={fd}",
                 "-device", f"{device},nr={number},chardev=port{number}"]
    return args


Sink = Callable[[bytes], None]


def feed(source: int, port: socket.socket) -> None:
    """Passes our input on until one side ends."""
    try:
        while data := os.read(source, 65536):
            port.sendall(data)
        port.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def run(job: Job, machine: Machine, out: Sink = lambda data: None, err: Sink = lambda data: None,
        stdin: int | None = None, accel: str | None = None) -> Result:
    """Boots, runs the job, hands its output to `out` and `err`. `stdin`: a descriptor to feed it from."""
    if not machine.vmlinux.exists():
        raise Error(f"{short(machine.vmlinux)} is missing" + ("" if INSTALLED else ": run ./build.sh kernel"))
    accel = accel or machine.accel or ("tcg" if machine.icount else accelerator(machine.vmlinux))
    machine.console.parent.mkdir(parents=True, exist_ok=True)
    if machine.console.is_file():       # and no device
        machine.console.unlink()
    (BUILD / "vm").mkdir(parents=True, exist_ok=True)

    # 0 is the terminal, 1 and 2 are output, 3 is the verdict, 4 is input
    numbers = [0, 3] if job.terminal else [1, 2, 3, 4]
    pairs = {number: socket.socketpair() for number in numbers}
    ours = {number: pair[0] for number, pair in pairs.items()}
    verdict = bytearray()
    sinks: dict[int, Sink] = {0: out, 1: out, 2: err, 3: verdict.extend}

    with tempfile.NamedTemporaryFile(prefix="initrd-", dir=BUILD / "vm") as image, \
            tempfile.TemporaryFile() as complaints, selectors.DefaultSelector() as selector:
        image.write(initramfs(job))
        image.flush()
        fds = {number: pair[1].fileno() for number, pair in pairs.items()}
        process = subprocess.Popen(command_line(job, machine, accel, image.name, fds), stdin=subprocess.DEVNULL,
                                   stdout=complaints, stderr=complaints, pass_fds=list(fds.values()))
        try:
            start = time.monotonic()
            for pair in pairs.values():
                pair[1].close()
            port = ours[0 if job.terminal else 4]
            if stdin is None:
                port.shutdown(socket.SHUT_WR)
            else:
                threading.Thread(target=feed, args=(stdin, port), daemon=True).start()
            for number in numbers:
                if number in sinks:
                    selector.register(ours[number], selectors.EVENT_READ, number)
            late = ""
            while selector.get_map() and not late:
                limits = {"boot": None if verdict else machine.boot_timeout, "end": machine.timeout}
                what, limit = min(((k, v) for k, v in limits.items() if v is not None), key=lambda item: item[1],
                                  default=("", None))
                left = None if limit is None else start + limit - time.monotonic()
                if left is not None and left <= 0:
                    late = f"the guest did not {what} within {limit:g} seconds"
                for key, _ in selector.select(left):
                    data = ours[key.data].recv(65536)
                    if data:
                        sinks[key.data](data)
                    else:
                        selector.unregister(key.fileobj)
            if not late:
                process.wait()
        finally:
            process.kill()
            process.wait()
            for s in ours.values():
                s.close()
        found = re.fullmatch(rb"boot\n(?:exit (\d+)\n)?", verdict)
        if found and found[1]:
            return Result(int(found[1]))
        if late and (verdict or what == "end"):
            return Result(TIMEOUT, late)
        complaints.seek(0)
        complaint = complaints.read().decode(errors="replace").strip().splitlines()
        why = late or ("the guest never booted" if not verdict else "the guest died without a verdict")
        return Result(DIED, why + (f" ({complaint[-1]})" if complaint else ""))


def writer(fd: int) -> Sink:
    def write(data: bytes) -> None:
        while data:
            data = data[os.write(fd, data):]
    return write


def attend(job: Job, machine: Machine) -> int:
    """Runs the job with our own input and output, and says on stderr why there is no verdict."""
    saved = None
    try:
        if job.terminal:
            print("vm: a shell on the guest; exit ends it", file=sys.stderr)
            saved = termios.tcgetattr(0)
            tty.setraw(0)
        # A terminal stays ours: reading it would stop us in the background
        stdin = 0 if job.terminal or not os.isatty(0) else None
        result = run(job, machine, writer(1), writer(2), stdin)
    finally:
        if saved:
            termios.tcsetattr(0, termios.TCSADRAIN, saved)
    if result.why:
        print(f"vm: {result.why} (console: {short(machine.console)})", file=sys.stderr)
    return result.status
