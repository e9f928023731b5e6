#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
# setup [LIST]: installs the packages of packaging/deps/apt.txt that are missing, and nothing when none is. With the name of
# another list in that directory, the packages of that one, too.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

lists=("$TOP/packaging/deps/apt.txt" ${1:+"$TOP/packaging/deps/$1.txt"})
[[ -f ${lists[-1]} ]] || die "no list $1: there are $(cd "$TOP/packaging/deps" && echo *.txt | sed 's/\.txt//g')"
stamp=$CACHE/setup${1:+-$1}
mapfile -t wanted < <(sed 's/#.*//; s/[[:space:]]*$//; /^$/d' "${lists[@]}")
# Looking takes a moment; what was complete stays so for this list and this dpkg database
seen="$(cat "${lists[@]}" | sha256sum) $(stat -c %Y /var/lib/dpkg/status 2>/dev/null || true)"
[[ $(cat "$stamp" 2>/dev/null) != "$seen" ]] || exit 0

missing() {
	# ${Status} is dpkg-query's, not ours
	# shellcheck disable=SC2016
	comm -23 <(printf '%s\n' "${wanted[@]}" | sort -u) \
		<(dpkg-query -W -f '${Package} ${Status}\n' "${wanted[@]}" 2>/dev/null |
			sed -n 's/ install ok installed$//p' | sort -u) | tr '\n' ' '
}

install() {
	local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 -o Acquire::Retries=2)
	[[ $(id -u) == 0 ]] || apt=(sudo -n "${apt[@]}")
	"${apt[@]}" update || true # of many sources, ours may be well
	# shellcheck disable=SC2086
	"${apt[@]}" install -y --no-install-recommends $packages
}

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
	die "this is not a Debian system; install the equivalent of: ${wanted[*]}"
fi
packages=$(missing)
if [[ -n $packages ]]; then
	if [[ $(id -u) != 0 ]]; then
		command -v sudo >/dev/null || die "not root and no sudo; have these installed: $packages"
		# Asks for the password here, where the user sees it
		sudo -v || die "sudo refused; have these installed: $packages"
	fi
	# shellcheck source=/dev/null
	(
		. /etc/os-release
		[[ ${ID:-}-${VERSION_ID:-} == debian-1[23] ]] ||
			say "warning: this is ${PRETTY_NAME:-an unknown system}; packages are looked for as Debian 12 and 13 name them"
	)
	step "install $(wc -w <<<"$packages") packages" setup install
	packages=$(missing)
	[[ -z $packages ]] || die "not installed: $packages (log: build/log/setup.log)"
fi
mkdir -p "$CACHE"
echo "$seen" >"$stamp"
