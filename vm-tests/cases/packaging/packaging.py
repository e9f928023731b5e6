#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The packages of the library and the tools, and what packaging says when it cannot go on."""

import hashlib
import http.client
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "harness"))
from points import BUILD, TOP, VMLINUX, equal, main, run  # noqa: E402

VERSION = (TOP / "VERSION").read_text().strip()
scratch = tempfile.TemporaryDirectory(prefix="packaging-", dir=BUILD)
WORK = Path(scratch.name)


def build(verb: str, place: str, what: str = "userspace", **env: str) -> dict[str, Path]:
    dist = WORK / place
    run(TOP / "build.sh", verb, what, env={"PERDURE_DIST": str(dist), **env})
    return {p.name: p for p in dist.iterdir()}


def sums(files: dict[str, Path]) -> dict[str, str]:
    return {n: hashlib.sha256(p.read_bytes()).hexdigest() for n, p in files.items() if n.endswith(("deb", "rpm"))}


def deb_files(path: Path) -> set[str]:
    return {line.split()[5].removeprefix(".") for line in run("dpkg-deb", "-c", path).splitlines()
            if not line.startswith("d")}


def units(names: Iterable[str]) -> list[str]:
    """Of systemd, of those files."""
    return [name.rpartition("/")[2] for name in names if "/systemd/system/" in name]


def copy() -> Path:
    """Of this repository, to change."""
    tree = WORK / f"tree-{len(list(WORK.iterdir()))}"
    run("git", "clone", "-q", "--shared", TOP, tree)
    for part in "configs", "scripts", "packaging":
        shutil.copytree(TOP / part, tree / part, dirs_exist_ok=True)
    shutil.copy(TOP / "build.sh", tree)
    return tree


def configs() -> None:
    """Every request of the configurations that are shipped is met, those without a build included."""
    for profile in "server", "server-debug", "full", "full-debug":
        run(TOP / "scripts/kernel.sh", "--profile", profile, "--configure", WORK / profile)
        lines = (WORK / profile / ".config").read_text().splitlines()
        for option in "ZLR", "ZLR_IO", "DEBUG_INFO_BTF", "VIRTIO_PCI", "NET_9P_VIRTIO", "OVERLAY_FS", "MODULE_SIG", "EFI_STUB":
            assert f"CONFIG_{option}=y" in lines, f"{profile}: no {option}"
        for option in "BLK_DEV_NVME", "SATA_AHCI", "XFS_FS", "BTRFS_FS", "DM_CRYPT", "NF_TABLES", "SQUASHFS", "HYPERV_NET", "E1000E":
            assert f"CONFIG_{option}=m" in lines, f"{profile}: {option} is not a module"


def unmet() -> None:
    """A request that does not stick fails the build and is named."""
    tree = copy()
    with (tree / "configs/server.config").open("a") as f:
        f.write("CONFIG_NO_SUCH_DRIVER=m\n")
    (tree / "build").mkdir()
    (tree / "build/linux").symlink_to(BUILD / "linux")
    text = run(tree / "scripts/kernel.sh", "--profile", "server", "--configure", WORK / "unmet", ok=None)
    assert "configuration requests not met: CONFIG_NO_SUCH_DRIVER=m" in text, text


