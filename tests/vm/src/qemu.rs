//! One guest: starts QEMU, emulates its I/OAT or DSA device, reads its output, ends it in time.

use crate::function::Function;
use crate::function::Model;
use crate::memory::Memory;
use crate::options::Boot;
use crate::proxy::{self, Qtest};
use crate::verdicts::Verdicts;
use parking_lot::Mutex;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;

/// What a guest has printed until its end, and how it ended.
pub struct GuestRun {
    pub verdicts: Verdicts,
    pub timed_out: bool,
    pub status: ExitStatus,
}

pub fn boot(options: &Boot) -> io::Result<GuestRun> {
    let mut command = Command::new("qemu-system-x86_64");
    command.args(machine(options));
    let mut given = Vec::new();
    if options.channels > 0 {
        attach_devices(&mut command, options, &mut given)?;
    }
    let (verdict_port, theirs) = UnixStream::pair()?;
    // The first serial port is the console, the second one carries nothing
    // but verdicts: kernel messages come in the middle of lines.
    let console = if options.shell { "mon:stdio" } else { "stdio" };
    command.args(["-serial", console, "-serial", "chardev:verdicts", "-chardev"]);
    command.arg(format!("socket,id=verdicts,fd={}", theirs.as_raw_fd()));
    given.push(theirs.into());

    let mut child = start(command, options.shell, given)?;
    let log = File::create(&options.log)?;
    let (ended, end) = channel();
    copy_console(child.stdout.take().expect("piped"), log, options.verbose || options.shell, ended);
    let verdicts = Arc::new(Mutex::new(Verdicts::default()));
    let heard = Arc::clone(&verdicts);
    let listener = thread::spawn(move || listen(verdict_port, &heard));

    let timed_out = match options.limit() {
        Some(limit) => end.recv_timeout(limit) == Err(RecvTimeoutError::Timeout),
        None => {
            let _ = end.recv();
            false
        }
    };
    if timed_out {
        child.kill()?;
    }
    let status = child.wait()?;
    let _ = listener.join();
    let verdicts = std::mem::take(&mut *verdicts.lock());
    Ok(GuestRun { verdicts, timed_out, status })
}

fn machine(options: &Boot) -> Vec<String> {
    let memory = options.memory;
    let ram = match options.nodes {
        1 => format!(
            "-M q35,memory-backend=ram -object memory-backend-memfd,id=ram,size={memory}M,share=on"
        ),
        nodes => {
            let each = |node| {
                // One processor for each node, as far as there are any.
                let processor = match node < options.processors as usize {
                    true => format!(",cpus={node}"),
                    false => String::new(),
                };
                let size = options.memory as usize / nodes;
                format!(
                    " -object memory-backend-memfd,id=ram{node},size={size}M,share=on \
                     -numa node,nodeid={node},memdev=ram{node}{processor} \
                     -device pxb-pcie,id=root{node},bus=pcie.0,bus_nr={},numa_node={node} \
                     -device pcie-root-port,id=node{node},bus=root{node},chassis={node}",
                    64 * (node + 1)
                )
            };
            format!("-M q35{}", (0..nodes).map(each).collect::<String>())
        }
    };
    // An IOMMU comes before what is behind it.
    let iommu = match options.iommu {
        true => "-device intel-iommu -device pci-testdev,bus=pcie.0",
        false => "",
    };
    let text = format!(
        "-nodefaults -no-user-config -nographic -no-reboot {ram} -m {memory} {iommu} \
         -fsdev local,id=root,path=/,security_model=none,readonly=on,multidevs=remap \
         -device virtio-9p-pci,bus=pcie.0,fsdev=root,mount_tag=root"
    );
    let mut args: Vec<String> = text.split_whitespace().map(String::from).collect();
    let mut add = |words: &[&str]| args.extend(words.iter().map(|word| word.to_string()));
    // With one thread per processor the proxy drops accesses.
    let threads = if options.channels > 0 { "single" } else { "multi" };
    let processors = options.processors;
    // Sockets, so that each can be on a node of its own.
    let sockets = format!("{processors},sockets={processors}");
    add(&["-accel", &format!("tcg,thread={threads}"), "-smp", &sockets]);
    add(&["-cpu", &options.cpu]);
    add(&["-kernel", &options.kernel, "-initrd", &options.initrd]);
    let append = format!("console=ttyS0 panic=-1 no_timer_check {}", options.append);
    add(&["-append", &append]);
    args
}

