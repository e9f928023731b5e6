#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# keepalived calls it: what has become of the instance that the other host is the master of while it lives
GATEWAY=192.0.2.1

# One after the other: keepalived does not wait
exec 9>/run/takeover/keepalived.lock
flock 9

case $3 in
MASTER)
	# A host that has lost the network itself does not go on
	ping -q -c 1 -i 0.2 -w 2 "$GATEWAY" >/dev/null && exec takeoverctl promote all
	;;
BACKUP)
	# The other one is back; this one may just be promoting itself still, since it was late
	for _ in 1 2 3 4 5; do
		takeoverctl status | while read -r service _ _ state _; do
			[ "$state" = alone ] && takeoverctl protect "$service"
		done
		sleep 1
	done
	;;
esac