def debs() -> None:
    """The .debs hold what they should and nothing of the tests, twice the same; lintian has nothing to say."""
    first = build("deb", "deb1")
    (BUILD / "deb").rename(WORK / "deb-elsewhere")
    again = build("deb", "deb2")
    equal(sums(again), sums(first))
    files = {n.split("_")[0]: deb_files(p) for n, p in first.items() if n.endswith(".deb")}
    assert {"libperdure0", "libperdure-dev", "libreplay0", "libreplay-dev", "perdure-tools", "replayctl", "libtakeover0", "libtakeover-dev", "takeoverd", "rescuectl"} <= set(files), files
    for package, want in (("libperdure0", f"/usr/lib/x86_64-linux-gnu/libperdure.so.{VERSION}"),
                          ("libperdure-dev", "/usr/include/perdure/zlr.h"),
                          ("libperdure-dev", "/usr/lib/x86_64-linux-gnu/libperdure.a"),
                          ("libperdure-dev", "/usr/share/man/man2/hread.2.gz"),
                          ("perdure-tools", "/usr/bin/perdure-vm"), ("perdure-tools", "/usr/sbin/zhttpd"),
                          ("perdure-tools", "/usr/share/man/man1/perdure-vm.1.gz"),
                          ("libreplay0", f"/usr/lib/x86_64-linux-gnu/libreplay.so.{VERSION}"),
                          ("libreplay-dev", "/usr/include/replay.h"),
                          ("libreplay-dev", "/usr/lib/x86_64-linux-gnu/libreplay.a"),
                          ("libreplay-dev", "/usr/lib/x86_64-linux-gnu/pkgconfig/libreplay.pc"),
                          ("libreplay-dev", "/usr/share/man/man3/replay_uuid.3.gz"),
                          ("replayctl", "/usr/bin/replayctl"), ("replayctl", "/usr/share/man/man5/replay.conf.5.gz"),
                          ("replayctl", "/usr/share/man/man7/replay.7.gz"),
                          ("replayctl", "/usr/share/man/man8/replayctl.8.gz"),
                          ("libtakeover0", f"/usr/lib/x86_64-linux-gnu/libtakeover.so.{VERSION}"),
                          ("libtakeover-dev", "/usr/include/takeover.h"),
                          ("libtakeover-dev", "/usr/lib/x86_64-linux-gnu/libtakeover.a"),
                          ("libtakeover-dev", "/usr/share/man/man3/takeover_leave.3.gz"),
                          ("libapache2-mod-takeover", "/usr/lib/apache2/modules/mod_takeover.so"),
                          ("libapache2-mod-takeover", "/etc/apache2/mods-available/takeover.load"),
                          ("libapache2-mod-takeover", "/usr/share/man/man5/mod_takeover.5.gz"),
                          ("libnginx-mod-http-takeover", "/usr/lib/nginx/modules/ngx_http_takeover_module.so"),
                          ("libnginx-mod-http-takeover", "/usr/share/nginx/modules-available/mod-http-takeover.conf"),
                          ("libnginx-mod-http-takeover", "/usr/share/man/man5/ngx_http_takeover_module.5.gz"),
                          ("takeoverd", "/usr/sbin/takeoverd"), ("takeoverd", "/usr/sbin/takeoverctl"),
                          ("takeoverd", "/usr/share/man/man5/takeover.conf.5.gz"), ("rescuectl", "/usr/sbin/rescuectl"),
                          ("rescuectl", "/usr/share/man/man5/rescue.d.5.gz"), ("rescuectl", "/usr/share/man/man8/rescuectl.8.gz")):
        assert want in files[package], f"{package}: no {want}"
        equal([other for other, names in files.items() if want in names], [package])
    # Where the manual has the first file made
    for package, directory in (("takeoverd", "etc/perdure"), ("rescuectl", "etc/perdure/rescue.d")):
        path, = (p for n, p in first.items() if n.startswith(f"{package}_") and n.endswith(".deb"))
        assert f" ./{directory}/\n" in run("dpkg-deb", "--contents", path), package
    # The scripts know the units: one is stopped when its package goes, and what enables it is gone when that is purged
    equal({package: units(names) for package, names in files.items() if units(names)},
          {"perdure-tools": ["perdure-watch.service"], "rescuectl": ["rescue-points.service"],
           "takeoverd": ["takeoverd.service"]})
    for package, names in files.items():
        path, = (p for n, p in first.items() if n.startswith(f"{package}_") and n.endswith(".deb"))
        for unit in units(names):
            for script, does in (("postinst", "deb-systemd-helper update-state"), ("prerm", "deb-systemd-invoke stop"),
                                 ("postrm", "deb-systemd-helper purge")):
                text = run("dpkg-deb", "--info", path, script)
                assert f"{does} '{unit}'" in text, f"{package}, {script}: {text}"
            text = run("dpkg-deb", "--info", path, "postinst")
            # Points are there while their package is upgraded
            equal(f"deb-systemd-invoke $_dh_action '{unit}'" in text, unit != "rescue-points.service")
            # Who writes its files enables it
            assert f"deb-systemd-helper debian-installed '{unit}'" in text, text
    for package, names in files.items():
        for rung in "replay", "takeover":
            if rung not in package:
                equal([n for n in names if rung in n and "/python3" not in n], [])
    for package, names in files.items():
        bad = [n for n in names if any(w in n for w in ("faults", "unit-", "bench", "__pycache__", "/usr/local"))]
        assert not bad, f"{package}: {bad}"
    run("lintian", "--allow-root", "--fail-on", "error,warning", *[p for n, p in first.items() if n.endswith(".deb")])
    run("sh", "-c", f"cd {WORK / 'deb1'} && sha256sum --check --quiet SHA256SUMS")


