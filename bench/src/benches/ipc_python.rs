//! Messages between two Python processes, by `ipc_python.py`, which prints the table and the figures.

use crate::options::{MIB, Options};
use crate::out;
use crate::programs::needs::Place;
use crate::spawn;
use std::os::unix::fs::symlink;
use std::{fs, io};

pub fn run(options: &Options) {
    let Some(lib) = options.library() else {
        return println!("skipped: no library\n");
    };
    let place = match Place::new().and_then(|place| package(&place, lib).map(|()| place)) {
        Ok(place) => place,
        Err(error) => {
            return println!("skipped: no folder for files beside this program: {error}\n");
        }
    };
    // The Python with most of the rivals.
    let Some(python) =
        ["iceoryx2", "zmq", "sys"].iter().find_map(|module| place.python_with(module))
    else {
        return println!("skipped: no python3\n");
    };
    let mut command = spawn::command(python, None);
    command.env("PYTHONPATH", &place.scripts).env("LD_LIBRARY_PATH", &place.scripts);
    command.arg(place.scripts.join("ipc_python.py")).arg(options.seconds.to_string());
    for size in options.sizes_or(&[1 << 10, 64 << 10, MIB, 16 * MIB]) {
        command.arg(format!("{}={size}", out::size(size)));
    }
    let ended = command.status().map(|status| status.success());
    if !ended.unwrap_or(false) {
        std::process::exit(1); // it has said why
    }
}

/// Puts Python's package and the library, under the name that the package asks for, beside the scripts.
fn package(place: &Place, lib: &str) -> io::Result<()> {
    const FILES: [(&str, &str); 3] = [
        ("__init__.py", include_str!("../../../bindings/python/adma/__init__.py")),
        ("_library.py", include_str!("../../../bindings/python/adma/_library.py")),
        ("aio.py", include_str!("../../../bindings/python/adma/aio.py")),
    ];
    let folder = place.scripts.join("adma");
    fs::create_dir_all(&folder)?;
    for (name, text) in FILES {
        fs::write(folder.join(name), text)?;
    }
    let link = place.scripts.join("libadma.so.0");
    let _ = fs::remove_file(&link);
    symlink(lib, link)
}
