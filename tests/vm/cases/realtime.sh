#!/bin/sh
# Callers with real-time scheduling, which hosts often refuse: their copies never wait for a
# worker, an ordinary thread, that others keep from its CPU, and they make none.
set -eu
# shellcheck source=/dev/null
. tests/vm/cases/common
if [ "$(nproc)" -lt 2 ]; then
	echo 'needs two processors'
	exit 77
fi
victims=target/vm/guest-victims
reports=$(mktemp -d)

# Threads that are held are held for good; and the kernel has nothing to say about it.
limit=/proc/sys/kernel/sched_rt_runtime_us
before=$(cat $limit)
echo -1 >$limit
trap 'echo $before >$limit' EXIT

# with LIBRARY PROGRAM WORD [WORD]: under the library, by threads, whatever engine there is
with() {
	LD_PRELOAD=$1 ADMA_BACKEND=threads ADMA_MIN_BYTES=64K ADMA_CHANNELS=1 TRAP_WORKERS=1 \
		ADMA_STATS=json ADMA_STATS_FILE="$reports/$3${4-}" TRAP_LESS=4 "$victims/$2" "$3" ${4+"$4"}
}

# check NAME WORDS...: one verdict
check() {
	name=$1
	shift
	if "$@" >"$reports/said" 2>&1; then
		echo "adma-vm: ok $name"
	else
		status=$?
		[ $status != 77 ] || {
			cat "$reports/said"
			exit 77
		}
		echo "adma-vm: not ok $name: status $status: $(tail -n 1 "$reports/said")"
	fi
}

library=$PWD/target/release/libadma.so
# counted NAME FILE: this was counted, or nothing was shown
counted() { grep -q "\"$1\":[1-9]" "$reports/$2"; }

check realtime-held with "$library" trap_real_time held
check realtime-held-counted counted real_time held
check realtime-filtered with "$library" trap_real_time held filtered
check realtime-filtered-counted counted real_time heldfiltered
check realtime-first with "$library" trap_real_time first
check realtime-first-counted counted real_time first
# Ordinary callers wait no longer than they have to: pieces are taken back.
check realtime-ordinary with "$library" trap_real_time ordinary
check realtime-ordinary-counted counted taken_back ordinary
check realtime-class with "$library" trap_workers fifo
# A busy host lets the guest's clock jump.
expect_in_log '^sched: DL replenish lagged too much'
check realtime-deadline with "$library" trap_workers deadline
