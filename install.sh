#!/usr/bin/env bash
# Installs the command adma with its completion, the library, its header, pkg-config file and manual
# pages. Builds command and library first if needed; cargo may be missing if they are built.
set -eu

usage() {
	cat <<'END'
usage: [DESTDIR=...] [PREFIX=...] [LIBDIR=...] ./install.sh [--uninstall]

  PREFIX   where adma will be, /usr/local by default
  LIBDIR   where the library will be, PREFIX/lib by default
  DESTDIR  put before all of it, for packagers

  --uninstall   take away what an installation with the same settings has put there
END
}

here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
prefix=${PREFIX:-/usr/local}
libdir=${LIBDIR:-$prefix/lib}
dest=${DESTDIR:-}
man=$prefix/share/man
uninstall=''
case ${1:-} in
'') ;;
--uninstall) uninstall=yes ;;
-h | --help)
	usage
	exit 0
	;;
*)
	usage >&2
	exit 2
	;;
esac
case $prefix$libdir in
*[[:space:]]* | *:* | *'$'*)
	printf 'install.sh: %s, %s: not where a library can be preloaded from\n' "$prefix" "$libdir" >&2
	exit 1
	;;
esac

for folder in "$prefix" "$libdir"; do
	case $folder in
	/*) ;;
	*)
		printf 'install.sh: %s: not a path from the root\n' "$folder" >&2
		exit 1
		;;
	esac
done

# The command's former name. Its help and its messages go by the name it is called by.
links=("$prefix/bin/adma-preload adma")
command=$prefix/bin/adma
case $libdir in
"$prefix/lib" | "$prefix/lib64" | "$prefix/lib/x86_64-linux-gnu") ;;
*) # The command looks for its library from where it is itself.
	command=$libdir/adma/adma
	links+=("$prefix/bin/adma $command")
	;;
esac
links+=("$libdir/libadma.so libadma.so.0") # for the linker; programs look for the other
bash=$prefix/share/bash-completion/completions/adma zsh=$prefix/share/zsh/site-functions/_adma
fish=$prefix/share/fish/vendor_completions.d/adma.fish
files=("$bash" "$zsh" "$fish" "$libdir/libadma.so.0" "$libdir/pkgconfig/adma.pc" "$prefix/include/adma.h"
	"$command")
pages=$man/man
for page in "$here"/man/*.[0-9]; do
	section=${page##*.} name=${page##*/}
	files+=("$pages$section/$name")
	# The other names that a page is about lead to it.
	while read -r other; do
		[ "$other.$section" = "$name" ] || links+=("$pages$section/$other.$section $name")
	done < <(sed -n '/^\.Sh NAME/,/^\.Nd/s/^\.Nm \([a-z_]*\).*/\1/p' "$page")
done

# Programs that are linked with the library find it by ld.so's cache. Who may not write
# that, or installs elsewhere, sets LD_LIBRARY_PATH or links with -rpath.
refresh_cache() {
	[ -n "$dest" ] || PATH=$PATH:/usr/sbin:/sbin ldconfig 2>/dev/null || true
}

if [ -n "$uninstall" ]; then
	for file in "${files[@]}" "${links[@]% *}"; do rm -f -- "$dest$file"; done
	refresh_cache
	exit 0
fi

library=$("$here/preload.sh" --build)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/Cargo.toml" | head -n 1)

umask 022 # folders, too, are for all users

# put MODE FILE: standard input becomes FILE, by renaming: programs that run keep the old one.
put() {
	mkdir -p -- "$dest${2%/*}"
	cat >"$dest$2.new"
	chmod -- "$1" "$dest$2.new"
	mv -f -- "$dest$2.new" "$dest$2"
}

put 755 "$libdir/libadma.so.0" <"$library"
put 755 "$command" <"${library%/*}/adma"
put 644 "$bash" <"$here/command/completions/adma.bash"
put 644 "$zsh" <"$here/command/completions/_adma"
put 644 "$fish" <"$here/command/completions/adma.fish"
put 644 "$prefix/include/adma.h" <"$here/include/adma.h"
sed -e "s|@PREFIX@|$prefix|" -e "s|@LIBDIR@|$libdir|" -e "s|@VERSION@|$version|" \
	"$here/adma.pc.in" | put 644 "$libdir/pkgconfig/adma.pc"
for page in "$here"/man/*.[0-9]; do
	put 644 "$pages${page##*.}/${page##*/}" <"$page"
done
mkdir -p -- "$dest$prefix/bin"
for link in "${links[@]}"; do
	ln -sf -- "${link#* }" "$dest${link% *}"
done
refresh_cache
printf 'installed adma %s in %s\n' "$version" "$dest$prefix"
