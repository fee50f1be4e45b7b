#!/bin/sh
# ioatdma binds to the engine, its self-test passes, and all channels are registered.
set -eu
[ "$ADMA_VM_PROVIDER" = proxy ] || {
	echo 'needs the emulated engine'
	exit 77
}

# registered: how many channels of the driver there are
registered() {
	count=0
	for chan in /sys/class/dma/dma*chan*; do
		[ -e "$chan" ] || continue
		case $(readlink -f "$chan/device/driver") in
		*/ioatdma) count=$((count + 1)) ;;
		esac
	done
	echo $count
}

expect() {
	found=$(registered)
	[ "$found" = "$1" ] || {
		echo "$2: $found channels of ioatdma, want $1"
		exit 1
	}
}

expect "$ADMA_VM_CHANNELS" 'at first'
