//! What a user may lock.

use crate::cgroup::ControlGroup;
use crate::device::*;
use crate::effort::{PATIENCE, eventually};
use crate::faults::Bench;
use crate::kernel::{Pagemap, Parameter, Statistics, has_checkers};
use crate::memory::{HUGE, Kind, PAGE, Region};
use crate::modules;
use crate::probes::{MAY_LOCK, MAY_LOCK_AUDITED, Probe};
use crate::process::{Gate, become_nobody, fork, limit_locked_memory};
use crate::verdict::{Context, Outcome};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

tests! {
    limit_of_locked_memory_is_enomem_beyond_and_kept_below
    limit_of_locked_memory_counts_what_is_under_way
    limit_of_locked_memory_does_not_bind_root
    limit_of_locked_memory_is_refused_without_an_audit_record
    limit_refuses_at_once_while_a_page_of_another_process_is_locked
    limit_of_reapers_is_not_used_up_by_one_users_locked_page
    limit_close_of_somebody_elses_file_waits_for_none_of_its_pages
    limit_close_of_somebody_elses_file_waits_for_none_of_its_requests
    limit_of_open_files_is_emfile_and_their_pages_are_charged
    limit_of_open_files_does_not_count_those_that_only_a_port_is_left_of
    limit_of_requests_leaves_channels_to_other_users
    limit_of_users_that_wait_for_pages_leaves_channels_to_a_third
    limit_of_locked_memory_counts_whole_huge_pages
    limit_reached_through_a_port_without_a_file_is_nobody_elses_business
}

const SMALL: usize = 4 * PAGE;
const LARGE: usize = 64 * PAGE;
const LIMIT: usize = 16 * PAGE;

struct Buffers {
    dst: Region,
    src: Region,
}

impl Buffers {
    fn new() -> Outcome<Buffers> {
        let (dst, src) = (Region::of_small_pages(LARGE)?, Region::of_small_pages(LARGE)?);
        src.fill(1);
        Ok(Buffers { dst, src })
    }

    fn piece(&self, len: usize) -> Piece {
        Piece::new(&self.dst, 0, &self.src, 0, len)
    }
}

fn limit_of_locked_memory_is_enomem_beyond_and_kept_below() -> Outcome {
    let child = fork(|| {
        let device = Device::open()?;
        let buffers = Buffers::new()?;
        limit_locked_memory(LIMIT as u64)?;
        become_nobody()?;
        // Ten times the limit in all: what is over must have been given back.
        for round in 0..10 * LIMIT / SMALL {
            // A work gives back what the refused one had pinned, a moment later.
            let fits = || device.carry(&mut [buffers.piece(SMALL)]).is_ok();
            ensure!(eventually(PATIENCE, fits), "round {round}");
            let Submitted { result, out } = device.submit(&mut [buffers.piece(LARGE)]);
            ensure_eq!((result, out.accepted), (Err(ENOMEM), 0), "beyond the limit, round {round}");
        }
        // The first pieces fit, the others do not.
        let mut pieces = buffers.piece(LARGE).split(LARGE / SMALL, 1);
        let Submitted { result, out } = device.submit(&mut pieces);
        ensure_eq!(result, Err(ENOMEM), "pieces beyond the limit");
        ensure!((1..=LIMIT / SMALL).contains(&(out.accepted as usize)), "{out:?}");
        ensure_eq!(device.end(&out)?, 0, "failed pieces");
        buffers
            .dst
            .expect_part(0, out.accepted as usize * SMALL, 1)
            .context("the pieces that fitted")
    })?;
    child.succeed()
}

