//! Programs of the distribution, with and without the library, compared byte for byte.
//!
//! The threshold is small and fixed, so that nearly every copy of a page or more is
//! carried. What a program writes to stdout, its exit status and every file it leaves must
//! be the same.

#[path = "../common/mod.rs"]
mod common;
mod others;

use common::{Folder, finish, found, plain, preloaded, reports_in, rows, skip_this, text};
use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Results of a run: exit status and stdout, and the files of its folder.
#[derive(PartialEq)]
struct Traces {
    status: Option<i32>,
    stdout: Vec<u8>,
    files: BTreeMap<PathBuf, Vec<u8>>,
}

/// Returns whether a program, or numpy for Debian's Python, is installed.
fn is_there(program: &str) -> bool {
    let import = || plain("/usr/bin/python3").args(["-c", "import numpy"]).output();
    let versions = || std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    match program {
        "numpy" => import().is_ok_and(|done| done.status.success()),
        // Debian's server is in a folder of its version.
        "postgres" => versions().any(|version| version.path().join("bin/postgres").is_file()),
        _ => found(program),
    }
}

/// Runs a bash script with and without the library, in folders of the same name with the same two
/// input files. A program that makes no large copy proves little: the beginnings of the names
/// `carried`, as of python3.11, must be among those that did.
fn compare(needs: &str, carried: &str, script: &str) {
    if let Some(missing) = needs.split(' ').find(|program| !is_there(program)) {
        return skip_this(&format!("{missing} is not installed"));
    }
    let (base, reports) = (Folder::new("real"), Folder::new("reports"));
    // A server that will not run as root reports as another user.
    std::fs::set_permissions(&reports, Permissions::from_mode(0o777)).unwrap();
    let folder = base.join("work");
    let without = run(plain("bash"), &folder, script);
    let mut shim = preloaded("bash");
    shim.env("ADMA_MIN_BYTES", "4096").env("ADMA_CHANNELS", "2");
    shim.env("ADMA_STATS", "json").env("ADMA_STATS_FILE", reports.join("%p.json"));
    let with = run(shim, &folder, script);

    assert_eq!(without.status, Some(0), "without the library");
    assert_eq!(with.status, Some(0), "with the library");
    assert!(without.stdout == with.stdout, "stdout: {}", difference(&without.stdout, &with.stdout));
    let names = |traces: &Traces| traces.files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&without), names(&with));
    for (name, bytes) in &without.files {
        let other = &with.files[name];
        assert!(bytes == other, "{}: {}", name.display(), difference(bytes, other));
    }
    let by_program = carried_by_program(&reports);
    for program in carried.split_whitespace() {
        let named = |name: &str| program == "*" || name.starts_with(program);
        let bytes: u64 =
            by_program.iter().filter(|(name, _)| named(name)).map(|(_, bytes)| bytes).sum();
        assert!(bytes > 0, "{program} had nothing carried: {by_program:?}");
    }
}

fn run(mut bash: Command, folder: &Path, script: &str) -> Traces {
    std::fs::create_dir(folder).unwrap();
    std::fs::write(folder.join("random.bin"), random_bytes(6 << 20)).unwrap();
    std::fs::write(folder.join("words.txt"), words(3 << 20)).unwrap();
    bash.args(["-euc", script]).current_dir(folder);
    bash.env("LC_ALL", "C").env("TZ", "UTC").env("HOME", folder).env("PYTHONHASHSEED", "0");
    let done = finish(&mut bash);
    if !done.status.success() {
        eprintln!("{}", text(&done.stderr));
    }
    let mut files = BTreeMap::new();
    gather(folder, folder, &mut files);
    std::fs::remove_dir_all(folder).unwrap();
    Traces { status: done.status.code(), stdout: done.stdout, files }
}

fn gather(base: &Path, folder: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            gather(base, &path, files);
        } else {
            let name = path.strip_prefix(base).unwrap().to_owned();
            files.insert(name, std::fs::read(&path).unwrap());
        }
    }
}

