//! One-copy messages between two processes: `adma_read`, `adma_write` and their like.
//!
//! The way of one message, top to bottom; imports go down this list and never up:
//!
//! ```text
//! calls       the adma_* functions: handles and cookies checked, then the connection's work
//! wait        posting and waiting, in stages
//! watch       long sleeps, for all connections
//! steps       taking messages a step further, one's own and others'
//! shared      large messages that worker threads copy too, and what is left to a thread
//! table       handles; whose connections these are after a fork
//! link        one connection: posting, copying; in it ends: of the other process, and ours
//! endpoint    one end of one direction: requests and matching; in it progress: who copies what,
//!             layout: how messages are cut
//! connect     who listens under a name, and who connects to it
//! accept      who has come to a listener and has not finished the handshake
//! handshake   the beginning: sockets, greetings, what each side may do to the other
//! engine      bytes between two address spaces; across: by the kernel helper; mappings: where
//!             the other's blocks are mapped here
//! consent     the sign that a program has agreed to be reached; peer: whether it is our equal
//! region      what both processes see, and its law
//! doorbell    who sleeps and who wakes; claims: who copies which piece
//! blocks      memory of ours that the other may map
//! kicks       who is to be woken from long sleeps
//! tally       what a report tells of messages; counts: how that lies in live files
//! os          system calls; in it memory and sockets; blocking: threads for those that somebody
//!             who cannot wait has to make
//! ```
//!
//! The k-th write of one side meets the k-th read of the other. Three kinds of messages:
//! eager ones go through the region and their writer does not wait (a cookie does, to learn
//! the count); large ones are copied once, by whoever waits, and by both ends when both wait,
//! or by the channels of the kernel helper for them; where neither process may touch the
//! other's memory they are streamed through the region in chunks.
//!
//! # Who reaches whose memory
//!
//! Whoever copies for another process is its deputy, and must not be talked into reaching what
//! that process could not reach itself. So memory of another process is reached by
//! `process_vm_readv` and `process_vm_writev`, that is by its number and an address, only if it
//! is our equal (`peer`) and has agreed (`consent`). Everybody else goes through what it has sent
//! a descriptor of: memory that both map, or the kernel helper's port, behind which lie pages
//! that their owner has pinned itself. What is executed afterwards has other pages. Only an equal
//! gets blocks that it can write, and is believed what it says to have copied.
//! Memory that both have is a file as well, whose lock a stranger can hold without end: nothing is
//! asked of it that waits for that lock, but by a thread (`blocking::SEALERS`).
//!
//! | the other process | reached | what an attacker would gain otherwise |
//! | --- | --- | --- |
//! | same user, user namespace and capabilities | yes, each call shows that it is the program that has agreed | nothing: it can do as much itself |
//! | another user | no | a server of root reads and writes for it whatever it becomes |
//! | same user, more or fewer capabilities; a user it could change back to | no | what the richer one may reach |
//! | another user namespace | no: capabilities mean other things there | the same |
//! | users that the namespace has no numbers for | no: all of them look alike there | the same |
//! | another process namespace | from where its number can be seen, if both can look at each other, as above | |
//! | executes a set-user-id program, or one with capabilities | no: another program, and refused by the kernel to who has no right of its own over it | memory of that program |
//! | executes any other program | no: another program | memory that nobody has agreed to give |
//! | ends, and its number is given away | no: another program | the same |
//! | changes its user, user namespace or capabilities; its first thread, or if that has ended any other: one that changes alone has the memory of those that do not | no: the connection of two equals ends, `-ECONNRESET` for both. This is looked at before a block is sent that can be written, before a count is believed and a piece copied, if the last look is some milliseconds old. What it has got it keeps | blocks of a process that it is no equal of, and lies that are believed; until then what it could do before |
//! | keeps tracers out (`PR_SET_DUMPABLE`), or has agreed to nothing | no | what it wants to keep to itself |
//! | lies about all of this | its own memory only | nothing |
//! | has somebody else say what makes it an equal: a `cat` of root's into its socket, a process that ends and leaves its number, this very process, which rings whatever it was given as a doorbell | not even connected: all bytes of all greetings have one sender, and it has made the doorbell; nothing of ours is a doorbell of others | memory of this process, or of any other of its user |
//! | an equal, over a socket that another user has made, and may have kept | no | it could look into greetings, and take out what comes with them |
//! | any of them, of a block that was lent to it (`adma_lend`) | the block, mapped by both | nothing: see below |
//! | an equal, with pages that never come (userfaultfd, a file of FUSE) | yes; who waits with a limit leaves the call to a thread (`blocking`), and closing gives up | time: a wait without a limit lasts as long as the call, for the kernel has the buffer. It could stop us just as well |
//!
//! Who it is, what rights it has and that nobody is between the two finds out `peer`; that it is
//! still the same program `consent`, in the very call that reads or writes. Where any of this is not
//! to be had it is not an equal.
//!
//! A descriptor is consent to what it stands for and no more: a block (`blocks`) can be seen as a
//! whole, also what is put there later for others, and written by an equal, or by who has borrowed
//! it. (It is sent to several who are not equals: to send it to the first alone would keep nothing
//! from that one, and make all others slow.) A port of the kernel helper leads to
//! the buffers of messages under way, for what the message is for: whoever we talk to may read what
//! we write to it, which it gets anyway, and only an equal may write what we read. So neither needs
//! rights over the other's process. Between processes that are not equals the reader copies
//! everything itself, for nothing the other says is evidence.
//!
//! But where the program has lent the block that it reads into to this very process, by a call of
//! its own, both copy. A borrower that claims a piece and writes nothing leaves bytes there that it
//! could read, and could have written; a count that comes too early is no worse than bytes that are
//! changed later; a piece that it never ends is a message that it never sends, and limits hold as
//! for that. That is true of what was lent over this connection and of nothing else: not of a block
//! that somebody else has borrowed, nor of a buffer that ends behind the block. It is not done
//! unasked, for a program checks what it has read and uses it then, and reads from several others
//! into one block. Both lend at the same time, a block or none. A borrower maps the block to write,
//! and then seals it, so that nobody can take pages away from the other; whoever lends waits for the
//! seal, sets it itself where it does not come, and finds pages anew that were taken away before.
//!
//! What is left: that another program, of the same user with the same rights, has a page where
//! the sign was, out of 2^34 chosen at random; what the kernel lets processes of one user do
//! to each other anyway; and a process of another user that was given a socket of ours, keeps it, and
//! hands it on to an equal, which takes it (a copy of it can look at greetings, unseen).
//!
//! # Whom a stranger holds up
//!
//! | it | what becomes of it |
//! | --- | --- |
//! | sends a file, or a socket, that takes as long to close as it likes (FUSE, `SO_LINGER`) | only memory is closed at once, everything else by a thread (`blocking`) |
//! | leaves such a file in the queue of a socket that we close | a socket is emptied first; a listener that has clients is closed by a thread (`os`) |
//! | sends more of them than are expected | there is room for as many as can be sent, for the kernel closes in our call what has none; then the greeting is refused, or the connection broken |
//! | sends more of them than there are threads | each user has a share of the threads; the rest waits to be closed, and while that is more than one message can bring nothing more is taken in from that user (`-EMFILE`, and its connections break) |
//! | holds the lock of memory that it has sent, or got | a region is sealed by who has made it, and not used before; for a block of others a thread waits, it is not mapped before that, and its messages wait a second, and are streamed then, without a thread at once |
//! | comes to a listener, is greeted and reads nothing, a thousand times | who has come from another user is sent no descriptors in greetings: those that are not taken count for our user, who could send none any more. Region and doorbell are its own, it is no equal, and has no port |
//! | closes its half of the doorbell, so that there is always something to hear | that is its end |
//! | says nothing | the oldest of the user with most such clients makes room for others (`accept`) |
//! | is an equal, with a page for its sign that never comes | a thread looks for the sign; the handshake has its limit |
//!
//! What is left, for who has many connections or users at hand:
//!
//! - A process of another user that takes part in messages from many blocks and does not take their
//!   descriptors, over many connections, uses up what our user may have in flight.
//! - A child that is forked while files of strangers wait to be closed has them, too, until it
//!   executes a program or ends: closing them takes as long there, and a child that has just been
//!   forked is no place for threads.
//! - Who closes a listener, or accepts when another thread closes it, is held up by a client that
//!   comes at that very moment with such a file.
//! - Where the program has no numbers left for descriptors, the kernel closes in our call what finds
//!   none. A client that is refused takes a descriptor until its socket can be closed; where a
//!   thousand of all users wait nobody is let in (`-EMFILE`): two users can see to that.
//! - Four users can have all threads of a kind held up: then descriptors of other strangers wait as
//!   well, and their blocks are not mapped.
//! - A thread that waits for the lock of a stranger's block, or closes its file, cannot be killed
//!   while that lasts: so long our process does not quite end, and setuid(2) and the like wait for it.
//! - Who has made a region and can make no thread seals it itself, and waits for a server that holds
//!   its lock.
//!
//! # Progress
//!
//! There is no helper thread: waiting and checking make things go on, for every message of the
//! process (`wait`, `watch`).

