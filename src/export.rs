//! Exports our own names by assembly instead of `no_mangle`, because the linker must take their
//! versions from include/adma.map, and rustc lists the names that it knows without a version.

/// Exports functions under their own names.
macro_rules! export {
    ($($name:ident),* $(,)?) => { $(
        core::arch::global_asm!(
            concat!(".pushsection .text.", stringify!($name), ",\"ax\",@progbits"),
            ".p2align 4",
            concat!(".globl ", stringify!($name)),
            concat!(".type ", stringify!($name), ", @function"),
            concat!(stringify!($name), ":"),
            ".cfi_startproc",
            concat!($crate::os::arch::jump!(), " {function}"),
            ".cfi_endproc",
            concat!(".size ", stringify!($name), ", . - ", stringify!($name)),
            ".popsection",
            function = sym $name,
        );
    )* };
}

pub(crate) use export;
