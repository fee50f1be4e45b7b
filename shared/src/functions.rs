//! The C library's functions that we intercept: one row for each, from which everything that there
//! is once for each function is made, here and in the library. The order of the rows means nothing.

/// Hands the rows to a macro of the caller, behind `[$first]`, which may be left out:
///
/// ```text
/// name: (symbols) unit (length) kind::large (original);
/// ```
///
/// - `name`: in ADMA_OPS, reports, and as a variant of the library's `Op`.
/// - `symbols`: the names that we export. The original is looked up by the first of them.
/// - `unit`: bytes per counted unit, 4 for wide characters.
/// - `length`: what entry code compares with the threshold: an argument, a product of two, or `list`
///   where only the slow path can find it out.
/// - `kind::large`: the function that large calls go to; the kind decides what it is called with.
///   `memory` and `compare`: intercept/slow.rs; `file`: intercept/reads.rs; `transfer`:
///   intercept/remote.rs.
/// - `original`: the function that short calls, and all that are not shared, go to.
///   `found F`: looked up at start-up; until then F of backend/libc.rs.
///   `as G`: the original of G, which does the same.
///   `from G HOW`: a jump to the original of G with changed arguments, see `change_arguments` there.
///   `kept F`: F.
///   The last three are looked up as well where another library may have defined them.
#[macro_export]
macro_rules! intercepted_functions {
    ($macro:ident $([$($first:tt)*])?) => { $macro! {
        $([$($first)*])?
        memcpy: (memcpy) 1 (third) memory::copy (as memmove);
        memmove: (memmove) 1 (third) memory::copy (found bootstrap_memmove);
        mempcpy: (mempcpy __mempcpy) 1 (third) memory::copy_to_end (found bootstrap_mempcpy);
        wmempcpy: (wmempcpy) 4 (third) memory::copy_to_end (from mempcpy wide);
        bcopy: (bcopy) 1 (third) memory::copy_backwards (from memmove swapped);
        wmemcpy: (wmemcpy) 4 (third) memory::copy (from memmove wide);
        wmemmove: (wmemmove) 4 (third) memory::copy (from memmove wide);
        memcpy_chk: (__memcpy_chk) 1 (third) memory::copy_checked (from memmove checked);
        memmove_chk: (__memmove_chk) 1 (third) memory::copy_checked (from memmove checked);
        mempcpy_chk: (__mempcpy_chk) 1 (third) memory::copy_to_end_checked (from mempcpy checked);
        process_vm_readv: (process_vm_readv) 1 (list) transfer::share (kept bootstrap_process_vm_readv);
        process_vm_writev: (process_vm_writev) 1 (list) transfer::share (kept bootstrap_process_vm_writev);
        memset: (memset) 1 (third) memory::fill (found bootstrap_memset);
        memset_chk: (__memset_chk) 1 (third) memory::fill_checked (from memset checked);
        bzero: (bzero) 1 (second) memory::clear (from memset zeros);
        wmemset: (wmemset) 4 (third) memory::fill (found bootstrap_wmemset);
        memcmp: (memcmp) 1 (third) compare::compare (found bootstrap_memcmp);
        bcmp: (bcmp) 1 (third) compare::compare (as memcmp);
        wmemcmp: (wmemcmp) 4 (third) compare::compare (found bootstrap_wmemcmp);
        read: (read __read) 1 (third) file::read (found bootstrap_read);
        pread: (pread64 pread __pread64) 1 (third) file::read_at (found bootstrap_pread);
        readv: (readv) 1 (list) file::list (found bootstrap_readv);
        preadv: (preadv64 preadv) 1 (list) file::list_at (found bootstrap_preadv);
        preadv2: (preadv64v2 preadv2) 1 (list) file::list_with_flags (found bootstrap_preadv2);
        read_chk: (__read_chk) 1 (third) file::read_checked (from read checked);
        pread_chk: (__pread64_chk __pread_chk) 1 (third) file::read_at_checked (from pread checked_fifth);
        fread: (fread) 1 (second * third) file::items (found early_fread);
        fread_unlocked: (fread_unlocked) 1 (second * third) file::items (found early_fread_unlocked);
        fread_chk: (__fread_chk) 1 (third * fourth) file::items_checked (from fread checked_items);
        fread_unlocked_chk: (__fread_unlocked_chk) 1 (third * fourth) file::items_checked
            (from fread_unlocked checked_items);
    } };
}

macro_rules! names {
    ($($name:ident: $symbols:tt $unit:literal $length:tt $kind:ident::$large:ident $original:tt;)*) => {
        /// Names of the functions, in the order of the library's `Op`, and of those that copy to a
        /// graphics card and from it, which are found and entered in another way.
        pub const OPS: [&str; [$(stringify!($name)),*].len() + 1] = [$(stringify!($name),)* "cuda"];
    };
}

intercepted_functions! { names }

/// Number of "cuda" in `OPS`.
pub const CARD: usize = OPS.len() - 1;

// A set of functions is a word of bits.
const _: () = assert!(OPS.len() <= u64::BITS as usize);

/// Returns a number that changes with names and order of the functions: live files count by position.
pub(crate) const fn fingerprint() -> u32 {
    let (mut hash, mut function) = (0x811c_9dc5_u32, 0);
    while function < OPS.len() {
        let (name, mut at) = (OPS[function].as_bytes(), 0);
        while at < name.len() {
            hash = (hash ^ name[at] as u32).wrapping_mul(0x0100_0193);
            at += 1;
        }
        hash = (hash ^ b',' as u32).wrapping_mul(0x0100_0193);
        function += 1;
    }
    hash
}
