# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds the test suites (vm-tests/cases/*/suite.json), runs them, and says how it went."""

import argparse
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path

import ktap
import splats
import vm

BUILD = vm.TOP / "build.sh"
CASES = vm.TOP / "vm-tests" / "cases"
RUNNER = vm.TOP / "vm-tests" / "lib" / "cases.py"
PROFILES = ("vm", "off", "debug", "kcsan")
NAMED = ("kcsan",)                          # only with --profile: another kernel, and the same tests once more
SCALE = {"vm": 1, "off": 1, "debug": 5, "kcsan": 10}    # of the time limits: the checkers are slow
MEMORY = {"vm": "1G", "off": "1G", "debug": "2G", "kcsan": "2G", "bench": "1G"}
TAIL = 15                                   # lines shown of a failed case
FEW, SLOWEST = 10, 30                       # of so few cases nobody asks which are the slowest; so many are told
QUIET = 60                                  # seconds between signs of life, where there is no terminal
HOST = "host"


@dataclass
class Suite:
    name: str
    directory: Path
    doc: str
    where: str
    kernel: str
    profiles: list[str]
    timeout_s: float
    cases: list[dict]
    default: bool = True
    # Each case runs so long, beside its time limit; --minutes says otherwise
    minutes: float = 0
    archs: list[str] = field(default_factory=lambda: ["x86_64"])
    # To the command line of the guest's kernel
    append: str = ""
    # Of a host suite: kernels that its cases boot, as "perdure-vm"
    needs: list[str] = field(default_factory=list)
    # Of a host suite: its cases need processors and no clock, so that in the default run they go on beside the others
    beside: bool = False
    # It goes by the clock, and hardly a second: in the default run it is last, when nothing runs beside it
    last: bool = False


@dataclass
class Run:
    """One suite in one place."""
    suite: Suite
    profile: str
    only: list[str]     # cases; all when empty

    @property
    def label(self) -> str:
        return f"{self.suite.name} ({self.place})"

    @property
    def place(self) -> str:
        return HOST if self.suite.where == HOST else f"{self.suite.kernel}-{self.profile}"

    @property
    def chosen(self) -> list[str]:
        return self.only or [case["name"] for case in self.suite.cases]

    @property
    def kernels(self) -> list[str]:
        """What has to be built for it."""
        return self.suite.needs if self.suite.where == HOST else [self.place]

    @property
    def log(self) -> Path:
        return vm.LOG / "test" / f"{self.suite.name}-{self.place}"


def load(directory: Path) -> Suite:
    try:
        suite = Suite(name=directory.name, directory=directory, **json.loads((directory / "suite.json").read_text()))
    except (ValueError, TypeError) as e:
        raise vm.Error(f"{vm.short(directory / 'suite.json')}: {e}") from e
    if suite.where not in ("vm", HOST) or suite.kernel not in ("perdure", "stock") or not suite.cases or \
            set(suite.profiles) - set(PROFILES):
        raise vm.Error(f"{vm.short(directory / 'suite.json')}: where, kernel, profiles or cases is wrong")
    return suite


def discover(place: Path) -> dict[str, Suite]:
    return {path.parent.name: load(path.parent) for path in sorted(place.glob("*/suite.json"))}


def brief(suite: Suite, profile: str) -> list[str] | None:
    """The cases that run when nothing is named, [] for all: a case can name profiles for which it takes too long, "long"."""
    cases = [c["name"] for c in suite.cases if profile not in c.get("long", [])]
    return None if not cases else [] if len(cases) == len(suite.cases) else cases


def choose(suites: dict[str, Suite], names: list[str], profile: str | None, given: bool = False) -> list[Run]:
    """
    A name is SUITE or SUITE/CASE. Host first, then a kernel after the other, slow ones last. A kernel that was given is one
    kernel: nothing runs twice on it, and nothing waits for what only the checking kernels have.
    """
    if given and not names:
        profile = profile or PROFILES[0]
    runs: list[Run] = []
    suites = {name: suite for name, suite in suites.items() if vm.ARCH in suite.archs}
    wanted: dict[str, list[str]] = {}
    for name in names or [s.name for s in suites.values() if s.default]:
        suite, _, case = name.partition("/")
        if suite not in suites or case and case not in [c["name"] for c in suites[suite].cases]:
            raise LookupError(f"no such suite{'' if vm.ARCH == 'x86_64' else f' for {vm.ARCH}'}: {name}; there are {', '.join(suites)}")
        wanted.setdefault(suite, []).extend([case] if case else [])
    for name, only in wanted.items():
        suite = suites[name]
        # Another architecture's checking kernel only when it is asked for: emulated, it takes long
        one = suite.where == HOST or not profile and (given or vm.ARCH != "x86_64")
        profiles = suite.profiles[:1] if one else suite.profiles
        for p in profiles:
            if p == profile or not profile and p not in NAMED:
                some = brief(suite, p) if not names and not profile else only
                runs += [Run(suite, p, some)] if some is not None else []
    return sorted(runs, key=lambda r: (r.suite.where != HOST, PROFILES.index(r.profile), r.suite.kernel, r.suite.append, r.suite.name))


