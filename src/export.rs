//! How our own names are given out: by assembly and not by `no_mangle`, because the linker must
//! get their versions from include/adma.map. What rustc knows of it would list without one.

/// Gives out functions under their names.
macro_rules! export {
    ($($name:ident),* $(,)?) => { $(
        core::arch::global_asm!(
            concat!(".pushsection .text.", stringify!($name), ",\"ax\",@progbits"),
            ".p2align 4",
            concat!(".globl ", stringify!($name)),
            concat!(".type ", stringify!($name), ", @function"),
            concat!(stringify!($name), ":"),
            "jmp {function}",
            concat!(".size ", stringify!($name), ", . - ", stringify!($name)),
            ".popsection",
            function = sym $name,
        );
    )* };
}

pub(crate) use export;
