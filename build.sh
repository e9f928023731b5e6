#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
# The one entry point: ./build.sh VERB. Every stage does only what is missing; --help explains the verbs.
set -euo pipefail
# The shell reads all of this before it begins: the file may change under a build that takes an hour
{
# --arch ARCH goes to all stages in the environment
words=()
while [[ $# -gt 0 && $1 != -- ]]; do
	case $1 in
	--arch) PERDURE_ARCH=${2:-nothing}; shift $(($# > 1 ? 2 : 1)) ;;
	--arch=*) PERDURE_ARCH=${1#*=}; shift ;;
	*) words+=("$1"); shift ;;
	esac
done
set -- "${words[@]}" "$@"
export PERDURE_ARCH=${PERDURE_ARCH:-x86_64}
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/scripts/lib.sh"

usage() {
	cat <<'EOF'
usage: ./build.sh VERB [OPTIONS]

  demo                     set up, build, boot, and show the main job: a service crashes, its client never notices
  test [SUITE...]          set up, build, and run the test suites in virtual machines
  mutate                   put mistakes into a copy of the code, and see which of them the suites notice
  run -- CMD...            run CMD as root in a virtual machine that sees this machine's files, copy-on-write
  shell                    the same, with a terminal
  bench [NAME...]          re-measure the project's figures
  deb, rpm [WHAT]          packages for Debian and its kin, for Fedora and its kin: into dist/

  setup                    install what is needed (packaging/deps/apt.txt)
  fetch                    find the kernel source
  patch [--force]          make build/linux: a git tree, one commit for each patch of kernel-patches/series
  refresh                  write the commits of build/linux back to kernel-patches
  kernel [--profile P] [--kernel perdure|stock]
                           build a kernel
  userspace                build the library and the programs
  env                      what a shell needs to compile with them from here: eval "$(./build.sh env)"
  clean                    remove what was built; keep the kernel's git tree
  distclean                remove build/ and dist/

With --arch arm64, kernel, userspace, run, shell and test cross-compile and boot an emulated machine (docs/testing.md).
Each of them does what it needs of the stages before. ./build.sh VERB --help says more. Logs are in build/log/.
EOF
}

help_of() {
	case $1 in
	setup) echo "usage: ./build.sh setup [LIST]
Installs the Debian packages named in packaging/deps/apt.txt that are missing, as root or with sudo. With arm64, fuzz,
kselftest, packages, stress, unmodified or zdtm, those of that list in the same directory, too: tests and packages that need them ask for them." ;;
	fetch) echo "usage: ./build.sh fetch
Finds the kernel source: the tarball of Debian's linux-source package, or the one that KERNEL_SRC names, and compares it
with kernel-patches/UPSTREAM." ;;
	patch) echo "usage: ./build.sh patch [--force]
Makes build/linux a git tree of the kernel source with one commit for each patch, tag \"base\" below them. It refuses
to lose work that is not in the series, unless --force is given." ;;
	refresh) echo "usage: ./build.sh refresh [--tree DIR --base COMMIT]
Writes the commits of build/linux (or of DIR, after COMMIT) to kernel-patches. A commit names its file in a trailer,
\"Perdure-Patch: 125-area-what.patch\"; files of commits that have gone are removed." ;;
	kernel) echo "usage: ./build.sh kernel [--profile P] [--kernel perdure|stock]
Builds build/kernel/<kernel>-<profile>/vmlinux. Profiles: vm (tests and demo), debug (with the kernel's checkers), kcsan
(which finds data races), bench (what ./build.sh bench counts on), nfs (for the test nfs), off (the series applied, its options off); small (packages to test), server, server-debug, full, full-debug (what the packages hold). A stock kernel (vm, debug, bench) is the same configuration without the series." ;;
	deb) echo "usage: ./build.sh deb [--profile P] [--dbg] [--unpinned] [userspace|kernel|checksums]
Builds Debian packages of the kernel (linux-image, linux-headers; --dbg: linux-image-dbg) and of the library and tools into
dist/, with checksums, signed by the GnuPG key that PERDURE_SIGN_KEY names. Profiles: server, full (Debian's own
configuration: hours), server-debug, full-debug. A kernel source that kernel-patches/UPSTREAM does not name is packaged
with --unpinned only." ;;
	rpm) echo "usage: ./build.sh rpm [--profile P] [--unpinned] [userspace|kernel]
