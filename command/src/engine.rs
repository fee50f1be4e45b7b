//! `adma check --engine`: the copy engines of this machine, their drivers and queues, and what to
//! type next. Reads sysfs and loads nothing.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// PCI devices of Intel's with channels for the kernel helper: I/OAT by generation of the Xeon.
#[rustfmt::skip]
const IOAT: [(u16, u16, &str); 9] = [
    (0x3429, 0x3433, "Xeon 5500 and 5600"),
    (0x3710, 0x3719, "Xeon C5500"),
    (0x3c20, 0x3c2f, "Xeon E5"),
    (0x0e20, 0x0e2f, "Xeon E5 v2"),
    (0x2f20, 0x2f2f, "Xeon E5 v3"),
    (0x6f20, 0x6f53, "Xeon E5 v4, Xeon D"),
    (0x2021, 0x2021, "Xeon Scalable, first and second generation"),
    (0x0b00, 0x0b00, "Xeon Scalable, third generation"),
    (0x0c50, 0x0c53, "Atom C2000"),
];
#[rustfmt::skip]
const DSA: [(u16, u16, &str); 3] = [
    (0x0b25, 0x0b25, "Xeon Scalable, fourth generation and later"),
    (0x11fb, 0x11fb, "Xeon 6 SoC"),
    (0x1212, 0x1212, "Xeon, after the sixth generation"),
];

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Ioat,
    Dsa,
}

impl Kind {
    fn of(device: u16) -> Option<(Kind, &'static str)> {
        let among = |table: &[(u16, u16, &'static str)]| {
            table
                .iter()
                .find(|(first, last, _)| (*first..=*last).contains(&device))
                .map(|row| row.2)
        };
        let ioat = among(&IOAT).map(|of| (Kind::Ioat, of));
        ioat.or_else(|| among(&DSA).map(|of| (Kind::Dsa, of)))
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Ioat => "I/OAT",
            Kind::Dsa => "DSA",
        }
    }

    fn driver(self) -> &'static str {
        match self {
            Kind::Ioat => "ioatdma",
            Kind::Dsa => "idxd",
        }
    }
}

struct Device {
    name: String,
    kind: Kind,
    of: &'static str,
    driver: Option<String>,
}

