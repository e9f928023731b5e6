#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
# userspace: builds the library, the programs and the tests' programs with meson into build/userspace.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

need meson ninja gcc pkgconf
lock userspace
out=$BUILD/userspace
cd "$TOP"
# Parts are taken in when their meson.build is there, which ninja cannot notice by itself
parts=$({ git ls-files -co --exclude-standard '*meson.build' meson_options.txt 2>/dev/null ||
	find . -path ./build -prune -o -name 'meson*' -printf '%P\n'; } | sort)
if [[ ! -f $out/build.ninja || $(cat "$out/perdure-parts" 2>/dev/null) != "$parts" ]]; then
	again=() cross=()
	[[ $PERDURE_ARCH == x86_64 ]] || cross=(--cross-file "$TOP/scripts/$PERDURE_ARCH.meson")
	[[ ! -f $out/build.ninja ]] || again=(--reconfigure)
	step "configure userspace" userspace-configure meson setup "${again[@]}" "${cross[@]}" -Dtests=true "$out" "$TOP"
	echo "$parts" >"$out/perdure-parts"
fi
if [[ $(ninja -C "$out" -n 2>&1 | tail -n 1) != "ninja: no work to do." ]]; then
	step "build userspace" userspace ninja -C "$out"
fi
