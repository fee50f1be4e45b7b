//! A copy of the files that preload.sh needs, with a cargo that only records its calls.

use super::*;
use std::time::{Duration, SystemTime};

/// Action of a cargo that finds everything compiled.
pub const BUILD: &str =
    r#"mkdir -p "$target" && cp "$LIBRARY" "$target/libadma.so" && cp "$COMMAND" "$target/adma""#;

pub struct Checkout {
    /// Holds the tree, and the record of the fake cargo.
    pub folder: Folder,
    pub tree: PathBuf,
}

impl Checkout {
    pub fn new() -> Self {
        Self::named("adma")
    }

    pub fn named(name: &str) -> Self {
        let folder = Folder::new("checkout");
        let tree = folder.join(name);
        fs::create_dir_all(tree.join("target/release")).unwrap();
        fs::create_dir_all(tree.join("include")).unwrap();
        for file in ["preload.sh", "build.rs", "Cargo.toml", "Cargo.lock", "include/adma.map"] {
            copy_program(root().join(file), tree.join(file));
        }
        succeed(plain("cp").arg("-R").arg(root().join("src")).arg(&tree));
        copy_program(library(), tree.join("target/release/libadma.so"));
        copy_program(command(), tree.join("target/release/adma"));
        let checkout = Self { folder, tree };
        checkout.cargo(BUILD);
        checkout
    }

    /// Puts a cargo in PATH that records its call and then does `action`.
    pub fn cargo(&self, action: &str) {
        let path = self.folder.join("bin/cargo");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let script = format!(
            "#!/bin/sh\nprintf '%s|%s|%s\\n' \"$PWD\" \"$*\" \"$LD_PRELOAD\" >>\"$RECORD\"\n\
             target=${{CARGO_TARGET_DIR:-target}}/release\n{action}\n"
        );
        executable(&path, &script);
    }

    /// Returns the calls of cargo: folder, arguments and LD_PRELOAD of each.
    pub fn builds(&self) -> Vec<String> {
        let record = fs::read_to_string(self.folder.join("record")).unwrap_or_default();
        record.lines().map(str::to_owned).collect()
    }

    pub fn library(&self) -> PathBuf {
        self.tree.join("target/release/libadma.so")
    }

    /// Changes a source after the library was built.
    pub fn edit_source(&self) {
        let later = SystemTime::now() + Duration::from_secs(2);
        let source = fs::File::options().append(true).open(self.tree.join("src/lib.rs")).unwrap();
        source.set_modified(later).unwrap();
    }

    /// This checkout's preload.sh.
    pub fn shim(&self) -> Command {
        self.shim_at(&self.tree.join("preload.sh"))
    }

    pub fn shim_at(&self, path: &Path) -> Command {
        let mut command = plain(path);
        let rest = std::env::var_os("PATH").unwrap_or_default();
        let first = [self.folder.join("bin")];
        let path = std::env::join_paths(first.into_iter().chain(std::env::split_paths(&rest)));
        command
            .env("PATH", path.unwrap())
            .env("RECORD", self.folder.join("record"))
            .env("LIBRARY", library())
            .env("COMMAND", super::command())
            .env("XDG_RUNTIME_DIR", &self.folder)
            .env_remove("CARGO_TARGET_DIR");
        command
    }

    /// A PATH with what preload.sh needs, and no cargo.
    pub fn path_without_cargo(&self) -> PathBuf {
        let folder = self.folder.join("tools");
        fs::create_dir_all(&folder).unwrap();
        let tools = [
            "bash", "sh", "env", "cat", "cmp", "cp", "dirname", "find", "head", "id", "mkdir",
            "mv", "readlink", "sed", "touch", "true",
        ];
        for tool in tools {
            let (found, _) = succeed(plain("sh").args(["-c", "command -v \"$1\"", "sh", tool]));
            // A shell may print the bare name of a builtin.
            let found = found.trim_end();
            let found = if found.starts_with('/') { found } else { &format!("/bin/{found}") };
            let _ = symlink(found, folder.join(tool));
        }
        folder
    }
}
