//! Who may call, how structures grow, how words are mapped.

use crate::device::*;
use crate::effort::PATIENCE;
use crate::faults::Bench;
use crate::memory::{PAGE, Region};
use crate::process::{Ended, become_nobody, become_victim, fork};
use crate::verdict::{Context, Outcome};
use std::mem::size_of;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

tests! {
    interface_info_values_are_sane
    interface_structure_too_small_is_einval
    interface_larger_structure_with_zero_tail_is_taken
    interface_larger_structure_with_nonzero_tail_is_e2big
    interface_unknown_call_is_enotty
    interface_bad_pointer_is_efault
    interface_32_bit_call_is_understood
    interface_forked_child_is_eperm
    interface_exec_with_open_file_is_eperm
    interface_thread_of_the_process_is_served
    interface_process_in_the_same_memory_is_served
    interface_nobody_may_not_open
    interface_words_mapped_writable_are_refused
    interface_words_made_writable_are_refused
    interface_words_at_wrong_offset_or_length_are_einval
    interface_words_are_not_inherited_by_fork
    interface_words_remain_after_close
    interface_poll_tells_of_requests_in_flight_and_failed
    interface_number_of_a_larger_structure_is_understood
}

fn interface_info_values_are_sane() -> Outcome {
    let info = Device::open()?.info()?;
    println!("{info:?}");
    ensure_eq!(info.size as usize, size_of::<Info>(), "size");
    ensure_eq!(info.abi, ABI_VERSION, "abi");
    ensure_eq!(info.features, FEATURE_WORDS | FEATURE_EXPORTS, "features");
    ensure!((1..=MAX_CHANNELS).contains(&info.channels), "channels: {info:?}");
    ensure_eq!(info.usable, info.channels, "usable channels");
    if let Some(wanted) = std::env::var("GUEST_CHANNELS").ok().and_then(|n| n.parse().ok()) {
        ensure_eq!(info.channels, wanted, "channels");
    }
    ensure!(info.src_align.is_power_of_two() && info.src_align <= 4096, "{info:?}");
    ensure_eq!((info.flags, info.reserved), (0, 0), "flags and reserved");
    ensure!(info.max_bytes >= 1 << 20 && info.max_pages >= 512, "limits: {info:?}");
    Ok(())
}

/// A structure in a region, with room behind it.
struct Growing(Region);

impl Growing {
    fn new<T: Copy>(value: T) -> Outcome<Growing> {
        let region = Region::anonymous(2 * PAGE)?;
        // SAFETY: a region has room and is aligned; memory law.
        unsafe { (region.address(0) as *mut T).write_volatile(value) };
        Ok(Growing(region))
    }

    fn call(&self, fd: i32, number: u64, size: u32) -> Result<(), Errno> {
        // The size is the first field of every structure.
        for (at, byte) in size.to_le_bytes().into_iter().enumerate() {
            self.0.set(at, byte);
        }
        ioctl(fd, number, self.0.address(0))
    }
}

/// Each call once, with arguments that are good.
fn each_call(device: &Device, check: impl Fn(&str, &Growing, u64, usize) -> Outcome) -> Outcome {
    let (dst, src) = (Region::of_small_pages(PAGE)?, Region::of_small_pages(PAGE)?);
    let mut pieces = [Piece::new(&dst, 0, &src, 0, PAGE)];
    check("INFO", &Growing::new(Info::new())?, INFO, size_of::<Info>())?;
    let submit = Submit::new(&mut pieces);
    check("SUBMIT", &Growing::new(submit)?, SUBMIT, size_of::<Submit>())?;
    let done = device.carry(&mut pieces)?;
    check("WAIT", &Growing::new(Wait::new(done.id, Duration::ZERO))?, WAIT, size_of::<Wait>())
}

fn interface_structure_too_small_is_einval() -> Outcome {
    let device = Device::open()?;
    each_call(&device, |name, argument, number, good| {
        for size in [0, 1, 4, 8, good / 2, good - 8, good - 1] {
            let found = argument.call(device.fd(), number, size as u32);
            ensure_eq!(found, Err(EINVAL), "{name} with size {size}");
        }
        Ok(())
    })
}

fn interface_larger_structure_with_zero_tail_is_taken() -> Outcome {
    let device = Device::open()?;
    for more in [1, 8, 100, PAGE] {
        each_call(&device, |name, argument, number, known| {
            let size = (known + more).min(PAGE);
            let found = argument.call(device.fd(), number, size as u32);
            ensure_eq!(found, Ok(()), "{name} with size {size}");
            argument.0.expect_zero(known, PAGE - known).context("the unknown tail was written")
        })?;
    }
    Ok(())
}

