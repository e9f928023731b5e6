#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Packages on fresh systems: install, boot, upgrade, remove. PERDURE_PACKAGES_PROFILE names the kernel (server);
PERDURE_PACKAGES, a directory with packages of both releases (N/, N+1/) to take instead of building them."""

import os
import re
import shutil
import sys
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "harness"))
from points import BUILD, TOP, equal, main, mirror, run  # noqa: E402

HERE = Path(__file__).resolve().parent
VERSION = (TOP / "VERSION").read_text().strip()
# The next release. The library's file name takes three numbers and no more
NEXT = re.sub(r"\d+$", lambda last: str(int(last[0]) + 1), VERSION)
WORK = BUILD / "test" / "packages"
PROFILE = os.environ.get("PERDURE_PACKAGES_PROFILE", "server")
DIST = Path(os.environ.get("PERDURE_PACKAGES") or WORK)
# A system with its own kernel: each of the two that make an initramfs. Nothing else beside init, what the guest runs, and
# what the packages need
NEEDED = "apache2,iproute2,libinih1,libisal2,libjansson4,nftables"
SYSTEMS = {"bookworm": f"initramfs-tools,{NEEDED},libcurl4,libdw1,libmicrohttpd12",
           "trixie": f"dracut,rpm,{NEEDED},libcurl4t64,libdw1t64,libmicrohttpd12t64"}
# rpm runs scripts in a mount namespace of its own, for which the root has to be a mount
IN_ROOT = """mount --rbind "$1" "$1"; mount -t proc proc "$1/proc"; mount -t sysfs sys "$1/sys"; mount --bind /dev "$1/dev"; root=$1; shift
exec chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 "$@" """


class System:
    """A root file system. Packages of the distribution are all there before; apt in it has no network."""

    def __init__(self, release: str, *more: str) -> None:
        include = ",".join(["systemd-sysv,python3,kmod,linux-image-cloud-amd64", SYSTEMS[release], *more])
        tar = WORK / f"{release}-{zlib.crc32(include.encode()):08x}.tar"
        if not tar.exists():
            run("mmdebstrap", "--quiet", "--format=tar", "--variant=minbase", f"--include={include}", release, tar.with_suffix(".new"),
                f"deb {mirror()} {release} main")
            tar.with_suffix(".new").rename(tar)
        self.root = WORK / f"root-{os.getpid()}"
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True)
        run("tar", "-C", self.root, "-xpf", tar)
        unit = self.root / "etc/systemd/system/perdure-check.service"
        unit.write_text("[Service]\nType=oneshot\nExecStart=/usr/bin/python3 /inside.py\n[Install]\nWantedBy=multi-user.target\n")
        shutil.copy(HERE / "inside.py", self.root)
        wants = self.root / "etc/systemd/system/multi-user.target.wants"
        wants.mkdir(exist_ok=True)
        (wants / unit.name).symlink_to(f"/etc/systemd/system/{unit.name}")
        (self.root / "packages").mkdir()
        if "dracut" in SYSTEMS[release]:
            # Else it takes the drivers of the machine that runs this test
            (self.root / "etc/dracut.conf.d/hostonly.conf").write_text('hostonly="no"\n')
            stock = self.releases()[0]
            self.inside("dracut", "--force", f"/boot/initrd.img-{stock}", stock)

    def inside(self, *argv: object, ok: int | None = 0, before: str = "") -> str:
        return run("unshare", "--mount", "sh", "-ec", before + IN_ROOT, "sh", self.root, *argv, ok=ok)

    def copy(self, which: str, *patterns: str) -> list[str]:
        files = sorted(f for pattern in patterns for f in (DIST / which).glob(pattern))
        assert files, f"no {patterns} in {DIST / which}"
        for f in files:
            shutil.copy(f, self.root / "packages")
        return [f"/packages/{f.name}" for f in files]

    def apt(self, *argv: object, **kw: object) -> str:
        return self.inside("apt-get", "-y", "--no-install-recommends", *argv, **kw)

    def releases(self) -> list[str]:
        return sorted(p.name.removeprefix("vmlinuz-") for p in (self.root / "boot").glob("vmlinuz-*"))

    def ours(self) -> list[str]:
        return [r for r in self.releases() if "perdure" in r]

    def initramfs(self, release: str) -> Path:
        boot = self.root / "boot"
        return next(p for p in (boot / f"initrd.img-{release}", boot / f"initramfs-{release}.img") if p.exists())

    def boot(self, release: str, kernel: Path | None = None, initramfs: Path | None = None) -> list[str]:
        """Boots an image of it with an installed kernel and its installed initramfs; what the guest said."""
        image, console = self.root.with_suffix(".img"), WORK / f"console-{sys.argv[1]}-{release}.log"
        self.write(image)
        run("setpriv", "--pdeathsig", "KILL", "timeout", "900", *self.machine(
            image, console, kernel or self.root / "boot" / f"vmlinuz-{release}", initramfs or self.initramfs(release)))
        said = re.findall(r"PERDURE: (.*?)\r?$", console.read_text(errors="replace"), re.M)
        assert said[-1:] == ["done"], f"{release}: {said} (console: {console})"
        return said

    def write(self, image: Path) -> None:
        """A disk with what is in it now."""
        image.unlink(missing_ok=True)
        run("mke2fs", "-q", "-t", "ext4", "-d", self.root, image, "3G")

    def machine(self, image: Path, console: Path, kernel: Path, initramfs: Path, *more: str, memory: str = "1500M") -> list[str]:
        # With two, one runs into the int3 of a static key that the other has replaced, and panics: any distribution's kernel.
        # QEMU 7.2 leaves wrong flags behind cmpxchg16b: a kernel that allocates memory by it dies when an interrupt finds them
        return ["qemu-system-x86_64", "-nodefaults", "-no-reboot", "-display", "none", "-machine", "q35", "-accel", "tcg,thread=multi",
                "-cpu", "Nehalem,-cx16", "-smp", "1", "-m", memory, "-kernel", str(kernel), "-initrd", str(initramfs),
                "-append", "root=/dev/vda rw console=ttyS0 panic=-1 no_timer_check systemd.show_status=0 net.ifnames=0",
                "-drive", f"file={image},if=virtio,format=raw,cache=unsafe", "-serial", f"file:{console}", *more]

    def close(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.with_suffix(".img").unlink(missing_ok=True)


def build() -> None:
    """All packages of this release and the next are built."""
    if "PERDURE_PACKAGES" in os.environ:
        return
    for which, version in (("N+1", NEXT), ("N", VERSION)):
        shutil.rmtree(WORK / which, ignore_errors=True)
        for verb in "deb", "rpm":
            run(TOP / "build.sh", verb, "--profile", PROFILE, env={"PERDURE_DIST": str(WORK / which), "PERDURE_VERSION": version})
    for files in (DIST / "N").glob("*.deb"), (DIST / "N").glob("*.rpm"):
        assert len(list(files)) >= 4


def lint() -> None:
    """lintian and rpmlint have nothing to say that is not explained."""
    run("lintian", "--allow-root", "--fail-on", "error,warning", *(DIST / "N").glob("*.deb"))
    # Versions of rpmlint find different things
    for name, explained in (("perdure", "rpmlintrc"), ("kernel-perdure", "kernel-rpmlintrc")):
        found = run("rpmlint", "--ignore-unused-rpmlintrc", "-r", TOP / "packaging/rpm" / explained, *(DIST / "N").glob(f"{name}-*.rpm"))
        assert " 0 errors, 0 warnings" in found, found


def modules() -> None:
    """Modules are built with the headers of both kinds of package, for the kernel that they belong to."""
    place = WORK / "module"
    for kind, pattern in (("deb", "linux-headers-*.deb"), ("rpm", "kernel-perdure-devel-*.rpm")):
        shutil.rmtree(place, ignore_errors=True)
        (place / "root").mkdir(parents=True)
        package, = (DIST / "N").glob(pattern)
        run("sh", "-ec", f"cd {place}/root; " + (f"dpkg-deb -x {package} ." if kind == "deb" else
                                                  f"rpm2cpio {package} | cpio -idm --quiet --no-absolute-filenames"))
        top, = (place / "root/usr/src").glob("kernels/*" if kind == "rpm" else "*")
        (place / "Makefile").write_text("obj-m := empty.o\n")
        (place / "empty.c").write_text('#include <linux/module.h>\nMODULE_LICENSE("GPL");\nMODULE_DESCRIPTION("none");\n')
        run("make", "-C", top, f"M={place}", "modules")
        release = run("modinfo", "-F", "vermagic", place / "empty.ko").split()[0]
        equal(release, top.name.removeprefix("linux-headers-"))
    shutil.rmtree(place)


def machine() -> None:
    """perdure-vm starts the installed kernel on this machine's root; the static keys of a busy kernel are switched meanwhile."""
    place = WORK / "machine"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for pattern in DEBS[0], DEBS[2]:
        package, = (DIST / "N").glob(pattern)
        run("dpkg-deb", "-x", package, place)
    image, = (place / "boot").glob("vmlinuz-*")
    busy = """
        for n in 1 2 3; do while :; do :; done & done
        for n in $(seq 200); do echo $((n % 2)) >/proc/sys/kernel/sched_schedstats; done
        uname -r; exit 7"""
    text = run(place / "usr/bin/perdure-vm", "--kernel", image, "--accel", "tcg", "--", "sh", "-c", busy, ok=7,
               env={"XDG_CACHE_HOME": str(place / "cache")})
    assert image.name.removeprefix("vmlinuz-") in text, text
    shutil.rmtree(place)


