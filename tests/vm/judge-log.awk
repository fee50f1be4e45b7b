# Prints the complaints in a kernel log (dmesg -r), each with the test it came in, and in
# the end `expected=N`, how many warnings with a trace were announced.
#
# A message is a complaint when it has level warning or worse, or looks like a report of
# one of the kernel's checkers; before the first test only the latter, for the kernel's
# remarks on an emulated machine are many. Known ones are listed below, with the reason. A
# test announces what it provokes by a line in /dev/kmsg, `adma-vm: expect REGEX`; that
# holds until two seconds after its end, for the driver's timers come late. All between
# "cut here" and "end trace" is one message: announce any line of it.

BEGIN {
	report = "BUG|WARNING|Oops|KASAN|UBSAN|DMA-API|Call Trace|INFO: |possible .* detected|" \
		"suspicious RCU|general protection|soft lockup|hard LOCKUP|unreferenced object"

	# An emulated processor's clocks, on a busy machine.
	known["clocksource: "]
	known["TSC unstable"]
	known["TSC found unstable"]
	known["hrtimer: interrupt took"]
	# What a checker says at its start.
	known["DMA-API: preallocated"]
	known["DMA-API: debugging enabled"]
	# What ioatdma says at each unload, as an error.
	known["Removing dma and dca services"]
	# What idxd does without: user queues, counters of performance, shared queues.
	known["Unable to turn on user SVA feature"]
	known["Failed to initialize perfmon"]
	known["Platform does not have ENQCMD(S) support"]
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

function is_expected(line, regex) {
	for (regex in expected)
		if ((expected[regex] == "open" || now <= expected[regex]) && line ~ regex)
			return 1
	return 0
}

function complain(lines) {
	print (test == "" ? "before the tests" : test) ": " lines
}

text ~ /^-+\[ cut here \]-+$/ {
	block = text
	announced = 0
	next
}

block != "" {
	block = block "\n\t" text
	announced = announced || is_expected(text)
	if (text ~ /^---\[ end trace /) {
		if (announced)
			traces++
		else
			complain(block)
		block = ""
	}
	next
}

level <= 4 && test != "" || text ~ report {
	for (regex in known)
		if (index(text, regex))
			next
	if (!is_expected(text))
		complain(text)
}

END {
	if (block != "")
		complain(block)
	print "expected=" traces + 0
}
