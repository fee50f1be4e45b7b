#!/bin/sh
# Every channel copies: small and large, also 60 at once, with the right bytes.
set -eu
# shellcheck source=/dev/null
. tests/vm/cases/common
without_module
insmod "$GUEST_CLIENT"
client=/sys/kernel/debug/adma_client
count=0
for chan in $(channels); do
	count=$((count + 1))
	for copies in '1 1' '4 3' '64 60' '4097 60' '1048576 4'; do
		echo "$chan $copies 10000" >$client
		# idxd says of no transfer that it is complete: it keeps no order.
		if grep -v "^results=N* data==* complete=$([ "$GUEST_PROVIDER" = dsa ] && echo 0 || echo 1)\$" $client; then
			echo "$chan $copies: $(cat $client)"
			exit 1
		fi
	done
done
rmmod adma_client
[ $count = "$GUEST_CHANNELS" ] || {
	echo "$count channels"
	exit 1
}
