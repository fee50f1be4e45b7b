#!/usr/bin/env bash
# Installs the library, its header, pkg-config file and manual pages, and preload.sh as
# adma-preload. Builds the library first if needed; cargo may be missing if it is built.
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

files=("$libdir/libadma.so" "$libdir/pkgconfig/adma.pc" "$prefix/include/adma.h"
	"$prefix/bin/adma-preload")
pages=$man/man
links=()
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

umask 022 # folders, too, are for everybody

# put MODE FILE: standard input becomes FILE, by renaming: programs that run keep the old one.
put() {
	mkdir -p -- "$dest${2%/*}"
	cat >"$dest$2.new"
	chmod -- "$1" "$dest$2.new"
	mv -f -- "$dest$2.new" "$dest$2"
}

put 755 "$libdir/libadma.so" <"$library"
put 644 "$prefix/include/adma.h" <"$here/include/adma.h"
sed -e "s|@PREFIX@|$prefix|" -e "s|@LIBDIR@|$libdir|" -e "s|@VERSION@|$version|" \
	"$here/adma.pc.in" | put 644 "$libdir/pkgconfig/adma.pc"
for page in "$here"/man/*.[0-9]; do
	put 644 "$pages${page##*.}/${page##*/}" <"$page"
done
for link in "${links[@]}"; do
	ln -sf -- "${link#* }" "$dest${link% *}"
done
# The installed script knows where its library is, and builds nothing.
sed -e "s|^installed=''.*|installed=$libdir/libadma.so version=$version|" \
	-e 's/preload\.sh/adma-preload/g' "$here/preload.sh" |
	put 755 "$prefix/bin/adma-preload"
refresh_cache
printf 'installed adma %s in %s\n' "$version" "$dest$prefix"