SERVER = """
#include <stdio.h>
#include <replay.h>

static int add(struct replay_call *call, const void *body, size_t size, void *arg)
{
	int64_t sum;

	if (replay_add(call, "sum", size, &sum))
		return 500;
	replay_reply_text(call, "%lld", (long long)sum);
	return 200;
}

int main(int argc, char **argv)
{
	struct replay_server *server = replay_new();

	return replay_method(server, "add", 1, add, NULL) || replay_main(server, argv[argc - 1]);
}
"""


def ask(port: int, key: str, body: str) -> str:
    """Again until it is answered, as a client does."""
    end = time.monotonic() + 120
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request("POST", "/add", body, {"Idempotency-Key": key})
            answer = connection.getresponse()
            if answer.status != 503:
                return answer.read().decode()
        except OSError:
            pass
        finally:
            connection.close()
        assert time.monotonic() < end, "the server does not answer"
        time.sleep(0.05)


def serves(program: Path, ctl: Path, libraries: Path) -> None:
    """A server that was built with installed packages executes a request once, over kill -9."""
    env = {"LD_LIBRARY_PATH": str(libraries)}
    log, conf, control = (program.with_suffix(suffix) for suffix in (".log", ".conf", ".sock"))
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = int(s.getsockname()[1])
    conf.write_text(f"[server]\nname = sum\nlog = {log}\nlisten = 127.0.0.1:{port}\ncontrol = {control}\n")
    run(ctl, "format", log, "--size", "2M", env=env)
    for key, body, want in (("one", "xx", "2"), ("one", "xx", "2"), ("two", "x", "3")):
        server = subprocess.Popen([program, conf], env=os.environ | env, stderr=subprocess.PIPE, text=True)
        try:
            equal(ask(port, key, body), want)
            assert "serving" in run(ctl, "status", control, env=env)
        finally:
            server.kill()
            server.communicate()
    assert "whole" in run(ctl, "verify", log, env=env)