def protects(said: list[str], release: str) -> None:
    equal(said, [f"kernel {release}", "download equal, server alive",
                 "unit: 5 restarts by the kernel, 0 by perdurectl, 1 by systemd", "points set, function returned 0",
                 "takeover alone, page served", "removed: points 1 before, 0 after, 0 units run, 0 enabled", "done"])


DEBS = ("linux-image-*-perdure*_amd64.deb", "libperdure0_*.deb", "perdure-tools_*.deb", "python3-perdure_*.deb",
        "libreplay0_*.deb", "replayctl_*.deb", "rescuectl_*.deb", "libtakeover0_*.deb", "takeoverd_*.deb", "libapache2-mod-takeover_*.deb")
RPMS = ("perdure-0*.rpm", "perdure-replay-0*.rpm", "perdure-rescue-0*.rpm", "perdure-takeover-0*.rpm", "perdure-mod-takeover-0*.rpm")
system: System


def refuse() -> None:
    """A full /boot stops the installation before it begins; the system is as it was."""
    before = system.releases()
    text = system.apt("install", *system.copy("N", DEBS[0]), ok=None,
                      before='mkdir -p "$1/boot"; mount -t tmpfs -o size=8M small "$1/boot"; ')
    assert "are free in /boot" in text, text[-2000:]
    equal(system.releases(), before)
    equal(system.inside("dpkg", "--audit").strip(), "")


