#!/bin/sh
# The module where `make install` puts it, among the modules of a kernel: modprobe finds it
# and loads the engine's driver before it, and the udev rule is for the device it makes.
set -eu
# shellcheck source=/dev/null
. tests/vm/cases/common
[ -n "$GUEST_MODULE" ] || {
	echo 'there is no module'
	exit 77
}
needs_engine
release=$(uname -r)
root=$(mktemp -d)
modules=$root/lib/modules/$release
mkdir -p "$modules/extra"
cp "$GUEST_MODULE" "$modules/extra/"
loaded=''
for name in dca ioatdma; do
	file=$(modinfo -n $name)
	case $file in
	/*) cp "$file" "$modules/extra/" && loaded=yes ;;
	esac
done
depmod -b "$root" "$release" 2>/dev/null
without_module
[ -z "$loaded" ] || modprobe -r ioatdma
modprobe -d "$root" adma
[ -e /sys/module/ioatdma ] || [ -z "$loaded" ] || {
	echo 'the driver of the engine was not loaded'
	exit 1
}
found=$(stat -c '%F %a %U' /dev/adma)
[ "$found" = 'character special file 640 root' ] || {
	echo "/dev/adma is $found"
	exit 1
}

# The rule: all that it compares is so, and all that it assigns is what we want.
sys=/sys/class/misc/adma
rule=$(grep -v '^#' kmod-c/60-adma.rules)
want='KERNEL=="adma", SUBSYSTEM=="misc", GROUP="adma", MODE="0640"'
if [ "$rule" != "$want" ] || ! grep -qx DEVNAME=adma $sys/uevent ||
	[ "$(basename "$(readlink -f $sys/subsystem)")" != misc ]; then
	echo "the rule is not for this device: $rule"
	exit 1
fi
# udev itself agrees, where it is installed.
if command -v udevadm >/dev/null; then
	getent group adma >/dev/null || groupadd --system adma
	mkdir -p /run/udev/rules.d
	cp kmod-c/60-adma.rules /run/udev/rules.d/
	udevadm test --action=add $sys >"$root/udev" 2>&1
	found=$(stat -c '%a %U:%G' /dev/adma)
	[ "$found" = '640 root:adma' ] || {
		tail -n 20 "$root/udev"
		echo "after udev /dev/adma is $found"
		exit 1
	}
	echo "udev: /dev/adma is $found"
fi
unload_module