def libreplay() -> None:
    """libreplay's packages, in a root of their own: a server is built with them, and serves; purged, nothing is left."""
    root = WORK / "root-replay"
    (root / "var/lib/dpkg/info").mkdir(parents=True)
    (root / "var/lib/dpkg/status").touch()
    debs = {n.split("_")[0]: p for n, p in ((p.name, p) for p in (WORK / "deb1").glob("*.deb"))}
    names = ["libreplay0", "libreplay-dev", "replayctl"]
    dpkg = ["fakeroot", "dpkg", f"--root={root}", "--force-depends", f"--log={WORK / 'dpkg.log'}"]
    run(*dpkg, "--install", *(debs[n] for n in names))
    libraries = root / "usr/lib/x86_64-linux-gnu"
    source = WORK / "sum.c"
    source.write_text(SERVER)
    env = {"PKG_CONFIG_LIBDIR": str(libraries / "pkgconfig"), "PKG_CONFIG_SYSROOT_DIR": str(root)}
    flags = run("pkg-config", "--cflags", "--libs", "libreplay", env=env).split()
    run("cc", "-Wall", "-Werror", "-o", WORK / "sum", source, *flags)
    serves(WORK / "sum", root / "usr/bin/replayctl", libraries)
    # What dpkg-shlibdeps reads for programs of others
    assert "REPLAY_0.1@REPLAY_0.1 0.1.0" in run("dpkg-deb", "--info", debs["libreplay0"], "symbols")
    # A server in production needs nothing of the rest
    for name in names:
        depends = run("dpkg-deb", "--field", debs[name], "Depends")
        assert "perdure" not in depends and "python" not in depends, depends
        equal("libcurl4" in depends, name != "libreplay-dev")
    assert "libreplay0" in run("dpkg-deb", "--field", debs["python3-perdure"], "Recommends")
    run(*dpkg, "--purge", *names)
    equal([str(p) for p in root.rglob("*") if not p.is_dir() and "var/lib/dpkg" not in str(p)], [])
    equal([str(p) for p in (root / "var/lib/dpkg/info").glob("*replay*")], [])