def plan(runs: list[Run]) -> list[str]:
    """What has to be built before the kernels, for build.sh."""
    return ["userspace", *(["patch"] if any(r.suite.where == HOST for r in runs) else [])]


def unimportant(nice: int, log: Path, script: str, *words: object) -> subprocess.Popen:
    """Begins a shell script at low priority, in a session, to end it whole."""
    log.parent.mkdir(parents=True, exist_ok=True)
    # Between sessions nice means nothing where the kernel groups them
    return subprocess.Popen(["nice", "-n", str(nice), "sh", "-c", f"echo {nice} 2>/dev/null >/proc/self/autogroup\n{script}", *map(str, words)],
                            stdin=subprocess.DEVNULL, stdout=log.open("w"), stderr=subprocess.STDOUT, start_new_session=True)


class Kernels:
    """Has the first built, then the others one by one, at low priority, while the suites of those before run."""

    def __init__(self, places: list[str]) -> None:
        self.coming = places
        self.builds = None
        self.wait(places[:1])
        if self.coming:
            self.builds = unimportant(10, vm.LOG / "test" / "kernels.log",
                                      'for k; do "$0" kernel --kernel "${k%-*}" --profile "${k#*-}" || exit; done', BUILD, *self.coming)

    def wait(self, places: list[str]) -> None:
        """Or build them here, and see why if that failed."""
        for place in places:
            if place in self.coming:
                kernel, profile = place.split("-")
                if subprocess.run([BUILD, "kernel", "--kernel", kernel, "--profile", profile], stdin=subprocess.DEVNULL).returncode:
                    raise vm.Error(f"there is no kernel {place}, for the reason above")
                self.coming.remove(place)

    def close(self) -> None:
        if self.builds and self.builds.poll() is None:
            os.killpg(self.builds.pid, signal.SIGTERM)
            self.builds.wait()


class Beside:
    """Runs suites at the lowest priority, while others run; tells at the end."""

    def __init__(self, runs: list[Run], args: argparse.Namespace) -> None:
        # Not one name for all: a test of this runs in the midst of it
        self.log = vm.LOG / "test" / f"beside-{os.getpid()}.log"
        self.tally = self.log.with_suffix(".json")
        self.tally.unlink(missing_ok=True)
        names = [f"{run.suite.name}/{case}" for run in runs for case in run.chosen]
        print(f"beside the others: {', '.join(names)}", flush=True)
        self.process = unimportant(19, self.log, 'exec "$0" "$@"', vm.TOP / "vm-tests" / "run", "test", "--cases", args.cases, "--tally", self.tally,
                                   *(["--vmlinux", args.vmlinux] if args.vmlinux else []), *names)

    def end(self, total: ktap.Verdict) -> list[tuple[float, str]]:
        """Adds to the total; how long its cases took."""
        status = self.process.wait()
        print(self.log.read_text(errors="replace"), end="", flush=True)
        if not self.tally.exists():
            total.failed.append(f"beside the others: the runner ended with status {status} (see {vm.short(self.log)})")
            return []
        found = json.loads(self.tally.read_text())
        self.tally.unlink()
        self.log.unlink()
        total.passed += found["passed"]
        total.skipped += found["skipped"]
        total.failed += found["failed"]
        return [(seconds, f"{name}, beside the others") for seconds, name in found["times"]]

    def close(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGTERM)
        except ProcessLookupError:
            pass
        self.process.wait()


