//! Limits of what a user may lock.

use super::*;
use crate::probes::{MAY_LOCK, MAY_LOCK_AUDITED};
use crate::process::Child;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;

const SMALL: usize = 4 * PAGE;
const LARGE: usize = 64 * PAGE;
const LIMIT: usize = 16 * PAGE;

pub fn limit_of_locked_memory_is_enomem_beyond_and_kept_below() -> Outcome {
    as_nobody(LIMIT, |pair| {
        // Ten times the limit in all: finished requests must have been unpinned.
        for round in 0..10 * LIMIT / SMALL {
            // A work item unpins what the refused one had pinned, a moment later.
            let fits = || pair.device.carry(&mut [pair.part(0, SMALL)]).is_ok();
            ensure!(eventually(PATIENCE, fits), "round {round}");
            pair.device.refuse(pair.whole(), ENOMEM, format_args!("round {round}"))?;
        }
        // The first pieces fit, the others do not; here, too, after a moment.
        pair.dst.fill(1);
        let submit = || pair.device.submit(&mut pair.whole().split(LARGE / SMALL, 1));
        let mut begun = submit();
        eventually(PATIENCE, || {
            let again = begun.result == Err(ENOMEM) && begun.out.accepted == 0;
            if again {
                begun = submit();
            }
            !again
        });
        let Submitted { result, out } = begun;
        ensure_eq!(result, Err(ENOMEM), "pieces beyond the limit");
        ensure!((1..=LIMIT / SMALL).contains(&(out.accepted as usize)), "{out:?}");
        pair.device.finish(&out)?;
        let fitted = out.accepted as usize * SMALL;
        pair.dst.expect_part(0, fitted, 2).context("the pieces that fitted")
    })
}

/// Pages that a refused request has left pinned beside those of a smaller one do not keep that from
/// its own.
pub fn limit_of_locked_memory_is_not_used_up_by_a_refused_request() -> Outcome {
    in_child(|| {
        let pair = Pair::new(3 * LARGE)?;
        limit_locked_memory(LIMIT as u64)?;
        become_nobody()?;
        // The first range of the destination has all but two pages of the limit.
        let at = 2 * LARGE - (LIMIT - 2 * PAGE) - pair.dst.address(0) as usize % LARGE;
        pair.device.refuse(pair.part(at, LARGE), ENOMEM, "beyond the limit")?;
        let fits = || pair.device.carry(&mut [pair.part(at, SMALL)]).is_ok();
        ensure!(eventually(PATIENCE, fits), "a small copy is refused for {PATIENCE:?}");
        Ok(())
    })
}

/// After an export beyond the limit a smaller one fits: no page of the refused one stays counted.
pub fn limit_of_locked_memory_is_not_used_up_by_a_refused_export() -> Outcome {
    in_child(|| {
        let device = Device::with_limit(LIMIT)?;
        let port = device.port()?;
        let region = Region::of_small_pages(3 * LARGE)?;
        let edge = 2 * LARGE - region.address(0) as usize % LARGE;
        let export = |at: usize, len| port.export(region.address(at), len, EXPORT_READ);
        // The first range has all but two pages of the limit.
        let refused = export(edge - (LIMIT - 2 * PAGE), LARGE);
        ensure_eq!(refused, Err(ENOMEM), "beyond the limit");
        let fits = || export(edge - PAGE, SMALL).is_ok();
        ensure!(eventually(PATIENCE, fits), "a small export is refused for {PATIENCE:?}");
        Ok(())
    })
}

/// Copies within a buffer that is exported cost nothing, also after others that were refused.
pub fn limit_of_locked_memory_does_not_bind_copies_of_what_is_exported() -> Outcome {
    const EXPORTED: usize = LIMIT - SMALL;
    in_child(|| {
        let (region, none) = (Region::of_small_pages(2 * LARGE)?, Region::anonymous(PAGE)?);
        none.protect(0, PAGE, libc::PROT_NONE)?;
        let line = (LARGE - region.address(0) as usize % LARGE) % LARGE;
        let device = Device::with_limit(LIMIT)?;
        let port = device.port()?;
        port.export(region.address(line), EXPORTED, BOTH).context("the export")?;
        let within = Piece::new(&region, line, &region, line + SMALL, SMALL);
        let fits = || device.carry(&mut [within]).is_ok();
        ensure!(fits(), "at first");
        let unread = Piece::new(&region, line, &none, 0, PAGE);
        device.refuse(unread, EFAULT, "without a source")?;
        ensure!(eventually(PATIENCE, fits), "after EFAULT");
        let beyond = Piece::new(&region, line + EXPORTED, &region, line, 2 * SMALL);
        device.refuse(beyond, ENOMEM, "beyond the limit")?;
        ensure!(eventually(PATIENCE, fits), "after ENOMEM");
        Ok(())
    })
}

