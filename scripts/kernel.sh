#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
# kernel [--profile vm|debug|off] [--kernel perdure|stock]: builds build/kernel/<kernel>-<profile>/vmlinux.
# A stock kernel is the same configuration without our series.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

profile=vm
kernel=perdure
while [[ $# -gt 0 ]]; do
	case $1 in
	--profile) profile=${2:-}; shift 2 ;;
	--kernel) kernel=${2:-}; shift 2 ;;
	*) die "usage: ./build.sh kernel [--profile vm|debug|off] [--kernel perdure|stock]" ;;
	esac
done
case $kernel-$profile in
perdure-vm) fragments=(vm features) ;;
perdure-debug) fragments=(vm features debug) ;;
perdure-off) fragments=(vm off) ;;
stock-vm) fragments=(vm) ;;
stock-debug) fragments=(vm debug) ;;
*) die "no kernel $kernel with profile $profile: perdure has vm, debug and off; stock has vm and debug" ;;
esac
need git make gcc ld flex bison bc
lock kernel
name=$kernel-$profile
out=$BUILD/kernel/$name
source=$LINUX
[[ $kernel == perdure ]] || source=$BUILD/linux-stock

if [[ $kernel == stock ]]; then
	base=$(git -C "$LINUX" rev-parse base)
	if [[ $(git -C "$source" rev-parse HEAD 2>/dev/null) != "$base" ]]; then
		rm -rf "$source"
		git -C "$LINUX" worktree prune
		step "check out the stock source" "source-stock" git -C "$LINUX" worktree add -f -q --detach "$source" base
	fi
fi

# Up to date when built of the same source by the same compiler
fragments=("${fragments[@]/#/$TOP/configs/}")
fragments=("${fragments[@]/%/.config}")
state=$(git -C "$source" rev-parse 'HEAD^{tree}'; gcc --version | head -n 1; cat "${fragments[@]}" "$0" | sha256sum)
dirty=$(git -C "$source" status --porcelain | head -n 1)
if [[ -z $dirty && -f $out/vmlinux && $(cat "$out/perdure-state" 2>/dev/null) == "$state" ]]; then
	exit 0
fi

# Without debug information an object does not depend on line markers, so kernels that differ in little share objects.
# Line numbers that matter are in the code by then, as __LINE__. The debug profile's sanitizers report others.
cc=gcc
if [[ $profile != debug ]] && command -v ccache >/dev/null; then
	cc=$TOP/scripts/kernel-cc
	# No CCACHE_BASEDIR: its relative paths would escape the compiler option that makes __FILE__ relative
	export CCACHE_NOHASHDIR=1 CCACHE_COMPILERCHECK=content CCACHE_MAXSIZE=3G
	export CCACHE_NODIRECT=1 CCACHE_PREFIX_CPP=$TOP/scripts/kernel-cpp
fi

build() {
	mkdir -p "$out"
	rm -f "$out/perdure-state"
	cat "${fragments[@]}" >"$out/perdure-fragment"
	make=(make -C "$source" O="$out" ARCH=x86_64 CC="$cc" HOSTCC="gcc" -j"$(nproc)"
		KBUILD_BUILD_TIMESTAMP='2025-01-01 00:00:00 +0000' KBUILD_BUILD_USER=perdure KBUILD_BUILD_HOST=perdure
		KBUILD_BUILD_VERSION=1 LOCALVERSION="-${name#perdure-}") # "perdure" comes with the series
	"${make[@]}" -s KCONFIG_ALLCONFIG="$out/perdure-fragment" allnoconfig
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
	"${make[@]}" vmlinux
	[[ -n $dirty ]] || echo "$state" >"$out/perdure-state"
}

[[ -f $out/vmlinux ]] || need_space "$BUILD" 2500 "building the $name kernel"
step "kernel $name" "kernel-$name" build