mod accept;
mod across;
mod blocking;
mod blocks;
mod calls;
pub mod claims;
mod connect;
mod consent;
pub mod counts;
pub mod doorbell;
mod endpoint;
mod engine;
mod handshake;
mod kicks;
mod link;
mod mappings;
mod os;
mod peer;
mod region;
mod shared;
mod steps;
mod table;
pub mod tally;
#[cfg(test)]
mod tests;
mod wait;
mod watch;

use crate::os::lock;
pub use settings::Engines;
#[cfg(not(test))]
pub use settings::{HelperEngine, Settings, Workers, configure};
#[cfg(not(test))]
pub use table::forget_after_fork;

/// Messages up to this size are eager: some of them find room at a time.
const MOST_EAGER: usize = region::EAGER_ROOM / 8;

/// From this size on both ends copy.
const OFFLOAD: usize = 32 << 10;

/// What the configuration means for connections.
mod settings {
    use crate::backend::ioat;
    use crate::os::once::Once;

    /// The engine of the kernel helper, and how it is to copy.
    #[derive(Clone, Copy)]
    pub struct HelperEngine {
        pub engine: &'static ioat::Engine,
        pub how: ioat::Options,
    }

    /// The worker threads of this process.
    #[derive(Clone, Copy, Debug)]
    pub struct Workers {
        /// More than one, for both processes of a message.
        pub cpus: usize,
        /// Copies to, from, so many bytes within our address space, with their help.
        pub copy: unsafe fn(usize, usize, usize),
        /// How many can be had now.
        pub count: fn() -> usize,
        /// To be told that there was no CPU for them.
        pub crowded: fn(),
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Engines {
        Auto,
        Helper,
        SharedMemory,
    }

    #[derive(Clone, Copy, Debug)]
    pub struct Settings {
        pub engines: Engines,
        /// How long the other side may take for its greetings, and for letting go of buffers
        /// when a connection is closed; in nanoseconds.
        pub patience: u64,
        /// Brings the helper up, where there is one; not called where none is wanted.
        pub helper: fn() -> Option<HelperEngine>,
        /// Finds out who helps with large messages; `None`: nobody, for there is one CPU. Starts
        /// nothing.
        pub workers: fn() -> Option<Workers>,
        /// Whether the other side may be let in where Yama keeps it out.
        pub ptracer: bool,
        /// Whether to say which engine a connection uses, and why.
        pub tell: bool,
    }

    impl Settings {
        pub const DEFAULT: Self = Self {
            engines: Engines::Auto,
            patience: 10_000_000_000,
            helper: || None,
            workers: || None,
            ptracer: false,
            tell: false,
        };
    }

    #[unsafe(link_section = ".data")] // a page that start-up touches anyhow
    static SETTINGS: Once<Settings> = Once::new();

    pub fn configure(settings: Settings) {
        SETTINGS.set(settings);
    }

    pub fn settings() -> Settings {
        SETTINGS.get().copied().unwrap_or(Settings::DEFAULT)
    }
}
