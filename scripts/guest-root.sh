#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
# guest-root: makes build/<architecture>/root, which guests of another architecture have as their root instead of this
# machine's: packages of the same Debian release, unpacked. None of it is executed here.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

# The runner, what the tests execute, and what compiles the kernel tree's own tests
packages=python3,bash,dash,coreutils,sed,grep,gawk,procps,util-linux,mount,make,gcc,libc6-dev,linux-libc-dev
root=$BUILD/root
need mmdebstrap
lock root
# shellcheck source=/dev/null
release=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
state="$release $packages"
[[ $(cat "$root/perdure-state" 2>/dev/null) != "$state" ]] || exit 0

unpack() {
	local mirror
	# $(REPO_URI) is for apt
	# shellcheck disable=SC2016
	mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Component: main' "Codename: $release")
	[[ -n $mirror ]] || { echo "error: apt knows no Debian mirror: configure one in /etc/apt/sources.list.d"; return 1; }
	rm -rf "$root"
	mmdebstrap --mode="$([[ $(id -u) == 0 ]] && echo root || echo unshare)" --variant=extract --arch="$PERDURE_ARCH" \
		--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr --include="$packages" "$release" "$root" \
		"deb ${mirror%%$'\n'*} $release main"
	ln -sf dash "$root/usr/bin/sh"
	echo "$state" >"$root/perdure-state"
}

step "unpack the guest's root ($PERDURE_ARCH)" guest-root unpack
