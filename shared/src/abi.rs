//! The kernel interface of /dev/adma: kmod-c/adma_ioctl.h in Rust.
//!
//! The header documents it. `tests/abi.rs` compiles the header and compares every size, offset and
//! constant with the ones here.

use core::mem::offset_of;
use zerocopy::FromZeros;

pub const ABI_VERSION: u32 = 3;
pub const ALIGN: usize = 64;
pub const MAX_PIECES: usize = 64;
pub const SLOTS: usize = 32;
pub const MAX_CHANNELS: usize = 32;
pub const WORD_STRIDE: usize = 64;
pub const MAX_EXPORTS: usize = 512;

pub const fn words_offset(channel: usize, page_size: usize) -> usize {
    channel * page_size
}

pub const INFO_KEEP: u32 = 1 << 0;

pub const FEATURE_WORDS: u32 = 1 << 0;
pub const FEATURE_EXPORTS: u32 = 1 << 1;
pub const FEATURE_NODES: u32 = 1 << 2;

pub const CHANNEL_ANY: u32 = 0xffff_ffff;

pub const SUBMIT_PULL: u32 = 1 << 0;
pub const SUBMIT_PUSH: u32 = 1 << 1;

pub const EXPORT_READ: u32 = 1 << 0;
pub const EXPORT_WRITE: u32 = 1 << 1;

pub const IOC_TYPE: usize = 0xda;
pub const IOC_INFO: usize = iowr::<Info>(0);
pub const IOC_SUBMIT: usize = iowr::<Submit>(1);
pub const IOC_WAIT: usize = iowr::<Wait>(2);
pub const IOC_PORT: usize = IOC_TYPE << 8 | 3;
pub const IOC_EXPORT: usize = iowr::<Export>(4);
pub const IOC_UNEXPORT: usize = iowr::<Wait>(5);

/// Computes `_IOWR` of linux/ioctl.h: read and written, with the size of its structure.
const fn iowr<T>(number: usize) -> usize {
    3 << 30 | size_of::<T>() << 16 | IOC_TYPE << 8 | number
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Info {
    pub size: u32,
    pub flags: u32,
    pub abi: u32,
    pub features: u32,
    pub channels: u32,
    pub usable: u32,
    pub src_align: u32,
    pub reserved: u32,
    pub max_bytes: u64,
    pub max_pages: u64,
    pub keep_pages: u64,
    pub pages: u64,
    pub hits: u64,
    pub misses: u64,
    pub evictions: u64,
    pub invalidations: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromZeros)]
pub struct Piece {
    pub dst: u64,
    pub src: u64,
    pub len: u64,
    pub channel: u32,
    pub flags: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Submit {
    pub size: u32,
    pub flags: u32,
    pub pieces: u64,
    pub count: u32,
    pub port: i32,
    pub export: u64,
    pub id: u64,
    pub accepted: u32,
    pub slot: u32,
    pub channels: u32,
    pub pinned: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Wait {
    pub size: u32,
    pub flags: u32,
    pub id: u64,
    pub timeout_ns: u64,
    pub failed: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Export {
    pub size: u32,
    pub flags: u32,
    pub addr: u64,
    pub len: u64,
    pub id: u64,
}

const _: () = assert!(size_of::<Info>() == 96 && offset_of!(Info, keep_pages) == 48);
const _: () = assert!(size_of::<Piece>() == 32 && offset_of!(Piece, channel) == 24);
const _: () = assert!(size_of::<Submit>() == 56 && offset_of!(Submit, accepted) == 40);
const _: () = assert!(size_of::<Wait>() == 32 && offset_of!(Wait, failed) == 24);
const _: () = assert!(size_of::<Export>() == 32 && offset_of!(Export, id) == 24);