fn limit_of_locked_memory_counts_what_is_under_way() -> Outcome {
    let bench = Bench::new()?;
    bench.slow_down()?;
    let child = fork(|| {
        let device = Device::keeping_nothing()?;
        let buffers = Buffers::new()?;
        // Both sides of one small copy, and a little more.
        limit_locked_memory(3 * SMALL as u64)?;
        become_nobody()?;
        // Piece by piece, so that it takes its time; on a busy host it may be over all the
        // same before the second one is asked for.
        let mut seen = (Ok(()), Ok(0));
        for _ in 0..20 {
            let first = device.start(&mut buffers.piece(SMALL).split(SMALL / PAGE, 1))?;
            // A look before: what is refused is refused when all that it had begun is over,
            // and that may have been behind the first one.
            let look = device.wait(first.id, Duration::ZERO);
            let second = device.submit(&mut [buffers.piece(SMALL)]);
            seen = (second.result, look);
            ensure_eq!(device.end(&first)?, 0, "failed pieces");
            if second.result.is_ok() {
                ensure_eq!(device.end(&second.out)?, 0, "failed pieces");
            }
            if seen == (Err(ENOMEM), Err(EAGAIN)) {
                break;
            }
        }
        ensure_eq!(seen, (Err(ENOMEM), Err(EAGAIN)), "a second copy at once");
        let again = || device.submit(&mut [buffers.piece(SMALL)]).result.is_ok();
        ensure!(eventually(PATIENCE, again), "the limit is not given back");
        Ok(())
    })?;
    child.succeed()
}

fn limit_of_locked_memory_does_not_bind_root() -> Outcome {
    let child = fork(|| {
        let device = Device::open()?;
        let buffers = Buffers::new()?;
        limit_locked_memory(0)?;
        device.carry(&mut [buffers.piece(LARGE)])?;
        buffers.dst.expect(1).context("with CAP_IPC_LOCK")
    })?;
    child.succeed()
}

/// A program that reaches its limit with every copy would fill the log of a machine with SELinux.
fn limit_of_locked_memory_is_refused_without_an_audit_record() -> Outcome {
    let asked = Probe::capable("asked", MAY_LOCK)?;
    let audited = Probe::capable("audited", MAY_LOCK_AUDITED)?;
    let child = fork(|| {
        let device = Device::open()?;
        let buffers = Buffers::new()?;
        limit_locked_memory(LIMIT as u64)?;
        become_nobody()?;
        let Submitted { result, out } = device.submit(&mut [buffers.piece(LARGE)]);
        ensure_eq!((result, out.accepted), (Err(ENOMEM), 0), "beyond the limit");
        Ok(())
    })?;
    let thread = child.pid();
    child.succeed()?;
    ensure!(asked.count_of(thread)? > 0, "the capability was not asked for");
    ensure_eq!(audited.count_of(thread)?, 0, "questions that are audited");
    Ok(())
}

/// The works that unpin are as many as a work queue has at once, 256. None of them waits for the
/// lock of an anonymous page: pages of others are unpinned meanwhile.
fn limit_of_reapers_is_not_used_up_by_one_users_locked_page() -> Outcome {
    const HELD: Duration = Duration::from_secs(20);
    const FILES: usize = 300;
    // Every file maps the page.
    crate::kernel::announce_overlap();
    modules::load_client()?;
    let lock = "/sys/kernel/debug/adma_client_lock";
    let mut file = OpenOptions::new().write(true).open(lock).context(lock)?;
    let devices = (0..FILES).map(|_| Device::open()).collect::<Outcome<Vec<_>>>()?;
    let Buffers { dst, src } = Buffers::new()?;
    for device in &devices {
        device.carry(&mut [Piece::new(&dst, 0, &src, 0, PAGE)])?;
    }
    let other = Device::open()?;
    let buffers = Buffers::new()?;
    other.carry(&mut [buffers.piece(LARGE)])?;
    let order = format!("{} {}", dst.address(0), HELD.as_millis());
    std::thread::scope(|scope| {
        let holder = scope.spawn(move || file.write_all(order.as_bytes()));
        let pagemap = Pagemap::new()?;
        let locked = || pagemap.is_locked(dst.address(0)).is_ok_and(|locked| locked);
        ensure!(eventually(PATIENCE, locked), "the page is not locked");
        // Every file has a range of it to unpin.
        dst.advise(0, LARGE, libc::MADV_DONTNEED)?;
        buffers.dst.advise(0, LARGE, libc::MADV_DONTNEED)?;
        buffers.src.advise(0, LARGE, libc::MADV_DONTNEED)?;
        let unpinned = || other.info().is_ok_and(|info| info.pages == 0);
        let done = eventually(HELD / 2, unpinned);
        let held = !holder.is_finished();
        holder.join().expect("no panic").context("the page's lock")?;
        ensure!(done, "pages stay pinned while a page of another file is locked");
        ensure!(held, "the page was not locked for long enough");
        Ok(())
    })
}

