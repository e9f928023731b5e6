# SPDX-License-Identifier: GPL-2.0-or-later
# Completion of perdurectl(1) in bash

_perdurectl() {
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command='' more='' at i
	local own='--child-id --burst --interval --quarantine --on-exit --core --core-max --no-core --heartbeat --listen --pid-file --delay --keep-children --no-ports --keep --in-place --keeper --try --help'

	for ((i = 1; i < COMP_CWORD; i++)); do
		if [[ ${COMP_WORDS[i]} == -[nscHM] || ${COMP_WORDS[i]} == --lines || ${COMP_WORDS[i]} == --since ||
			${COMP_WORDS[i]} == --cursor-file || ${COMP_WORDS[i]} == --hook || ${COMP_WORDS[i]} == --metrics ]]; then
			((i++))
		elif [[ ${COMP_WORDS[i]} != -* ]]; then
			command=${COMP_WORDS[i]} at=$i
			break
		fi
	done
	COMPREPLY=()
	case $command in
	'')
		mapfile -t COMPREPLY < <(compgen -W 'list show log watch run restart upgrade check --json --help --version' -- "$cur")
		;;
	run)
		for ((i = at + 1; i < COMP_CWORD; i++)); do
			case ${COMP_WORDS[i]} in
			--)
				((i++))
				break
				;;
			-i | -b | -t | -H | -l | -p | -d | -m | --child-id | --burst | --interval | --heartbeat | --listen | --pid-file | --delay | --core-max) ((i++)) ;;
			-*) ;;
			*) break ;;
			esac
		done
		case $prev in
		-i | -b | -t | -H | -l | -p | -d | -m | --child-id | --burst | --interval | --heartbeat | --listen | --pid-file | --delay | --core-max) [[ $i -lt $COMP_CWORD ]] || return ;;
		esac
		if [[ $i -lt $COMP_CWORD ]]; then
			mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		elif [[ $cur == -* ]]; then
			mapfile -t COMPREPLY < <(compgen -W "$own" -- "$cur")
		else
			mapfile -t COMPREPLY < <(compgen -c -- "$cur" | sort -u)
		fi
		;;
	restart | upgrade)
		case $prev in
		-c | -t | -w | -T | --check | --timeout | --wait | --trial) return ;;
		esac
		# The words that are no options: a process, and a program
		for ((i = at + 1, at = 0; i < COMP_CWORD; i++)); do
			case ${COMP_WORDS[i]} in
			-c | -t | -w | -T | --check | --timeout | --wait | --trial) ((i++)) ;;
			-*) ;;
			*) at=1 ;;
			esac
		done
		if [[ $cur == -* ]]; then
			mapfile -t COMPREPLY < <(compgen -W "--check --timeout --wait $([[ $command == restart ]] || echo --trial) --help" -- "$cur")
		elif [[ $at == 0 ]]; then
			mapfile -t COMPREPLY < <(compgen -W "$(perdurectl list 2>/dev/null | awk 'NR > 1 { print $1 }')" -- "$cur")
		elif [[ $command == upgrade ]]; then
			mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		fi
		;;
	list | check) mapfile -t COMPREPLY < <(compgen -W --json -- "$cur") ;;
	show | log | watch)
		if [[ $cur == -* ]]; then
			case $command in
			log) more='--lines --since --exit-code' ;;
			watch) more='--since --cursor-file --hook --journal --metrics' ;;
			esac
			mapfile -t COMPREPLY < <(compgen -W "--json $more" -- "$cur")
		elif [[ $prev == -[cM] || $prev == --cursor-file || $prev == --metrics ]]; then
			mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		elif [[ $prev != -[nsH] && $prev != --lines && $prev != --since && $prev != --hook ]]; then
			# The registered processes
			mapfile -t COMPREPLY < <(compgen -W "$(perdurectl list 2>/dev/null | awk 'NR > 1 { print $1 }')" -- "$cur")
		fi
		;;
	esac
}
complete -F _perdurectl perdurectl
