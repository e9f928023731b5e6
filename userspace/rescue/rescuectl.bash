# SPDX-License-Identifier: GPL-2.0-or-later
# Completion of rescuectl(8) in bash

# Offers those words of its input that begin as the one that is typed. Names of functions and points are others': compgen -W would
# execute what they say.
_rescuectl_offer() {
	local word quoted

	while read -r word; do
		printf -v quoted %q "$word"
		[[ $word != "$cur"* && $quoted != "$cur"* ]] || COMPREPLY+=("$quoted")
	done
}

# Files; with -c commands, too
_rescuectl_files() {
	compopt -o filenames 2>/dev/null
	mapfile -t COMPREPLY < <(compgen "$@" -f -- "$cur" | sort -u)
}

_rescuectl() {
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command='' binary='' i n=0
	local point='--value --name --burst --interval --deadline --output --errno --libc --inject'

	COMPREPLY=()
	# n: how many words there are behind the command, without options
	for ((i = 1; i < COMP_CWORD; i++)); do
		case ${COMP_WORDS[i]} in
		--)
			if [[ $command == test || $command == suggest || $command == cascade ]]; then
				_rescuectl_files -c
				return
			fi
			;;
		--value | --name | --burst | --interval | --deadline | --output | --errno | --libc | --inject | --user) [[ ${COMP_WORDS[++i]} != = ]] || ((++i)) ;;
		-*) ;;
		*)
			if [[ -z $command ]]; then
				command=${COMP_WORDS[i]}
			else
				((n++)) || binary=${COMP_WORDS[i]/#\~/$HOME}
			fi
			;;
		esac
	done
	case $prev in
	--output)
		mapfile -t COMPREPLY < <(compgen -W 'give-up cork cascade' -- "$cur")
		return
		;;
	--libc)
		_rescuectl_files
		return
		;;
	--value | --name | --burst | --interval | --deadline | --errno | --inject | --user) return ;;
	esac
	case $command in
	'') mapfile -t COMPREPLY < <(compgen -W 'add remove list load unload check suggest test show cascade --help --version' -- "$cur") ;;
	add | test)
		if [[ $cur == -* ]]; then
			mapfile -t COMPREPLY < <(compgen -W "$point" -- "$cur")
		elif [[ $n -eq 0 ]]; then
			_rescuectl_files
		elif [[ $n -eq 1 ]]; then
			# Those that return an error are likely to be meant. Debug information does not come from elsewhere for that.
			_rescuectl_offer < <(DEBUGINFOD_URLS='' rescuectl suggest "$binary" 2>/dev/null | awk 'NR > 1 { print $1 }')
		fi
		;;
	show | suggest) [[ $n -ne 0 ]] || _rescuectl_files ;;
	remove)
		_rescuectl_offer < <(printf '%s\n' --all --user
			awk '!/(^| )id=0 / { for (i = 1; i <= NF; i++) if (sub(/^name=/, "", $i) && !seen[$i]++) print $i }' /proc/rescue 2>/dev/null)
		;;
	list) mapfile -t COMPREPLY < <(compgen -W --json -- "$cur") ;;
	load | unload | check) _rescuectl_files ;;
	cascade) _rescuectl_files -c ;;
	esac
}
complete -F _rescuectl rescuectl
