#!/bin/sh
# Tests of the host's that tests/vm/run --host has built: each is a verdict. The emulated processors are
# slow, so a run has one test at a time, fewer rounds, and more time for each.
set -u
export SKIP_LOG=/run/adma-vm/skipped QUICK=1 TRAP_LESS=20 TEST_SLOWER=10
: >"$SKIP_LOG"
printf 'processors: %s\n' "$(sed -n 's/^flags.*: //p' /proc/cpuinfo | head -n 1)"
# Root may trace whom it wants, whatever Yama says.
run=''
case $(cat /proc/sys/kernel/yama/ptrace_scope 2>/dev/null) in
'' | 0) ;;
*) run='setpriv --inh-caps=-sys_ptrace --bounding-set=-sys_ptrace' ;;
esac
case $GUEST_HOST_TESTS in *';') ;; *) echo "no tests: '$GUEST_HOST_TESTS'" && exit 1 ;; esac

# verdicts NAME: reads what a program of tests says, and prints it with a verdict behind each test. At once:
# those who end before a time limit are known then.
verdicts() {
	while IFS= read -r line; do
		printf '%s\n' "$line"
		case $line in 'test '*' ... '*) ;; *) continue ;; esac
		test=${line#test } test=${test%% ... *}
		: >$seen
		why=$(sed -n "s/^${test##*::}: //p" "$SKIP_LOG" | head -n 1)
		case $line in
		*FAILED) printf 'adma-vm: not ok %s::%s: see the console\n' "$1" "$test" ;;
		*ignored) printf 'adma-vm: skip %s::%s: ignored\n' "$1" "$test" ;;
		*)
			if [ -n "$why" ]; then
				printf 'adma-vm: skip %s::%s: %s\n' "$1" "$test" "$why"
			else
				printf 'adma-vm: ok %s::%s\n' "$1" "$test"
			fi
			;;
		esac
	done
}

seen=/run/adma-vm/seen
printf '%s' "$GUEST_HOST_TESTS" | tr ';' '\n' | while read -r name program filters; do
	rm -f $seen
	{
		# shellcheck disable=SC2086  # words
		$run "$program" --test-threads 1 $filters </dev/null 2>&1
		printf 'status %d\n' $?
	} | verdicts "$name"
	[ -e $seen ] || printf 'adma-vm: not ok %s: no test ran, see the console\n' "$name"
done