Builds RPM packages of the kernel and of the library and tools into dist/, from the same kernel build as deb. --unpinned as there." ;;
	userspace) echo "usage: ./build.sh userspace
Builds the library, the programs, and the tests' programs into build/userspace." ;;
	env) echo "usage: eval \"\$(./build.sh env)\"
Builds the library and the programs, and prints what a shell needs to use them without an installation: pkg-config finds perdure, the
linker of programs the library, and the shell perdurectl and frem." ;;
	demo) echo "usage: ./build.sh demo [takeover|rescue]
Builds what is missing and shows, in a virtual machine, downloads that survive the server's crash; or, in three of them, a download
and an order that survive the death of a host; or Apache with a module that has mistakes, whose requests fail alone." ;;
	bench) echo "usage: ./build.sh bench [NAME...] [--json FILE] [--plot [DIR]] [--quick] [--here]
Re-measures the tables in bench/; prints ours beside the goals. Names: restart, hread, unregistered, faults, loading, tracker,
rescue, programs, restore, replay, takeover; all but the last three when none is given. --plot draws them, too; --quick takes fewer samples
(takeover); --here runs them without a machine of their own, in wall time, to work on the programs." ;;
	clean) echo "usage: ./build.sh clean
Removes what was built under build/, but not the kernel's git tree." ;;
	distclean) echo "usage: ./build.sh distclean [--force]
Removes build/ and dist/; but not, without --force, work in build/linux that is not in the series." ;;
	*) return 1 ;;
	esac
}

setup() {
	"$TOP/scripts/setup.sh" "$@" || return
	[[ $PERDURE_ARCH == x86_64 ]] || "$TOP/scripts/setup.sh" "$PERDURE_ARCH"
}
fetch() { setup && "$TOP/scripts/fetch.sh"; }
patched() { fetch && "$TOP/scripts/patch.sh" "$@"; }
userspace() {
	setup && "$TOP/scripts/userspace.sh"
	[[ $PERDURE_ARCH == x86_64 ]] || "$TOP/scripts/guest-root.sh"
}

# What the kernels are made of. When it is as it was at the last build, nothing else needs a look.
kernel_inputs() {
	(
		cd "$TOP"
		echo "${PERDURE_VERSION:-$(<VERSION)}"
		find kernel-patches configs scripts -type f -print0 | sort -z | xargs -0 sha256sum
	) | sha256sum | cut -d ' ' -f 1
}

# make_kernel NAME PROFILE [OPTION...]
make_kernel() {
	local inputs
	inputs=$(kernel_inputs)
	[[ $2 != server* && $2 != full* ]] || setup packages
	patched --keep
	"$TOP/scripts/kernel.sh" --kernel "$1" --profile "$2" "${@:3}"
	# Absent after a build of local work
	[[ ! -f $BUILD/kernel/$1-$2/perdure-state ]] || echo "$inputs" >"$BUILD/kernel/$1-$2/perdure-inputs"
}

# kernel NAME PROFILE: if it has not been made of the same
kernel() {
	[[ $(cat "$BUILD/kernel/$1-$2/perdure-inputs" 2>/dev/null) == "$(kernel_inputs)" ]] || make_kernel "$1" "$2"
}

# Sets name and profile from the options that run, shell and kernel share; given an image, there is nothing to build
kernel_options() {
	name=perdure profile=vm image=
	while [[ $# -gt 0 && $1 != -- ]]; do
		case $1 in
		--kernel) name=${2:-}; shift ;;
		--kernel=*) name=${1#*=} ;;
		--profile) profile=${2:-}; shift ;;
		--profile=*) profile=${1#*=} ;;
		--vmlinux | --vmlinux=* | -h | --help) image=given ;;
		esac
		shift || true
	done
}

verb=${1:-}
[[ $# == 0 ]] || shift
case $PERDURE_ARCH-$verb in
x86_64-* | arm64-setup | arm64-kernel | arm64-userspace | arm64-run | arm64-shell | arm64-test | arm64-clean) ;;
arm64-*) die "$verb: not for arm64, only for x86_64" ;;
*) die "no architecture $PERDURE_ARCH: there are x86_64 and arm64" ;;
esac
case ${1:-} in
-h | --help) ! help_of "$verb" || exit 0 ;;
esac