class Report:
    """Follows the runner's events, of one suite after the other; prints a line per case; keeps the whole as KTAP."""

    def __init__(self, runs: list[Run], times: list[tuple[float, str]]) -> None:
        self.runs = runs
        self.times = times
        self.run = runs[0]
        self.total = ktap.Verdict()
        self.problems: list[str] = []       # failures beside the cases'
        self.buffer = b""
        self.case: dict | None = None
        self.text = ""
        self.told = 0.0                     # when something was last said of the case
        self.done = False
        self.seen = 0                       # of this suite
        self.missing = sum(len(run.chosen) for run in runs)
        self.stray = b""
        self.begin()

    def begin(self) -> None:
        print(f"{self.run.label}: {self.run.suite.doc}", flush=True)
        self.seen = 0
        self.file = self.run.log.with_suffix(".ktap").open("w")
        # The last of the last is about the kernel, or the runner
        print(f"KTAP version 1\n1..{len(self.run.chosen) + (self.run is self.runs[-1])}", file=self.file, flush=True)

    def feed(self, data: bytes) -> None:
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        for line in lines:
            try:
                self.event(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError):
                self.stray += line + b"\n"

    def event(self, event: dict) -> None:
        if "suite" in event:
            if event["suite"]:
                self.file.close()
                self.run = self.runs[event["suite"]]
                self.begin()
        elif "begin" in event:
            self.case, self.text, self.told = self.run.suite.cases[event["begin"]], "", time.monotonic()
        elif "text" in event:
            self.text += event["text"]
            self.tell()
        elif "end" in event:
            self.finish(event["status"], event["why"], event["seconds"])
        elif "leaks" in event:
            if event["leaks"].strip():
                self.problems.append("kmemleak found leaked memory")
                self.note(event["leaks"])
        elif "done" in event:
            self.done = True

    def tell(self) -> None:
        """The last line that the case has said."""
        assert self.case
        last = self.text.rpartition("\n")[0].rpartition("\n")[2]
        line = f"  ...  {self.run.suite.name}/{self.case['name']}  {''.join(c for c in last if c.isprintable())[:80]}"
        if sys.stdout.isatty():
            print(f"\r{line}\x1b[K", end="\r", flush=True)
        elif time.monotonic() - self.told >= QUIET:
            self.told = time.monotonic()
            print(line, flush=True)

    def finish(self, status: int, why: str, seconds: float) -> None:
        assert self.case
        if sys.stdout.isatty():
            print("\x1b[K", end="")
        self.seen += 1
        self.missing -= 1
        text = self.text.encode("latin-1").decode(errors="replace")
        verdict = ktap.judge(text, status)
        if why:
            if not ktap.is_ktap(text):
                verdict = ktap.Verdict()
            verdict.failed = [f for f in verdict.failed if not f.startswith("exit status")] + [why]
        name = self.case["name"]
        print(f"  {verdict.word:4} {self.run.suite.name}/{name}  {verdict.counts()}  {seconds:.1f} s", flush=True)
        self.times.append((seconds, f"{self.run.suite.name}/{name} ({self.run.place})"))
        print(f"# Subtest: {name}", file=self.file)
        for line in text.splitlines():
            print(f"  {line}", file=self.file)
        directive = " # SKIP" if verdict.word == "skip" else ""
        print(f"{'not ok' if verdict.failed else 'ok'} {self.seen} {name}{directive}", file=self.file, flush=True)
        if verdict.failed:
            for failure in verdict.failed[:20]:
                print(f"       {failure}")
            # Up to the first failure, which its explanation precedes
            lines = text.splitlines()
            bad = next((n for n, line in enumerate(lines, 1) if line.startswith("not ok")), len(lines))
            shown = [line for line in lines[:bad] if not line.startswith("ok ")][-TAIL:]
            print("".join(f"       | {line[:200]}\n" for line in shown), end="")
            print(f"       (all of it: {vm.short(self.run.log.with_suffix('.ktap'))})", flush=True)
        self.total.passed += verdict.passed
        self.total.skipped += verdict.skipped
        self.total.failed += [f"{self.run.label} {name}: {failure}" for failure in verdict.failed]
        self.case = None

    def note(self, text: str) -> None:
        print("".join(f"# {line}\n" for line in text.splitlines()), end="", file=self.file)

    def close(self, why: str, complaints: list[str], console: Path | None) -> ktap.Verdict:
        """`why` there is no verdict, and what the console shows."""
        if self.case:
            self.finish(vm.DIED, why or "the runner ended in the middle of it", 0)
        if why:
            self.problems.append(why)
        elif not self.done:
            self.problems.append("the runner did not finish")
            self.note(self.stray.decode(errors="replace"))
        if self.missing:
            self.problems.append(f"{self.missing} cases did not run")
        if complaints:
            self.problems.append(f"the kernel complains ({len(complaints)} lines): {complaints[0][:150]}")
            self.note("\n".join(complaints))
        name = "kernel-log" if console else "runner"
        where = self.run.suite.name if len(self.runs) == 1 else self.run.place
        for problem in self.problems:
            print(f"  FAIL {where}/{name}  {problem}")
            print(f"       (see {vm.short(console or self.run.log.with_suffix('.ktap'))})", flush=True)
        if self.stray and self.problems:
            print("".join(f"       | {line}\n" for line in self.stray.decode(errors="replace").splitlines()[-TAIL:]),
                  end="")
        label = self.run.label if len(self.runs) == 1 else where
        self.total.failed += [f"{label} {name}: {problem}" for problem in self.problems]
        self.total.passed += not self.problems
        print(f"{'not ok' if self.problems else 'ok'} {self.seen + 1} {name}", file=self.file)
        self.file.close()
        return self.total


