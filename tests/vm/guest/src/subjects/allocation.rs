//! Every allocation of a call fails once, on a kernel that can be told to.

use crate::device::*;
use crate::effort::PATIENCE;
use crate::kernel;
use crate::memory::{PAGE, Region};
use crate::oracle::Watched;
use crate::verdict::{Context, Outcome};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::Duration;

tests! {
    z_allocation_failed_in_submit_is_a_clean_error
    z_allocation_failed_in_open_is_a_clean_error
    z_allocation_failed_in_mapping_words_is_a_clean_error
    z_allocation_failed_in_ports_and_exports_is_a_clean_error
}

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
        for (kind, settings) in [
            ("failslab", &[("ignore-gfp-wait", "N"), ("verbose", "0")][..]),
            (
                "fail_page_alloc",
                &[
                    ("ignore-gfp-wait", "N"),
                    ("ignore-gfp-highmem", "N"),
                    ("min-order", "0"),
                    ("verbose", "0"),
                ],
            ),
            ("fail_usercopy", &[("verbose", "0")]),
        ] {
            for (name, value) in settings {
                // Not every kernel has every one.
                let _ = fs::write(format!("/sys/kernel/debug/{kind}/{name}"), value);
            }
        }
        Ok(Failing(file))
    }

    /// The order itself copies from us, and what was ordered before may strike there.
    fn set(&self, nth: u32) -> Outcome {
        let text = nth.to_string();
        let written = self.0.write_all_at(text.as_bytes(), 0);
        written.or_else(|_| self.0.write_all_at(text.as_bytes(), 0)).context("fail-nth")
    }

    /// Whether it has struck; none will from now on. If it strikes the question, it had not.
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

fn z_allocation_failed_in_submit_is_a_clean_error() -> Outcome {
    let failing = Failing::new()?;
    let device = Device::open()?;
    let channels = device.info()?.channels;
    let len = 8 * PAGE;
    for kind in [false, true] {
        failing.one_by_one(|failing, nth| {
            // Both memory that is there, and memory that must be made first.
            let fresh =
                |len| if kind { Region::anonymous(len) } else { Region::of_small_pages(len) };
            let (dst, src) = (fresh(len + 2 * PAGE)?, Region::of_small_pages(len + 2 * PAGE)?);
            src.fill(2);
            let mut pieces = Piece::new(&dst, PAGE, &src, PAGE, len).split(4, channels);
            let mut submit = Submit::new(&mut pieces);
            failing.set(nth)?;
            let result = call(device.fd(), SUBMIT, &mut submit);
            let struck = failing.struck()?;
            let accepted = submit.accepted as usize;
            ensure!(
                matches!(result, Ok(()) | Err(ENOMEM | EFAULT | EAGAIN | EBUSY)),
                "allocation {nth}: {result:?}"
            );
            let failed = if accepted > 0 { device.end(&submit)? } else { 0 };
            ensure_eq!(failed >> accepted, 0, "failed pieces that were not accepted");
            for piece in (0..4).filter(|&piece| piece >= accepted || failed & 1 << piece != 0) {
                let at = PAGE + piece * len / 4;
                dst.copy_by_cpu(at, &src, at, len / 4);
            }
            dst.expect_part(PAGE, len, 2).context(format_args!("allocation {nth}: {result:?}"))?;
            Ok(struck)
        })?;
    }
    Ok(())
}

fn z_allocation_failed_in_open_is_a_clean_error() -> Outcome {
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

fn z_allocation_failed_in_mapping_words_is_a_clean_error() -> Outcome {
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

fn z_allocation_failed_in_ports_and_exports_is_a_clean_error() -> Outcome {
    const LEN: usize = 8 * PAGE;
    let failing = Failing::new()?;
    let device = Device::open()?;
    let is_clean = |errno| matches!(errno, ENOMEM | EFAULT | EAGAIN | EBUSY | EMFILE);
    failing.one_by_one(|failing, nth| {
        failing.set(nth)?;
        let port = device.port();
        let struck = failing.struck()?;
        ensure!(port.as_ref().err().is_none_or(|errno| is_clean(*errno)), "port {nth}");
        Ok(struck)
    })?;
    let Ok(port) = device.port() else { fail!("no port after the failed ones") };
    for kind in [false, true] {
        failing.one_by_one(|failing, nth| {
            let fresh = if kind { Region::anonymous(LEN) } else { Region::of_small_pages(LEN) }?;
            failing.set(nth)?;
            let export = port.export(fresh.address(0), LEN, EXPORT_READ | EXPORT_WRITE);
            let struck = failing.struck()?;
            ensure!(export.err().is_none_or(is_clean), "export {nth}: {export:?}");
            if let Ok(export) = export {
                ensure_eq!(port.unexport(export, Duration::ZERO), Ok(()), "export {nth}");
            }
            Ok(struck)
        })?;
    }
    let source = Region::of_small_pages(LEN)?;
    source.fill(3);
    let Ok(export) = port.export(source.address(0), LEN, EXPORT_READ) else { fail!("no export") };
    failing.one_by_one(|failing, nth| {
        let fresh = Region::of_small_pages(LEN)?;
        let mut pieces = [Piece { src: 0, ..Piece::new(&fresh, 0, &source, 0, LEN) }];
        failing.set(nth)?;
        let Submitted { result, out } =
            device.submit_across(&mut pieces, SUBMIT_PULL, port.fd(), export);
        let struck = failing.struck()?;
        ensure!(result.err().is_none_or(is_clean), "copy {nth}: {result:?}");
        if out.accepted > 0 {
            ensure_eq!(device.end(&out)?, 0, "failed pieces");
            fresh.expect(3).context(format_args!("copy {nth}"))?;
        }
        Ok(struck)
    })?;
    match port.unexport(export, PATIENCE) {
        Ok(()) => Ok(()),
        Err(errno) => fail!("taking back after the failed copies: {errno:?}"),
    }
}
