#!/usr/bin/env bash
# Runs an unmodified program with its large memory copies carried by adma.
# Builds the library first when it is missing or older than its sources.
set -u

usage() {
	cat <<'END'
usage: preload.sh [options] [--] program [arguments]
       preload.sh --check

Runs the program with its large memcpy and memmove calls carried by copy
channels, and prints what was copied to standard error when it exits. A process
that made no large copy stays silent.

  -q, --quiet            no report
  -m, --min-bytes SIZE   carry copies from SIZE up (64K, 1M); default: learned
  -c, --channels N       channels one copy may use; default: all there are
  -b, --backend NAME     auto, ioat, threads, libc
      --stats FORMATS    report as text, json, hlog (a comma list); default text
      --stats-file PATH  write the report there; %p process number, %e program
  -p, --profile          count every copy, also small ones; suggest a threshold
      --check            say what this machine offers, and leave
      --build            build the library if needed, print its path, and leave
  -h, --help             this text
      --version          the version

Exit status: the program's; 125 when adma itself cannot be set up, 126 when the
program cannot be executed, 127 when it cannot be found.

Environment, read by the library (also with a plain LD_PRELOAD):
  ADMA_BACKEND     auto     I/OAT, else threads; or ioat, threads, libc
  ADMA_MIN_BYTES   auto     auto, or a size: 65536, 64K, 1M
  ADMA_CHANNELS    auto     how many channels one copy may use, 1 to 64; with 1
                            on I/OAT copies take turns on the channels
  ADMA_CPU_SHARE   auto     part of a copy the caller does itself, 0 to 1
  ADMA_WAIT        auto     spin, yield, sleep, umwait
  ADMA_KERNEL      auto     how pieces are copied: ordinary, movsb, stream
  ADMA_KEEP        auto     I/OAT: what stays pinned between copies, as 64M
  ADMA_OPS         all      intercepted functions, e.g. memcpy,memmove
  ADMA_STATS       off      text, json, hlog (a comma list)
  ADMA_STATS_FILE  stderr   path; %p process number, %e program
  ADMA_PROFILE     0        1: count every copy and suggest a threshold
  ADMA_VERIFY      0        n: compare every n-th carried copy
  ADMA_LOG         warn     error, warn, info, debug; to standard error
  ADMA_IPC_EAGER   4096     messages between processes: up to this size through
                            shared memory, their writer does not wait
  ADMA_IPC_OFFLOAD 32K      from this size on both processes copy
  ADMA_IPC_ENGINE  auto     helper, process_vm, shm
  ADMA_IPC_PTRACER 0        1: let the other process in where Yama keeps it out
  ADMA_IPC_TIMEOUT 10       seconds for greetings, and for last pieces at close
Options above win over the environment.
END
}

fail() {
	printf 'preload.sh: %s\n' "$1" >&2
	exit "${2:-125}"
}

# Set by install.sh: then there is nothing to build.
installed='' version=''

