#!/bin/sh
# The caller's memory policy, on two NUMA nodes: workers place new pages as it says.
set -eu
if [ "$(nproc)" -lt 2 ] || [ ! -e /sys/devices/system/node/node1 ]; then
	echo 'needs two processors and two nodes'
	exit 77
fi
victim=target/vm/guest-victims/trap_nodes
$victim
LD_PRELOAD=$PWD/target/release/libadma.so ADMA_BACKEND=threads ADMA_MIN_BYTES=64K ADMA_CHANNELS=1 \
	TRAP_WORKERS=1 $victim
