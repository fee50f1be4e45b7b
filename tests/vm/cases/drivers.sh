#!/bin/sh
# Only drivers that are known to be right are used; of others the log has one line.
set -eu
# shellcheck source=/dev/null
. tests/vm/cases/common
[ "$GUEST_PROVIDER" = software ] || {
	echo 'needs a provider in software'
	exit 77
}
without_module
trap 'engine "$GUEST_CHANNELS"; insmod "$GUEST_MODULE"' EXIT

# engine CHANNELS WORDS...: the provider afresh
engine() {
	count=$1
	shift
	rmmod adma_soft
	insmod "$GUEST_SOFTWARE" channels="$count" "$@"
}

# lines NAME: the number of lines of the log that refuse that driver
lines() { dmesg | grep -c "adma: $1 is not known" || true; }

# refused NAME WORDS...: the module does not load on it, and says why, once
refused() {
	driver=$1
	shift
	engine 4 name="$driver" "$@"
	before=$(lines "$driver")
	if insmod "$GUEST_MODULE" 2>/dev/null; then
		unload_module
		echo "$driver $*: was taken"
		exit 1
	fi
	said=$(($(lines "$driver") - before))
	[ $said = 1 ] || {
		echo "$driver $*: $said lines in the log"
		exit 1
	}
}

expect_in_log '^adma: no usable DMA_MEMCPY channel'
refused ptdma
refused adma_soft
# The driver says itself that it keeps no order, whatever its name.
refused ioatdma no_order=1
engine 4
insmod "$GUEST_MODULE"
[ "$(dmesg | grep -c '4 channels$')" -gt 0 ] || {
	echo 'ioatdma: not all channels'
	exit 1
}
unload_module
