#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
# kernel [--profile P] [--kernel perdure|stock] [--configure DIR]: builds build/kernel/<kernel>-<profile>/vmlinux, and of the
# profiles that are shipped all of the kernel. A stock kernel is the same configuration without our series.
# With PERDURE_ARCH=arm64 it is cross-compiled, below build/arm64.
# --configure: only the configuration, in DIR. --make ARGS...: make, in what has been built, as it was built.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

profile=vm
kernel=perdure
goal=build
while [[ $# -gt 0 ]]; do
	case $1 in
	--profile) profile=${2:-}; shift $(($# > 1 ? 2 : 1)) ;;
	--profile=*) profile=${1#*=}; shift ;;
	--kernel) kernel=${2:-}; shift $(($# > 1 ? 2 : 1)) ;;
	--kernel=*) kernel=${1#*=}; shift ;;
	--configure) goal=configure place=${2:-}; shift 2 ;;
	--make) goal='make'; shift; args=("$@"); break ;;
	*) die "usage: ./build.sh kernel [--profile P] [--kernel perdure|stock]" ;;
	esac
done
# Over what: allnoconfig for the kernels of the tests, Kconfig's defaults or a distribution's configuration for what is shipped
base=allnoconfig
case $kernel-$profile in
perdure-vm) fragments=(vm features) ;;
perdure-debug) fragments=(vm features debug kunit) ;;
perdure-kcsan) fragments=(vm features kcsan) ;;
perdure-bench) fragments=(vm features bench) ;;
perdure-nfs) fragments=(vm features nfs) ;;
perdure-off) fragments=(vm off) ;;
stock-vm) fragments=(vm) ;;
stock-debug) fragments=(vm debug) ;;
stock-bench) fragments=(vm bench) ;;
perdure-small) fragments=(vm features small) ;;
perdure-server) base=alldefconfig fragments=(server features) ;;
perdure-server-debug) base=alldefconfig fragments=(server features debug) ;;
perdure-full) base=debian fragments=(full features) ;;
perdure-full-debug) base=debian fragments=(full features debug) ;;
*) die "no kernel $kernel with profile $profile: perdure has vm, debug, kcsan, bench, nfs, off, small, server, server-debug, full and full-debug;" \
	"stock has vm, debug and bench" ;;
esac
arch=$PERDURE_ARCH cross=
case $arch in
x86_64) ;;
arm64)
	[[ $profile == @(vm|debug|off) ]] || die "arm64 has no kernel with profile $profile, only vm, debug and off"
	cross=aarch64-linux-gnu-
	fragments+=(arm64)
	;;
*) die "no architecture $arch: there are x86_64 and arm64" ;;
esac
need git make gcc "${cross}gcc" "${cross}ld" flex bison bc
export PERDURE_CC=${cross}gcc
# Only the kernels of the tests come from the cache: what it shares depends on there being no debug information
case $profile in
server*) localversion=-${PERDURE_VERSION:-$(<"$TOP/VERSION")}${profile#server} targets=(all) ;;
small | full*) localversion=-${PERDURE_VERSION:-$(<"$TOP/VERSION")}-$profile targets=(all) ;;
*) localversion=-$profile targets=(vmlinux) ;;
esac
[[ $arch != arm64 ]] || targets+=(Image)	# what QEMU starts there
case $profile in
server* | full*) shipped=yes; need pahole zstd ;;
*) shipped= ;;
esac
# What is packaged is not to depend on the compilers of other languages that the user has
[[ ${targets[0]} != all ]] || export PATH=/usr/sbin:/usr/bin:/sbin:/bin
[[ $goal == "make" || $goal == configure ]] || lock kernel
name=$kernel-$profile
out=$BUILD/kernel/$name
[[ $goal != configure ]] || out=$place
source=$LINUX
[[ $kernel == perdure ]] || source=$BUILD/linux-stock

if [[ $kernel == stock ]]; then
	if [[ $(git -C "$source" rev-parse HEAD 2>/dev/null) != $(git -C "$LINUX" rev-parse base) ]]; then
		rm -rf "$source"
		git -C "$LINUX" worktree prune
		step "check out the stock source" "source-stock" git -C "$LINUX" worktree add -f -q --detach "$source" base
	fi
fi

