//! Servers and large programs, by `tests/run programs`: it installs them, and notes the results.

use super::{compare, rows};

rows! { compare: ignored "tests/run programs":
    postgresql_copies_large_values_and_dump_give_the_same: "postgres psql", "postgres", r#"
        # The server refuses to run as root.
        as() { "$@"; }
        if [ "$(id -u)" = 0 ]; then as() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }; fi
        bin=$(ls -d /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
        chmod 777 .
        export PGHOST=$PWD PGDATABASE=postgres PGUSER=tester
        as $bin/initdb -D data -U tester -A trust --no-sync -E UTF8 --locale=C > /dev/null
        trap 'as $bin/pg_ctl -D data -m fast stop > /dev/null' EXIT
        as $bin/pg_ctl -D data -w -l log -o "-k $PWD -h '' -c fsync=off -c work_mem=16MB" start > /dev/null
        psql -q -v ON_ERROR_STOP=1 <<'END'
CREATE TABLE words (name text, number bigint, class int);
\copy words FROM words.txt WITH (DELIMITER ' ')
SELECT count(*), sum(number), min(name), max(class) FROM words;
CREATE INDEX ON words (number); CREATE INDEX ON words (name, class);
SELECT name, count(*), md5(string_agg(number::text, ',' ORDER BY number, class)) FROM words GROUP BY name ORDER BY name;
CREATE TABLE loads (id int PRIMARY KEY, load bytea);
ALTER TABLE loads ALTER load SET STORAGE EXTERNAL;
\set file `pwd` '/random.bin'
INSERT INTO loads VALUES (1, pg_read_binary_file(:'file'));
INSERT INTO loads SELECT i, substr(load, i * 1000, 2000000) FROM loads, generate_series(2, 9) AS i;
UPDATE loads SET load = load || load WHERE id % 3 = 0;
SELECT id, length(load), md5(load) FROM loads ORDER BY id;
SELECT md5(string_agg(encode(load, 'base64'), '' ORDER BY id)) FROM loads;
SELECT a.name, count(*) FROM words a JOIN words b ON a.number = b.number AND a.class = b.class GROUP BY 1 ORDER BY 1;
DELETE FROM words WHERE class < 300; VACUUM FULL words;
SELECT count(*), md5(string_agg(name, '' ORDER BY number, name)) FROM words;
\copy (SELECT * FROM words ORDER BY number, name, class) TO copied.txt
END
        $bin/pg_dump --no-owner | grep -v '^-- Dumped\|^.restrict\|^.unrestrict' | md5sum
        as $bin/pg_ctl -D data -m fast stop > /dev/null; trap - EXIT
        rm -rf data log"#;

    redis_large_values_and_reloaded_file_give_the_same: "redis-server redis-cli", "redis", r#"
        start() {
            redis-server --port 0 --unixsocket socket --save '' --dir . --enable-debug-command local > log &
            server=$!
            until [ "$(redis-cli -s socket ping 2> /dev/null)" = PONG ]; do kill -0 $server; sleep 0.05; done
        }
        trap 'kill $server' EXIT
        redis() { redis-cli -s socket "$@"; }
        start
        redis -x SET big < random.bin; redis -x SET text < words.txt
        for i in 1 2 3; do redis -x APPEND big < random.bin; done
        redis COPY big other; redis SETRANGE other 1000000 "$(head -c 100000 words.txt)"; redis STRLEN other
        redis GETRANGE big 3000000 9000000 | md5sum; redis GET other | md5sum; redis LCS text text LEN | tail -n 1 || true
        awk 'NR <= 20000 { print "RPUSH list:" $1, $2; print "SADD set:" $1, $2; print "ZADD sorted", $3, $2
            print "HSET hash:" $3, $1, $2 }' words.txt | redis --pipe | tail -n 1
        redis LRANGE list:cat 0 -1 | md5sum; redis ZRANGE sorted 0 -1 WITHSCORES | md5sum
        redis EVAL 'return #(redis.call("GET", "big") .. redis.call("GET", "other"))' 0
        redis SORT list:dog LIMIT 0 5; redis DEBUG DIGEST
        redis SAVE; redis SHUTDOWN NOSAVE || true; wait $server || true
        start; redis DEBUG DIGEST
        redis-benchmark -s socket -q -d 200000 -n 400 -c 8 -t set,get,lpush,lrange_100 > /dev/null
        redis SHUTDOWN NOSAVE || true; wait $server || true
        trap - EXIT; rm -f dump.rdb log socket"#;

    go_with_cgo_copies_and_signals_give_the_same: "go gcc", "copies", r#"
        mkdir source; cd source
        cat > go.mod <<'END'
module copies
go 1.19
END
        cat > main.go <<'END'
package main

/*
#include <stdlib.h>
#include <string.h>
static void *twice(const void *from, size_t len) {
	char *to = malloc(2 * len);
	memcpy(to, from, len);
	memmove(to + len, to, len);
	return to;
}
*/
import "C"

import (
	"bytes"
	"crypto/sha1"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"unsafe"
)