/// Runs a child as user nobody, with buffers of `LARGE` bytes but a lower limit.
fn as_nobody(limit: usize, run: impl FnOnce(Pair) -> Outcome) -> Outcome {
    in_child(|| {
        let pair = Pair::new(LARGE)?;
        limit_locked_memory(limit as u64)?;
        become_nobody()?;
        run(pair)
    })
}

pub fn limit_of_locked_memory_counts_what_is_under_way() -> Outcome {
    let bench = Bench::new()?;
    bench.slow_down()?;
    // Both sides of one small copy, and a little more.
    as_nobody(3 * SMALL, |pair| {
        let device = &pair.device;
        device.keep(0)?;
        let small = pair.part(0, SMALL);
        // Piece by piece, so that it takes time; on a busy host it may still be over before the
        // second one is submitted.
        let mut seen = (Ok(()), Ok(0));
        for _ in 0..20 {
            let first = device.start(&mut small.split(SMALL / PAGE, 1))?;
            // Looks first: a refusal comes when everything that was begun is over, which may have
            // been queued behind the first one.
            let look = device.wait(first.id, Duration::ZERO);
            let second = device.submit(&mut [small]);
            seen = (second.result, look);
            device.finish(&first)?;
            if second.result.is_ok() {
                device.finish(&second.out)?;
            }
            if seen == (Err(ENOMEM), Err(EAGAIN)) {
                break;
            }
        }
        ensure_eq!(seen, (Err(ENOMEM), Err(EAGAIN)), "a second copy at once");
        let again = || device.submit(&mut [small]).result.is_ok();
        ensure!(eventually(PATIENCE, again), "the limit is not given back");
        Ok(())
    })
}

pub fn limit_of_locked_memory_does_not_bind_root() -> Outcome {
    in_child(|| {
        let pair = Pair::new(LARGE)?;
        limit_locked_memory(0)?;
        pair.carry(1)?;
        pair.expect_copied().context("with CAP_IPC_LOCK")
    })
}

/// A program that reaches its limit with every copy would fill the log of a machine with SELinux.
pub fn limit_of_locked_memory_is_refused_without_an_audit_record() -> Outcome {
    let asked = Probe::capable("asked", MAY_LOCK)?;
    let audited = Probe::capable("audited", MAY_LOCK_AUDITED)?;
    let child = fork(|| {
        let pair = Pair::new(LARGE)?;
        limit_locked_memory(LIMIT as u64)?;
        become_nobody()?;
        pair.refuse(pair.whole(), ENOMEM, "beyond the limit")
    })?;
    let thread = child.pid();
    child.succeed()?;
    ensure!(asked.count_of(thread)? > 0, "the capability was not asked for");
    ensure_eq!(audited.count_of(thread)?, 0, "questions that are audited");
    Ok(())
}

/// Runs something while the page at an address is locked, as by a file system that waits for a
/// server; it must end before the lock does.
fn while_locked<T>(address: u64, held: Duration, run: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    const LOCK: &str = "/sys/kernel/debug/adma_client_lock";
    modules::load_client()?;
    let order = format!("{address} {}", held.as_millis());
    std::thread::scope(|scope| {
        let holder = scope.spawn(move || fs::write(LOCK, order));
        let pagemap = Pagemap::new()?;
        let locked = || pagemap.is_locked(address).is_ok_and(|locked| locked);
        let locked = eventually(PATIENCE, locked);
        let outcome = run();
        let is_held = !holder.is_finished();
        holder.join().expect("no panic").context(LOCK)?;
        ensure!(locked && is_held, "the page was not locked for long enough");
        outcome
    })
}

