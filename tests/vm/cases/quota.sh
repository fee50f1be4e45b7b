#!/bin/sh
# The quota of a control group of version 2, which few hosts let a test make, changes while the
# program runs: workers go, and come again.
set -eu
if [ "$(nproc)" -lt 2 ]; then
	echo 'needs two processors'
	exit 77
fi
groups=/sys/fs/cgroup
mountpoint -q $groups || {
	mount -t cgroup2 none $groups
	trap 'umount $groups' EXIT
}
echo +cpu >$groups/cgroup.subtree_control
group=$groups/adma
mkdir $group

# In the group, so that this shell can remove it.
LD_PRELOAD=$PWD/target/release/libadma.so ADMA_BACKEND=threads ADMA_MIN_BYTES=64K \
	sh -c 'echo $$ >"$1/cgroup.procs" && exec "$2" quota "$1/cpu.max" "100000 100000" "max 100000"' \
	sh $group target/vm/guest-victims/trap_workers
rmdir $group
