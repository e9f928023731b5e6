#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
# An ext4 file system of the guest's own on /mnt/nf, on a loop device over /mnt/nf.img, in memory; then runs the command.
set -euo pipefail
if mountpoint -q /mnt/nf; then
	exec "$@"
fi
mkdir -p /mnt
mount -t tmpfs -o size=256m tmpfs /mnt
truncate -s 200M /mnt/nf.img
mkfs.ext4 -q -F -E lazy_itable_init=0,nodiscard -O ^has_journal /mnt/nf.img
mkdir /mnt/nf
# Not mount -o loop, which has the device open for writing while it mounts it
mount "$(losetup -f --show /mnt/nf.img)" /mnt/nf
exec "$@"
