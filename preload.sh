#!/usr/bin/env bash
# Runs an unmodified program with its large memory copies carried by adma: the command `adma` of
# this source tree. Builds command and library first when they are missing or older than their
# sources. See --help.
set -u

fail() {
	printf 'preload.sh: %s\n' "$1" >&2
	exit 125
}

here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
# cargo runs in $here, so that is what a relative folder is relative to.
target=${CARGO_TARGET_DIR:-target}
case $target in
/*) ;;
*) target=$here/$target ;;
esac
library=$target/release/libadma.so command=$target/release/adma

complete() { [ -e "$library" ] && [ -e "$command" ]; }

stale() {
	complete || return 0
	local sources=("$here/src" "$here/include/adma.map" "$here/build.rs" "$here/Cargo.toml" "$here/Cargo.lock")
	[ -n "$(find "${sources[@]}" \( -newer "$library" -o -newer "$command" \) -print -quit)" ]
}

build() {
	# Another user may have built it, and this one may not write here.
	complete && [ ! -w "${library%/*}" ] && return
	if ! command -v cargo >/dev/null; then
		complete && return
		fail "the library is not built and there is no cargo; install Rust 1.90 or later"
	fi
	printf 'preload.sh: building the library, once ...\n' >&2
	# A preloaded library of the caller's is not for the compiler.
	(cd "$here" && LD_PRELOAD='' cargo build --release --quiet --package adma --package adma-command) >&2 ||
		fail "the library could not be built, see above"
	complete || fail "cargo has built somewhere else than $library and $command"
	# cargo leaves a file alone when a newer source changed nothing in it.
	touch -c "$library" "$command" 2>/dev/null || true
}

if stale; then build; fi
case ${1-} in
--build) set -- --libpath "${@:2}" ;; # which is all there is left to do
-h | --help)
	(exec -a preload.sh "$command" --help) && exec "$command" --knobs
	exit
	;;
esac
exec -a preload.sh "$command" "$@"
