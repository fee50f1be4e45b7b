#!/bin/sh
# What each fault of the engine looks like to a client of ioatdma: the bench's own proof
# that its faults are there, and that the driver takes them as we say.
set -eu
# shellcheck source=/dev/null
. tests/vm/cases/common
needs_engine
without_module
expect_in_log '^ioatdma .*'
insmod "$GUEST_CLIENT"
client=/sys/kernel/debug/adma_client
chan=$(channels | head -n 1)

# counter NAME: of the first channel
counter() { adma-guest --counters | sed -n "/function=0 channel=0 /s/.* $1=\([0-9]*\).*/\1/p"; }

# check NAME WANTED FOUND
check() {
	if [ "$2" = "$3" ]; then
		echo "adma-vm: ok fault-$1"
	else
		echo "adma-vm: not ok fault-$1: want $2, found $3"
	fi
}

# copies COUNT MS: so many copies of 4096 bytes, and how they ended
copies() {
	echo "$chan 4096 $1 $2" >$client
	cat $client
}

# fault WANTED COUNT MS FAULT...: orders a fault after one more copy and makes some
fault() {
	wanted=$1 count=$2 ms=$3
	shift 3
	before=$(counter faults)
	adma-guest --fault "$@" channels=1 after=1
	found=$(copies "$count" "$ms")
	check "$1" "$wanted fired" "$found $([ "$(counter faults)" -gt "$before" ] && echo fired)"
	adma-guest --fault clear
}

good='results=NNNN data===== complete=1'
data=$(counter data)
check none "$good" "$(copies 4 2000)"
check counters "$((data + 4))" "$(counter data)"
fault 'results=NRAA data==000 complete=1' 4 1000 read
fault 'results=NWAA data==!00 complete=1' 4 1000 write
# The driver's timer resets the channel; the head's callback never comes.
fault 'results=N-AA data==000 complete=1' 4 1000 other
fault 'results=N-AA data==000 complete=1' 4 1000 hang
fault "$good" 4 2000 stall value=150
fault "$good" 4 2000 slow times=0 value=20000
fault "$good" 4 2000 lost times=2
fault 'results=N-AA data==000 complete=1' 4 1000 dead times=0
check after "$good" "$(copies 4 2000)"
rmmod adma_client