/// A work queue runs 256 items at once. Those that unpin do not wait for the lock of an anonymous
/// page: pages of others are unpinned meanwhile.
pub fn limit_of_reapers_is_not_used_up_by_one_users_locked_page() -> Outcome {
    const HELD: Duration = Duration::from_secs(20);
    const FILES: usize = 300;
    // Every file maps the page.
    kernel::announce_overlap();
    let devices = (0..FILES).map(|_| Device::open()).collect::<Outcome<Vec<_>>>()?;
    let (locked, other) = (Pair::new(LARGE)?, Pair::new(LARGE)?);
    for device in &devices {
        device.carry(&mut [locked.part(0, PAGE)])?;
    }
    other.carry(1)?;
    while_locked(locked.dst.address(0), HELD, || {
        // Every file has a range of it to unpin.
        for region in [&locked.dst, &other.dst, &other.src] {
            region.advise(0, LARGE, libc::MADV_DONTNEED)?;
        }
        let unpinned = || other.device.info().is_ok_and(|info| info.pages == 0);
        ensure!(eventually(HELD / 2, unpinned), "pages stay pinned while another's is locked");
        Ok(())
    })
}

/// A page may stay locked without limit by a network file system, and is unpinned only after that.
/// No other process waits for it: its copies are refused, its files close.
pub fn limit_refuses_at_once_while_a_page_of_another_process_is_locked() -> Outcome {
    const HELD: Duration = Duration::from_secs(8);
    modules::load_client()?;
    let (stuck, over) = (Gate::new()?, Gate::new()?);
    let first = fork(|| {
        let pair = Pair::new(LARGE)?;
        pair.device.carry(&mut [pair.part(0, SMALL)])?;
        while_locked(pair.dst.address(0), HELD, || {
            // All pages are discarded, and can be unpinned except for the locked one.
            pair.dst.advise(0, LARGE, libc::MADV_DONTNEED)?;
            pair.src.advise(0, LARGE, libc::MADV_DONTNEED)?;
            let pages = || pair.device.info().map_or(0, |info| info.pages);
            let few = eventually(PATIENCE, || pages() <= 64);
            sleep(Duration::from_millis(100));
            // A page that is dirty already needs no lock.
            println!("{} pages wait for the lock of one", pages());
            stuck.open();
            over.pass();
            ensure!(few, "{} pages were not let go", pages());
            Ok(())
        })
    })?;
    stuck.pass();
    let second = as_nobody(LIMIT, |pair| {
        let begun = Instant::now();
        pair.refuse(pair.whole(), ENOMEM, "beyond the limit")?;
        drop(pair.device);
        let took = begun.elapsed();
        println!("refused and closed within {took:?}");
        ensure!(took < HELD / 4, "it took {took:?} while a page of another process was locked");
        Ok(())
    });
    over.open();
    second.and(first.succeed())
}

/// Returns the pages that the module has pinned for all files.
fn pinned() -> u64 {
    Statistics::now().map_or(0, |now| now.pinned_pages)
}

/// Measures the close of a file whose last descriptor is inherited by a child.
fn closed_by_an_heir(device: Device, heir: Child, last: &Gate) -> Outcome<Duration> {
    drop(device);
    let begun = Instant::now();
    last.open();
    heir.succeed()?;
    Ok(begun.elapsed())
}

/// Returns a child that inherits all open files, and the gate before it closes them.
fn heir() -> Outcome<(Child, Gate)> {
    let last = Gate::new()?;
    let heir = fork(|| {
        last.pass();
        Ok(())
    })?;
    Ok((heir, last))
}

pub fn limit_close_of_an_inherited_file_waits_for_none_of_its_pages() -> Outcome {
    const HELD: Duration = Duration::from_secs(4);
    let before = pinned();
    let device = Device::open()?;
    let (heir, last) = heir()?;
    let Pair { dst, src, .. } = Pair::new(LARGE)?;
    device.carry(&mut [Piece::new(&dst, 0, &src, 0, SMALL)])?;
    let took = while_locked(dst.address(0), HELD, || closed_by_an_heir(device, heir, &last))?;
    println!("closed within {took:?}");
    ensure!(took < HELD / 2, "it took {took:?} while a page of another process was locked");
    ensure!(eventually(PATIENCE, || pinned() == before), "{} pages stay pinned", pinned());
    Ok(())
}

