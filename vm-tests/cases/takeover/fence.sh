#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# /usr/sbin/fence_ipmilan in the guests of pacemaker.py. It speaks the interface of fence agents, with those parameters of the real one
# that the example has. What the other host's board would do, the test does: it reads this one's requests from a pipe, and writes the
# answer, the exit status, into the file that the request names.

action=reboot ip='' username='' password_script=''
while IFS= read -r line; do
	value=${line#*=}
	case $line in
	action=*) action=$value ;;
	ip=*) ip=$value ;;
	username=*) username=$value ;;
	password_script=*) password_script=$value ;;
	esac
done

case $action in
metadata)
	cat <<-EOT
	<?xml version="1.0"?>
	<resource-agent name="fence_ipmilan" shortdesc="The other virtual machine">
	<longdesc>Asks the test to kill the other virtual machine.</longdesc>
	<parameters>
	<parameter name="action" required="1"><content type="string" default="reboot"/></parameter>
	<parameter name="ip" required="1"><content type="string"/></parameter>
	<parameter name="username" required="0"><content type="string"/></parameter>
	<parameter name="password_script" required="0"><content type="string"/></parameter>
	<parameter name="lanplus" required="0"><content type="boolean" default="0"/></parameter>
	</parameters>
	<actions>
	<action name="on" automatic="0"/>
	<action name="off"/>
	<action name="reboot"/>
	<action name="status"/>
	<action name="monitor"/>
	<action name="metadata"/>
	</actions>
	</resource-agent>
	EOT
	exit 0
	;;
on | off | reboot | status | monitor) ;;
*)
	echo "no action $action" >&2
	exit 1
	;;
esac
answer=$(mktemp -p /run/fence answer.XXXXXX) || exit 1
echo "$answer $action ${ip:--} ${username:--} $("$password_script")" >/run/fence/requests
until read -r status <"$answer"; do
	sleep 0.2
done
rm "$answer"
[ "$status" = 0 ] || [ "$action-$status" = status-2 ] || echo "the test says no" >&2
exit "$status"