def rpms() -> None:
    """The .rpms likewise; they obsolete nothing."""
    first = build("rpm", "rpm1")
    again = build("rpm", "rpm2")
    equal(sums(again), sums(first))
    known = []
    for name, path in first.items():
        if name.endswith(".rpm"):
            equal(run("rpm", "-qp", "--obsoletes", "--conflicts", path).strip(), "")
            # The scripts know the units: one is stopped when its package goes, and started anew at an upgrade, but for points
            scripts = run("rpm", "-qp", "--scripts", path)
            for unit in units(run("rpm", "-qlp", path).splitlines()):
                for script, does in (("postinstall", "daemon-reload"), ("preuninstall", f"disable --now {unit}"),
                                     ("postuninstall", "daemon-reload")):
                    _, _, text = scripts.partition(f"{script} scriptlet (using /bin/sh):")
                    assert does in re.split(r"^\w+ scriptlet ", text, flags=re.M)[0], (name, script, scripts)
                equal(f"try-restart {unit}" in scripts, unit != "rescue-points.service")
                known.append(unit)
    equal(sorted(known), ["perdure-watch.service", "rescue-points.service", "takeoverd.service"])
    listing = run("rpm", "-qlp", *[p for n, p in first.items() if n.endswith(".rpm")])
    for want in "/usr/lib64/libperdure.so.0", "/usr/bin/perdure-vm", "/usr/include/perdure.h", "/usr/share/man/man7/perdure.7.gz":
        assert want in listing.splitlines(), f"no {want}"
    root = WORK / "root-rpm"
    root.mkdir()
    ours = {"perdure-replay": ["lib64/libreplay.so.0", "bin/replayctl", "share/man/man5/replay.conf.5.gz",
                               "share/man/man7/replay.7.gz", "share/man/man8/replayctl.8.gz"],
            "perdure-replay-devel": ["include/replay.h", "lib64/libreplay.so", "lib64/libreplay.a",
                                     "lib64/pkgconfig/libreplay.pc", "share/man/man3/replay_uuid.3.gz"],
            "perdure-takeover": ["lib64/libtakeover.so.0", "sbin/takeoverd", "sbin/takeoverctl", "lib/systemd/system/takeoverd.service",
                                 "share/man/man7/takeover.7.gz"],
            "perdure-rescue": ["sbin/rescuectl", "lib/systemd/system/rescue-points.service", "share/man/man8/rescuectl.8.gz"],
            "perdure-mod-takeover": ["lib64/httpd/modules/mod_takeover.so", "share/man/man5/mod_takeover.5.gz"],
            "perdure-nginx-mod-takeover": ["lib64/nginx/modules/ngx_http_takeover_module.so", "share/nginx/modules/mod-http-takeover.conf",
                                           "share/man/man5/ngx_http_takeover_module.5.gz"],
            "perdure-takeover-devel": ["include/takeover.h", "lib64/libtakeover.so", "share/man/man3/takeover_leave.3.gz"]}
    for package, wants in ours.items():
        path = first[f"{package}-{VERSION}-1.x86_64.rpm"]
        has = run("rpm", "-qlp", path).splitlines()
        assert set(wants) <= {n.removeprefix("/usr/") for n in has}, has
        for directory in {"perdure-takeover": ["/etc/perdure"], "perdure-rescue": ["/etc/perdure", "/etc/perdure/rescue.d"]}.get(package, []):
            assert directory in has, (package, has)
        equal([want for want in wants if listing.splitlines().count(f"/usr/{want}") != 1], [])
        # Debian's names of what the library needs are not those of others
        needs = run("rpm", "-qp", "--requires", path)
        assert "CURL_" not in needs and "libinih" not in needs and "libcapstone" not in needs, needs
        run("sh", "-ec", f"cd {root}; rpm2cpio {path} | cpio -idm --quiet --no-absolute-filenames")
    # nginx takes modules that were built for its version alone, and the package says which that is
    version = re.search(r"nginx/(\S+)", run("sh", "-c", "nginx -v 2>&1"))[1]
    assert f"nginx(abi) = {version}\n" in run("rpm", "-qp", "--requires", first[f"perdure-nginx-mod-takeover-{VERSION}-1.x86_64.rpm"])
    (WORK / "nginx.conf").write_text((root / "usr/share/nginx/modules/mod-http-takeover.conf").read_text().replace("/usr/lib64", f"{root}/usr/lib64") +
                                     f"pid {WORK}/nginx.pid; error_log stderr; events {{}} http {{ access_log off; takeover on; }}\n")
    run("nginx", "-t", "-c", WORK / "nginx.conf", env={"LD_LIBRARY_PATH": f"{root}/usr/lib64"})
    (WORK / "sum.c").write_text(SERVER)
    run("cc", "-o", WORK / "sum-rpm", WORK / "sum.c", f"-I{root}/usr/include", f"-L{root}/usr/lib64", "-lreplay")
    serves(WORK / "sum-rpm", root / "usr/bin/replayctl", root / "usr/lib64")
    built = [p for n, p in first.items() if n.endswith(".rpm")]
    # Versions of rpmlint find different things
    found = run("rpmlint", "--ignore-unused-rpmlintrc", "-r", TOP / "packaging/rpm/rpmlintrc", *built)
    assert " 0 errors, 0 warnings" in found, found


def signed() -> None:
    """The checksums are signed by the key that is named, and a key that there is not is an error."""
    home = WORK / "gnupg"
    home.mkdir(mode=0o700)
    env = {"GNUPGHOME": str(home), "PERDURE_SIGN_KEY": "packages@perdure.example"}
    text = run(TOP / "scripts/deb.sh", "checksums", ok=None, env=env | {"PERDURE_DIST": str(WORK / "deb1")})
    assert "could not sign" in text, text
    run("gpg", "--batch", "--quiet", "--passphrase", "", "--quick-gen-key", "packages@perdure.example", env=env)
    run(TOP / "scripts/deb.sh", "checksums", env=env | {"PERDURE_DIST": str(WORK / "deb1")})
    run("gpg", "--batch", "--verify", WORK / "deb1/SHA256SUMS.asc", WORK / "deb1/SHA256SUMS", env=env)
    (WORK / "deb1/SHA256SUMS").write_text("changed\n")
    run("gpg", "--batch", "--verify", WORK / "deb1/SHA256SUMS.asc", WORK / "deb1/SHA256SUMS", env=env, ok=None)
    run("gpgconf", "--kill", "all", env=env)