def interrupt() -> None:
    """A hook that fails leaves a message and the old kernel; dpkg --configure -a goes on from there."""
    hook = system.root / "etc/kernel/postinst.d/000-fail"
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    text = system.apt("install", *system.copy("N", *DEBS), ok=None)
    assert "the kernels installed before are untouched" in text, text[-2000:]
    hook.unlink()
    system.inside("dpkg", "--configure", "-a")
    equal(system.inside("dpkg", "--audit").strip(), "")


def install() -> None:
    """The installed kernel boots with the installed initramfs, and a download outlives the server's fault."""
    ours = system.ours()
    equal(len(ours), 1)
    protects(system.boot(ours[0]), ours[0])


def both(old: str) -> None:
    """Two of ours, each with its own initramfs, and both boot."""
    equal(len(system.ours()), 2)
    equal(len({system.initramfs(r) for r in system.ours()}), 2)
    for release in sorted(system.ours(), key=lambda r: r != old):
        protects(system.boot(release), release)


def replay() -> None:
    """A server of libreplay, in Python, executes each request once, over kill -9."""
    shutil.copy(HERE / "replay.py", system.root)
    where = "/usr/lib/perdure/python" if sys.argv[1] == "rpm" else ""
    # What root imports is compiled beside it, and stays
    said = system.inside("env", f"PYTHONPATH={where}", "PYTHONDONTWRITEBYTECODE=1", "python3", "/replay.py")
    equal(said.splitlines()[-1], "2 2 3, the log is whole")


def upgrade() -> None:
    """The next release is installed beside this one, which still boots."""
    old = system.ours()[0]
    system.apt("install", *system.copy("N+1", *DEBS))
    both(old)


def plain() -> None:
    """With the tools under the distribution's kernel the server is an ordinary one."""
    stock = [r for r in system.releases() if "perdure" not in r]
    said = system.boot(stock[0])
    equal(said, [f"kernel {stock[0]}", "download damaged, server dead", "unit: 0 restarts by the kernel, 5 by perdurectl, 1 by systemd",
                 "points not set, function SIGSEGV", "takeover alone, without the kernel, page served",
                 "removed: points 0 before, 0 after, 0 units run, 0 enabled", "done"])


def remove() -> None:
    """Removed, nothing of ours is left, and the distribution's kernel boots."""
    names = re.findall(r"^(\S*(?:perdure|replay|rescuectl|takeover)\S*)", system.inside("dpkg-query", "-W", "-f", "${Package}\n"), re.M)
    system.apt("purge", *names)
    gone(system)


def gone(where: System) -> None:
    names = "*perdure*", "libreplay*", "replay.*", "replayctl*", "rescuectl*", "rescue-points*", "*takeover*"
    left = [str(p) for d in ("boot", "usr", "var", "etc") for name in names for p in (where.root / d).rglob(name)]
    equal([p for p in left if "perdure-check.service" not in p], [])
    stock = where.releases()
    equal(where.boot(stock[0]), [f"kernel {stock[0]}", "done"])