/// A page may be locked for as long as the server of its file likes, and is unpinned only after
/// that. No other process waits for it: its copies are refused, its files close.
fn limit_refuses_at_once_while_a_page_of_another_process_is_locked() -> Outcome {
    const HELD: Duration = Duration::from_secs(8);
    modules::load_client()?;
    let lock = "/sys/kernel/debug/adma_client_lock";
    let mut file = OpenOptions::new().write(true).open(lock).context(lock)?;
    let stuck = Gate::new()?;
    let first = fork(|| {
        let device = Device::open()?;
        let Buffers { dst, src } = Buffers::new()?;
        device.carry(&mut [Piece::new(&dst, 0, &src, 0, SMALL)])?;
        let address = dst.address(0);
        let order = format!("{address} {}", HELD.as_millis());
        std::thread::scope(|scope| {
            let holder = scope.spawn(move || file.write_all(order.as_bytes()));
            std::thread::sleep(Duration::from_millis(500));
            // All pages are given up, and can be let go but for the one that is locked.
            dst.advise(0, LARGE, libc::MADV_DONTNEED)?;
            src.advise(0, LARGE, libc::MADV_DONTNEED)?;
            let pages = || device.info().map_or(0, |info| info.pages);
            let few = eventually(PATIENCE, || pages() <= 64);
            std::thread::sleep(Duration::from_millis(100));
            let left = pages();
            stuck.open();
            holder.join().expect("no panic").context("the page's lock")?;
            ensure!(few, "{left} pages were not let go");
            // A page that is dirty already needs no lock.
            println!("{left} pages wait for the lock of one");
            Ok(())
        })
    })?;
    stuck.pass();
    let second = fork(|| {
        let device = Device::open()?;
        let buffers = Buffers::new()?;
        limit_locked_memory(LIMIT as u64)?;
        become_nobody()?;
        let begun = Instant::now();
        let Submitted { result, out } = device.submit(&mut [buffers.piece(LARGE)]);
        ensure_eq!((result, out.accepted), (Err(ENOMEM), 0), "beyond the limit");
        drop(device);
        let took = begun.elapsed();
        println!("refused and closed within {took:?}");
        ensure!(took < HELD / 4, "it took {took:?} while a page of another process was locked");
        Ok(())
    })?;
    second.succeed().and(first.succeed())
}

/// A file can be passed on to a process that did not ask for it, and the last close is there.
fn limit_close_of_somebody_elses_file_waits_for_none_of_its_pages() -> Outcome {
    const HELD: Duration = Duration::from_secs(4);
    modules::load_client()?;
    let lock = "/sys/kernel/debug/adma_client_lock";
    let mut file = OpenOptions::new().write(true).open(lock).context(lock)?;
    let before = Statistics::now()?.pinned_pages;
    let device = Device::open()?;
    let last = Gate::new()?;
    let heir = fork(|| {
        last.pass();
        Ok(())
    })?;
    let Buffers { dst, src } = Buffers::new()?;
    device.carry(&mut [Piece::new(&dst, 0, &src, 0, SMALL)])?;
    let order = format!("{} {}", dst.address(0), HELD.as_millis());
    let took = std::thread::scope(|scope| -> Outcome<Duration> {
        let holder = scope.spawn(move || file.write_all(order.as_bytes()));
        std::thread::sleep(Duration::from_millis(500));
        drop(device);
        let begun = Instant::now();
        last.open();
        heir.succeed()?;
        let took = begun.elapsed();
        let held = !holder.is_finished();
        holder.join().expect("no panic").context("the page's lock")?;
        ensure!(held, "the page was not locked for long enough");
        Ok(took)
    })?;
    println!("closed within {took:?}");
    ensure!(took < HELD / 2, "it took {took:?} while a page of another process was locked");
    let pinned = || Statistics::now().map_or(0, |now| now.pinned_pages);
    ensure!(eventually(PATIENCE, || pinned() == before), "{} pages stay pinned", pinned());
    Ok(())
}