fn difference(left: &[u8], right: &[u8]) -> String {
    let place = left.iter().zip(right).position(|(l, r)| l != r);
    format!("{} and {} bytes, first difference at {place:?}", left.len(), right.len())
}

fn carried_by_program(reports: &Path) -> BTreeMap<String, u64> {
    let mut carried = BTreeMap::new();
    for report in reports_in(reports) {
        let exe = Path::new(report["exe"].as_str().unwrap()).file_name().unwrap();
        let bytes = report["paths"]["engine"]["bytes"].as_u64().unwrap();
        *carried.entry(exe.to_string_lossy().into_owned()).or_default() += bytes;
    }
    carried
}

/// Returns pseudo-random bytes, equal every time.
fn random_bytes(count: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut bytes = Vec::with_capacity(count + 8);
    while bytes.len() < count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(count);
    bytes
}

/// Returns lines of words and numbers, for sort and awk.
fn words(count: usize) -> String {
    let names = ["ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen", "ibis", "jay"];
    let mut text = String::with_capacity(count + 100);
    for bytes in random_bytes(count).chunks_exact(4) {
        if text.len() >= count {
            break;
        }
        let number = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let name = names[number as usize % names.len()];
        text += &format!("{name} {number} {}\n", number % 1000);
    }
    text
}

rows! { compare:
    python_bytes_and_modules_give_the_same: "python3", "python3", r#"/usr/bin/python3 - <<'END'
import hashlib, json, zlib, bz2, lzma, pickle, array, struct, random
data = open('random.bin', 'rb').read()
text = open('words.txt').read()
print(hashlib.sha256(data).hexdigest())
joined = b''.join(data[i:i + 100_000] for i in range(0, len(data), 50_000))
print(hashlib.md5(joined).hexdigest())
block = bytearray(data)
block[1_000_000:2_000_000] = block[3_000_000:4_000_000]
block[10:3_000_010] = block[0:3_000_000]
del block[5000:500_000]
block.extend(data[:777_777])
print(hashlib.sha1(block).hexdigest(), len(block))
for module in (zlib, bz2, lzma):
    packed = module.compress(data[:1_000_000] * 2)
    assert module.decompress(packed) == data[:1_000_000] * 2
    print(module.__name__, len(packed))
lines = sorted(text.splitlines(), key=lambda line: (line.split()[2], line))
print(hashlib.sha1('\n'.join(lines).encode()).hexdigest())
table = {str(i): [i, i * 2.5, line] for i, line in enumerate(lines[:50_000])}
assert json.loads(json.dumps(table)) == table
assert pickle.loads(pickle.dumps(table)) == table
numbers = array.array('q', range(300_000))
numbers.extend(numbers[::-1])
print(hashlib.sha1(numbers.tobytes()).hexdigest())
grid = memoryview(bytearray(4_000_000)).cast('B', [2000, 2000])
grid[0, 0] = 7
print(hashlib.sha1(bytes(grid)).hexdigest())
open('joined.bin', 'wb').write(joined)
print(text.replace('cat', 'tiger').upper().count('TIGER'), text[::-1][:50])
END"#;

    python_processes_and_threads_give_the_same: "python3", "python3", r#"/usr/bin/python3 - <<'END'
import hashlib, multiprocessing, os, subprocess, threading
data = open('random.bin', 'rb').read()

def digest(start):
    part = bytearray(data)[start:start + 2_000_000] * 2
    return hashlib.sha1(part).hexdigest()

def worker(start, results):
    results[start] = digest(start)

starts = list(range(0, 4_000_000, 500_000))
context = multiprocessing.get_context('fork')
with context.Pool(3) as pool:
    print(pool.map(digest, starts))
queue = context.Queue()
child = context.Process(target=lambda: queue.put(data))
child.start()
print(hashlib.sha1(queue.get()).hexdigest())
child.join()
results = {}
threads = [threading.Thread(target=worker, args=(start, results)) for start in starts]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(sorted(results.items()))
for _ in range(5):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if digest(1000) == digest(1000) else 1)
    assert os.waitpid(pid, 0)[1] == 0
