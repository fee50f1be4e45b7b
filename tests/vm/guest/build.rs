//! Lists the tests of src/subjects for `subjects::TESTS`: every public function without arguments that
//! returns an `Outcome`, and every row of a `tests!` table.

use std::path::Path;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=src/subjects");
    let mut files: Vec<_> =
        fs::read_dir("src/subjects").unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let mut list = String::from("&[\n");
    for file in files.iter().filter(|file| !file.ends_with("mod.rs")) {
        let module = file.file_stem().unwrap().to_string_lossy();
        let text = fs::read_to_string(file).unwrap();
        let mut in_table = false;
        for line in text.lines() {
            in_table = line == "tests! {" || in_table && line != "}";
            let row = line.strip_prefix("    ").filter(|_| in_table);
            let name = match row {
                Some(row) => row.split_once(" =").map(|(name, _)| name),
                None => line
                    .strip_prefix("pub fn ")
                    .and_then(|rest| rest.split_once("() -> Outcome {"))
                    .map(|(name, _)| name),
            };
            let is_name =
                |name: &&str| name.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric());
            if let Some(name) = name.filter(is_name) {
                list += &format!("    Test {{ name: \"{name}\", run: {module}::{name} }},\n");
            }
        }
    }
    let path = Path::new(&env::var_os("OUT_DIR").unwrap()).join("tests.rs");
    fs::write(path, list + "]\n").unwrap();
}