/// Nor for what the owner has asked for: the pages stay pinned until that is over.
fn limit_close_of_somebody_elses_file_waits_for_none_of_its_requests() -> Outcome {
    const LEN: usize = 256 * PAGE;
    let bench = Bench::new()?;
    let before = Statistics::now()?.pinned_pages;
    let device = Device::open()?;
    let last = Gate::new()?;
    let heir = fork(|| {
        last.pass();
        Ok(())
    })?;
    let (dst, src) = (Region::of_scattered_pages(LEN)?, Region::of_scattered_pages(LEN)?);
    bench.slow_down()?;
    device.start(&mut Piece::new(&dst, 0, &src, 0, LEN).split(4, device.info()?.channels))?;
    drop(device);
    last.open();
    heir.succeed()?;
    let pinned = || Statistics::now().map_or(0, |now| now.pinned_pages);
    let left = pinned();
    ensure!(left > before, "the last close of the file has waited for the owner's request");
    ensure!(eventually(PATIENCE, || pinned() == before), "{} pages stay pinned", pinned());
    Ok(())
}

/// Each open file has a page of words for every channel.
fn limit_of_open_files_is_emfile_and_their_pages_are_charged() -> Outcome {
    const FILES: usize = 64;
    const MOST: &str = "/sys/module/adma/parameters/files";
    let group = ControlGroup::new("adma-files")?;
    let before = fs::read_to_string(MOST).context(MOST)?;
    fs::write(MOST, FILES.to_string()).context(MOST)?;
    let child = fork(|| {
        group.enter()?;
        // What is closed may not be gone yet.
        ensure!(eventually(PATIENCE, || Device::open().is_ok()), "no file can be opened");
        let channels = Device::open()?.info()?.channels as usize;
        let (charged, mut devices) = (group.memory()?, Vec::new());
        let refused = loop {
            match OpenOptions::new().read(true).write(true).open(PATH) {
                Ok(file) => devices.push(file),
                Err(error) => break error.raw_os_error(),
            }
            ensure!(devices.len() <= FILES, "{} files are open", devices.len());
        };
        let charged = group.memory()?.saturating_sub(charged);
        ensure_eq!(refused, Some(libc::EMFILE), "one file too many");
        ensure_eq!(devices.len(), FILES, "open files");
        println!("{charged} bytes are charged for {FILES} files and {channels} channels");
        // Without the words it would be less than half of that.
        ensure!(
            charged as usize >= FILES * channels * PAGE / 10 * 9,
            "only {charged} bytes are charged"
        );
        Ok(())
    })?;
    let outcome = child.succeed();
    fs::write(MOST, before.trim()).context(MOST)?;
    outcome
}

/// A process that was sent the port may keep it for good.
fn limit_of_open_files_does_not_count_those_that_only_a_port_is_left_of() -> Outcome {
    let child = fork(|| {
        let device = Device::open()?;
        let _most = Parameter::set("adma", "files", 4)?;
        let mut ports = Vec::new();
        for round in 0..16 {
            let Ok(other) = Device::open() else { fail!("no file can be opened, round {round}") };
            let Ok(port) = other.port() else { fail!("no port") };
            ports.push(port);
        }
        drop(device);
        Ok(())
    })?;
    child.succeed()
}

