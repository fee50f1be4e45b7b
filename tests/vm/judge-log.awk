# Prints the complaints in a kernel log (dmesg -r), each with the test it came in.
#
# A message is a complaint when it has level warning or worse, or looks like a report of
# one of the kernel's checkers; before the first test only the latter, for the kernel's
# remarks on an emulated machine are many. Known ones are listed below, with the reason. A test
# announces what it provokes by a line in /dev/kmsg, `adma-vm: expect REGEX`; that holds
# until two seconds after its end, for the driver's timers come late.

BEGIN {
	report = "BUG|WARNING|Oops|KASAN|UBSAN|DMA-API|Call Trace|INFO: |possible .* detected|" \
		"suspicious RCU|general protection|soft lockup|hard LOCKUP|unreferenced object"

	# An emulated processor's clocks, on a busy machine.
	known["clocksource: timekeeping watchdog on CPU"]
	known["TSC unstable"]
	# Modules that are not Debian's.
	known["module verification failed: signature and/or required key missing"]
	known["loading out-of-tree module taints kernel"]
}

{
	if (!match($0, /^<[0-9]+>/))
		next
	level = substr($0, 2, RLENGTH - 2) % 8
	text = substr($0, RLENGTH + 1)
	if (match(text, /^\[ *[0-9.]+\](\[ *[A-Z0-9]+\])? /)) {
		now = substr(text, 2) + 0
		text = substr(text, RLENGTH + 1)
	}
}

text ~ /^adma-vm: test .* begins$/ {
	test = substr(text, 15, length(text) - 21)
	next
}

text ~ /^adma-vm: test .* ends$/ {
	for (regex in expected)
		if (expected[regex] == "open")
			expected[regex] = now + 2
	next
}

text ~ /^adma-vm: expect / {
	expected[substr(text, 17)] = "open"
	next
}

level <= 4 && test != "" || text ~ report {
	for (regex in known)
		if (index(text, regex))
			next
	for (regex in expected)
		if ((expected[regex] == "open" || now <= expected[regex]) && text ~ regex)
			next
	print (test == "" ? "before the tests" : test) ": " text
}