def fake(name: str, text: str) -> dict[str, str]:
    """An environment in which a command says something else."""
    place = WORK / f"fake-{len(list(WORK.iterdir()))}"
    place.mkdir()
    (place / name).write_text(f"#!/bin/sh\n{text}\n")
    (place / name).chmod(0o755)
    return {"PATH": f"{place}:{os.environ['PATH']}"}


def architecture() -> None:
    """Another architecture is refused at once."""
    assert "this is arm64" in run(TOP / "scripts/deb.sh", ok=1, env=fake("dpkg", "echo arm64"))
    assert "this is aarch64" in run(TOP / "scripts/rpm.sh", ok=1, env=fake("uname", "echo aarch64"))


def distribution() -> None:
    """On another distribution it says which it wants, what is missing and what apt said; without dpkg, what to install."""
    tree = copy()
    other = WORK / "os-release"
    other.write_text('ID=fancy\nVERSION_ID=9\nPRETTY_NAME="Fancy 9"\n')
    tools = fake("dpkg-query", "exit 1")
    tools["PATH"] = f"{fake('apt-get', 'echo E: Unable to locate package linux-source-6.12; exit 100')['PATH'].split(':')[0]}:{tools['PATH']}"
    text = run("unshare", "--map-root-user", "--mount", "sh", "-c", f"mount --bind {other} /etc/os-release && exec {tree}/scripts/setup.sh",
               ok=1, env=tools)
    assert "this is Fancy 9" in text and "Debian 12 and 13" in text and "Unable to locate package linux-source-6.12" in text, text
    # All tools but Debian's
    place = WORK / "no-dpkg"
    place.mkdir()
    for tool in Path("/usr/bin").iterdir():
        if not tool.name.startswith(("dpkg", "apt")):
            (place / tool.name).symlink_to(tool)
    text = run(tree / "build.sh", "deb", ok=1, env={"PATH": str(place)})
    assert "this is not a Debian system; packages are built on Debian 12 or 13" in text, text
    text = run(tree / "scripts/setup.sh", "packages", ok=1, env={"PATH": str(place)})
    assert "this is not a Debian system; install the equivalent of: " in text and " dwarves " in text, text


def arguments() -> None:
    """Arguments that mean nothing are refused, and so is a kernel that is not there."""
    assert "no list everything: there are apt " in run(TOP / "build.sh", "setup", "everything", ok=1)
    for verb in "deb", "rpm":
        # Before a kernel is built for them
        assert "usage" in run(TOP / "build.sh", verb, "everything", ok=1)
        assert "no packages of the profile vm" in run(TOP / "build.sh", verb, "--profile", "vm", ok=1)
        assert "no kernel perdure with profile nonsense" in \
            run(TOP / "scripts/kernel.sh", "--profile", "nonsense", ok=1)


def unpinned() -> None:
    """A kernel source that the series is not written for is not packaged, unless that is asked for."""
    tree = copy()
    shutil.copy(TOP / "kernel-patches/UPSTREAM", tree / "kernel-patches")
    other = WORK / "linux-source-6.12.tar.xz"
    other.write_bytes(b"another one")
    env = {"KERNEL_SRC": str(other)}
    for verb in "deb", "rpm":
        for what in [], ["kernel"]:
            text = run(tree / "build.sh", verb, *what, ok=1, env=env)
            assert "the kernel source is not the pinned Linux 6.12" in text and "--unpinned" in text, text
            assert not (tree / "build/linux").exists()
        # Then it is that nothing can be unpacked from it
        text = run(tree / "build.sh", verb, "--unpinned", ok=1, env=env)
        assert "warning: packages of a kernel source that is not" in text and "unpack the kernel source failed" in text, text
    # Nor a kernel that was built of it before
    run(tree / "scripts/fetch.sh")
    (tree / "build/linux/.git").mkdir(parents=True)
    (tree / "build/linux/.git/perdure-source").write_text("0123abc, as unpacked by recipe 2\n")
    for verb in "deb", "rpm":
        assert "is not the pinned" in run(tree / f"scripts/{verb}.sh", "kernel", ok=1)
    run(tree / "scripts/deb.sh", "--check", "userspace")


