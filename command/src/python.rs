//! Lines of Python scripts, read from the memory of another process: untrusted input.
//!
//! The thread must be inside a call meanwhile (see `adma_shared::under_way`), so that its frames stay.
//! Where they are is known for CPython 3.9 to 3.12 by the layout of each, and from 3.13 on by the table of
//! offsets that the interpreter has for debuggers (`_Py_DebugOffsets`). Builds without the GIL are left out.

use crate::say::printable;
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectKind, ObjectSymbol};
use std::fs;

/// Most interpreters, threads and frames that are looked at, and the longest table and text.
const INTERPRETERS: usize = 64;
const THREADS: usize = 4096;
const FRAMES: usize = 200;
const LONGEST_TABLE: usize = 1 << 18;
const LONGEST_TEXT: usize = 1024;

/// An interpreter in another process.
pub struct Interpreter {
    pid: i32,
    /// Address of `_PyRuntime`.
    runtime: u64,
    layout: Layout,
}

/// How the line table of a code object is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lines {
    /// 3.9: increments of bytes and of lines.
    Increments,
    /// 3.10: lengths in bytes, and increments of lines.
    Ranges,
    /// From 3.11 on: entries of varying length.
    Locations,
}

/// Offsets of fields.
#[derive(Clone, Copy, Debug)]
struct Layout {
    lines: Lines,
    interpreters: u64,
    next_interpreter: u64,
    threads: u64,
    next_thread: u64,
    thread_id: u64,
    /// From the thread to its frame; in 3.11 and 3.12 by way of another struct, at the second.
    frame: u64,
    by_way_of: Option<u64>,
    code: u64,
    previous: u64,
    /// Address of the instruction, or before 3.11 its number.
    instruction: u64,
    filename: u64,
    name: u64,
    first_line: u64,
    line_table: u64,
    /// Where the instructions are in a code object.
    instructions: u64,
    /// Sizes of the heads of texts: ASCII, and others.
    text: [u64; 2],
}

const BEFORE_3_11: Layout = Layout {
    lines: Lines::Increments,
    interpreters: 32,
    next_interpreter: 0,
    threads: 8,
    next_thread: 8,
    thread_id: 176,
    frame: 24,
    by_way_of: None,
    code: 32,
    previous: 24,
    instruction: 104,
    filename: 104,
    name: 112,
    first_line: 40,
    line_table: 120,
    instructions: 0,
    text: [48, 72],
};

/// Returns the layout of a version that has no table of its own.
fn layout_of(minor: u32) -> Option<Layout> {
    let of_3_11 = Layout {
        lines: Lines::Locations,
        interpreters: 40,
        threads: 16,
        thread_id: 152,
        frame: 56,
        by_way_of: Some(8),
        previous: 48,
        instruction: 56,
        filename: 112,
        name: 120,
        first_line: 72,
        line_table: 136,
        instructions: 184,
        ..BEFORE_3_11
    };
    Some(match minor {
        9 => BEFORE_3_11,
        10 => Layout { lines: Lines::Ranges, instruction: 96, ..BEFORE_3_11 },
        11 => of_3_11,
        12 => Layout {
            threads: 72,
            thread_id: 136,
            by_way_of: Some(0),
            code: 0,
            previous: 8,
            first_line: 68,
            instructions: 192,
            text: [40, 56],
            ..of_3_11
        },
        _ => return None,
    })
}

/// Words of `_Py_DebugOffsets` that are read.
const TABLE_WORDS: usize = 56;

/// Returns the layout of 3.13 and later versions from their table. Its first words are a cookie, the
/// version, and whether there is no GIL.
fn layout_of_table(table: &[u64; TABLE_WORDS]) -> Option<Layout> {
    const COOKIE: u64 = u64::from_le_bytes(*b"xdebugpy");
    let [cookie, version, free_threaded, ..] = *table;
    if cookie != COOKIE || free_threaded != 0 {
        return None;
    }
    // Where the parts about threads, frames and code begin.
    let [thread, frame, code] = match version >> 16 {
        0x30d => [19, 28, 34],
        0x30e => [22, 31, 39],
        _ => return None,
    };
    Some(Layout {
        lines: Lines::Locations,
        interpreters: table[5],
        next_interpreter: table[8],
        threads: table[9],
        next_thread: table[thread + 2],
        frame: table[thread + 4],
        by_way_of: None,
        thread_id: table[thread + 5],
        previous: table[frame + 1],
        code: table[frame + 2],
        instruction: table[frame + 3],
        filename: table[code + 1],
        name: table[code + 2],
        line_table: table[code + 4],
        first_line: table[code + 5],
        instructions: table[code + 9],
        text: [40, 56],
    })
}

impl Interpreter {
    /// Returns the interpreter of a process; `None`: it has none, or one that is not known.
    pub fn of(pid: i32) -> Option<Self> {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
        for line in maps.lines() {
            let mut words = line.split_whitespace();
            let (range, _, start) = (words.next()?, words.next(), words.next());
            let Some(path) = words.nth(2).filter(|_| start == Some("00000000")) else { continue };
            let Some(minor) = minor_version(path) else { continue };
            let base = u64::from_str_radix(range.split('-').next()?, 16).ok()?;
            if let Some(found) = Self::in_file(pid, path, base, minor) {
                return Some(found);
            }
        }
        None
    }

