#!/bin/sh
# `adma check` and the report say which driver's channels are used, and why a queue of a DSA is not.
set -eu
# shellcheck source=/dev/null
. tests/vm/cases/common
[ "$GUEST_PROVIDER" = dsa ] || {
	echo 'needs the emulated DSA'
	exit 77
}
library=$PWD/target/release/libadma.so
last=$((GUEST_CHANNELS - 1))

# check WANTED [PREFIX...]: a line of what `adma check` says; PREFIX is a command that runs it
check() {
	wanted=$1
	shift
	found=$("$@" env LD_PRELOAD="$library" ADMA_CHECK=1 true)
	printf '%s\n' "$found" | grep -qF "$wanted" || {
		printf '%s\n' "$found"
		echo "not there: $wanted"
		exit 1
	}
}

check "helper loaded, $GUEST_CHANNELS of $GUEST_CHANNELS channels usable"
check "$GUEST_CHANNELS of idxd: dma0chan0 to dma0chan$last"
check 'no permission for /dev/adma' setpriv --reuid 65534 --regid 65534 --clear-groups

report=$(mktemp)
LD_PRELOAD=$library ADMA_BACKEND=dma ADMA_MIN_BYTES=64K ADMA_STATS=json ADMA_STATS_FILE="$report" \
	python3 -c 'a = bytearray(8 << 20); b = [bytes(a) for _ in range(4)]'
grep -q "\"dma0chan$last\":\"idxd\"" "$report" || {
	cat "$report"
	echo 'the report does not name the channels'
	exit 1
}

without_module
expect_in_log '^idxd dsa0: Active wq'
echo dsa0 >/sys/bus/dsa/drivers/idxd/unbind
check "wq0.0 to wq0.$last: not configured"
check 'helper not loaded'
echo user >/sys/bus/dsa/devices/wq0.0/type
check 'wq0.0: of type user'
tests/vm/configure-queues
