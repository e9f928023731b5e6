# SPDX-License-Identifier: GPL-2.0-or-later
# shellcheck shell=bash disable=SC2034 # names are used by those who source this
# What deb.sh and rpm.sh share: version, dates, the source they build from, dist/ and its checksums.

# dpkg-buildflags and its kin, see lib.sh
unset "${!DEB_@}"

# Another version, to try an upgrade
VERSION=${PERDURE_VERSION:-$(<"$TOP/VERSION")}
DIST=${PERDURE_DIST:-$TOP/dist}
# Who answers for the packages: whose commit they are made of
MAINTAINER=$(git -C "$TOP" log -1 --format=%cn 2>/dev/null || true)
MAINTAINER_EMAIL=$(git -C "$TOP" log -1 --format=%ce 2>/dev/null || true)
# The day of the commit: two builds of one commit are the same
SOURCE_DATE_EPOCH=$(git -C "$TOP" log -1 --format=%ct 2>/dev/null || echo 1735689600)
export SOURCE_DATE_EPOCH
git -C "$TOP" rev-parse -q --verify HEAD >/dev/null || die "packages are built from a git clone, which this is not"
[[ " $* " == *" --check "* || -z $(git -C "$TOP" status --porcelain) ]] ||
	say "warning: there are changes that are not committed; they are packaged, under the date of the last commit"

# shipped PROFILE: of which packages can be made
shipped() {
	[[ $1 == @(server|server-debug|full|full-debug|small) ]] ||
		die "no packages of the profile $1: there are server, server-debug, full, full-debug and small"
}

# trusted: the kernel's source is one that the series is written for. Packages go to others, who cannot see the warning.
trusted() {
	local sum sums
	# What was found now, and what the tree in build/linux has been made of
	sums=$({ sed -n 2p "$CACHE/source"; sed 's/,.*//' "$LINUX/.git/perdure-source"; } 2>/dev/null || true)
	for sum in $sums; do
		if pinned "$sum"; then
			continue
		elif [[ -n $unpinned ]]; then
			say "warning: packages of a kernel source that is not the pinned Linux $(pin versions): $sum"
		else
			die "the kernel source is not the pinned Linux $(pin versions), but $sum (kernel-patches/UPSTREAM): take that one" \
				"by KERNEL_SRC, or package this one all the same with --unpinned"
		fi
	done
}

# export_source DIR: what the userspace packages are built from, less what git ignores; all of one age, whenever it was checked out
export_source() {
	mkdir -p "$1"
	(cd "$TOP" && git ls-files -co --exclude-standard meson.build meson_options.txt VERSION LICENSES userspace \
		vm-tests/init vm-tests/lib/vm.py | while read -r f; do [[ ! -e $f ]] || echo "$f"; done |
		tar --mtime="@$SOURCE_DATE_EPOCH" -cf - -T -) | tar -C "$1" -xf -
	echo "$VERSION" >"$1/VERSION"
}

# collect FILE...: into dist/
collect() {
	mkdir -p "$DIST"
	cp -f "$@" "$DIST/"
}

# finish: checksums over all of dist/, signed when there is a key
finish() {
	(
		cd "$DIST" || exit
		rm -f SHA256SUMS SHA256SUMS.asc
		find . -maxdepth 1 -type f ! -name 'SHA256SUMS*' -printf '%P\n' | sort | xargs sha256sum >SHA256SUMS
	)
	if [[ -z ${PERDURE_SIGN_KEY:-} ]]; then
		say "dist/SHA256SUMS is not signed: set PERDURE_SIGN_KEY to a key of your GnuPG keyring"
	elif gpg --batch --yes --local-user "$PERDURE_SIGN_KEY" --armor --detach-sign -o "$DIST/SHA256SUMS.asc" "$DIST/SHA256SUMS"; then
		say "dist/SHA256SUMS.asc: signed by $PERDURE_SIGN_KEY"
	else
		die "gpg could not sign dist/SHA256SUMS with the key $PERDURE_SIGN_KEY"
	fi
	(cd "$DIST" && ls -1sh) >&2
}