/// Each request holds a place on its channel, however few bytes it has.
fn limit_of_requests_leaves_channels_to_other_users() -> Outcome {
    const FILES: usize = 8;
    let bench = Bench::new()?;
    let devices = (0..FILES).map(|_| Device::open()).collect::<Outcome<Vec<_>>>()?;
    let (dst, src) = (Region::of_scattered_pages(SMALL)?, Region::of_scattered_pages(SMALL)?);
    let piece = Piece::new(&dst, 0, &src, 0, SMALL).on(0);
    devices.iter().try_for_each(|device| device.carry(&mut [piece]).map(drop))?;
    bench.slow_down_one()?;
    let mut under_way = Vec::new();
    let mut refused = None;
    'all: for device in &devices {
        for number in 0..SLOTS {
            let Submitted { result, out } = device.submit(&mut [piece]);
            if result.is_err() {
                refused = Some((result, number));
                break 'all;
            }
            under_way.push((device, out));
        }
    }
    println!("{} requests, then {refused:?}", under_way.len());
    bench.clear()?;
    for (device, out) in &under_way {
        ensure_eq!(device.end(out)?, 0, "failed pieces");
    }
    let Some((result, number)) = refused else { fail!("{} are taken", under_way.len()) };
    ensure_eq!(result, Err(EAGAIN), "one request too many");
    ensure!(number < SLOTS, "it was the file's limit");
    Ok(())
}

/// What others keep is let go for their own user only.
fn limit_reached_through_a_port_without_a_file_is_nobody_elses_business() -> Outcome {
    let kept = Gate::new()?;
    let mode = |mode| fs::set_permissions(PATH, fs::Permissions::from_mode(mode)).context(PATH);
    mode(0o666)?;
    let child = fork(|| {
        kept.pass();
        become_nobody()?;
        limit_locked_memory(0)?;
        let own = Device::open()?;
        let Ok(port) = own.port() else { fail!("no port") };
        drop(own);
        let memory = Region::of_small_pages(LARGE)?;
        memory.fill(1);
        for _ in 0..50 {
            let refused = port.export(memory.address(0), LARGE, EXPORT_READ);
            ensure_eq!(refused, Err(ESHUTDOWN), "an export of a closed file");
        }
        Ok(())
    })?;
    let device = Device::open()?;
    let buffers = Buffers::new()?;
    device.carry(&mut [buffers.piece(LARGE)])?;
    let before = device.info()?.evictions;
    kept.open();
    let outcome = child.succeed();
    mode(0o640)?;
    outcome?;
    ensure_eq!(device.info()?.evictions, before, "ranges of another user let go");
    Ok(())
}

/// Two users have as many requests as they may, each of which waits for a page that never comes;
/// a third one copies all the same, on every channel.
fn limit_of_users_that_wait_for_pages_leaves_channels_to_a_third() -> Outcome {
    if has_checkers() {
        skip!("Linux 6.1 cannot wait for such a page when it is pinned for long, and says so");
    }
    const REQUESTS: usize = 128;
    let device = Device::open()?;
    let channels = device.info()?.channels;
    let before = Statistics::now()?;
    let mode = |mode| fs::set_permissions(PATH, fs::Permissions::from_mode(mode)).context(PATH);
    mode(0o666)?;
    let stuck = |user: u32| {
        move || -> Outcome {
            // To leave faults of the kernel unanswered is for root.
            let waiting: Vec<_> = (0..REQUESTS).map(|_| Waiting::new(channels)).collect();
            // SAFETY: no pointers; gives root up.
            ensure!(unsafe { libc::setresuid(user, user, user) } == 0, "setresuid");
            let devices = (0..REQUESTS / SLOTS).map(|_| Device::open());
            let devices = devices.collect::<Outcome<Vec<_>>>()?;
            std::thread::scope(|scope| {
                for (number, waiting) in waiting.into_iter().enumerate() {
                    let waiting = waiting?;
                    let device = &devices[number / SLOTS];
                    scope.spawn(move || waiting.submit(device));
                }
                Ok(())
            })
        }
    };
    let children = [fork(stuck(1001))?, fork(stuck(1002))?];
    let all = || {
        // Both sides on each channel, and the destination of what waits for its source.
        let pins = Statistics::now().map_or(0, |now| now.since(&before).pins);
        pins >= 2 * (REQUESTS as u64) * (2 * u64::from(channels) + 1)
    };
    let begun = eventually(PATIENCE, all);
    mode(0o640)?;
    ensure!(begun, "not all requests have begun: {:?}", Statistics::now()?.since(&before));
    let (dst, src) = (Region::of_small_pages(LARGE)?, Region::of_small_pages(LARGE)?);
    let mut refused = 0;
    for _ in 0..40 {
        let mut pieces = Piece::new(&dst, 0, &src, 0, LARGE).split(channels as usize, channels);
        let Submitted { result, out } = device.submit(&mut pieces);
        refused += usize::from(result.is_err());
        if out.accepted > 0 {
            device.end(&out)?;
        }
    }
    children.iter().for_each(|child| child.kill(libc::SIGKILL));
    drop(children);
    ensure_eq!(refused, 0, "copies of 40 that were refused");
    Ok(())
}

