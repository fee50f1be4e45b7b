//! Programs that cannot be helped: warnings about them, and that they run as without us.

use super::*;

/// Checks for one line that says `why`, and that the program still runs.
fn warns(program: &Path, why: &str, mut run: impl FnMut() -> Command) {
    let name = program.display().to_string();
    let done = finish(run().arg(program));
    let err = text(&done.stderr);
    assert!(err.starts_with(&format!("adma: warning: {name} ")), "{err}");
    assert!(err.contains(why) && err.lines().count() == 1, "{why}: {err}");
    for quiet in [&["-q"][..], &["--quiet"]] {
        let done = finish(run().args(quiet).arg(program));
        assert_eq!(text(&done.stderr), "", "{name} {quiet:?}");
    }
    let done = finish(run().arg(program).env("ADMA_LOG", "error"));
    assert_eq!(text(&done.stderr), "", "{name} with ADMA_LOG=error");
}

#[test]
fn warning_for_a_statically_linked_program_and_its_scripts() {
    let program = victim_with("trap_stdout", &["-static"]);
    warns(&program, "is statically linked", adma);
    let place = scratch("static");
    let script = place.join("script");
    executable(&script, &format!("#!{} x\n", program.display()));
    warns(
        &script,
        &format!("is executed by {}, which is statically linked", program.display()),
        adma,
    );
    let link = place.join("interpreter");
    symlink(&program, &link).unwrap();
    executable(&script, "#!/usr/bin/env -S A=1 interpreter\n");
    let path = format!("{}:{}", place.display(), std::env::var("PATH").unwrap());
    warns(&script, "which is statically linked", || {
        let mut command = adma();
        command.env("PATH", &path);
        command
    });
    // The program prints what it prints without us.
    let (out, _) = succeed(adma().arg(&program));
    assert_eq!(out, succeed(&mut plain(&program)).0);
}

/// LD_PRELOAD reaches such a program as a child, too; its loader would refuse to start it for a
/// symbol that only glibc has.
#[test]
fn musl_program_runs_unharmed_also_as_a_child() {
    if finish(plain("sh").args(["-c", "command -v musl-gcc"])).stdout.is_empty() {
        return skip_this("no musl-gcc (musl-tools)");
    }
    let place = scratch("real-musl").canonicalize().unwrap();
    let program = place.join("oracle");
    let source = root().join("tests/programs/musl.c");
    succeed(plain("musl-gcc").args(["-O1", "-fno-builtin", "-o"]).arg(&program).arg(source));
    let expected = succeed(&mut plain(&program)).0;
    assert_eq!(expected, "copied 100 times, caught one\n");
    warns(&program, "has another C library", adma);
    assert_eq!(succeed(adma().arg(&program)).0, expected);
    // The command sees the shell only, not this program.
    let (out, err) = succeed(adma().args(["sh", "-c", "\"$0\"; \"$0\""]).arg(&program));
    assert_eq!((out, err), (expected.repeat(2), String::new()));
    fs::remove_dir_all(place).unwrap();
}

#[test]
fn program_of_32_bits_is_warned_of_and_runs_as_it_would() {
    let place = scratch("bits");
    let source = place.join("seven.s");
    fs::write(&source, ".globl _start\n_start:\nmovl $1, %eax\nmovl $7, %ebx\nint $0x80\n")
        .unwrap();
    let program = place.join("seven");
    let built = finish(
        plain("gcc").args(["-m32", "-nostdlib", "-static", "-o"]).arg(&program).arg(&source),
    );
    if !built.status.success() {
        return skip_this("no 32-bit assembler");
    }
    let without = finish(plain("sh").arg("-c").arg(&program)).status.code();
    warns(&program, "is a 32-bit program", adma);
    assert_eq!(finish(adma().arg(&program)).status.code(), without);
}

#[test]
fn program_with_rights_of_its_own_is_warned_of() {
    if !is_root() || !found("setpriv") {
        return skip_this("needs root and setpriv to become another user");
    }
    // In a place that other users can reach, on a file system with set-user-id.
    let place = std::env::temp_dir().join(format!("adma-rights-{}", std::process::id()));
    fs::create_dir_all(&place).unwrap();
    fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).unwrap();
    for (from, to) in [
        (command(), "adma"),
        (library(), "libadma.so"),
        ("/bin/true".into(), "suid"),
        ("/bin/true".into(), "sgid"),
        ("/bin/true".into(), "able"),
    ] {
        copy_program(from, place.join(to));
        fs::set_permissions(place.join(to), fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::set_permissions(place.join("suid"), fs::Permissions::from_mode(0o4755)).unwrap();
    fs::set_permissions(place.join("sgid"), fs::Permissions::from_mode(0o2755)).unwrap();
    let another = |options: &[&str]| {
        let mut command = plain("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).args(options);
        command.arg(place.join("adma")).current_dir("/");
        command
    };
    let mounted = fs::read_to_string("/proc/self/mounts").unwrap();
    let nosuid = mounted.lines().any(|line| {
        let mut words = line.split(' ').skip(1);
        let here = words.next().is_some_and(|point| place.starts_with(point) && point != "/");
        here && words.nth(1).is_some_and(|options| options.contains("nosuid"))
    });
    if nosuid {
        let _ = fs::remove_dir_all(&place);
        return skip_this("the folder for temporary files gives no rights");
    }
    warns(&place.join("suid"), "is set-user-id", || another(&[]));
    warns(&place.join("sgid"), "is set-user-id", || another(&[]));
    // Without new privileges the bits mean nothing, as for their owner.
    assert_eq!(succeed(another(&["--no-new-privs"]).arg(place.join("suid"))).1, "");
    assert_eq!(succeed(adma().arg(place.join("suid"))).1, "");
    if found("setcap") || Path::new("/sbin/setcap").exists() {
        let path = format!("{}:/sbin:/usr/sbin", std::env::var("PATH").unwrap());
        let mut set = plain("setcap");
        set.arg("cap_net_raw+ep").arg(place.join("able")).env("PATH", path);
        if finish(&mut set).status.success() {
            warns(&place.join("able"), "has capabilities", || another(&[]));
        }
    }
    fs::remove_dir_all(&place).unwrap();
}

#[test]
fn nothing_is_said_of_programs_that_can_be_helped() {
    let place = scratch("fine");
    let script = place.join("script");
    executable(&script, "#!/usr/bin/env sh\necho ran\n");
    let empty = place.join("empty");
    executable(&empty, "");
    let programs = [PathBuf::from("true"), PathBuf::from("/bin/sh"), script, empty];
    for program in programs {
        let (_, err) = succeed(adma().arg(&program));
        assert_eq!(err, "", "{}", program.display());
    }
    // The loader is linked with nothing, but preloads as well.
    let (out, err) = succeed(adma().args([
        "/lib64/ld-linux-x86-64.so.2",
        "/bin/sh",
        "-c",
        "grep -c libadma /proc/self/maps",
    ]));
    assert!(out.trim() != "0" && err.is_empty(), "{out}{err}");
}
