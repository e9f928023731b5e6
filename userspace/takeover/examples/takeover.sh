#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# keepalived calls it: what has become of the instance that the other host is the master of while it lives
GATEWAY=192.0.2.1
DIRECTORY=/run/takeover
ADVERTS=2	# seconds: a few of advert_int

# One after the other, since keepalived does not wait; and what is not so any more is not acted on
echo "$3" >$DIRECTORY/keepalived.now
still() { [ "$(cat $DIRECTORY/keepalived.now)" = "$1" ]; }
exec 9>$DIRECTORY/keepalived.lock
flock 9

case $3 in
MASTER)
	# A host that has lost the network itself does not go on before it has it again, and still does not hear the other one
	lost=
	while still MASTER; do
		if ! ping -q -c 1 -w 1 "$GATEWAY" >/dev/null; then
			lost=1
			sleep 0.2
		elif [ "$lost" ]; then
			lost=
			sleep $ADVERTS
		else
			exec takeoverctl promote all
		fi
	done
	;;
BACKUP)
	# The other one is back. takeoverd asks it when the address is here.
	until status=$(takeoverctl status); do
		still BACKUP || exit 0
		sleep 0.2
	done
	echo "$status" | while read -r service _ _ state _; do
		case $state in
		alone | promoting) takeoverctl protect "$service" ;;
		esac
	done
	;;
esac
