//! Unmodified programs of the host's userland, with and without the library.
//!
//! Everything they print and every file they leave must be the same, and those that make
//! large copies must have had them carried by the engine. tests/real_programs.rs runs more of
//! them on the host.

use super::traps::{survive, victim};
use crate::kernel::has_checkers;
use crate::shim::{self, compare};
use crate::verdict::Outcome;
use std::process::Output;

tests! {
    program_python_gives_the_same
    program_sort_gives_the_same
    program_with_every_offset_copies_right
    program_with_threads_copies_right
    program_victims_of_the_host_survive
    program_with_bad_pages_sees_the_same_faults
}

fn program_python_gives_the_same() -> Outcome {
    let script = r#"/usr/bin/python3 -IS - <<'END'
import zlib, os
data = open('random.bin', 'rb').read()
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
open('joined.bin', 'wb').write(data[1:700_001])
END"#;
    compare(script, &["/usr/bin/python3"], "python3")
}

fn program_sort_gives_the_same() -> Outcome {
    if has_checkers() {
        skip!("takes too long on a kernel with checkers");
    }
    let script = "
        sort --parallel=2 -S 8M words.txt > sorted.txt
        sort -S 200K -T . -k2,2n words.txt | tail -n 3
        sort -m sorted.txt sorted.txt | uniq -c | tail -n 3
        base64 -w 150000 random.bin | sort -S 1M -T . | sha256sum
        sha256sum sorted.txt random.bin";
    // Long lines do not end with its buffer, and are moved to the next one.
    compare(script, &["sort", "sha256sum"], "sort")
}

fn program_with_every_offset_copies_right() -> Outcome {
    let report = shim::only_report(&mut shim::victim("oracle", &["1"])?)?;
    let (engine, libc) = (report.engine_bytes()?, report.libc_bytes()?);
    println!("{engine} bytes by the engine, {libc} by libc");
    ensure!(engine > 9 * libc, "only {engine} bytes were carried, {libc} were not");
    Ok(())
}

fn program_with_threads_copies_right() -> Outcome {
    let report = shim::only_report(&mut shim::victim("threads", &["4"])?)?;
    ensure!(report.engine_bytes()? > 0, "nothing was carried");
    Ok(())
}

fn program_victims_of_the_host_survive() -> Outcome {
    let carried = survive(&[
        "functions memcpy 3 200000",
        "functions memmove 3 200000",
        "functions __memcpy_chk 3 200000",
        "functions mempcpy 3 200000",
        "functions wmemcpy 3 200000",
        "overlap memmove 4096 200000",
        "overlap memcpy 150000 200000",
        "extremes nothing",
        "extremes itself",
        "stats_forks 2 0 3",
        "trap_threads 4",
    ])?;
    ensure!(carried > 0, "nothing was carried");
    Ok(())
}

/// Handlers see the faults they would see without the library, in the same thread, and who
/// has none dies of the same signal.
fn program_with_bad_pages_sees_the_same_faults() -> Outcome {
    const TROUBLES: &[&str] = &[
        "unmapped-source",
        "unmapped-destination",
        "read-only-destination",
        "forbidden-source",
        "truncated-source",
        "truncated-destination",
        "missing-source",
        "missing-destination-sigbus",
        "key-of-others-destination",
    ];
    shim::library()?;
    let program = victim("faults")?;
    for trouble in TROUBLES {
        if trouble.starts_with("missing") && has_checkers() {
            // Linux 6.1 cannot wait for such a page when it is pinned for long, and a kernel
            // with checkers remarks on it; the module then does without.
            continue;
        }
        for reaction in ["repair", "jump", "none"] {
            let arguments = [trouble, reaction, "middle", "262144"];
            let without = shim::plain(&program).args(arguments).output()?;
            if without.status.code() == Some(77) {
                println!("{trouble}: {}", String::from_utf8_lossy(&without.stderr).trim());
                break;
            }
            let mut command = shim::plain(&program);
            let with = shim::with_library(&mut command)?.args(arguments).output()?;
            let said = |done: &Output| {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                (done.status, text(&done.stdout), text(&done.stderr))
            };
            ensure_eq!(said(&with), said(&without), "{trouble}, {reaction}");
        }
    }
    Ok(())
}
