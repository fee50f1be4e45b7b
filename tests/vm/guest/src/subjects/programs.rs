//! Unmodified programs of the host's userland, with and without the library.
//!
//! Everything they print must be the same, and those that make large copies must have had them
//! carried by the engine. tests/real_programs/ runs more of them on the host.

use super::traps::survive;
use super::*;

pub fn program_python_prints_as_without() -> Outcome {
    let script = r#"/usr/bin/python3 -IS - <<'END'
import zlib, os, random
data = random.Random(1).randbytes(768 << 10)
def show(name, block):
    print(name, len(block), zlib.crc32(block))
show('twice', data + data)
show('joined', b''.join(data[i:i + 100_000] for i in range(0, len(data), 70_000)))
block = bytearray(data)
block[100_000:300_000] = block[400_000:600_000]
block[10:500_010] = block[0:500_000]
del block[5000:100_000]
block.extend(data[:177_777])
show('block', block)
pid = os.fork()
if pid == 0:
    os._exit(zlib.crc32(bytearray(data)) & 63)
print('child', os.waitpid(pid, 0)[1])
show('copy', bytes(bytearray(data)))
open('file', 'wb').write(data[1:700_001])
show('file', open('file', 'rb').read())
END"#;
    shim::compare(script, "python3")
}

pub fn program_sort_writes_as_without() -> Outcome {
    if has_checkers() {
        skip!("takes too long on a kernel with checkers");
    }
    // Long lines do not end with sort's buffer, and are moved to the next one.
    let script = r#"
        awk 'BEGIN { for (i = 1; i < 15000; i++) print i * 7919 % 1009, i * 104729 % 65537 }' > words
        sort --parallel=2 -S 8M words > sorted
        sort -S 200K -T . -k2,2n words | tail -n 3
        sort -m sorted sorted | uniq -c | tail -n 3
        seq 200000 | base64 -w 150000 | sort -S 1M -T . | sha256sum
        sha256sum sorted words"#;
    shim::compare(script, "sort")
}

pub fn program_victims_of_the_host_survive() -> Outcome {
    let carried = survive(&[
        "functions calls memcpy 3 200000",
        "functions calls memmove 3 200000",
        "functions calls __memcpy_chk 3 200000",
        "functions calls mempcpy 3 200000",
        "functions calls wmemcpy 3 200000",
        "functions overlap memmove 4096 200000",
        "functions overlap memcpy 150000 200000",
        "functions nothing",
        "functions itself",
        "trap_copy forks 2 0 3",
        "trap_copy threads 4",
    ])?;
    ensure!(carried > 0, "nothing was carried");
    Ok(())
}

pub fn program_with_every_offset_copies_right() -> Outcome {
    let report = shim::only_report(&mut shim::victim("oracle", &["1"])?)?;
    let (engine, libc) = (report.engine_bytes()?, report.libc_bytes()?);
    println!("{engine} bytes by the engine, {libc} by libc");
    ensure!(engine > 9 * libc, "only {engine} bytes were carried, {libc} were not");
    Ok(())
}

/// Handlers see the faults they would see without the library, in the same thread, and who
/// has none dies of the same signal.
pub fn program_with_bad_pages_faults_as_without() -> Outcome {
    for trouble in [
        "unmapped-source",
        "unmapped-destination",
        "read-only-destination",
        "forbidden-source",
        "truncated-source",
        "truncated-destination",
        "missing-source",
        "missing-destination-sigbus",
        "key-of-others-destination",
    ] {
        if trouble.starts_with("missing") && has_checkers() {
            // Linux 6.1 cannot wait for such a page when it is pinned for long, and a kernel
            // with checkers remarks on it; the module then does without.
            continue;
        }
        for reaction in ["repair", "jump", "none"] {
            let line = format!("faults {trouble} {reaction} middle 262144");
            let without = shim::host_program(&line)?.output()?;
            if without.status.code() == Some(77) {
                println!("{trouble}: {}", String::from_utf8_lossy(&without.stderr).trim());
                break;
            }
            let with = shim::with_library(&mut shim::host_program(&line)?)?.output()?;
            ensure_eq!(with, without, "{line}");
        }
    }
    Ok(())
}
