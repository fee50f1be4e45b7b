#!/bin/sh
# Callers with real-time scheduling, which hosts often refuse: their copies never wait for a
# worker, an ordinary thread, that others keep from its CPU; and workers that they make serve
# everybody alike.
set -eu
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

# with LIBRARY PROGRAM...: under the library, by threads, whatever engine there is
with() {
	LD_PRELOAD=$1 ADMA_BACKEND=threads ADMA_MIN_BYTES=64K ADMA_CHANNELS=1 TRAP_WORKERS=1 \
		ADMA_STATS=json ADMA_STATS_FILE="$reports/$3" TRAP_LESS=4 "$victims/$2" "$3" ${4+"$4"}
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
check realtime-held with "$library" trap_real_time held
# Or nothing was shown: pieces were taken back from a worker that did not run.
check realtime-taken-back grep -q '"taken_back":[1-9]' "$reports/held"
# The worker may be between two pieces just when it is held.
ten_times() { for _ in 1 2 3 4 5 6 7 8 9 10; do "$@" || return; done; }
check realtime-first ten_times with "$library" trap_real_time first
check realtime-class with "$library" trap_class fifo
check realtime-deadline with "$library" trap_limits deadline
# Emulated processors say little about time: this is to be looked at.
echo "libc: $(with '' trap_real_time measure)"
echo "adma: $(with "$library" trap_real_time measure)"