fn interface_larger_structure_with_nonzero_tail_is_e2big() -> Outcome {
    let device = Device::open()?;
    for more in [1, 8, 100, 1000] {
        each_call(&device, |name, argument, number, known| {
            argument.0.set(known + more - 1, 1);
            let found = argument.call(device.fd(), number, (known + more) as u32);
            ensure_eq!(found, Err(E2BIG), "{name} with {more} bytes more");
            // Longer than any structure can be, whatever is there.
            for size in [1 << 20, u32::MAX] {
                let found = argument.call(device.fd(), number, size);
                ensure!(found.is_err(), "{name} with size {size:#x} succeeds");
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn interface_unknown_call_is_enotty() -> Outcome {
    let device = Device::open()?;
    let mut info = Info::new();
    // Without a direction, of another type, of numbers that there are not.
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

fn interface_bad_pointer_is_efault() -> Outcome {
    let device = Device::open()?;
    let hole = Region::anonymous(2 * PAGE)?;
    hole.touch();
    hole.protect(PAGE, PAGE, libc::PROT_NONE)?;
    let end = hole.address(PAGE);
    let bad = [0, 1, 4096, end, end - 4, end - 8, 0xffff_8880_0000_0000, 1 << 63, u64::MAX - 7];
    for number in [INFO, SUBMIT, WAIT] {
        for pointer in bad {
            // A structure that begins in memory has a good size there.
            hole.set_word(PAGE - 8, size_of::<Info>() as u64);
            let found = ioctl(device.fd(), number, pointer);
            let size_is_in_the_hole = pointer == end - 4;
            ensure!(
                found == Err(EFAULT) || size_is_in_the_hole && found == Err(EINVAL),
                "call {number:#x} with {pointer:#x}: {found:?}"
            );
        }
    }
    let (dst, src) = (Region::of_small_pages(PAGE)?, Region::of_small_pages(PAGE)?);
    for pointer in bad {
        let mut submit = Submit::new(&mut [Piece::new(&dst, 0, &src, 0, PAGE)]);
        submit.pieces = pointer;
        let found = call(device.fd(), SUBMIT, &mut submit);
        ensure_eq!(found, Err(EFAULT), "pieces at {pointer:#x}");
        ensure_eq!(submit.accepted, 0, "pieces accepted");
    }
    Ok(())
}

/// As a 32-bit program calls: through the old gate, with addresses below 4 GiB.
fn interface_32_bit_call_is_understood() -> Outcome {
    const IOCTL_32: u64 = 54;
    let device = Device::open()?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: fresh memory at an address that the kernel chooses.
    let low = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, rights, flags, -1, 0) };
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

fn calls_are_eperm(fd: i32) -> Outcome {
    let (dst, src) = (Region::of_small_pages(PAGE)?, Region::of_small_pages(PAGE)?);
    dst.fill(1);
    let mut pieces = [Piece::new(&dst, 0, &src, 0, PAGE)];
    ensure_eq!(call(fd, INFO, &mut Info::new()), Err(EPERM), "INFO in a child");
    ensure_eq!(call(fd, SUBMIT, &mut Submit::new(&mut pieces)), Err(EPERM), "SUBMIT in a child");
    ensure_eq!(call(fd, WAIT, &mut Wait::new(1, Duration::ZERO)), Err(EPERM), "WAIT in a child");
    let mapped = Region::map_file(fd, 0, PAGE, libc::PROT_READ, libc::MAP_SHARED);
    ensure!(mapped.is_err(), "a child maps the words of its parent's file");
    dst.expect(1).context("copied for a child")
}

fn interface_forked_child_is_eperm() -> Outcome {
    let device = Device::open()?;
    fork(|| calls_are_eperm(device.fd()))?.succeed()?;
    // And the owner is not disturbed by it.
    device.info().map(|_| ())
}

fn interface_exec_with_open_file_is_eperm() -> Outcome {
    let child = fork(|| {
        let device = Device::open()?;
        // SAFETY: our own descriptor; it shall survive exec.
        unsafe { libc::fcntl(device.fd(), libc::F_SETFD, 0) };
        Err(become_victim("stranger", &[&device.fd().to_string()]))
    })?;
    child.succeed()
}

fn interface_thread_of_the_process_is_served() -> Outcome {
    let device = Device::open()?;
    std::thread::scope(|scope| scope.spawn(|| device.info()).join().expect("no panic"))?;
    Ok(())
}

/// What vfork makes: another process in the same memory.
fn interface_process_in_the_same_memory_is_served() -> Outcome {
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

fn interface_nobody_may_not_open() -> Outcome {
    let mode = std::fs::metadata(PATH).context(PATH)?.permissions().mode();
    ensure_eq!(format!("{:o}", mode & 0o7777), "640", "mode of {PATH}");
    let child = fork(|| {
        become_nobody()?;
        for (read, write) in [(true, true), (true, false), (false, true)] {
            let opened = std::fs::File::options().read(read).write(write).open(PATH);
            let errno = opened.map_err(|error| error.raw_os_error()).err().flatten();
            ensure_eq!(errno, Some(libc::EACCES), "errno of open by nobody");
        }
        Ok(())
    })?;
    child.succeed()
}

fn refused(mapped: std::io::Result<Region>, errnos: &[i32], what: &str) -> Outcome {
    match mapped {
        Ok(_) => fail!("{what} is mapped"),
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(0);
            ensure!(errnos.contains(&errno), "{what}: {:?}", Errno(errno));
            Ok(())
        }
    }
}

fn interface_words_mapped_writable_are_refused() -> Outcome {
    let device = Device::open()?;
    for rights in [libc::PROT_WRITE, libc::PROT_READ | libc::PROT_WRITE] {
        let mapped = Region::map_file(device.fd(), 0, PAGE, rights, libc::MAP_SHARED);
        refused(mapped, &[libc::EACCES, libc::EPERM], "a writable page of words")?;
    }
    Ok(())
}

fn interface_words_made_writable_are_refused() -> Outcome {
    let device = Device::open()?;
    let words = device.words(0)?;
    for rights in [libc::PROT_WRITE, libc::PROT_READ | libc::PROT_WRITE] {
        let made = words.region().protect(0, PAGE, rights);
        ensure!(made.is_err(), "mprotect makes the words writable");
    }
    Ok(())
}

fn interface_words_at_wrong_offset_or_length_are_einval() -> Outcome {
    let device = Device::open()?;
    let channels = device.info()?.channels as usize;
    let beyond = [channels, channels + 1, 31, 32, 33, 1 << 20, 1 << 32, 1 << 50];
    for channel in beyond.into_iter().filter(|&channel| channel >= channels) {
        let mapped =
            Region::map_file(device.fd(), channel * PAGE, PAGE, libc::PROT_READ, libc::MAP_SHARED);
        let what = format!("the words of channel {channel}");
        // The kernel itself refuses what is too far for a file.
        refused(mapped, &[libc::EINVAL, libc::EOVERFLOW], &what)?;
    }
    for pages in [2, 3, 64] {
        let len = pages * PAGE;
        let mapped = Region::map_file(device.fd(), 0, len, libc::PROT_READ, libc::MAP_SHARED);
        refused(mapped, &[libc::EINVAL], &format!("{pages} pages of words"))?;
    }
    Ok(())
}

fn interface_words_are_not_inherited_by_fork() -> Outcome {
    let device = Device::open()?;
    let words = device.words(0)?;
    ensure!(words.region().residence().is_some(), "the words are not mapped");
    let child = fork(|| {
        ensure!(words.region().residence().is_none(), "the child has its parent's words");
        Ok(())
    })?;
    child.succeed()?;
    let mut child = fork(|| {
        words.of(0);
        Ok(())
    })?;
    ensure_eq!(child.wait(), Ended::Killed(libc::SIGSEGV), "reading the parent's words");
    Ok(())
}

/// A mapping keeps the page alive, whatever becomes of the file.
fn interface_words_remain_after_close() -> Outcome {
    let device = Device::open()?;
    let words = device.words(0)?;
    let (dst, src) = (Region::of_small_pages(PAGE)?, Region::of_small_pages(PAGE)?);
    let request = device.carry(&mut [Piece::new(&dst, 0, &src, 0, PAGE).on(0)])?;
    drop(device);
    if request.channels & 1 != 0 {
        ensure_eq!(words.of(request.slot), request.id, "the word after close");
    }
    Ok(())
}

fn events(device: &Device) -> i16 {
    let events = libc::POLLIN | libc::POLLOUT;
    let mut look = libc::pollfd { fd: device.fd(), events, revents: 0 };
    // SAFETY: one valid element.
    unsafe { libc::poll(&mut look, 1, 0) };
    look.revents
}

/// A sleeper in poll() is woken by the end of the last request.
fn interface_poll_tells_of_requests_in_flight_and_failed() -> Outcome {
    let bench = Bench::new()?;
    let device = Device::open()?;
    let (dst, src) = (Region::of_small_pages(4 * PAGE)?, Region::of_small_pages(4 * PAGE)?);
    ensure_eq!(events(&device), libc::POLLIN, "events before the first request");
    bench.slow_down_one()?;
    let request = device.start(&mut Piece::new(&dst, 0, &src, 0, 4 * PAGE).split(4, 1))?;
    ensure_eq!(events(&device), 0, "events with a request in flight");
    let mut look = libc::pollfd { fd: device.fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid element.
    let woken = unsafe { libc::poll(&mut look, 1, PATIENCE.as_millis() as i32) };
    ensure_eq!((woken, look.revents), (1, libc::POLLIN), "after the end");
    ensure_eq!(device.wait(request.id, Duration::ZERO), Ok(0), "the request");
    Ok(())
}

/// The size in the number is a newer caller's; its structure says the same.
fn interface_number_of_a_larger_structure_is_understood() -> Outcome {
    let device = Device::open()?;
    let mut info = [0u32; 40];
    info[0] = size_of_val(&info) as u32;
    let number = INFO & !(0x3fff << 16) | (size_of_val(&info) as u64) << 16;
    ensure_eq!(call(device.fd(), number, &mut info), Ok(()), "a larger ADMA_IOC_INFO");
    ensure_eq!(info[2], ABI_VERSION, "abi");
    Ok(())
}