func main() {
	data, err := os.ReadFile("../random.bin")
	if err != nil {
		panic(err)
	}
	debug.SetPanicOnFault(true)
	sums := make([]string, 8)
	var all sync.WaitGroup
	for i := range sums {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			part := data[i*500000:]
			for round := 0; round < 3; round++ {
				block := C.CBytes(part)
				double := C.twice(block, C.size_t(len(part)))
				back := C.GoBytes(double, C.int(2*len(part)))
				sums[i] = fmt.Sprintf("%d %x %v", i, sha1.Sum(back), bytes.Equal(back[:len(part)], back[len(part):]))
				C.free(block)
				C.free(double)
				runtime.GC()
			}
		}(i)
	}
	all.Wait()
	for _, sum := range sums {
		fmt.Println(sum)
	}
	fmt.Println("recovered:", recovers())
	// Go ends by the bare system call, without a report.
	C.exit(0)
}

// A fault in Go's own code is Go's panic, with our handler in front of Go's.
func recovers() (did bool) {
	defer func() { did = recover() != nil }()
	fmt.Println(*(*int)(unsafe.Pointer(uintptr(8))))
	return false
}
END
        GOCACHE=$PWD/cache GOFLAGS=-mod=mod GOTOOLCHAIN=local LD_PRELOAD= go build -trimpath -o copies .
        ./copies; ./copies; cd ..; rm -rf source"#;

    ffmpeg_encoded_and_decoded_video_gives_the_same: "ffmpeg", "ffmpeg", "
        ffmpeg -v error -f lavfi -i testsrc2=size=1280x720:rate=25:duration=1 -f lavfi -i sine=frequency=440:duration=1 \\
            -c:v mpeg4 -q:v 4 -c:a flac -threads 2 -flags +bitexact -fflags +bitexact -map_metadata -1 made.mkv
        ffmpeg -v error -i made.mkv -f framemd5 -
        ffmpeg -v error -i made.mkv -vf scale=640:360,hflip,transpose=1 -pix_fmt rgb24 -f rawvideo - | md5sum
        ffmpeg -v error -f rawvideo -pix_fmt rgb24 -s 1024x1024 -i random.bin -c:v ffv1 -flags +bitexact -fflags +bitexact random.mkv
        ffmpeg -v error -i random.mkv -f rawvideo -pix_fmt rgb24 - | cmp - <(head -c $((2 * 3 * 1024 * 1024)) random.bin)";

    qemu_img_converted_images_hold_the_same: "qemu-img", "qemu-img", "
        cat words.txt random.bin words.txt > disk.raw; truncate -s 64M disk.raw
        qemu-img convert -f raw -O qcow2 disk.raw disk.qcow2
        qemu-img convert -f qcow2 -O qcow2 -c -m 4 disk.qcow2 packed.qcow2
        qemu-img convert -f raw -O vmdk disk.raw disk.vmdk; qemu-img convert -f vmdk -O vpc disk.vmdk disk.vhd
        qemu-img check -q packed.qcow2; qemu-img compare -f qcow2 -F qcow2 disk.qcow2 packed.qcow2
        qemu-img snapshot -c first disk.qcow2; qemu-img resize -q disk.qcow2 80M; qemu-img info disk.qcow2 | grep virtual
        for image in qcow2:packed.qcow2 vmdk:disk.vmdk; do
            qemu-img convert -f ${image%:*} -O raw ${image#*:} back.raw; cmp back.raw disk.raw
        done
        qemu-img dd -f qcow2 -O raw bs=1M count=8 if=packed.qcow2 of=part.raw; cmp -n 8388608 part.raw disk.raw
        rm *.qcow2 *.vmdk *.vhd";

    // Nothing need be carried: as with Node, V8 has fault handlers of its own, and sandboxes end reports.
    chromium_arrays_and_canvas_give_the_same: "chromium-headless-shell", "", r#"
        cat > page.html <<'END'
<pre id="out"></pre><canvas id="c" width="1024" height="1024"></canvas><script>
const out = (text) => { document.getElementById("out").textContent += text + "\n"; };
const sum = (bytes) => { let h = 2166136261; for (const b of bytes) h = Math.imul(h ^ b, 16777619) >>> 0; return h; };
const data = new Uint8Array(6 << 20);
for (let i = 0, x = 1; i < data.length; i++) { x = Math.imul(x, 1103515245) + 12345 >>> 0; data[i] = x >>> 16; }
const twice = new Uint8Array(data.length * 2);
twice.set(data); twice.set(data, data.length); twice.copyWithin(1000, 0, 5000000);
out(sum(twice) + " " + sum(twice.slice(12345, 7654321)));
const context = document.getElementById("c").getContext("2d", { willReadFrequently: true });
const image = context.createImageData(1024, 1024);
image.data.set(data.subarray(0, 4 << 20)); for (let i = 3; i < image.data.length; i += 4) image.data[i] = 255;
context.putImageData(image, 0, 0); out(sum(context.getImageData(0, 0, 1024, 1024).data));
out(structuredClone(data).every((b, i) => b === data[i]));
</script>
END
        # With workers its zygote, which insists on one thread, ends: not so early.
        ADMA_MIN_BYTES=64K chromium-headless-shell --no-sandbox --disable-gpu --user-data-dir=$PWD/profile \
            --disable-dev-shm-usage --dump-dom file://$PWD/page.html 2> /dev/null | tee dom
        grep -qx true dom; rm -rf profile .config .cache .pki .local"#;
}