    fn in_file(pid: i32, path: &str, base: u64, minor: u32) -> Option<Self> {
        // By the process's own root: it may be in a container.
        let file = fs::read(format!("/proc/{pid}/root{path}")).ok()?;
        let file = ElfFile64::<Endianness>::parse(&*file).ok()?;
        let symbol = file.dynamic_symbols().chain(file.symbols());
        let symbol = symbol.into_iter().find(|one| one.name_bytes() == Ok(b"_PyRuntime"))?;
        let is_fixed = file.kind() == ObjectKind::Executable;
        let runtime = if is_fixed { 0 } else { base }.checked_add(symbol.address())?;
        let layout = match layout_of(minor) {
            Some(layout) => layout,
            None => {
                let mut bytes = [0; 8 * TABLE_WORDS];
                read(pid, runtime, &mut bytes)?;
                let words = bytes.as_chunks::<8>().0;
                let table = std::array::from_fn(|at| u64::from_le_bytes(words[at]));
                layout_of_table(&table)?
            }
        };
        Some(Self { pid, runtime, layout })
    }

    /// Returns file, line and function of what a thread executes: of the innermost frame that is not
    /// in a library's folder, or of the innermost one.
    pub fn line(&self, thread: u64) -> Option<String> {
        let layout = &self.layout;
        let mut frame = self.frame_of(thread)?;
        let mut innermost = None;
        for _ in 0..FRAMES {
            if let Some((file, line)) = self.place(frame) {
                let is_library = ["/site-packages/", "/dist-packages/", "/lib/python3", "<frozen"];
                if !is_library.iter().any(|part| file.contains(part)) {
                    return Some(line);
                }
                innermost.get_or_insert(line);
            }
            frame = self.word(frame + layout.previous)?;
            if frame == 0 {
                break;
            }
        }
        innermost
    }

    fn frame_of(&self, thread: u64) -> Option<u64> {
        let layout = &self.layout;
        let mut interpreter = self.word(self.runtime + layout.interpreters)?;
        for _ in 0..INTERPRETERS {
            if interpreter == 0 {
                break;
            }
            let mut state = self.word(interpreter.checked_add(layout.threads)?)?;
            for _ in 0..THREADS {
                if state == 0 {
                    break;
                }
                if self.word(state.checked_add(layout.thread_id)?)? == thread {
                    let mut frame = self.word(state + layout.frame)?;
                    if let Some(offset) = layout.by_way_of {
                        frame = self.word(frame.checked_add(offset)?)?;
                    }
                    return (frame != 0).then_some(frame);
                }
                state = self.word(state + layout.next_thread)?;
            }
            interpreter = self.word(interpreter + layout.next_interpreter)?;
        }
        None
    }

    /// Returns the file of a frame, and `file:line function`. `None`: it belongs to no code.
    fn place(&self, frame: u64) -> Option<(String, String)> {
        let layout = &self.layout;
        let field = |object: u64, offset: u64| self.word(object.checked_add(offset)?);
        // 3.14 has marks in the lowest bits.
        let code = field(frame, layout.code)? & !7;
        let (file, name) =
            (self.text(field(code, layout.filename)?)?, self.text(field(code, layout.name)?)?);
        let first = field(code, layout.first_line)? as u32;
        let table = self.bytes(field(code, layout.line_table)?)?;
        let at = match layout.lines {
            Lines::Increments => field(frame, layout.instruction)? as u32,
            Lines::Ranges => (field(frame, layout.instruction)? as u32).wrapping_mul(2),
            Lines::Locations => {
                let at = field(frame, layout.instruction)?;
                at.checked_sub(code + layout.instructions)?.try_into().ok()?
            }
        };
        let line = line_of(layout.lines, &table, first, at);
        let short = file.rsplit('/').next().unwrap_or(&file);
        let line = line.map_or(String::new(), |line| format!(":{line}"));
        let told = printable(&format!("{short}{line} {name}"));
        Some((file, told))
    }

    fn word(&self, at: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        read(self.pid, at, &mut bytes)?;
        Some(u64::from_le_bytes(bytes))
    }

    /// Returns the contents of a bytes object.
    fn bytes(&self, at: u64) -> Option<Vec<u8>> {
        let len = self.word(at.checked_add(16)?)? as usize;
        let mut bytes = vec![0; (len <= LONGEST_TABLE).then_some(len)?];
        read(self.pid, at.checked_add(32)?, &mut bytes)?;
        Some(bytes)
    }