/// A piece on each channel, and one that needs a page that never comes.
struct Waiting {
    dst: Region,
    src: Region,
    channels: u32,
    _faults: OwnedFd,
}

impl Waiting {
    fn new(channels: u32) -> Outcome<Waiting> {
        let pages = channels as usize + 1;
        let (dst, src) = (Region::of_small_pages(pages * PAGE)?, Region::anonymous(pages * PAGE)?);
        (0..pages - 1).for_each(|page| src.set(page * PAGE, 1));
        let Some(_faults) = src.leave_faults_unanswered()? else { skip!("no userfaultfd here") };
        Ok(Waiting { dst, src, channels, _faults })
    }

    /// Comes back when the process is killed.
    fn submit(&self, device: &Device) {
        let pages = self.channels as usize + 1;
        let whole = Piece::new(&self.dst, 0, &self.src, 0, pages * PAGE);
        device.submit(&mut whole.split(pages, self.channels));
    }
}

/// To pin a page of a huge one keeps all of it in memory.
fn limit_of_locked_memory_counts_whole_huge_pages() -> Outcome {
    const HUGE_PAGES: usize = 8;
    let child = fork(|| {
        let region = Region::of_kind(Kind::Transparent, HUGE_PAGES * HUGE)?;
        region.touch();
        let map = Pagemap::new()?;
        let is_huge = |number: usize| {
            let at = |offset: usize| map.physical(region.address(number * HUGE + offset));
            at(0).is_some_and(|first| {
                first % HUGE as u64 == 0 && at(HUGE - PAGE) == Some(first + (HUGE - PAGE) as u64)
            })
        };
        if !(0..HUGE_PAGES).all(is_huge) {
            skip!("no transparent huge pages");
        }
        let device = Device::with_limit(4 * HUGE)?;
        let Ok(port) = device.port() else { fail!("no port") };
        let export = |number: usize| port.export(region.address(number * HUGE), ALIGN, EXPORT_READ);
        let (mut made, mut refused) = (Vec::new(), 0);
        for number in 0..HUGE_PAGES {
            match export(number) {
                Ok(id) => made.push(id),
                Err(ENOMEM) => refused += 1,
                Err(errno) => fail!("export {number}: {errno:?}"),
            }
        }
        let pages = device.info()?.pages as usize;
        println!("{} exports, {refused} refused, {pages} pages", made.len());
        ensure_eq!((made.len(), pages * PAGE), (4, 4 * HUGE), "exports, and bytes held");
        // More of a page that is held anyway costs nothing.
        ensure!(port.export(region.address(PAGE), ALIGN, EXPORT_READ).is_ok(), "beside the first");
        for id in made {
            ensure_eq!(port.unexport(id, PATIENCE), Ok(()), "unexport {id}");
        }
        Ok(())
    })?;
    child.succeed()
}
