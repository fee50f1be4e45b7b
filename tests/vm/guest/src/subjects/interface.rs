//! Access to the calls, growth of structures, mapping of words.

use super::*;
use crate::process::become_victim;
use crate::victim::expect_eperm;
use std::os::unix::fs::PermissionsExt;

pub fn interface_info_values_are_sane() -> Outcome {
    let info = Device::open()?.info()?;
    println!("{info:?}");
    ensure_eq!(info.size as usize, size_of::<Info>(), "size");
    ensure_eq!(info.abi, ABI_VERSION, "abi");
    ensure_eq!(info.features, FEATURE_WORDS | FEATURE_EXPORTS, "features");
    ensure!((1..=MAX_CHANNELS).contains(&info.channels), "channels: {info:?}");
    ensure_eq!(info.usable, info.channels, "usable channels");
    if let Some(wanted) = std::env::var("GUEST_CHANNELS").ok().and_then(|n| n.parse::<u32>().ok()) {
        ensure_eq!(info.channels, wanted, "channels");
    }
    ensure!(info.src_align.is_power_of_two() && info.src_align <= 4096, "{info:?}");
    ensure_eq!((info.flags, info.reserved), (0, 0), "flags and reserved");
    ensure!(info.max_bytes >= 1 << 20 && info.max_pages >= 512, "limits: {info:?}");
    Ok(())
}

/// A call with valid arguments, in a region with room behind them.
pub(super) struct Call {
    pub name: &'static str,
    fd: i32,
    number: u64,
    argument: Region,
    size: usize,
}

impl Call {
    fn new<T: Copy>(name: &'static str, fd: i32, number: u64, value: T) -> Outcome<Call> {
        let argument = Region::anonymous(2 * PAGE)?;
        argument.store(0, value);
        Ok(Call { name, fd, number, argument, size: size_of::<T>() })
    }

    /// The size is the first field of every structure, and flags are the second.
    pub fn make(&self, size: usize, flags: Option<u32>) -> Result<(), Errno> {
        self.argument.store(0, size as u32);
        if let Some(flags) = flags {
            self.argument.store(0, size as u64 | u64::from(flags) << 32);
        }
        self.at(self.argument.address(0))
    }

    pub fn with_flags(&self, flags: u32) -> Result<(), Errno> {
        self.make(self.size, Some(flags))
    }

    fn at(&self, pointer: u64) -> Result<(), Errno> {
        ioctl(self.fd, self.number, pointer)
    }
}

/// Runs `check` with each call that has a structure, of a file and of a port.
pub(super) fn each_call(check: impl Fn(&Call) -> Outcome) -> Outcome {
    let pair = Pair::new(PAGE)?;
    let port = pair.device.port()?;
    let (file, port_fd, wait) = (pair.device.fd(), port.fd(), |id| Wait::new(id, Duration::ZERO));
    let mut pieces = [pair.whole()];
    let request = pair.device.carry(&mut pieces)?.id;
    let export = Export::new(pair.dst.address(0), PAGE, BOTH);
    let exported = port.export(export.addr, PAGE, BOTH)?;
    for call in [
        Call::new("INFO", file, INFO, Info::new())?,
        Call::new("SUBMIT", file, SUBMIT, Submit::new(&mut pieces))?,
        Call::new("WAIT", file, WAIT, wait(request))?,
        Call::new("EXPORT", port_fd, EXPORT, export)?,
        Call::new("UNEXPORT", port_fd, UNEXPORT, wait(exported))?,
    ] {
        check(&call).context(call.name)?;
    }
    Ok(())
}

pub fn interface_structure_too_small_is_einval() -> Outcome {
    each_call(|call| {
        for size in [0, 1, 4, 8, call.size / 2, call.size - 8, call.size - 1] {
            ensure_eq!(call.make(size, None), Err(EINVAL), "size {size}");
        }
        Ok(())
    })
}

pub fn interface_larger_structure_with_zero_tail_is_taken() -> Outcome {
    for more in [1, 8, 100, PAGE] {
        each_call(|call| {
            let size = (call.size + more).min(PAGE);
            ensure_eq!(call.make(size, None), Ok(()), "size {size}");
            call.argument
                .expect_zero(call.size, PAGE - call.size)
                .context("the unknown tail was written")
        })?;
    }
    Ok(())
}

pub fn interface_larger_structure_with_nonzero_tail_is_e2big() -> Outcome {
    for more in [1, 8, 100, 1000] {
        each_call(|call| {
            call.argument.set(call.size + more - 1, 1);
            ensure_eq!(call.make(call.size + more, None), Err(E2BIG), "{more} bytes more");
            // Longer than any structure can be, whatever is there.
            for size in [1 << 20, u32::MAX as usize] {
                ensure!(call.make(size, None).is_err(), "size {size:#x} succeeds");
            }
            Ok(())
        })?;
    }
    Ok(())
}

