#!/bin/sh
# The engine's device is behind an IOMMU that translates, and unmaps strictly.
set -eu
channels=$(cat /sys/class/misc/adma/stats/channels)
device=$(printf '%s\n' "$channels" | head -n 1 | cut -d ' ' -f 3)
group=/sys/bus/pci/devices/$device/iommu_group
[ -e "$group" ] || {
	echo 'no IOMMU; try --provider software --iommu'
	exit 77
}
[ "$(cat "$group/type")" = DMA ] || {
	echo "$device: mappings of type $(cat "$group/type"), want DMA"
	exit 1
}
before=$(sed -n 's/^copies //p' /sys/class/misc/adma/stats/all)
LD_PRELOAD=$PWD/target/release/libadma.so ADMA_BACKEND=dma ADMA_MIN_BYTES=64K ADMA_CPU_SHARE=0 \
	python3 -c 'a = bytes(range(256)) * 65536
for _ in range(4): assert bytes(bytearray(a)) == a'
after=$(sed -n 's/^copies //p' /sys/class/misc/adma/stats/all)
[ "$after" -gt "$before" ] || {
	echo 'the engine has copied nothing'
	exit 1
}