def together(runs: list[Run], args: argparse.Namespace) -> list[list[Run]]:
    """
    The runs that share a guest: in the default run, those with the debug kernel, which takes a minute to boot and to look for
    leaks. What is named has one of its own.
    """
    def key(run: Run) -> object:
        shared = run.profile == "debug" and run.suite.where != HOST and not args.names and not args.profile
        return (run.place, run.suite.append) if shared else id(run)

    return [list(group) for _, group in groupby(runs, key)]


def execute(runs: list[Run], args: argparse.Namespace, times: list[tuple[float, str]]) -> ktap.Verdict:
    run = runs[0]
    # What runs beside others gets what they leave
    scale, vmlinux = SCALE[run.profile] * (2 if args.tally else 1), args.vmlinux
    minutes = run.suite.minutes and (args.minutes or run.suite.minutes)
    argv = ["python3", str(RUNNER), str(scale)]
    for n, one in enumerate(runs):
        argv += [*(["--"] if n else []), str(one.suite.directory), *one.only]
    env = {"PERDURE_PROFILE": run.profile, "PERDURE_KERNEL": run.suite.kernel, "PERDURE_MINUTES": f"{minutes:g}"}
    if args.seed is not None:
        env["PERDURE_SEED"] = str(args.seed)
    run.log.parent.mkdir(parents=True, exist_ok=True)
    report = Report(runs, times)
    limit = sum(one.suite.timeout_s for one in runs) * scale + minutes * 60 * len(run.chosen)
    if run.suite.where == HOST:
        ours = vm.environment()
        env |= {name: ours[name] for name in ("PERDURE_TOP", "PERDURE_BUILD", "LD_LIBRARY_PATH",
                                              "PYTHONDONTWRITEBYTECODE")}
        if vmlinux:
            env["PERDURE_VMLINUX"] = str(vmlinux.resolve())
        env["PATH"] = ours["PATH"].split("/usr/local/sbin")[0] + os.environ["PATH"]
        process = subprocess.Popen(argv, env=os.environ | env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert process.stdout
        try:
            while data := process.stdout.read1(65536):
                report.feed(data)
        finally:
            process.terminate()
            status = process.wait()
        return report.close("" if report.done else f"the runner ended with status {status}", [], None)

    console = run.log.with_suffix(".console") if len(runs) == 1 else vm.LOG / "test" / f"{run.place}.console"
    machine = vm.Machine(vmlinux or vm.BUILD / "kernel" / run.place / "vmlinux", console, MEMORY[run.profile],
                         args.smp, timeout=limit + 120 * scale, append=run.suite.append)
    job = vm.Job(argv, str(run.suite.directory), vm.environment(**env, PERDURE_GUEST="1"))
    errors = bytearray()
    result = vm.run(job, machine, report.feed, errors.extend)
    why = result.why or (f"the runner ended with status {result.status}" if result.status else "")
    report.stray += bytes(errors)
    return report.close(why, splats.scan(console, bool(result.why), profile=run.profile), console)


def show(suites: dict[str, Suite]) -> Iterator[str]:
    for suite in suites.values():
        where = "on the host" if suite.where == HOST else f"{suite.kernel}: {', '.join(suite.profiles)}"
        yield f"{suite.name}  ({where}{'' if suite.default else '; when named only'})"
        yield f"    {suite.doc}"
        yield f"    {', '.join(case['name'] for case in suite.cases)}"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="./build.sh test", description="Runs test suites in virtual machines and on this machine.",
        epilog="Logs: build/log/test/. The last line says how many passed and failed; status 1 when any failed.")
    parser.add_argument("names", nargs="*", metavar="SUITE", help="a suite, or SUITE/CASE (default: all but the "
                        "ones that run when they are named)")
    parser.add_argument("--profile", choices=PROFILES, help="only with this profile's kernel")
    parser.add_argument("--minutes", type=float, metavar="N", help="how long each case of a suite runs that could "
                        "run for ever (fuzz)")
    parser.add_argument("--seed", type=int, metavar="N", help="what random tests start from, to repeat a run")
    parser.add_argument("--smp", type=int, default=2, metavar="N", help="processors of the guests (2)")
    parser.add_argument("--list", action="store_true", help="show the suites")
    parser.add_argument("--vmlinux", type=Path, metavar="FILE", help="boot this kernel instead of building one")
    parser.add_argument("--cases", type=Path, default=CASES, metavar="DIR", help=argparse.SUPPRESS)
    parser.add_argument("--plan", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--tally", type=Path, metavar="FILE", help=argparse.SUPPRESS)
    if "--plan" in argv and {"-h", "--help", "--list"} & set(argv):
        print("show")
        return 0
    args = parser.parse_args(argv)
    try:
        suites = discover(args.cases.resolve())
        runs = choose(suites, args.names, args.profile, bool(args.vmlinux))
    except LookupError as e:
        print(f"test: {e.args[0]}", file=sys.stderr)
        return 2
    if args.list:
        print("\n".join(show(suites)))
        return 0
    if args.plan:
        print("\n".join(plan(runs)))
        return 0

    start = time.monotonic()
    waited = 0.0
    times: list[tuple[float, str]] = []
    total = ktap.Verdict()
    # In the order in which they are needed
    kernels = Kernels([] if args.vmlinux or args.tally else list(dict.fromkeys(place for run in runs for place in run.kernels)))
    waited += time.monotonic() - start
    aside = [] if args.names or args.profile else [run for run in runs if run.suite.beside]
    beside, aside_times, late = None, [], 0.0

    def go(some: list[Run]) -> None:
        nonlocal waited
        for group in together(some, args):
            before = time.monotonic()
            try:
                kernels.wait(group[0].kernels)
            except vm.Error as e:
                total.failed.extend(f"{run.label}: {e}" for run in group)
                continue
            finally:
                waited += time.monotonic() - before
            verdict = execute(group, args, times)
            total.passed += verdict.passed
            total.skipped += verdict.skipped
            total.failed += verdict.failed

    closed = [place for place in (vm.TOP, *vm.TOP.parents) if not place.stat().st_mode & stat.S_IXOTH]
    if closed and os.geteuid() == 0 and not args.tally and any(run.suite.where == HOST for run in runs):
        print(f"test: others may not enter {closed[-1]}: servers that give up root cannot work there, and their cases fail: clone to another place, "
              "such as /srv", flush=True)
    try:
        if aside:
            kernels.wait([place for run in aside for place in run.kernels])
            beside = Beside(aside, args)
        go([run for run in runs if run not in aside and not run.suite.last])
        before = time.monotonic()
        if beside:
            aside_times = beside.end(total)
        late = time.monotonic() - before
        go([run for run in runs if run.suite.last])
    finally:
        try:
            kernels.close()
        finally:
            if beside:
                beside.close()
    if not runs:
        total.failed.append("nothing ran: no suite has this profile")
    if args.tally:
        args.tally.write_text(json.dumps(asdict(total) | {"times": times}))
        return 0
    if total.failed:
        print("\nFailed:")
        print("\n".join(f"  {failure}" for failure in total.failed))
    if len(times) > FEW:
        print("\nSlowest:")
        print("\n".join(f"  {seconds:7.1f} s  {name}" for seconds, name in sorted(times + aside_times, reverse=True)[:SLOWEST]))
    took, cases = time.monotonic() - start, sum(seconds for seconds, _ in times)
    print(f"\n{len(runs)} runs in {took:.0f} s: {cases:.0f} in cases, {waited:.0f} for kernels, "
          f"{took - cases - waited - late:.0f} for guests to begin and end" + (f", {late:.0f} until what ran beside had ended" if beside else ""))
    skipped = f", {total.skipped} skipped" if total.skipped else ""
    print(f"{total.passed} passed, {len(total.failed)} failed{skipped}")
    return 1 if total.failed or not total.passed else 0