pub fn interface_unknown_call_is_enotty() -> Outcome {
    let device = Device::open()?;
    let mut info = Info::new();
    // Calls without a direction, of another type, of unknown numbers.
    let other = |number: u64| INFO & !0xffff | number;
    for number in [
        EXPORT,
        UNEXPORT,
        INFO & 0xffff,
        INFO & !(1 << 31),
        INFO & !(1 << 30),
        other(0xda06),
        other(0xda07),
        other(0xdaff),
        other(0xad00),
        0x5401,
        0,
        u32::MAX.into(),
    ] {
        let found = call(device.fd(), number, &mut info);
        ensure_eq!(found, Err(ENOTTY), "call {number:#x}");
    }
    Ok(())
}

pub fn interface_bad_pointer_is_efault() -> Outcome {
    let hole = Region::anonymous(2 * PAGE)?;
    hole.touch();
    hole.protect(PAGE, PAGE, libc::PROT_NONE)?;
    let end = hole.address(PAGE);
    let bad = [0, 1, 4096, end, end - 4, end - 8, 0xffff_8880_0000_0000, 1 << 63, u64::MAX - 7];
    each_call(|call| {
        for pointer in bad {
            // A structure that begins in memory has a good size there.
            hole.set_word(PAGE - 8, call.size as u64);
            let found = call.at(pointer);
            let size_is_in_the_hole = pointer == end - 4;
            ensure!(
                found == Err(EFAULT) || size_is_in_the_hole && found == Err(EINVAL),
                "at {pointer:#x}: {found:?}"
            );
        }
        Ok(())
    })?;
    let pair = Pair::new(PAGE)?;
    for pointer in bad {
        let mut submit = Submit { pieces: pointer, ..Submit::new(&mut [pair.whole()]) };
        let found = call(pair.device.fd(), SUBMIT, &mut submit);
        ensure_eq!((found, submit.accepted), (Err(EFAULT), 0), "pieces at {pointer:#x}");
    }
    Ok(())
}