def scripts() -> None:
    """The maintainer scripts refuse a full /boot and name what is missing, and what will keep the kernel from starting."""
    secure = WORK / "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    for script, args in (("preinst", ["install"]), ("postinst", ["configure"]), ("prerm", ["remove"])):
        path = WORK / script
        path.write_text("#!/bin/sh\nset -e\n" + (TOP / "packaging/deb-kernel" / script).read_text().replace(
            "@RELEASE@", os.uname().release).replace("/sys/firmware/efi/efivars", str(WORK)))
        run("shellcheck", "-s", "dash", path)
        if script == "preinst":
            text = run("sh", path, *args, ok=1, env={"PERDURE_BOOT_MB": "99999999"})
            assert "are free in /boot" in text and "Nothing has been changed" in text, text
            run("sh", path, *args, env={"PERDURE_BOOT_MB": "0"})
        if script == "postinst":
            for on in False, True:
                secure.write_bytes(bytes([6, 0, 0, 0, on]))
                assert ("Secure Boot is on" in run("sh", path, *args)) == on
        if script == "prerm":
            assert "this kernel is running" in run("sh", path, *args)


def installed() -> Path:
    """perdure-vm, as the package holds it."""
    tools = next(p for n, p in build("deb", "machine").items() if n.startswith("perdure-tools_"))
    run("dpkg-deb", "-x", tools, WORK / "root")
    return WORK / "root/usr/bin/perdure-vm"


def machine() -> None:
    """perdure-vm passes exit status, output, directory and environment, and dies with a clear line."""
    program = installed()
    env = {"XDG_CACHE_HOME": str(WORK / "cache"), "WORD": "passed on"}
    text = run(program, "--kernel", VMLINUX, "--accel", "tcg", "--", "sh", "-c", 'echo "$WORD in $PWD on $(uname -r)"; exit 7',
               ok=7, env=env)
    assert f"passed on in {os.getcwd()} on " in text and "perdure" in text, text
    run(program, "--kernel", VMLINUX, "--accel", "tcg", "--timeout", "0.2", "true", ok=124, env=env)
    # What a failure has left can be read; success leaves nothing
    logs = WORK / "cache/perdure/log"
    equal(len(list(logs.glob("console-*.log"))), 2)
    run(program, "--kernel", VMLINUX, "--accel", "tcg", "--", "true", env=env)
    equal(len(list(logs.glob("console-*.log"))), 2)
    assert "no kernel nonsense" in run(program, "--kernel", "nonsense", "true", ok=125, env=env)
    run(program, "--rw", "/nonexistent", "true", ok=2, env=env)
    run("env", "-u", "HOME", "-u", "XDG_CACHE_HOME", program, "--list")
    # As in a container that is given a user whom it does not know
    nobody = "import os, sys; sys.path.insert(0, sys.argv[1]); import vm; os.setuid(4711); os.rmdir(vm.find_cache())"
    run("env", "-u", "XDG_CACHE_HOME", "HOME=/", sys.executable, "-c", nobody, TOP / "vm-tests/lib")
    # A kernel whose configuration says that it cannot start
    image = WORK / "vmlinuz-1"
    image.write_bytes(b"")
    (WORK / "config-1").write_text("CONFIG_OVERLAY_FS=m\n")
    assert "take a Perdure kernel" in run(program, "--kernel", image, "true", ok=125, env=env)


PARTS = {"configurations": [configs, unmet], "userspace": [debs, libreplay, rpms, signed],
         "refusals": [architecture, distribution, arguments, unpinned, scripts],
         "machine": [machine]}

if __name__ == "__main__":
    try:
        run(TOP / "scripts/setup.sh", "packages")
        main(*PARTS[sys.argv[1]])
    finally:
        scratch.cleanup()