/// Unloading does not wait for a page that a file system's server may keep locked for ever.
pub fn limit_unload_while_a_page_is_locked_is_refused_at_once() -> Outcome {
    const HELD: Duration = Duration::from_secs(4);
    let device = Device::open()?;
    let (heir, last) = heir()?;
    let dst = Region::of_file(&memory_file(SMALL)?, libc::MAP_SHARED)?;
    let src = Region::of_small_pages(SMALL)?;
    device.carry(&mut [Piece::new(&dst, 0, &src, 0, SMALL)])?;
    let (took, refused) = while_locked(dst.address(0), HELD, || {
        closed_by_an_heir(device, heir, &last)?;
        let begun = Instant::now();
        let refused = modules::unload();
        Ok((begun.elapsed(), refused))
    })?;
    println!("{refused:?} within {took:?}");
    if refused.is_ok() {
        modules::load()?;
    }
    ensure!(matches!(refused, Err(EAGAIN | EBUSY)), "{refused:?} after {took:?}");
    ensure!(took < HELD / 4, "it took {took:?}");
    modules::load_again()
}

/// The owner's requests are not waited for: pages stay pinned until those are over.
pub fn limit_close_of_an_inherited_file_waits_for_none_of_its_requests() -> Outcome {
    const LEN: usize = 256 * PAGE;
    let bench = Bench::new()?;
    let before = pinned();
    let device = Device::open()?;
    let (heir, last) = heir()?;
    let (dst, src) = (Region::of_scattered_pages(LEN)?, Region::of_scattered_pages(LEN)?);
    bench.slow_down()?;
    device.start(&mut Piece::new(&dst, 0, &src, 0, LEN).split(4, device.info()?.channels))?;
    closed_by_an_heir(device, heir, &last)?;
    ensure!(pinned() > before, "the last close of the file has waited for the owner's request");
    ensure!(eventually(PATIENCE, || pinned() == before), "{} pages stay pinned", pinned());
    Ok(())
}

/// An open file takes a page of words for a channel when that is mapped or used, and not before.
pub fn limit_of_the_control_group_counts_the_words_that_are_mapped() -> Outcome {
    const FILES: usize = 64;
    let group = ControlGroup::new("adma-files")?;
    in_child(|| {
        group.take_in(0)?;
        let channels = Device::open()?.info()?.channels as usize;
        let before = group.memory()?;
        let charged = || -> Outcome<usize> { Ok(group.memory()?.saturating_sub(before) as usize) };
        let devices = (0..FILES).map(|_| Device::open()).collect::<Outcome<Vec<_>>>()?;
        let opened = charged()?;
        let words = devices.iter().map(Device::all_words).collect::<Outcome<Vec<_>>>()?;
        let mapped = charged()?;
        println!("{FILES} files, {channels} channels: {opened} bytes charged, {mapped} with words");
        drop((words, devices));
        // A control group is charged in batches of 64 pages.
        ensure!(opened < FILES * 4096 + 64 * PAGE, "{opened} bytes for files that copy nothing");
        // Without the words it would be less than half of that.
        let least = FILES * channels * PAGE / 10 * 9;
        ensure!(mapped >= least, "only {mapped} bytes are charged");
        Ok(())
    })
}

/// Each request holds a place on its channel, however few bytes it has.
pub fn limit_of_requests_leaves_channels_to_other_users() -> Outcome {
    const FILES: usize = 8;
    let bench = Bench::new()?;
    let devices = (0..FILES).map(|_| Device::open()).collect::<Outcome<Vec<_>>>()?;
    let (dst, src) = (Region::of_scattered_pages(SMALL)?, Region::of_scattered_pages(SMALL)?);
    let piece = Piece::new(&dst, 0, &src, 0, SMALL).on(0);
    devices.iter().try_for_each(|device| device.carry(&mut [piece]).map(drop))?;
    bench.slow_down_one()?;
    let (mut under_way, mut refused) = (Vec::new(), None);
    // No file exceeds its own limit.
    for device in devices.iter().flat_map(|device| std::iter::repeat_n(device, SLOTS)) {
        let Submitted { result, out } = device.submit(&mut [piece]);
        if let Err(errno) = result {
            refused = Some(errno);
            break;
        }
        under_way.push((device, out));
    }
    bench.clear()?;
    under_way.iter().try_for_each(|(device, out)| device.finish(out))?;
    ensure_eq!(refused, Some(EBUSY), "after {} requests", under_way.len());
    ensure!(under_way.len() >= 128, "after {} requests", under_way.len());
    Ok(())
}

/// Opens the device to every user while this lives.
struct ForEverybody;

impl ForEverybody {
    fn new() -> Outcome<ForEverybody> {
        fs::set_permissions(PATH, fs::Permissions::from_mode(0o666)).context(PATH)?;
        Ok(ForEverybody)
    }
}

impl Drop for ForEverybody {
    fn drop(&mut self) {
        let _ = fs::set_permissions(PATH, fs::Permissions::from_mode(0o640));
    }
}

