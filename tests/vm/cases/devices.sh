#!/bin/sh
# The parameters that limit which channels are taken: by device, and idxd only on request.
set -eu
# shellcheck source=/dev/null
. tests/vm/cases/common
[ "$GUEST_PROVIDER" != software ] || {
	echo 'needs the emulated engine, or the emulated DSA'
	exit 77
}
without_module
expect_in_log '^adma: no usable DMA_MEMCPY channel'

# refused WORDS...: the module does not load with these parameters
refused() {
	if insmod "$GUEST_MODULE" "$@" 2>/dev/null; then
		unload_module
		echo "$*: channels were taken"
		exit 1
	fi
}

# devices: those whose channels are held, one line each
devices() { cut -d ' ' -f 3 /sys/class/misc/adma/stats/channels | sort -u; }

# shellcheck disable=SC2086  # words
insmod "$GUEST_MODULE" $GUEST_PARAMETERS
all=$(devices)
first=$(printf '%s\n' "$all" | head -n 1)
unload_module

refused ${GUEST_PARAMETERS:+"$GUEST_PARAMETERS"} devices=0000:ff:1f.7
# shellcheck disable=SC2086
insmod "$GUEST_MODULE" $GUEST_PARAMETERS devices="$first"
[ "$(devices)" = "$first" ] || {
	echo "devices=$first: $(devices | tr '\n' ' ')"
	exit 1
}
unload_module
[ "$GUEST_PROVIDER" != dsa ] || refused