piped = subprocess.run(['cat'], input=data, stdout=subprocess.PIPE, check=True).stdout
print(piped == data)
END"#;

    numpy_arrays_give_the_same: "numpy", "python3", r#"OPENBLAS_NUM_THREADS=1 /usr/bin/python3 - <<'END'
import hashlib, numpy
data = numpy.fromfile('random.bin', dtype=numpy.uint8)
def show(name, array):
    print(name, array.shape, hashlib.sha1(numpy.ascontiguousarray(array).tobytes()).hexdigest())
copy = numpy.empty_like(data)
numpy.copyto(copy, data)
show('copyto', copy)
grid = data[:4_000_000].reshape(2000, 2000)
show('transpose', grid.T.copy())
show('concatenate', numpy.concatenate([grid, grid[::-1], grid[:, ::-1]]))
show('sort', numpy.sort(data.view(numpy.uint32)))
show('roll', numpy.roll(data, 1_234_567))
copy[1000:3_000_000] = copy[:2_999_000]
show('overlap', copy)
show('where', numpy.where(data > 100, data, 255 - data))
numpy.save('saved.npy', grid)
show('load', numpy.load('saved.npy'))
show('tile', numpy.tile(data[:100_000], 30))
show('integers', data.astype(numpy.int64).cumsum())
END"#;

    perl_strings_give_the_same: "perl", "perl", r#"perl -MDigest::SHA=sha1_hex -e '
        local $/; open F, "<", "random.bin"; binmode F; my $data = <F>;
        my $twice = $data x 2; print sha1_hex($twice), "\n";
        substr($twice, 100_000, 2_000_000) = substr($data, 5, 1_500_000);
        print length($twice), " ", sha1_hex($twice), "\n";
        open W, "<", "words.txt"; my @lines = split /\n/, <W>;
        print sha1_hex(join "|", sort { $a cmp $b } @lines), "\n";
        my $text = join "\n", @lines; $text =~ s/cat/tiger/g;
        print sha1_hex($text . reverse $text), "\n";
        open O, ">", "out.txt"; print O $text;
        my $pid = fork; if (!$pid) { my $c = $data . $data; exit(length($c) == 2 * length $data ? 0 : 1); }
        waitpid $pid, 0; print "child $?\n";
    '"#;

    sort_in_parallel_and_with_small_buffer_gives_the_same: "sort", "", "
        for i in 1 2 3 4; do cat words.txt; done > many.txt
        sort --parallel=4 -S 64M many.txt > sorted.txt
        sort --parallel=2 -S 1M -T . -k2,2n -u many.txt > numbers.txt
        sort -m sorted.txt sorted.txt | uniq -c | tail -n 5
        shuf --random-source=random.bin words.txt | tac | head -c 100000 | sha1sum";

    compressors_round_trip_to_the_same: "gzip xz zstd", "zstd xz", "
        head -c 700000 random.bin | cat words.txt - > input
        for tool in gzip bzip2 xz zstd lz4; do
            command -v $tool > /dev/null || continue
            options=-1; test $tool != gzip || options=-1n
            $tool $options -k -c input > input.$tool
            $tool -d -c input.$tool | cmp - input
            echo $tool
        done
        if command -v zstd > /dev/null; then zstd -q -T2 -9 --long input -o long.zst; fi
        if command -v xz > /dev/null; then xz -T2 -1 --block-size=1MiB -k -c input > blocks.xz; fi";

    tar_cp_dd_and_rsync_give_the_same: "tar cp dd", "dd", "
        mkdir -p tree/deep/deeper
        cp random.bin tree/; cp words.txt tree/deep/; split -b 300000 random.bin tree/deep/deeper/part.
        tar --sort=name --mtime=@0 --owner=0 --group=0 -cf tree.tar tree
        tar --sort=name --mtime=@0 --owner=0 --group=0 -czf tree.tar.gz tree
        mkdir out; tar -C out -xzf tree.tar.gz; diff -r tree out/tree
        cp -a --sparse=always tree copied; cmp random.bin copied/random.bin
        dd if=random.bin of=dd.out bs=777777 iflag=fullblock status=none
        dd if=random.bin of=dd2.out ibs=4096 obs=1M conv=swab status=none
        if command -v rsync > /dev/null; then
            rsync -a --no-whole-file tree/ synced/
            echo changed >> tree/random.bin
            rsync -a --no-whole-file tree/ synced/; diff -r tree synced
            rm -r synced
        fi
        truncate -s 10M sparse; cp --sparse=auto sparse sparse2; cmp sparse sparse2; rm sparse*
        cksum dd.out dd2.out";

    git_history_and_packs_give_the_same: "git", "git", "
        export GIT_AUTHOR_DATE='2024-01-01T00:00:00Z' GIT_COMMITTER_DATE='2024-01-01T00:00:00Z'
        export GIT_AUTHOR_NAME=A GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=A GIT_COMMITTER_EMAIL=a@b
        export GIT_CONFIG_NOSYSTEM=1
        git init -q -b main repository; cd repository; git config pack.threads 2
        for i in 1 2 3; do
            head -c $((i * 400000)) ../words.txt > text; tail -c $((i * 500000)) ../random.bin > binary
            split -l 20000 ../words.txt part.; git add .; git commit -q -m \"commit $i\"
        done
        git log --format='%H %T %s'; git ls-tree -r HEAD
        git gc -q; git repack -adfq --window=5; git fsck --full --strict
        git diff HEAD~2 --stat; git diff HEAD~1 | sha1sum; git archive HEAD | sha1sum
        git clone -q --no-local . ../clone; git -C ../clone rev-parse HEAD
        git blame text | sha1sum; git grep -c 'cat 1' | head -n 3
        git checkout -q HEAD~2; sha1sum text binary; cd ..; rm -rf repository clone";

    sqlite_database_gives_the_same: "sqlite3", "sqlite3", "
        sqlite3 data.db <<'END'