case $verb in
setup) setup "$@" ;;
fetch) fetch ;;
patch) patched "$@" ;;
refresh) "$TOP/scripts/refresh.sh" "$@" ;;
userspace) userspace ;;
env)
	userspace >&2
	# No commands but these
	meson devenv -C "$BUILD/userspace" --dump | grep -E '^(export )?(PATH|LD_LIBRARY_PATH|PKG_CONFIG_PATH)(=|$)'
	;;
kernel)
	kernel_options "$@"
	make_kernel "$name" "$profile" "$@"
	say "kernel: build/kernel/$name-$profile/vmlinux is up to date"
	;;
run | shell)
	kernel_options "$@"
	[[ $verb == shell || " $* " == *' -- '* ]] || image=none # it will say what is wrong
	[[ -n $image ]] || kernel "$name" "$profile"
	exec python3 "$TOP/vm-tests/run" "$verb" "$@"
	;;
test)
	need python3
	for extra in fuzz kselftest rescue-long stress unmodified zdtm; do
		[[ " $*" != *" $extra"* ]] || setup "$extra"
	done
	[[ " $*" != *" distributions"* ]] || setup packages	# mmdebstrap
	# The suites say what they need; kernels they have built
	plan=$(python3 "$TOP/vm-tests/run" test --plan "$@")
	for line in $plan; do
		case $line in
		show) ;;
		userspace) userspace ;;
		patch) patched --keep ;;
		esac
	done
	exec python3 "$TOP/vm-tests/run" test "$@"
	;;
mutate)
	[[ " $* " =~ \ (--list|--check|--help|-h)\  ]] || { patched --keep && setup; }
	exec python3 "$TOP/vm-tests/mutate/mutate" "$@"
	;;
demo)
	kernel perdure vm
	userspace
	if [ "${1:-}" = takeover ]; then
		exec python3 "$TOP/demo/takeover.py"
	fi
	if [ "${1:-}" = rescue ]; then
		exec python3 "$TOP/vm-tests/run" run -- python3 "$TOP/demo/rescue.py"
	fi
	exec python3 "$TOP/vm-tests/run" run -- python3 "$TOP/demo/demo.py" "$@"
	;;
bench)
	# replay measures user space, on this machine
	[[ " $* " =~ ^\ replay\ (--|$) ]] || kernel perdure vm
	if ! [[ " $* " =~ ^\ (replay|takeover)\ (--|$) ]]; then
		kernel perdure bench
		kernel stock bench
	fi
	userspace
	exec python3 "$TOP/bench/run" "$@"
	;;
deb | rpm)
	profile=server
	[[ $* != *--profile* ]] || profile=$(sed -E 's/.*--profile[= ]([^ ]*).*/\1/' <<<"$*")
	if [[ $verb == deb ]] && ! command -v dpkg-deb >/dev/null; then
		die "deb: this is not a Debian system; packages are built on Debian 12 or 13"
	fi
	[[ $(uname -m) == x86_64 ]] || die "$verb: this is $(uname -m); packages are built on x86_64, for x86_64"
	setup packages
	[[ " $* " =~ \ (userspace|checksums)\  ]] || "$TOP/scripts/fetch.sh"
	"$TOP/scripts/$verb.sh" --check "$@"
	[[ " $* " =~ \ (userspace|checksums)\  ]] || kernel perdure "$profile"
	"$TOP/scripts/$verb.sh" "$@"
	;;
clean)
	rm -rf "$BUILD"/{kernel,userspace,vm,log,test,bench,deb,rpm,linux.new,linux-stock}
	[[ ! -d $LINUX/.git ]] || git -C "$LINUX" worktree prune
	;;
distclean)
	[[ ${1:-} == --force ]] || "$TOP/scripts/patch.sh" --saved
	rm -rf "$ALL" "$TOP/dist"
	;;
'' | -h | --help | help) usage ;;
*)
	say "no such verb: $verb (see ./build.sh --help)"
	exit 2
	;;
esac
exit
}
