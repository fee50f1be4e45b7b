//! Recipes of RECIPES.md: each is taken from the page and followed as far as this machine can.

mod common;

use common::{
    Folder, executable, finish, has, is_root, library, needs, only_report, plain, root, skip_this,
    succeed, text, victim,
};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

/// Returns the `index`-th block of code below a heading of the page.
fn recipe(heading: &str, index: usize) -> String {
    let page = fs::read_to_string(root().join("RECIPES.md")).unwrap();
    let section = page.split("\n## ").find(|part| part.starts_with(heading)).expect(heading);
    let block = section.split("```").skip(1).step_by(2).nth(index).expect("a block of code");
    let (_, code) = block.split_once('\n').unwrap();
    assert!(code.lines().count() <= 10, "{heading}: more than ten lines");
    code.to_owned()
}

/// Makes a folder with the library under its installed name and a command `adma`.
fn installed() -> Folder {
    let place = Folder::new("recipes");
    symlink(library(), place.join("libadma.so.0")).unwrap();
    let adma = format!(
        "#!/bin/sh\n[ \"$1\" != --libpath ] || exec echo {0}\nexec {1} \"$@\"\n",
        place.join("libadma.so.0").display(),
        common::command().display()
    );
    executable(&place.join("adma"), &adma);
    place
}

/// Returns a script of the page in a folder of its own, where the loader finds the library.
fn script(place: &Path, code: &str) -> Command {
    let path = format!("{}:{}", place.display(), std::env::var("PATH").unwrap());
    let mut shell = plain("bash");
    shell.current_dir(place).env("PATH", path).env("LD_LIBRARY_PATH", place);
    shell.args(["-euc", code]);
    shell
}

#[test]
fn systemd_drop_in_is_valid_and_carries_the_copies_of_the_named_program() {
    let (place, drop_in) = (installed(), recipe("A systemd service", 0));
    // Environment of the service manager, given to the program by hand.
    let variables = drop_in.lines().filter_map(|line| line.strip_prefix("Environment="));
    let variables: Vec<_> = variables.map(|variable| variable.split_once('=').unwrap()).collect();
    let program = variables.iter().find(|(name, _)| *name == "ADMA_ONLY").expect("ADMA_ONLY").1;
    let service = place.join(program);
    symlink(victim("trap_copy"), &service).unwrap();
    for (executed, reports) in [(service, 1), (victim("trap_copy"), 0)] {
        let mut command = plain(&executed);
        command.envs(variables.iter().copied()).env("LD_LIBRARY_PATH", &place);
        command.env("ADMA_MIN_BYTES", "64K").env("ADMA_CHANNELS", "2").env_remove("ADMA_LIVE");
        assert_eq!(common::statistics(&mut command).len(), reports, "{}", executed.display());
    }
    needs!(has("systemd-analyze"));
    let unit = place.join("redis-server.service");
    fs::write(&unit, "[Service]\nExecStart=/bin/true\n").unwrap();
    let folder = place.join("redis-server.service.d");
    fs::create_dir(&folder).unwrap();
    let verify = || finish(plain("systemd-analyze").args(["verify", "--man=no"]).arg(&unit));
    fs::write(folder.join("adma.conf"), format!("{drop_in}Surprise=1\n")).unwrap();
    let wrong = text(&verify().stderr);
    if !wrong.contains("Surprise") {
        return skip_this(wrong.trim());
    }
    fs::write(folder.join("adma.conf"), &drop_in).unwrap();
    let right = text(&verify().stderr);
    assert!(!right.contains("adma.conf"), "{right}");
}

/// Where podman can start containers, one is made of this system, over which it writes nothing.
#[test]
fn container_recipe_reports_copies_of_the_program_inside() {
    let code = recipe("Docker and Podman", 0);
    succeed(plain("bash").args(["-n", "-c", &code]));
    let place = installed();
    // A container engine that starts nothing, and records the recipe's arguments.
    executable(&place.join("docker"), "#!/bin/sh\nprintf '%s\\n' \"$@\"\n");
    let (said, _) = succeed(&mut script(&place, &code));
    let said: Vec<&str> = said.lines().collect();
    let after = |option: &str| {
        let values = said.windows(2).filter(|pair| pair[0] == option).map(|pair| pair[1]);
        values.collect::<Vec<_>>()
    };
    let volume = format!("{}:", place.join("libadma.so.0").display());
    let [volume] = after("--volume")[..]
        .iter()
        .filter_map(|v| v.strip_prefix(&volume))
        .collect::<Vec<_>>()[..]
    else {
        panic!("{said:?}");
    };
    let preload = format!("LD_PRELOAD={}", volume.strip_suffix(":ro").unwrap());
    assert!(after("--env").contains(&&*preload), "{said:?}");
    needs!(has("podman"));
    let code = code.replace("${IMAGE:-python:3.12-slim}", "--network none --rootfs /:O");
    let done = finish(script(&place, &code).env("ENGINE", "podman"));
    let told = text(&done.stderr);
    if !done.status.success() && !told.contains("adma") {
        return skip_this(&format!("podman starts no container: {}", told.trim()));
    }
    assert!(done.status.success() && told.contains("by the engine"), "{told}");
}