def rpm_entry() -> None:
    """Where the boot loader reads entries, kernel-install adds one; what it names boots; erased, it goes."""
    settings = {"entry-token": "here", "install.conf": "layout=bls\nBOOT_ROOT=/boot\n", "cmdline": "root=/dev/vda rw"}
    for name, text in settings.items():
        (system.root / "etc/kernel" / name).write_text(text)
    system.inside("rpm", "-i", "--nodeps", *system.copy("N", "kernel-perdure-6*.rpm"))
    boot = system.root / "boot"
    entry, = (boot / "loader/entries").glob("here-*.conf")
    fields = dict(line.split(None, 1) for line in entry.read_text().splitlines() if line and not line.startswith("#"))
    equal(fields["options"].strip(), settings["cmdline"])
    equal(system.ours(), [])        # nothing beside the entry's own
    kernel, initramfs = (system.root / fields[name].strip().lstrip("/") for name in ("linux", "initrd"))
    release = fields["version"].strip()
    equal(system.boot(release, kernel, initramfs), [f"kernel {release}", "done"])
    system.inside("rpm", "-e", "kernel-perdure")
    equal([str(p) for p in (entry, kernel, initramfs) if p.exists()], [])
    for name in settings:
        (system.root / "etc/kernel" / name).unlink()
    shutil.rmtree(boot / "loader")
    shutil.rmtree(boot / "here", ignore_errors=True)


def grubby() -> list[str]:
    """What grubby, which Debian does not have, was asked to do."""
    log = system.root / "grubby.log"
    return log.read_text().splitlines() if log.exists() else []


def rpm_install() -> None:
    """rpm -i makes an initramfs with dracut, tells grubby, of SELinux too, and a download outlives the server's fault."""
    script = system.root / "usr/bin/grubby"
    script.write_text('#!/bin/sh\necho "$*" >>/grubby.log\n')
    script.chmod(0o755)
    (system.root / "etc/selinux").mkdir(exist_ok=True)
    (system.root / "etc/selinux/config").write_text("SELINUX=enforcing\n")
    # Debian's rpm does not know what dpkg has installed
    packages = system.copy("N", "kernel-perdure-6*.rpm", *RPMS)
    system.inside("rpm", "-i", "--nodeps", *packages)
    # Where that distribution has its libraries, Debian does not look
    (system.root / "etc/ld.so.conf.d/lib64.conf").write_text("/usr/lib64\n")
    system.inside("ldconfig")
    release, = system.ours()
    equal(grubby(), [f"--add-kernel=/boot/vmlinuz-{release} --initrd=/boot/initramfs-{release}.img --copy-default "
                     f"--title=Perdure ({release})", f"--update-kernel=/boot/vmlinuz-{release} --args=security=selinux"])
    install()


def rpm_upgrade() -> None:
    """The next release's kernel is installed beside this one, which still boots; the tools are replaced."""
    old = system.ours()[0]
    system.inside("rpm", "-i", "--nodeps", *system.copy("N+1", "kernel-perdure-6*.rpm"))
    system.inside("rpm", "-U", "--nodeps", *system.copy("N+1", *RPMS))
    both(old)


def rpm_missing() -> None:
    """Without dracut it says what to do, and that helps."""
    dracut = system.root / "usr/bin/dracut"
    dracut.rename(dracut.with_name("dracut.away"))
    package = system.copy("N", "kernel-perdure-6*.rpm")
    text = system.inside("rpm", "-i", "--nodeps", *package)
    assert "dracut is not installed" in text and "rpm -i --replacepkgs" in text, text
    dracut.with_name("dracut.away").rename(dracut)
    system.inside("rpm", "-i", "--nodeps", "--replacepkgs", *package)
    assert system.initramfs(system.ours()[0]).stat().st_size > 1 << 20
    system.inside("rpm", "-e", "kernel-perdure")


def rpm_remove() -> None:
    """Erased, nothing of ours is left, grubby knows, and the distribution's kernel boots."""
    ours = system.ours()
    system.inside("rpm", "-e", "--allmatches", "--nodeps", *system.inside("rpm", "-qa").split())
    equal(sorted(grubby()[4:]), [f"--remove-kernel=/boot/vmlinuz-{release}" for release in ours])
    gone(system)


if __name__ == "__main__":
    WORK.mkdir(parents=True, exist_ok=True)
    part = sys.argv[1]
    if part == "build":
        main(build, lint, modules, machine)
    assert os.getuid() == 0, "needs root: it makes file systems and installs packages into them"
    system = System("trixie" if part == "rpm" else part)
    deb = [refuse, interrupt, install, replay, plain, upgrade, remove]
    try:
        main(*([rpm_missing, rpm_entry, rpm_install, replay, rpm_upgrade, rpm_remove] if part == "rpm" else deb))
    finally:
        system.close()