    /// Returns a text of one, two or four bytes for each character.
    fn text(&self, at: u64) -> Option<String> {
        let len = self.word(at.checked_add(16)?)? as usize;
        let state = self.word(at.checked_add(32)?)?;
        let (kind, is_compact, is_ascii) = (state >> 2 & 7, state >> 5 & 1, state >> 6 & 1);
        if is_compact == 0 || !matches!(kind, 1 | 2 | 4) {
            return None;
        }
        let len = (len <= LONGEST_TEXT).then_some(len)? * kind as usize;
        let mut bytes = vec![0; len];
        let head = self.layout.text[usize::from(is_ascii == 0)];
        read(self.pid, at.checked_add(head)?, &mut bytes)?;
        let character = |bytes: &[u8]| {
            let number = bytes.iter().rev().fold(0u32, |sum, byte| sum << 8 | u32::from(*byte));
            char::from_u32(number).unwrap_or('?')
        };
        Some(bytes.chunks(kind as usize).map(character).collect())
    }
}

/// Returns the minor version of `/usr/bin/python3.11` and `/usr/lib/libpython3.11.so.1.0`.
fn minor_version(path: &str) -> Option<u32> {
    let name = path.rsplit('/').next()?;
    let rest = name.strip_prefix("lib").unwrap_or(name).strip_prefix("python3.")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// Reads memory of another process, all of it or nothing.
fn read(pid: i32, at: u64, into: &mut [u8]) -> Option<()> {
    let to = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let from = libc::iovec { iov_base: at as *mut _, iov_len: into.len() };
    // SAFETY: the kernel writes inside `into`, and checks the other address.
    let read = unsafe { libc::process_vm_readv(pid, &to, 1, &from, 1, 0) };
    (read == into.len() as isize).then_some(())
}

/// Returns the line of the instruction at byte `at`.
fn line_of(lines: Lines, table: &[u8], first: u32, at: u32) -> Option<u32> {
    let mut line = i64::from(first);
    let mut address = 0u32;
    match lines {
        Lines::Increments => {
            for pair in table.as_chunks::<2>().0 {
                address = address.checked_add(pair[0].into())?;
                if address > at {
                    break;
                }
                line += i64::from(pair[1] as i8);
            }
            line.try_into().ok()
        }
        Lines::Ranges => {
            for pair in table.as_chunks::<2>().0 {
                let has_line = pair[1] as i8 != -128;
                line += if has_line { i64::from(pair[1] as i8) } else { 0 };
                address = address.checked_add(pair[0].into())?;
                if address > at {
                    return has_line.then(|| line.try_into().ok())?;
                }
            }
            None
        }
        Lines::Locations => {
            let mut bytes = table.iter().copied().peekable();
            while let Some(head) = bytes.next() {
                let code = head >> 3 & 15;
                line += match code {
                    13 | 14 => signed(&mut bytes)?,
                    10..=12 => i64::from(code - 10),
                    _ => 0,
                };
                // The rest is about columns.
                while bytes.peek().is_some_and(|byte| byte & 128 == 0) {
                    bytes.next();
                }
                address = address.checked_add(2 * (u32::from(head & 7) + 1))?;
                if address > at {
                    return (code != 15).then(|| line.try_into().ok())?;
                }
            }
            None
        }
    }
}

/// Reads a signed number of six bits for each byte, the lowest first.
fn signed(bytes: &mut impl Iterator<Item = u8>) -> Option<i64> {
    let (mut number, mut shift) = (0u64, 0);
    loop {
        let byte = bytes.next()?;
        number |= u64::from(byte & 63).checked_shl(shift)?;
        shift += 6;
        if byte & 64 == 0 {
            break;
        }
    }
    let value = (number >> 1) as i64;
    Some(if number & 1 == 1 { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_tables_of_each_version_are_read() {
        // def f():        # line 10
        //     a = 1       # bytes 0 to 3
        //     b = 2       # bytes 4 to 7, five lines below
        let increments = [0, 1, 4, 5];
        let ranges = [4, 1, 4, 5];
        let locations = [0x80 | 13 << 3 | 1, 2, 0x80 | 13 << 3 | 1, 10];
        let tables: [(Lines, &[u8]); 3] = [
            (Lines::Increments, &increments),
            (Lines::Ranges, &ranges),
            (Lines::Locations, &locations),
        ];
        for (lines, table) in tables {
            for (at, line) in [(0, 11), (2, 11), (4, 16), (6, 16)] {
                assert_eq!(line_of(lines, table, 10, at), Some(line), "{lines:?} {at}");
            }
            for len in 0..table.len() {
                let _ = line_of(lines, &table[..len], 10, 6); // cut off
            }
        }
        assert_eq!(signed(&mut [3u8].into_iter()), Some(-1));
        assert_eq!(signed(&mut [64 | 2, 1].into_iter()), Some(33));
    }

    #[test]
    fn interpreters_are_known_by_their_files() {
        assert_eq!(minor_version("/usr/bin/python3.11"), Some(11));
        assert_eq!(minor_version("/usr/lib/libpython3.9.so.1.0"), Some(9));
        for other in ["/usr/bin/python3", "/usr/bin/perl", "/usr/lib/python3/x.so", ""] {
            assert_eq!(minor_version(other), None, "{other}");
        }
        assert!(Interpreter::of(std::process::id() as i32).is_none());
        assert!(layout_of_table(&[0; TABLE_WORDS]).is_none());
    }
}