/// Calls like a 32-bit program: by int 0x80, with addresses below 4 GiB.
pub fn interface_32_bit_call_is_understood() -> Outcome {
    const IOCTL_32: u64 = 54;
    let device = Device::open()?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT;
    // SAFETY: fresh memory at an address that the kernel chooses.
    let low = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, READ_WRITE, flags, -1, 0) };
    ensure!(low != libc::MAP_FAILED && (low as u64) < 1 << 32, "no memory below 4 GiB");
    let info = low.cast::<Info>();
    // SAFETY: the fresh page is large enough.
    unsafe { info.write_volatile(Info::new()) };
    let mut result = IOCTL_32;
    // SAFETY: the old gate takes its arguments in ebx, ecx and edx, gives eax back and keeps
    // the rest but r8 to r11; rbx is exchanged because the compiler keeps it for itself.
    unsafe {
        std::arch::asm!(
            "xchg rbx, {fd}", "int 0x80", "xchg rbx, {fd}",
            fd = inout(reg) device.fd() as u64 => _,
            inout("rax") result, in("rcx") INFO, in("rdx") low as u64,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    let result = result as i32;
    if result == -libc::ENOSYS {
        skip!("this kernel knows no 32-bit programs");
    }
    ensure_eq!(result, 0, "32-bit ADMA_IOC_INFO");
    // SAFETY: the page is still there.
    let found = unsafe { info.read_volatile() };
    ensure_eq!(found.abi, ABI_VERSION, "abi for 32-bit programs");
    Ok(())
}

pub fn interface_forked_child_is_eperm() -> Outcome {
    let device = Device::open()?;
    in_child(|| expect_eperm(device.fd()))?;
    // The owner is not disturbed by it.
    device.info().map(drop)
}

pub fn interface_exec_with_open_file_is_eperm() -> Outcome {
    in_child(|| {
        let device = Device::open()?;
        // SAFETY: our own descriptor; it shall survive exec.
        unsafe { libc::fcntl(device.fd(), libc::F_SETFD, 0) };
        Err(become_victim("stranger", &[&device.fd().to_string()]))
    })
}

/// Child of vfork: another process in the same memory.
pub fn interface_process_in_the_same_memory_is_served() -> Outcome {
    extern "C" fn inside(device: *mut libc::c_void) -> i32 {
        // SAFETY: the parent waits with its device alive until this returns.
        let device = unsafe { &*device.cast::<Device>() };
        let mut info = Info::new();
        i32::from(call(device.fd(), INFO, &mut info).is_err())
    }
    let mut device = Device::open()?;
    let stack = Region::of_small_pages(64 << 10)?;
    let top = stack.address(stack.len() - 64) as *mut _;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    let argument = std::ptr::from_mut(&mut device).cast();
    // SAFETY: the child has a stack of its own and the parent stands still until it ends.
    let pid = unsafe { libc::clone(inside, top, flags, argument) };
    ensure!(pid > 0, "clone: {:?}", Errno::last());
    let mut status = -1;
    // SAFETY: `status` is ours.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    ensure_eq!(status, 0, "status of a process in the same memory");
    Ok(())
}

pub fn interface_nobody_may_not_open() -> Outcome {
    let mode = fs::metadata(PATH).context(PATH)?.permissions().mode();
    ensure_eq!(format!("{:o}", mode & 0o7777), "640", "mode of {PATH}");
    in_child(|| {
        become_nobody()?;
        for (read, write) in [(true, true), (true, false), (false, true)] {
            let opened = fs::File::options().read(read).write(write).open(PATH);
            let errno = opened.map_err(|error| error.raw_os_error()).err().flatten();
            ensure_eq!(errno, Some(libc::EACCES), "errno of open by nobody");
        }
        Ok(())
    })
}

pub fn interface_words_mapped_writable_are_refused() -> Outcome {
    let device = Device::open()?;
    let words = device.words(0)?;
    for rights in [libc::PROT_WRITE, READ_WRITE] {
        expect_unmapped(&device, 0, PAGE, rights, &[libc::EACCES, libc::EPERM])?;
        ensure!(words.region().protect(0, PAGE, rights).is_err(), "mprotect makes them writable");
    }
    Ok(())
}

/// Checks that the words cannot be mapped this way.
fn expect_unmapped(
    device: &Device,
    from: usize,
    len: usize,
    rights: i32,
    errnos: &[i32],
) -> Outcome {
    match Region::map_file(device.fd(), from, len, rights, libc::MAP_SHARED) {
        Err(error) if error.raw_os_error().is_some_and(|errno| errnos.contains(&errno)) => Ok(()),
        mapped => fail!("{len} bytes from {from:#x}, rights {rights}: {:?}", mapped.err()),
    }
}

pub fn interface_words_at_wrong_offset_or_length_are_einval() -> Outcome {
    let device = Device::open()?;
    let channels = device.info()?.channels as usize;
    let beyond = [channels, channels + 1, 31, 32, 33, 1 << 20, 1 << 32, 1 << 50];
    for channel in beyond.into_iter().filter(|&channel| channel >= channels) {
        // The kernel itself refuses offsets that are too large for a file.
        let errnos = [libc::EINVAL, libc::EOVERFLOW];
        expect_unmapped(&device, channel * PAGE, PAGE, libc::PROT_READ, &errnos)?;
    }
    for pages in [2, 3, 64] {
        expect_unmapped(&device, 0, pages * PAGE, libc::PROT_READ, &[libc::EINVAL])?;
    }
    Ok(())
}

pub fn interface_words_are_not_inherited_by_fork() -> Outcome {
    let device = Device::open()?;
    let words = device.words(0)?;
    ensure!(words.region().residence().is_some(), "the words are not mapped");
    in_child(|| {
        ensure!(words.region().residence().is_none(), "the child has its parent's words");
        Ok(())
    })?;
    let mut child = fork(|| {
        words.of(0);
        Ok(())
    })?;
    ensure_eq!(child.wait(), Ended::Killed(libc::SIGSEGV), "reading the parent's words");
    Ok(())
}

/// A mapping keeps the page alive, even after the file is closed.
pub fn interface_words_remain_after_close() -> Outcome {
    let pair = Pair::new(PAGE)?;
    let words = pair.device.words(0)?;
    let request = pair.carry(1)?;
    drop(pair.device);
    if request.channels & 1 != 0 {
        ensure_eq!(words.of(request.slot), request.id, "the word after close");
    }
    Ok(())
}

/// The size in the number is a newer caller's, as in its structure.
pub fn interface_number_of_a_larger_structure_is_understood() -> Outcome {
    let device = Device::open()?;
    let mut info = [0u32; 40];
    info[0] = size_of_val(&info) as u32;
    let number = INFO & !(0x3fff << 16) | (size_of_val(&info) as u64) << 16;
    ensure_eq!(call(device.fd(), number, &mut info), Ok(()), "a larger ADMA_IOC_INFO");
    ensure_eq!(info[2], ABI_VERSION, "abi");
    Ok(())
}