fn word(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn entries(folder: impl AsRef<Path>) -> Vec<PathBuf> {
    let found = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = found.map(|entry| entry.path()).collect();
    found.sort();
    found
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn devices(root: &Path) -> Vec<Device> {
    let device = |path: &PathBuf| {
        if word(path.join("vendor"))? != "0x8086" {
            return None;
        }
        let id = u16::from_str_radix(word(path.join("device"))?.strip_prefix("0x")?, 16).ok()?;
        let (kind, of) = Kind::of(id)?;
        let driver = fs::read_link(path.join("driver")).ok().map(|to| name_of(&to));
        Some(Device { name: name_of(path), kind, of, driver })
    };
    entries(root.join("sys/bus/pci/devices")).iter().filter_map(device).collect()
}

/// Returns the queues of a DSA that are enabled for the kernel's dmaengine, and all of them.
fn queues(root: &Path) -> (usize, usize) {
    let all = entries(root.join("sys/bus/dsa/devices"));
    let all: Vec<&PathBuf> = all.iter().filter(|path| name_of(path).starts_with("wq")).collect();
    let is = |path: &Path, file, value| word(path.join(file)).is_some_and(|found| found == value);
    let ours = all.iter().filter(|path| is(path, "type", "kernel") && is(path, "state", "enabled"));
    (ours.count(), all.len())
}

/// Describes what is there below `root`, and what to do.
pub fn describe(root: &Path) -> String {
    let (devices, mut out) = (devices(root), String::new());
    let has_helper = root.join("dev/adma").exists();
    if devices.is_empty() {
        return "no I/OAT or DSA device: the kernel helper has nothing to copy with here, and worker threads \
                serve.\nIn a virtual machine the host may keep its devices; next: nothing\n"
            .to_owned();
    }
    for Device { name, kind, of, driver } in &devices {
        let driver =
            driver.as_ref().map_or("no driver".to_owned(), |driver| format!("driver {driver}"));
        let _ = writeln!(out, "{name}  {} ({of}), {driver}", kind.name());
    }
    let has = |kind: Kind| devices.iter().any(|device| device.kind == kind);
    let free = |kind: Kind| {
        devices
            .iter()
            .any(|device| device.kind == kind && device.driver.as_deref() != Some(kind.driver()))
    };
    let (ours, all) = queues(root);
    if all > 0 {
        let _ = writeln!(out, "DSA queues: {ours} of {all} enabled for the kernel");
    }
    let channels = entries(root.join("sys/class/dma"));
    let taken = channels.iter().filter(|path| word(path.join("in_use")).is_some_and(|n| n != "0"));
    let _ = writeln!(out, "DMA channels: {}, {} in use", channels.len(), taken.count());
    let _ = writeln!(out, "kernel helper: {}", if has_helper { "loaded" } else { "not loaded" });
    out.push_str("next:\n");
    let mut next = |step: &str| {
        let _ = writeln!(out, "  {step}");
    };
    for kind in [Kind::Ioat, Kind::Dsa] {
        if free(kind) {
            next(&format!("modprobe {}", kind.driver()));
        }
    }
    if has(Kind::Dsa) && ours == 0 {
        next("make kernel queues of the DSA: kmod-c/README.md, \"The queues of a DSA\"");
    }
    if has_helper {
        next("adma check");
        return out;
    }
    let parameter = if has(Kind::Dsa) { " idxd=1" } else { "" };
    next("make -C kmod-c");
    next(&format!(
        "insmod kmod-c/adma.ko{parameter}    (until the next boot; rmmod adma undoes it)"
    ));
    next("chmod 666 /dev/adma && adma check");
    out.push_str("It was never run on such hardware: use a machine that you can restart, and see kmod-c/README.md\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    struct Root(PathBuf);

    impl Root {
        fn new(name: &str) -> Root {
            let path =
                std::env::temp_dir().join(format!("adma-engine-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Root(path)
        }

        fn put(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn device(&self, name: &str, id: &str, driver: Option<&str>) {
            self.put(&format!("sys/bus/pci/devices/{name}/vendor"), "0x8086\n");
            self.put(&format!("sys/bus/pci/devices/{name}/device"), id);
            if let Some(driver) = driver {
                let link = self.0.join(format!("sys/bus/pci/devices/{name}/driver"));
                symlink(format!("/sys/bus/pci/drivers/{driver}"), link).unwrap();
            }
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn machine_without_an_engine_is_reported() {
        let root = Root::new("none");
        root.device("0000:00:1f.0", "0x1234", None);
        assert!(describe(&root.0).starts_with("no I/OAT or DSA device"));
    }

    #[test]
    fn ioat_without_driver_or_helper_gets_a_command_to_type() {
        let root = Root::new("ioat");
        root.device("0000:00:04.0", "0x2021\n", None);
        let text = describe(&root.0);
        let expected =
            "0000:00:04.0  I/OAT (Xeon Scalable, first and second generation), no driver\n";
        assert!(text.starts_with(expected), "{text}");
        assert!(
            text.contains(
                "kernel helper: not loaded\nnext:\n  modprobe ioatdma\n  make -C kmod-c\n"
            )
        );
        assert!(text.contains("insmod kmod-c/adma.ko   "), "{text}");
    }

    #[test]
    fn dsa_without_kernel_queues_gets_a_command_that_makes_some() {
        let root = Root::new("dsa");
        root.device("0000:6a:01.0", "0x0b25\n", Some("idxd"));
        for (number, kind, state) in [(0, "user", "enabled"), (1, "kernel", "disabled")] {
            root.put(&format!("sys/bus/dsa/devices/wq0.{number}/type"), kind);
            root.put(&format!("sys/bus/dsa/devices/wq0.{number}/state"), state);
        }
        let text = describe(&root.0);
        assert!(
            text.contains("driver idxd\nDSA queues: 0 of 2 enabled for the kernel\n"),
            "{text}"
        );
        assert!(text.contains("next:\n  make kernel queues of the DSA"), "{text}");
        root.put("sys/bus/dsa/devices/wq0.1/state", "enabled");
        root.put("sys/class/dma/dma0chan0/in_use", "1");
        let text = describe(&root.0);
        assert!(
            text.contains("1 of 2 enabled") && text.contains("DMA channels: 1, 1 in use"),
            "{text}"
        );
        assert!(text.contains("next:\n  make -C kmod-c\n  insmod kmod-c/adma.ko idxd=1"), "{text}");
        root.put("dev/adma", "");
        assert!(describe(&root.0).ends_with("kernel helper: loaded\nnext:\n  adma check\n"));
    }
}
