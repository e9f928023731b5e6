#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
# refresh [--tree DIR --base COMMIT]: writes the commits of build/linux back to kernel-patches, the reverse of patch.
# Each commit says in a trailer which file it is: "Perdure-Patch: NNN-area-what.patch".
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

tree=$LINUX
base=base
while [[ $# -gt 0 ]]; do
	case $1 in
	--tree) tree=$(realpath "${2:?--tree needs a directory}"); shift 2 ;;
	--base) base=${2:?--base needs a commit}; shift 2 ;;
	*) die "usage: ./build.sh refresh [--tree DIR --base COMMIT]" ;;
	esac
done
need git
lock series
[[ -e $tree/.git ]] || die "$(short "$tree") is not a git tree: run ./build.sh patch first"
git -C "$tree" rev-parse -q --verify "$base^{commit}" >/dev/null || die "$(short "$tree") has no commit $base"
[[ -z $(git -C "$tree" status --porcelain --untracked-files=no | head -n 1) ]] ||
	say "warning: $(short "$tree") has changes that are not committed; they stay out of the series"

band() {
	case $1 in
	0) echo "shared preparation, system call numbers" ;;
	1) echo "restart: registration, fault hook, in-place restart" ;;
	2) echo "I/O channels: hread, lwrite, poll" ;;
	3) echo "recoverable semop" ;;
	4) echo "no_fault hooks, lazy loader, touched-set tracker" ;;
	5) echo "rescue" ;;
	6) echo "takeover" ;;
	8) echo "selftests and documentation" ;;
	9) echo "version and packaging" ;;
	*) return 1 ;;
	esac
}

mkdir -p "$BUILD"
new=$(mktemp -d "$BUILD/refresh.XXXXXX")
trap 'rm -rf "$new"' EXIT

# Only what the patch says may end up in the file: no version, hash of a commit, width of a terminal
options=(--zero-commit --no-signature --keep-subject -1 --stdout --no-renames --abbrev=12 --diff-algorithm=histogram
	--unified=3 --stat=80 --summary --patch --no-encode-email-headers --no-cover-letter --no-attach --no-thread)

{
	echo "# SPDX-License-Identifier: GPL-2.0-only"
	echo "# The patches in their order; written by ./build.sh refresh"
} >"$new/series"
: >"$new/applied"
last=''
section=''
while read -r commit; do
	what="commit ${commit:0:12} \"$(git -C "$tree" log -1 --format=%s "$commit")\""
	name=$(git -C "$tree" log -1 --format=%B "$commit" | sed -n 's/^Perdure-Patch: *//p')
	[[ $name =~ ^[0-9]{3}-[a-z0-9-]+\.patch$ ]] ||
		die "$what needs one trailer like \"Perdure-Patch: 125-area-what.patch\""
	[[ $name > $last && ${name:0:3} != "${last:0:3}" ]] || die "$what: $name must come after $last, with its own number"
	git -C "$tree" log -1 --format=%B "$commit" | grep -q '^Signed-off-by: ' || die "$what is not signed off"
	[[ $(git -C "$tree" log -1 --format=%P "$commit") != *' '* ]] || die "$what is a merge"
	last=$name
	if [[ ${name:0:1} != "$section" ]]; then
		section=${name:0:1}
		text=$(band "$section") || die "$what: there is no band ${section}NN"
		printf '\n# %sNN: %s\n' "$section" "$text" >>"$new/series"
	fi
	echo "$name" >>"$new/series"
	git -C "$tree" -c core.abbrev=12 -c format.useAutoBase=false format-patch "${options[@]}" "$commit" |
		sed '1,/^---$/{/^Perdure-Patch: /d}' >"$new/$name"
	echo "$commit $(sha256sum <"$new/$name" | cut -d ' ' -f 1) $name" >>"$new/applied"
done < <(git -C "$tree" rev-list --reverse "$base..HEAD")

changed=0
for file in "$new"/[0-9]*.patch "$new/series"; do
	[[ -e $file ]] || continue
	target=$PATCHES/${file##*/}
	cmp -s "$file" "$target" || { cat "$file" >"$target"; changed=$((changed + 1)); }
done
for file in "$PATCHES"/*.patch; do
	[[ -e $file && ! -e $new/${file##*/} ]] || continue
	rm "$file"
	changed=$((changed + 1))
done
[[ $tree != "$LINUX" ]] || cp "$new/applied" "$tree/.git/perdure-applied"
say "refresh: $(wc -l <"$new/applied") patches, $changed files changed in kernel-patches"