/// Ranges that others keep are evicted for their own user only.
pub fn limit_reached_through_a_port_without_a_file_concerns_its_user_only() -> Outcome {
    let kept = Gate::new()?;
    let _open = ForEverybody::new()?;
    let child = fork(|| {
        kept.pass();
        become_nobody()?;
        limit_locked_memory(0)?;
        let port = Device::open()?.port()?;
        let memory = Region::of_small_pages(LARGE)?;
        for _ in 0..50 {
            let refused = port.export(memory.address(0), LARGE, EXPORT_READ);
            ensure_eq!(refused, Err(ESHUTDOWN), "an export of a closed file");
        }
        Ok(())
    })?;
    let pair = Pair::new(LARGE)?;
    pair.carry(1)?;
    let before = pair.device.info()?.evictions;
    kept.open();
    child.succeed()?;
    ensure_eq!(pair.device.info()?.evictions, before, "ranges of another user let go");
    Ok(())
}

/// Two users have as many requests as they may, each of which waits for a page that never comes;
/// a third one still copies, on every channel.
pub fn limit_of_users_that_wait_for_pages_leaves_channels_to_a_third() -> Outcome {
    pins_must_wait_for_pages()?;
    const REQUESTS: usize = 128;
    let pair = Pair::new(LARGE)?;
    let channels = pair.channels;
    let before = Statistics::now()?;
    let open = ForEverybody::new()?;
    let stuck = |user: u32| {
        move || -> Outcome {
            // Leaving faults of the kernel unanswered takes root.
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
    drop(open);
    ensure!(begun, "not all requests have begun: {:?}", Statistics::now()?.since(&before));
    let mut refused = 0;
    for _ in 0..40 {
        let Submitted { result, out } = pair.device.submit(&mut pair.pieces(channels as usize));
        refused += usize::from(result.is_err());
        if out.accepted > 0 {
            pair.device.end(&out)?;
        }
    }
    children.iter().for_each(|child| child.kill(libc::SIGKILL));
    drop(children);
    ensure_eq!(refused, 0, "copies of 40 that were refused");
    Ok(())
}

/// Pages of a first piece, which is sent before more is pinned.
const SENT: usize = 20;

/// A piece on each channel, and one that needs a page that never comes.
struct Waiting {
    dst: Region,
    src: Region,
    channels: u32,
    _faults: OwnedFd,
}

impl Waiting {
    fn new(channels: u32) -> Outcome<Waiting> {
        let pages = SENT + channels as usize + 1;
        let (dst, src) = (Region::of_small_pages(pages * PAGE)?, Region::anonymous(pages * PAGE)?);
        (0..pages - 1).for_each(|page| src.set(page * PAGE, 1));
        let _faults = src.leave_faults_unanswered()?;
        Ok(Waiting { dst, src, channels, _faults })
    }

    /// Returns when the process is killed.
    fn submit(&self, device: &Device) {
        let piece = |at, len| Piece::new(&self.dst, at * PAGE, &self.src, at * PAGE, len * PAGE);
        let mut pieces = piece(SENT, self.channels as usize + 1)
            .split(self.channels as usize + 1, self.channels);
        pieces.insert(0, piece(0, SENT).on(0));
        device.submit(&mut pieces);
    }
}

/// Pinning a part of a huge page keeps all of it in memory.
pub fn limit_of_locked_memory_counts_whole_huge_pages() -> Outcome {
    const HUGE_PAGES: usize = 8;
    in_child(|| {
        let region = Region::of_kind(PageKind::Transparent, HUGE_PAGES * HUGE)?;
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
        let port = device.port()?;
        let export = |at: usize| port.export(region.address(at), ALIGN, EXPORT_READ);
        let mut made = Vec::new();
        for number in 0..HUGE_PAGES {
            match export(number * HUGE) {
                Ok(id) => made.push(id),
                refused => ensure_eq!(refused, Err(ENOMEM), "export {number}"),
            }
        }
        let bytes = device.info()?.pages as usize * PAGE;
        ensure_eq!((made.len(), bytes), (4, 4 * HUGE), "exports, and bytes held");
        // Another part of a page that is pinned anyway costs nothing.
        export(PAGE).context("beside the first")?;
        for id in made {
            ensure_eq!(port.unexport(id, PATIENCE), Ok(()), "unexport {id}");
        }
        Ok(())
    })
}