# Up to date when built of the same source by the same compiler
fragments=("${fragments[@]/#/$TOP/configs/}")
fragments=("${fragments[@]/%/.config}")
state=$(git -C "$source" rev-parse 'HEAD^{tree}'; echo "$localversion"; "$PERDURE_CC" --version | head -n 1; cat "${fragments[@]}" "$0" | sha256sum)
dirty=$({ git -C "$source" status --porcelain || true; } | head -n 1)
if [[ $goal == build && -z $dirty && -f $out/vmlinux && $(cat "$out/perdure-state" 2>/dev/null) == "$state" ]]; then
	exit 0
fi

# Only for those who have a cache: filling one takes a third longer than compiling, and kernels that are built once find nothing.
# Without debug information an object does not depend on line markers, so kernels that differ in little share objects.
# Line numbers that matter are in the code by then, as __LINE__. The debug profile's sanitizers report others.
cc=$PERDURE_CC
if [[ -n ${CCACHE_DIR:-} && $profile != debug && -z $shipped ]] && command -v ccache >/dev/null; then
	cc=$TOP/scripts/kernel-cc
	# No CCACHE_BASEDIR: its relative paths would escape the compiler option that makes __FILE__ relative
	export CCACHE_NOHASHDIR=1 CCACHE_COMPILERCHECK=content CCACHE_MAXSIZE=3G
	export CCACHE_NODIRECT=1 CCACHE_PREFIX_CPP=$TOP/scripts/kernel-cpp
fi

# Paths are in the debug information, and that is in the build ID: the same wherever this directory is
prefix="-fdebug-prefix-map=$out=/usr/src/perdure/build -fdebug-prefix-map=$source=/usr/src/perdure"
make=(make -C "$source" O="$out" ARCH="$arch" CROSS_COMPILE="$cross" CC="$cc" HOSTCC="gcc" -j"$(nproc)"
	KBUILD_BUILD_TIMESTAMP='2025-01-01 00:00:00 +0000' KBUILD_BUILD_USER=perdure KBUILD_BUILD_HOST=perdure
	KBUILD_BUILD_VERSION=1 LOCALVERSION="$localversion") # "perdure" comes with the series
[[ -z $shipped ]] || make+=(KCFLAGS="$prefix" KAFLAGS="$prefix")
# objtool goes with the headers and has paths in its debug information, too: no build ID is made of them
[[ ${targets[0]} != all ]] || make+=(HOSTLDFLAGS="-Wl,--build-id=none")

configure() {
	local debian
	mkdir -p "$out"
	rm -f "$out"/perdure-{state,inputs}
	cat "${fragments[@]}" >"$out/perdure-fragment"
	if [[ $base == debian ]]; then
		debian=$(find /usr/src/linux-config-6.12 -name 'config.amd64_none_amd64.xz' 2>/dev/null)
		if [[ -z $debian ]]; then
			echo "error: the distribution's configuration is missing; install linux-config-6.12"
			return 1
		fi
		xz -dc "$debian" | cat - "$out/perdure-fragment" >"$out/.config"
		"${make[@]}" -s olddefconfig
	else
		"${make[@]}" -s KCONFIG_ALLCONFIG="$out/perdure-fragment" "$base"
	fi
	# The last fragment that names an option decides
	unmet=$(awk -v config="$out/.config" '
		/^CONFIG_[A-Z0-9_]+=/ { split($0, p, "="); want[p[1]] = $0 }
		/^# CONFIG_[A-Z0-9_]+ is not set/ { want[$2] = "" }
		END {
			while ((getline line < config) > 0)
				if (line ~ /^CONFIG_/) { split(line, p, "="); have[p[1]] = line }
			for (o in want) if (want[o] != have[o]) print (want[o] ? want[o] : o " off")
		}' "$out/perdure-fragment")
	if [[ -n $unmet ]]; then
		echo "error: configuration requests not met: ${unmet//$'\n'/, }"
		return 1
	fi
}

build() {
	configure
	"${make[@]}" "${targets[@]}"
	[[ -n $dirty ]] || echo "$state" >"$out/perdure-state"
}

if [[ $goal == make ]]; then
	[[ -f $out/vmlinux ]] || die "build/kernel/$name/vmlinux is missing: run ./build.sh kernel --profile $profile"
	exec "${make[@]}" "${args[@]}"
fi
if [[ $goal == configure ]]; then
	step "configure kernel $name" "configure-$name" configure
	exit
fi
space=2500
[[ -z $shipped ]] || space=9000
[[ $profile != full* ]] || space=30000
[[ -f $out/vmlinux ]] || need_space "$BUILD" "$space" "building the $name kernel"
step "kernel $name" "kernel-$name" build