PRAGMA page_size=65536;
CREATE TABLE words(name TEXT, number INTEGER, class INTEGER, load BLOB);
.mode list
.separator ' '
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
INSERT INTO words SELECT 'name' || (i * 7919 % 1000), i, i % 97, zeroblob(i % 300) FROM n;
INSERT INTO words SELECT 'file', 0, 0, readfile('random.bin');
CREATE INDEX by_name ON words(name, number);
SELECT name, count(*), sum(number) FROM words GROUP BY name ORDER BY 3 DESC LIMIT 10;
UPDATE words SET load = load || load WHERE class = 5 OR name = 'file';
SELECT length(load), hex(substr(load, 5000000, 20)) FROM words WHERE name = 'file';
PRAGMA integrity_check;
VACUUM;
SELECT sum(length(load)) FROM words;
END
        sqlite3 data.db .dump | sha1sum; rm data.db";

    gcc_objects_and_linked_program_are_the_same: "gcc ar objdump awk", "cc1", r#"
        { echo '#include <stdio.h>'
          echo '#include <string.h>'
          awk 'NR <= 800 { printf "int f%d(int x) { return x * %d + %d; }\n", NR, $3 + 1, NR }' words.txt
          echo 'static const char table[] ='
          awk 'NR <= 8000 { printf "  \"%s\"\n", $0 }' words.txt
          echo ';'
          echo 'int main(void) { printf("%d %zu\n", f7(3) + f800(4), strlen(table)); return 0; }'
        } > big.c
        gcc -O1 -c big.c -o big.o
        gcc -O0 -S big.c -o big.s
        gcc big.o -o big -Wl,--build-id=sha1
        strip -o big.stripped big
        ar rcD library.a big.o; nm library.a | sha1sum; objdump -d big | sha1sum
        ./big"#;

    shell_pipelines_awk_and_sed_give_the_same: "awk sed", "bash", r#"
        awk '{ sum[$1] += $3; n[$1]++ } END { for (k in sum) print k, sum[k], n[k] }' words.txt | sort
        awk 'BEGIN { RS = "" } { print length($0) }' words.txt
        sed -e 's/cat/tiger/g' -e '/^dog/d' -e 'y/abc/xyz/' words.txt > sed.out
        sed -n -e 'H;${x;s/\n/,/g;p}' <(head -n 20000 words.txt) | sha1sum
        grep -c 'fox .*25$' words.txt; grep -ao 'ab' random.bin | wc -l
        text=$(cat words.txt); echo "${#text}"; part=${text:1000:200000}; echo "${part//eel/conger}" | md5sum
        mapfile -t lines < words.txt; printf '%s\n' "${lines[@]:1000:5}"
        base64 random.bin | base64 -d | cmp - random.bin
        od -An -tx1 random.bin | sha1sum; xxd random.bin 2> /dev/null | tail -n 1 || true
        cut -d' ' -f2 words.txt | paste -sd+ | head -c 200; echo
        join <(sort -k1,1 words.txt | head -n 3000) <(echo 'ant x') | tail -n 1
        for i in $(seq 30); do (head -c 100000 random.bin | sha1sum) & done | sort -u; wait
        tr a-z A-Z < words.txt | fold -w 50 | tail -n 2; wc words.txt; comm -12 <(sort words.txt) <(sort words.txt) | wc -l"#;

    openssl_digests_and_ciphers_give_the_same: "openssl", "", "
        openssl dgst -sha256 -md5 random.bin; openssl dgst -sha3-256 words.txt
        key=00112233445566778899aabbccddeeff
        openssl enc -aes-128-cbc -K $key -iv $key -in random.bin -out random.enc
        openssl enc -d -aes-128-cbc -K $key -iv $key -in random.enc | cmp - random.bin
        openssl enc -base64 -in random.bin -out random.b64
        openssl enc -d -base64 -in random.b64 | cmp - random.bin";

    java_with_its_own_fault_handlers_gives_the_same: "java javac", "java", r#"
        mkdir classes
        cat > Copies.java <<'END'