here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
# cargo runs in $here, so that is what a relative folder is relative to.
target=${CARGO_TARGET_DIR:-target}
case $target in
/*) ;;
*) target=$here/$target ;;
esac
library=${installed:-$target/release/libadma.so}

stale() {
	[ ! -e "$library" ] && return 0
	[ -n "$installed" ] && return 1
	[ -n "$(find "$here/src" "$here/include/adma.map" "$here/build.rs" "$here/Cargo.toml" "$here/Cargo.lock" -newer "$library" -print -quit)" ]
}

build() {
	[ -z "$installed" ] || fail "$installed is missing; install adma again"
	# Somebody else may have built it for us, and we may not write here.
	[ -e "$library" ] && [ ! -w "${library%/*}" ] && return
	if ! command -v cargo >/dev/null; then
		[ -e "$library" ] && return
		fail "the library is not built and there is no cargo; install Rust 1.90 or later"
	fi
	printf 'preload.sh: building the library, once ...\n' >&2
	# A preloaded library of the caller's is not for the compiler.
	(cd "$here" && LD_PRELOAD='' cargo build --release --lib --quiet) >&2 ||
		fail "the library could not be built, see above"
	[ -e "$library" ] || fail "cargo has built the library somewhere else than $library"
	# cargo leaves the file alone when a newer source changed nothing in it.
	touch -c "$library" 2>/dev/null || true
}

# LD_PRELOAD is split at blanks and colons, and the loader replaces $LIB and the like.
unpreloadable() {
	[[ $1 == *[[:space:]]* || $1 == *:* || $1 == *'$'* ]]
}

# Prints a path under which the library can be preloaded: its own, or that of a copy.
preloadable() {
	if ! unpreloadable "$1"; then
		printf '%s\n' "$1"
		return
	fi
	local folder
	folder=${XDG_RUNTIME_DIR:-${TMPDIR:-/tmp}}/adma-$(id -u)
	if unpreloadable "$folder"; then folder=/tmp/adma-$(id -u); fi
	# Another preload.sh may make it at this moment.
	[ -d "$folder" ] || mkdir -m 700 -- "$folder" || [ -d "$folder" ] || exit 125
	if [ ! -O "$folder" ] || [ -L "$folder" ]; then
		fail "$folder: not a folder of our own; move adma to a path without blanks, : and \$"
	fi
	if ! cmp -s -- "$1" "$folder/libadma.so"; then
		# By renaming: programs that run with the former copy keep it.
		if ! { cp -- "$1" "$folder/libadma.so.$$" &&
			mv -- "$folder/libadma.so.$$" "$folder/libadma.so"; }; then
			fail "$folder: cannot copy the library there"
		fi
	fi
	printf '%s\n' "$folder/libadma.so"
}

value() {
	[ $# -ge 2 ] || fail "$1 wants a value; see --help"
	printf '%s\n' "$2"
}

stats=${ADMA_STATS-text}
mode=run
while [ $# -gt 0 ]; do
	# --name=value is --name value, for those that take one
	case $1 in
	--min-bytes=* | --channels=* | --backend=* | --stats=* | --stats-file=*)
		set -- "${1%%=*}" "${1#*=}" "${@:2}"
		;;
	esac
	case $1 in
	-h | --help)
		usage
		exit 0
		;;
	--version)
		[ -n "$version" ] ||
			version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/Cargo.toml" | head -n 1)
		printf 'adma %s\n' "$version"
		exit 0
		;;
	--check) mode=check ;;
	--build) mode=build ;;
	-q | --quiet) stats=off ;;
	-p | --profile) export ADMA_PROFILE=1 ;;
	-m | --min-bytes) ADMA_MIN_BYTES=$(value "$@") || exit; export ADMA_MIN_BYTES; shift ;;
	-c | --channels) ADMA_CHANNELS=$(value "$@") || exit; export ADMA_CHANNELS; shift ;;
	-b | --backend) ADMA_BACKEND=$(value "$@") || exit; export ADMA_BACKEND; shift ;;
	--stats) stats=$(value "$@") || exit; shift ;;
	--stats-file) ADMA_STATS_FILE=$(value "$@") || exit; export ADMA_STATS_FILE; shift ;;
	--)
		shift
		break
		;;
	-*) fail "unknown option $1; see --help" ;;
	*) break ;;
	esac
	shift
done

if [ "$mode" = run ]; then
	[ $# -gt 0 ] || {
		usage >&2
		exit 125
	}
	program=$(type -P -- "$1") || {
		# A bare name is looked for in PATH only.
		[[ $1 == */* && -e $1 ]] && fail "$1: cannot be executed" 126
		fail "$1: not found" 127
	}
fi
if stale; then build; fi
if [ "$mode" = build ]; then
	printf '%s\n' "$library"
	exit 0
fi
preload=$(preloadable "$library") || exit
if [ "$mode" = check ]; then
	ADMA_CHECK=1 LD_PRELOAD=$preload exec "$(type -P true)"
fi
export ADMA_STATS=$stats
# Behind what is there already: AddressSanitizer, for one, insists on being first.
LD_PRELOAD=${LD_PRELOAD:+$LD_PRELOAD:}$preload exec -a "$1" "$program" "${@:2}"