/// `srun` is a script that starts the program here, with the environment that it was given.
#[test]
fn textfile_recipe_leaves_one_file_of_metrics() {
    let (place, texts) = (installed(), Folder::new("textfiles"));
    let code = recipe("Prometheus", 0);
    succeed(script(&place, &code).env("TEXTFILES", &*texts));
    let files: Vec<_> = fs::read_dir(&*texts).unwrap().flatten().map(|f| f.file_name()).collect();
    assert_eq!(files, ["adma.prom"]);
    let metrics = fs::read_to_string(texts.join("adma.prom")).unwrap();
    assert!(metrics.starts_with("# HELP adma_copies_total "), "{metrics}");
}

#[test]
fn slurm_recipe_preloads_the_ranks_and_nothing_else() {
    let place = installed();
    let srun = "#!/bin/bash\nset -- \"$@\"\nwhile [[ $1 == -* ]]; do\n\
                case $1 in --export=ALL,*) IFS=, read -ra set <<<\"${1#--export=ALL,}\" ;; esac; shift; done\n\
                [ -z \"${LD_PRELOAD-}\" ] || exit 3\nexec env \"${set[@]}\" \"$@\"\n";
    executable(&place.join("srun"), srun);
    symlink(victim("trap_copy"), place.join("program")).unwrap();
    let mut job = script(&place, &recipe("Slurm and mpirun", 0));
    job.env("ADMA_MIN_BYTES", "64K").env("ADMA_CHANNELS", "2");
    let report = only_report(&mut job);
    assert!(report["exe"].as_str().unwrap().ends_with("trap_copy"), "{report}");
}

#[test]
fn mpirun_recipe_reports_for_both_ranks() {
    needs!(has("mpirun mpicc"));
    let place = installed();
    let source = root().join("tests/programs/mpi_echo.c");
    succeed(plain("mpicc").args(["-O1", "-o"]).arg(place.join("program")).arg(source));
    let mut job = script(&place, &recipe("Slurm and mpirun", 1));
    job.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    job.env("OMPI_MCA_rmaps_base_oversubscribe", "1");
    let (out, err) = succeed(&mut job);
    assert!((out.clone() + &err).contains("2 processes"), "{out}{err}");
}

/// In a mount namespace with an /etc of its own.
#[test]
fn preload_of_the_whole_machine_reaches_only_the_named_programs() {
    let mount = "mount -t tmpfs none \"$T\" && cp -a /etc/. \"$T\" && mount --bind \"$T\" /etc";
    let place = installed();
    let inside = |code: &str| {
        let code = format!("mkdir -p t; T=$PWD/t; {mount}; unset LD_LIBRARY_PATH\n{code}");
        let mut command = plain("unshare");
        let inner = script(&place, &code);
        command.args(["--mount", "--propagation", "private"]).arg("bash").args(inner.get_args());
        command.current_dir(&place).envs(inner.get_envs().filter_map(|(k, v)| Some((k, v?))));
        command
    };
    if !is_root() || !finish(&mut inside("true")).status.success() {
        return skip_this("no mount namespace with an /etc of its own can be made");
    }
    symlink(victim("trap_copy"), place.join("redis-server")).unwrap();
    symlink(victim("trap_copy"), place.join("other")).unwrap();
    let code = recipe("The whole machine", 0)
        + "set -a; . /etc/environment; set +a\n\
           export ADMA_MIN_BYTES=64K ADMA_CHANNELS=2\n\
           grep -q DefaultEnvironment=ADMA_ONLY= /etc/systemd/system.conf.d/adma.conf\n\
           ADMA_STATS=json ADMA_STATS_FILE=$PWD/%e.%p.json; export ADMA_STATS ADMA_STATS_FILE\n\
           ./other; ./redis-server; ls ./*.json | wc -l\n\
           busybox rm /etc/ld.so.preload; ./redis-server; ls ./*.json | wc -l\n";
    let (out, _) = succeed(&mut inside(&code));
    assert_eq!(out.split_whitespace().collect::<Vec<_>>(), ["1", "1"], "{out}");
}