import java.nio.*; import java.nio.file.*; import java.security.*; import java.util.*;
public class Copies {
    static String digest(byte[] bytes) throws Exception {
        return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-1").digest(bytes));
    }
    static int dig(int depth) { return dig(depth + 1) + 1; }
    public static void main(String[] args) throws Exception {
        byte[] data = Files.readAllBytes(Path.of("random.bin"));
        byte[] twice = new byte[data.length * 2];
        System.arraycopy(data, 0, twice, 0, data.length);
        System.arraycopy(twice, 0, twice, data.length / 2, data.length);
        System.out.println(digest(twice));
        ByteBuffer direct = ByteBuffer.allocateDirect(twice.length);
        direct.put(twice); direct.flip();
        ByteBuffer other = ByteBuffer.allocateDirect(twice.length);
        other.put(direct); other.flip();
        byte[] back = new byte[twice.length]; other.get(back);
        System.out.println(digest(back) + " " + Arrays.equals(back, twice));
        int caught = 0;
        for (int i = 0; i < 1000; i++) {
            try { Object nothing = i < 0 ? "" : null; nothing.hashCode(); }
            catch (NullPointerException e) { caught++; }
            if (i % 200 == 0) try { dig(0); } catch (StackOverflowError e) { caught += 10000; }
        }
        System.out.println(caught + " null pointers and stack overflows");
        Thread[] threads = new Thread[4];
        String[] digests = new String[4];
        for (int i = 0; i < 4; i++) {
            int own = i;
            threads[i] = new Thread(() -> { try { digests[own] = digest(Arrays.copyOf(data, 1000000 * (own + 1))); }
                catch (Exception e) { digests[own] = e.toString(); } });
            threads[i].start();
        }
        for (Thread t : threads) t.join();
        System.out.println(String.join(" ", digests));
        for (int i = 0; i < 30; i++) { byte[][] garbage = new byte[8][1 << 20]; garbage[3][i] = 1; }
        System.gc();
        Files.write(Path.of("out.bin"), back);
    }
}
END
        javac -d classes Copies.java
        java -Xmx256m -Xcheck:jni -cp classes Copies; java -Xint -version 2>&1 | wc -l
        rm -r classes"#;

    // Nothing need be carried: V8 has protection keys and fault handlers of its own.
    node_buffers_and_workers_give_the_same: "node", "", r#"
        node -e '
            const fs = require("fs"), crypto = require("crypto"), zlib = require("zlib");
            const { Worker } = require("worker_threads");
            const sha = (b) => crypto.createHash("sha1").update(b).digest("hex");
            const data = fs.readFileSync("random.bin");
            const twice = Buffer.concat([data, data]);
            twice.copyWithin(1000, 0, 5000000);
            data.copy(twice, 123456, 0, 3000000);
            console.log(sha(twice), sha(Buffer.from(twice.toString("base64"), "base64")));
            console.log(sha(zlib.gunzipSync(zlib.gzipSync(data))) === sha(data));
            const text = fs.readFileSync("words.txt", "utf8");
            console.log(sha(text.split("\n").sort().join("\n")), sha(JSON.stringify(text.split("\n"))));
            fs.writeFileSync("out.bin", twice);
            // f(at) is the word at `at` in one page of memory: beyond it V8 relies on SIGSEGV.
            const wasm = new Uint8Array([0,97,115,109,1,0,0,0,1,6,1,96,1,127,1,127,3,2,1,0,5,3,1,0,1,
                7,5,1,1,102,0,0,10,9,1,7,0,32,0,40,2,0,11]);
            const { f } = new WebAssembly.Instance(new WebAssembly.Module(wasm)).exports;
            for (let i = 0; i < 100; i++) {
                data.copy(twice);
                try { f(1 << 30) } catch (error) { if (!i) console.log(f(0), error.message) }
            }
            function dig() { return dig() + 1 }
            try { dig() } catch (error) { console.log(error.message) }
            const code = "const { parentPort, workerData } = require(\"worker_threads\");" +
                "parentPort.postMessage(Buffer.from(workerData).reverse());";
            const worker = new Worker(code, { eval: true, workerData: data });
            worker.on("message", (m) => console.log("worker", sha(Buffer.from(m))));
        '"#;

    // "*": /proc/self/exe is valgrind's own to a bare system call.
    valgrind_runs_a_program_to_the_same_end: "valgrind", "*", "
        valgrind -q --error-exitcode=9 dd if=random.bin of=out ibs=8192 obs=300000 status=none
        cmp random.bin out";

    small_tools_give_the_same: "jq bc diff curl make file", "", r#"
        head -n 20000 words.txt | jq -R -c 'split(" ") | {name: .[0], number: (.[1] | tonumber)}' > lines.json
        jq -s 'group_by(.name) | map({name: .[0].name, sum: (map(.number) | add)})' lines.json
        echo 'scale=400; 4*a(1)' | BC_LINE_LENGTH=0 bc -l | md5sum
        diff <(head -n 30000 words.txt) <(sed 's/7/8/' words.txt | head -n 30000) | md5sum
        find . -type f | sort; file random.bin words.txt | tail -n 1
        curl -s file://$PWD/random.bin | cmp - random.bin
        make -s -f <(printf 'all:\n\t@cat words.txt | sha1sum\n')"#;
}
