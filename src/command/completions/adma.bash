# Completion of adma for bash. SPDX-License-Identifier: MIT OR Apache-2.0

_adma() {
	local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} at word
	COMPREPLY=()
	if [ "$COMP_CWORD" -gt 1 ]; then
		case ${COMP_WORDS[1]} in
		report)
			case $previous:$current in
			--html:* | *:[!-]* | *:) mapfile -t COMPREPLY < <(compgen -f -- "$current") ;;
			*) mapfile -t COMPREPLY < <(compgen -W '--html --help' -- "$current") ;;
			esac
			return
			;;
		top)
			mapfile -t COMPREPLY < <(compgen -W '--once --json --set --help' -- "$current")
			return
			;;
		check) return ;;
		esac
	fi
	# Where the program is: behind the options and their values.
	for ((at = 1; at < COMP_CWORD; at++)); do
		word=${COMP_WORDS[at]}
		case $word in
		-m | --min-bytes | -c | --channels | -b | --backend | --stats | --stats-file) at=$((at + 1)) ;;
		--)
			at=$((at + 1))
			break
			;;
		-*) ;;
		*) break ;;
		esac
	done
	if [ "$at" -gt "$COMP_CWORD" ]; then
		case $previous in
		-b | --backend) mapfile -t COMPREPLY < <(compgen -W 'auto ioat gpu threads libc' -- "$current") ;;
		--stats) mapfile -t COMPREPLY < <(compgen -W 'text json hlog off' -- "$current") ;;
		--stats-file) mapfile -t COMPREPLY < <(compgen -f -- "$current") ;;
		-m | --min-bytes) mapfile -t COMPREPLY < <(compgen -W 'auto 256K 1M 4M' -- "$current") ;;
		esac
		return
	fi
	if [ "$at" -lt "$COMP_CWORD" ]; then
		# The program's own words.
		if declare -F _command_offset >/dev/null; then
			_command_offset "$at"
		else
			mapfile -t COMPREPLY < <(compgen -f -- "$current")
		fi
		return
	fi
	case $current in
	-*)
		mapfile -t COMPREPLY < <(compgen -W '-q --quiet --each -m --min-bytes -c --channels -b --backend
			--stats --stats-file -p --profile --check --libpath --knobs -h --help --version' -- "$current")
		;;
	*)
		local words=''
		[ "$COMP_CWORD" -gt 1 ] || words='check report top'
		mapfile -t COMPREPLY < <(compgen -W "$words" -c -- "$current")
		;;
	esac
}

complete -o filenames -F _adma adma
