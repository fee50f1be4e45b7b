#!/bin/sh
# Two NUMA nodes: workers place new pages as the caller's memory policy says, and threads copy the end of a
# destination that is on their node.
set -eu
if [ "$(nproc)" -lt 2 ] || [ ! -e /sys/devices/system/node/node1 ]; then
	echo 'needs two processors and two nodes'
	exit 77
fi
for victim in trap_nodes trap_node_ends; do
	target/vm/guest-victims/$victim
	LD_PRELOAD=$PWD/target/release/libadma.so ADMA_BACKEND=threads ADMA_MIN_BYTES=64K ADMA_CHANNELS=1 \
		TRAP_WORKERS=1 target/vm/guest-victims/$victim
done
