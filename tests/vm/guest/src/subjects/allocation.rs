//! Fails every allocation of a call once, on a kernel with fault injection.

use super::*;
use std::os::unix::fs::FileExt;

/// /proc/thread-self/fail-nth: the n-th allocation from now on fails.
struct Failing(File);

impl Failing {
    fn new() -> Outcome<Failing> {
        const PATH: &str = "/proc/thread-self/fail-nth";
        let Ok(file) = File::options().read(true).write(true).open(PATH) else {
            skip!("this kernel cannot fail allocations on order");
        };
        // The checker of mappings allocates as well.
        kernel::announce("cacheline tracking ENOMEM, dma-debug disabled");
        for setting in [
            "failslab/ignore-gfp-wait N",
            "failslab/verbose 0",
            "fail_page_alloc/ignore-gfp-wait N",
            "fail_page_alloc/ignore-gfp-highmem N",
            "fail_page_alloc/min-order 0",
            "fail_page_alloc/verbose 0",
            "fail_usercopy/verbose 0",
        ] {
            let (name, value) = setting.split_once(' ').unwrap_or_default();
            // Not every kernel has every one.
            let _ = fs::write(format!("/sys/kernel/debug/{name}"), value);
        }
        Ok(Failing(file))
    }

    /// Writes the order, which copies from us itself, so that an earlier order may strike there.
    fn set(&self, nth: u32) -> Outcome {
        let text = nth.to_string();
        let written = self.0.write_all_at(text.as_bytes(), 0);
        written.or_else(|_| self.0.write_all_at(text.as_bytes(), 0)).context("fail-nth")
    }

    /// Disarms the fault and returns whether it has struck. If it strikes this call, it had not.
    fn struck(&self) -> Outcome<bool> {
        let mut text = [0; 16];
        let struck = match self.0.read_at(&mut text, 0) {
            Ok(len) => text[..len].trim_ascii() == b"0",
            Err(_) => false,
        };
        self.set(0)?;
        Ok(struck)
    }

    /// Calls `run` with the first, the second, ... allocation failing, until none does.
    fn one_by_one(&self, mut run: impl FnMut(&Failing, u32) -> Outcome<bool>) -> Outcome {
        for nth in 1..1000 {
            if !run(self, nth)? {
                println!("{} allocations failed in turn", nth - 1);
                ensure!(nth > 1, "nothing could be made to fail: nothing was shown");
                return Ok(());
            }
        }
        fail!("it never ends");
    }
}

/// Checks the error of a call without memory.
fn expect_clean<T>(result: &Result<T, Errno>, nth: u32) -> Outcome {
    match result {
        Ok(_) | Err(ENOMEM | EFAULT | EAGAIN | EBUSY | EMFILE) => Ok(()),
        Err(errno) => fail!("allocation {nth}: {errno:?}"),
    }
}

/// Memory that is present, and memory that must be populated first.
const KINDS: [fn(usize) -> Outcome<Region>; 2] = [Region::of_small_pages, Region::anonymous];

pub fn z_allocation_failed_in_submit_is_a_clean_error() -> Outcome {
    const LEN: usize = 8 * PAGE;
    const PART: usize = LEN / 4;
    let failing = Failing::new()?;
    let device = Device::open()?;
    let channels = device.info()?.channels;
    for region in KINDS {
        failing.one_by_one(|failing, nth| {
            let (dst, src) = (region(LEN)?, Region::of_small_pages(LEN)?);
            src.fill(2);
            failing.set(nth)?;
            let Submitted { result, out } =
                device.submit(&mut Piece::new(&dst, 0, &src, 0, LEN).split(4, channels));
            let struck = failing.struck()?;
            expect_clean(&result, nth)?;
            let accepted = out.accepted as usize;
            let failed = if accepted > 0 { device.end(&out)? } else { 0 };
            ensure_eq!(failed >> accepted, 0, "failed pieces that were not accepted");
            for piece in (0..4).filter(|&piece| piece >= accepted || failed & 1 << piece != 0) {
                dst.copy_by_cpu(piece * PART, &src, piece * PART, PART);
            }
            dst.expect(2).context(format_args!("allocation {nth}: {result:?}"))?;
            Ok(struck)
        })?;
    }
    Ok(())
}

pub fn z_allocation_failed_in_open_is_a_clean_error() -> Outcome {
    Failing::new()?.one_by_one(|failing, nth| {
        failing.set(nth)?;
        let opened = Device::open();
        let struck = failing.struck()?;
        if let Ok(device) = opened {
            device.info()?;
        }
        Ok(struck)
    })
}

pub fn z_allocation_failed_in_mapping_words_is_a_clean_error() -> Outcome {
    Failing::new()?.one_by_one(|failing, nth| {
        let device = Device::open()?;
        failing.set(nth)?;
        let words = device.words(0);
        let struck = failing.struck()?;
        let (dst, src) = (Region::of_small_pages(PAGE)?, Region::of_small_pages(PAGE)?);
        let watched = Watched::new(&dst, 0, &src, 0, PAGE, 0);
        let request = device.carry(&mut [watched.piece().on(0)])?;
        watched.expect_copied()?;
        if let (Ok(words), 1) = (words, request.channels) {
            ensure_eq!(words.of(request.slot), request.id, "the word");
        }
        Ok(struck)
    })
}

pub fn z_allocation_failed_in_ports_and_exports_is_a_clean_error() -> Outcome {
    const LEN: usize = 8 * PAGE;
    let failing = Failing::new()?;
    let device = Device::open()?;
    failing.one_by_one(|failing, nth| {
        failing.set(nth)?;
        let port = device.port();
        let struck = failing.struck()?;
        expect_clean(&port, nth)?;
        Ok(struck)
    })?;
    let port = device.port().context("after the failed ones")?;
    for region in KINDS {
        failing.one_by_one(|failing, nth| {
            let fresh = region(LEN)?;
            failing.set(nth)?;
            let export = port.export(fresh.address(0), LEN, BOTH);
            let struck = failing.struck()?;
            expect_clean(&export, nth)?;
            if let Ok(export) = export {
                ensure_eq!(port.unexport(export, Duration::ZERO), Ok(()), "export {nth}");
            }
            Ok(struck)
        })?;
    }
    let source = Region::of_small_pages(LEN)?;
    source.fill(3);
    let export = port.export(source.address(0), LEN, EXPORT_READ)?;
    failing.one_by_one(|failing, nth| {
        let fresh = Region::of_small_pages(LEN)?;
        let mut pieces = [Piece { src: 0, ..Piece::new(&fresh, 0, &source, 0, LEN) }];
        failing.set(nth)?;
        let Submitted { result, out } =
            device.submit_across(&mut pieces, SUBMIT_PULL, port.fd(), export);
        let struck = failing.struck()?;
        expect_clean(&result, nth)?;
        if out.accepted > 0 {
            device.finish(&out)?;
            fresh.expect(3).context(format_args!("copy {nth}"))?;
        }
        Ok(struck)
    })?;
    port.unexport(export, PATIENCE).context("taking back after the failed copies")
}
