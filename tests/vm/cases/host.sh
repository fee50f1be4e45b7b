#!/bin/sh
# Tests of the host's that tests/vm/run --host has built: each is a verdict. The emulated processors are
# slow, so a run has one test at a time, and fewer rounds.
set -u
export SKIP_LOG=/run/adma-vm/skipped QUICK=1 TRAP_LESS=20
: >"$SKIP_LOG"
printf 'processors: %s\n' "$(sed -n 's/^flags.*: //p' /proc/cpuinfo | head -n 1)"
run=$GUEST_HOST_PREFIX
# Root may trace whom it wants, whatever Yama says.
case $(cat /proc/sys/kernel/yama/ptrace_scope 2>/dev/null) in
'' | 0) ;;
*) run="setpriv --inh-caps=-sys_ptrace --bounding-set=-sys_ptrace $run" ;;
esac
case $GUEST_HOST_TESTS in *';') ;; *) echo "no tests: '$GUEST_HOST_TESTS'" && exit 1 ;; esac
printf '%s' "$GUEST_HOST_TESTS" | tr ';' '\n' | while read -r name program filters; do
	# shellcheck disable=SC2086  # words
	$run "$program" --test-threads 1 $filters </dev/null >/run/adma-vm/said 2>&1
	status=$?
	cat /run/adma-vm/said
	awk -v name="$name" -v status=$status -v skips="$SKIP_LOG" '
		BEGIN {
			while ((getline line <skips) > 0) {
				at = index(line, ": ")
				why[substr(line, 1, at - 1)] = substr(line, at + 2)
			}
		}
		/^test .* \.\.\. / {
			test = $2
			short = test
			sub(/.*::/, "", short)
			seen++
			if ($NF == "FAILED")
				printf "adma-vm: not ok %s::%s: see the console\n", name, test
			else if ($NF == "ignored")
				printf "adma-vm: skip %s::%s: ignored\n", name, test
			else if (short in why)
				printf "adma-vm: skip %s::%s: %s\n", name, test, why[short]
			else
				printf "adma-vm: ok %s::%s\n", name, test
		}
		END {
			if (!seen)
				printf "adma-vm: not ok %s: no test ran, status %d\n", name, status
		}' /run/adma-vm/said
done
