# Completion of adma for bash. SPDX-License-Identifier: MIT OR Apache-2.0

_adma() {
	local current=${COMP_WORDS[COMP_CWORD]} reply
	mapfile -t reply < <(adma --complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
	COMPREPLY=("${reply[@]%%$'\t'*}")
	case ${reply[0]-} in
	:command*)
		# The program's own words.
		if declare -F _command_offset >/dev/null; then
			_command_offset "${reply[0]#:command }"
		else
			mapfile -t COMPREPLY < <(compgen -f -- "$current")
		fi
		;;
	:files)
		current=${current#=}
		mapfile -t COMPREPLY < <(compgen -f -- "$current")
		;;
	esac
}

complete -o filenames -F _adma adma
