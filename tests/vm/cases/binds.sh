#!/bin/sh
# ioatdma binds to the engine and registers all channels, also when loaded once more. It
# does so only when its self-test has passed: a copy, reported by an interrupt.
set -eu
# shellcheck source=/dev/null
. tests/vm/cases/common
needs_engine

expect() {
	found=$(channels | wc -l)
	[ "$found" = "$1" ] || {
		echo "$2: $found channels of ioatdma, want $1"
		exit 1
	}
}

# self_tests: bytes copied by the first channels, on which the driver tests itself
self_tests() { adma-guest --counters | awk -F '[ =]' '/ channel=0 /{ sum += $8 } END { print sum }'; }

expect "$GUEST_CHANNELS" 'at first'
without_module
before=$(self_tests)
if [ -e /sys/module/ioatdma/initstate ]; then
	modprobe -r ioatdma
	expect 0 'unloaded'
	modprobe ioatdma
else # built in
	functions=$(cd /sys/bus/pci/drivers/ioatdma && ls -d 0000:*)
	for function in $functions; do echo "$function" >/sys/bus/pci/drivers/ioatdma/unbind; done
	expect 0 'unbound'
	for function in $functions; do echo "$function" >/sys/bus/pci/drivers/ioatdma/bind; done
fi
expect "$GUEST_CHANNELS" 'loaded again'
after=$(self_tests)
[ $((after - before)) = $((2000 * GUEST_FUNCTIONS)) ] || {
	echo "self-tests of 2000 bytes for each function: $((after - before)) bytes were copied"
	exit 1
}