/// Attaches the devices of this process, one per node: as many functions as the channels need.
fn attach_devices(
    command: &mut Command,
    options: &Boot,
    given: &mut Vec<OwnedFd>,
) -> io::Result<()> {
    let (ours, theirs) = UnixStream::pair()?;
    command.arg("-chardev").arg(format!("socket,id=qtest,fd={}", theirs.as_raw_fd()));
    command.args(["-object", "qtest,id=qtest0,chardev=qtest,log=none"]);
    given.push(theirs.into());
    let qtest = Qtest::new(ours)?;
    let memory = Arc::new(Memory::default());
    let channels = options.channels / options.nodes;
    let functions = channels.div_ceil(options.per_function);
    for node in 0..options.nodes {
        let place = match options.nodes {
            1 => "addr=4".to_string(),
            _ => format!("bus=node{node},addr=0"),
        };
        for number in 0..functions {
            let (ours, theirs) = UnixStream::pair()?;
            let several = if functions > 1 && number == 0 { ",multifunction=on" } else { "" };
            let fd = theirs.as_raw_fd();
            let name = format!("engine{node}-{number}");
            command.arg("-device");
            command.arg(format!("x-pci-proxy-dev,id={name},fd={fd},{place}.{number}{several}"));
            given.push(theirs.into());
            let qtest = Arc::clone(&qtest);
            let message = Box::new(move |address, data| qtest.message(address, data));
            let memory = Arc::clone(&memory);
            let left = channels - number * options.per_function;
            let function = Function::new(
                if options.dsa { Model::Dsa } else { Model::Ioat },
                functions > 1 && number == 0,
                left.min(options.per_function),
                options.capacity,
                Arc::clone(&memory),
                message,
            );
            thread::Builder::new().name(name.clone()).spawn(move || {
                if let Err(error) = proxy::serve(ours, &function, &memory) {
                    eprintln!("adma-vm: function {name}: {error}");
                }
            })?;
        }
    }
    Ok(())
}

/// Starts QEMU with the descriptors that its arguments name. It dies with us.
fn start(mut command: Command, shell: bool, given: Vec<OwnedFd>) -> io::Result<Child> {
    command.stdin(if shell { Stdio::inherit() } else { Stdio::null() });
    command.stdout(Stdio::piped());
    let numbers: Vec<RawFd> = given.iter().map(AsRawFd::as_raw_fd).collect();
    // SAFETY: prctl and fcntl are async-signal-safe, and `numbers` was made
    // before the fork.
    unsafe {
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            for number in &numbers {
                if libc::fcntl(*number, libc::F_SETFD, 0) < 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
    // Our copies of its descriptors close here: they must end with QEMU.
    let child = command.spawn()?;
    drop(given);
    Ok(child)
}

fn copy_console(
    mut from: impl Read + Send + 'static,
    mut log: File,
    show: bool,
    ended: Sender<()>,
) {
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(got @ 1..) = from.read(&mut buffer) {
            let _ = log.write_all(&buffer[..got]);
            if show {
                let mut out = io::stdout().lock();
                let _ = out.write_all(&buffer[..got]).and_then(|()| out.flush());
            }
        }
        let _ = ended.send(());
    });
}

fn listen(port: UnixStream, verdicts: &Mutex<Verdicts>) {
    for line in BufReader::new(port).split(b'\n') {
        let Ok(line) = line else { return };
        verdicts.lock().line(&String::from_utf8_lossy(&line));
    }
}
