# SPDX-License-Identifier: GPL-2.0-or-later
# Completion of rescuectl(8) in bash

_rescuectl() {
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command='' i n=0
	local point='--value --name --burst --interval --deadline --output --inject'

	# n: how many words there are behind the command, without options
	for ((i = 1; i < COMP_CWORD; i++)); do
		case ${COMP_WORDS[i]} in
		--)
			if [[ $command == test || $command == suggest ]]; then
				mapfile -t COMPREPLY < <(compgen -c -f -- "$cur" | sort -u)
				return
			fi
			;;
		--value | --name | --burst | --interval | --deadline | --output | --inject) ((i++)) ;;
		-*) ;;
		*) if [[ -z $command ]]; then command=${COMP_WORDS[i]}; else ((++n)); fi ;;
		esac
	done
	COMPREPLY=()
	case $prev in
	--output)
		mapfile -t COMPREPLY < <(compgen -W 'give-up cork cascade' -- "$cur")
		return
		;;
	--value | --name | --burst | --interval | --deadline | --inject) return ;;
	esac
	case $command in
	'') mapfile -t COMPREPLY < <(compgen -W 'add remove list load check suggest test show cascade --help --version' -- "$cur") ;;
	add | test)
		if [[ $cur == -* ]]; then
			mapfile -t COMPREPLY < <(compgen -W "$point" -- "$cur")
		elif [[ $n -eq 0 ]]; then
			mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		elif [[ $n -eq 1 ]]; then
			# Those that return an error are likely to be meant
			mapfile -t COMPREPLY < <(compgen -W "$(rescuectl suggest "${COMP_WORDS[2]}" 2>/dev/null | awk 'NR > 1 { print $1 }')" -- "$cur")
		fi
		;;
	show | suggest)
		[[ $n -ne 0 ]] || mapfile -t COMPREPLY < <(compgen -f -- "$cur")
		;;
	remove)
		mapfile -t COMPREPLY < <(compgen -W "--all $(rescuectl list 2>/dev/null | awk 'NR > 1 { print $1 }')" -- "$cur")
		;;
	list) mapfile -t COMPREPLY < <(compgen -W --json -- "$cur") ;;
	load | check) mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
	cascade) mapfile -t COMPREPLY < <(compgen -c -f -- "$cur" | sort -u) ;;
	esac
}
complete -F _rescuectl rescuectl
