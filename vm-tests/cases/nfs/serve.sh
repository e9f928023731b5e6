#!/bin/sh -e
# SPDX-License-Identifier: GPL-2.0-or-later
# serve.sh ROOT COMMAND...: in a guest, TMPDIR is on NFS while COMMAND runs. ROOT has the server's programs.
root=$1
shift
ip link set lo up
mkdir -p "$root/proc" "$root/export" "$root/var/lib/nfs/v4recovery"
mount -t proc proc "$root/proc"
mount -t nfsd nfsd "$root/proc/fs/nfsd"
mount -t tmpfs -o size=1200M export "$root/export"
touch "$root/var/lib/nfs/etab" "$root/var/lib/nfs/rmtab" "$root/etc/exports"
chroot "$root" exportfs -o rw,no_root_squash,fsid=0,insecure,no_subtree_check '127.0.0.1:/export'
chroot "$root" rpc.mountd -N 3
# For so many seconds a new server opens no file
echo 10 >"$root/proc/fs/nfsd/nfsv4leasetime"
echo 10 >"$root/proc/fs/nfsd/nfsv4gracetime"
chroot "$root" rpc.nfsd -N 3 -V 4.2 2
# -i: without the helper of the client, which is not installed. A request is sent again after two seconds
mount -i -t nfs4 -o vers=4.2,addr=127.0.0.1,clientaddr=127.0.0.1,timeo=20 127.0.0.1:/ /mnt
export TMPDIR=/mnt
exec "$@"
