//! The memory policy of a caller (numactl, set_mempolicy), for workers that touch its pages first; and the
//! nodes of pages that exist, for threads that choose their pieces by them.
//!
//! A new page comes from the node that the policy of its mapping names (mbind), for all threads. Without such
//! a policy, the thread that touches the page first decides: the page comes from the node that its policy
//! names, by default the node on which it runs. So a worker adopts the policy of the caller before it copies
//! for it, and prefers the caller's node where that policy is the default.
//!
//! Where the first and the last page of a copy's destination are on different nodes, each thread begins at
//! the end that is on its own (`End::or_nearer`): the parts of an array that threads of two nodes have
//! filled are so copied by workers of these nodes, as far as those keep pace. With several nodes that takes
//! one move_pages(2) for each chunk, which faults nothing in, and where its ends differ one getcpu(2) for each
//! thread; with one node it takes nothing. What it saves is not measured, because no machine with two nodes
//! was there. Not built are two other steps, for the same reason: an order of pieces by node where nodes
//! alternate within a chunk, for the ticket of a slot knows only unclaimed pieces side by side; and leaving
//! a copy on one node to the workers of that node, who may be too few.
//!
//! Policies are kept in a table and identified by their index, because a copy in the queue has few bits to
//! spare. The kernel is not asked on a machine with one node, nor under a seccomp filter, which may kill for
//! these calls.

use super::mapped::zeroed;
use super::sys::{NoFilter, syscall};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use zerocopy::FromZeros;

/// Index in the table, which fits into `BITS` bits.
pub type PolicyId = u32;
pub const BITS: u32 = 5;
/// No policy is to be adopted.
pub const ANY: PolicyId = 0;
/// The caller's policy cannot be passed on: its copies stay with libc.
pub const UNKNOWN: PolicyId = (1 << BITS) - 1;

const DEFAULT: u32 = 0;
const PREFERRED: u32 = 1;
const LOCAL: u32 = 4;
/// Flags of set_mempolicy, above the mode.
const FLAGS: u32 = !0 << 13;
const ONLY_ALLOWED_NODES: usize = 1 << 2; // MPOL_F_MEMS_ALLOWED
/// Most nodes of a kernel, and most that an entry of the table can name.
const MOST_NODES: usize = 1024;
const NAMED_NODES: usize = 64;

/// Set if this process may have memory of more than one node.
static SEVERAL_NODES: AtomicBool = AtomicBool::new(false);

static TABLE: [PolicySlot; UNKNOWN as usize - 1] = [const { zeroed() }; UNKNOWN as usize - 1];

#[derive(FromZeros)]
struct PolicySlot {
    /// `FREE`, `TAKEN` while it is being written, or the mode plus one.
    state: AtomicU32,
    nodes: AtomicU64,
}

impl PolicySlot {
    const FREE: u32 = 0;
    const TAKEN: u32 = u32::MAX;

    /// Returns whether the entry holds this policy; a free entry is set to it.
    fn holds(&self, (mode, nodes): (u32, u64)) -> bool {
        let (set, other) = (Ordering::Acquire, Ordering::Acquire);
        match self.state.compare_exchange(Self::FREE, Self::TAKEN, set, other) {
            Ok(_) => {
                self.nodes.store(nodes, Ordering::Relaxed);
                self.state.store(mode + 1, Ordering::Release);
                true
            }
            Err(state) => state == mode + 1 && self.nodes.load(Ordering::Relaxed) == nodes,
        }
    }
}

/// Asks how many nodes there are, when an engine is started.
pub fn prepare() {
    if let Some((_, nodes)) = NoFilter::look().and_then(|allowed| ask(ONLY_ALLOWED_NODES, allowed))
    {
        SEVERAL_NODES.store(nodes.count_ones() > 1, Ordering::Relaxed);
    }
}

/// Returns the policy by which this thread's pages are placed, for a worker to adopt.
pub fn of_caller() -> PolicyId {
    if !SEVERAL_NODES.load(Ordering::Relaxed) {
        return ANY;
    }
    let Some(allowed) = NoFilter::look() else { return ANY };
    let policy = ask(0, allowed).and_then(|(mode, nodes)| match mode & !FLAGS {
        DEFAULT | LOCAL => prefer_this_node(allowed),
        PREFERRED if nodes == 0 => prefer_this_node(allowed),
        _ => Some((mode, nodes)),
    });
    let found = policy.and_then(|policy| TABLE.iter().position(|entry| entry.holds(policy)));
    found.map_or(UNKNOWN, |at| at as PolicyId + 1)
}

/// Returns the nodes of the first and the last page of a range, where they are known and differ.
pub fn nodes_of_ends(start: usize, len: usize) -> Option<[u32; 2]> {
    if !SEVERAL_NODES.load(Ordering::Relaxed) || len == 0 {
        return None;
    }
    NoFilter::look()?;
    let pages = [start, start + len - 1];
    let mut nodes = [-1i32; 2];
    let (all, place) = (pages.len(), nodes.as_mut_ptr());
    // SAFETY: without target nodes no page is moved. The kernel reads `pages` and writes `nodes`: an errno
    // for a page that does not exist.
    unsafe { syscall!(SYS_move_pages, 0, all, pages.as_ptr(), 0, place, 0) };
    let named = |node: i32| u32::try_from(node).ok().filter(|&node| (node as usize) < NAMED_NODES);
    let [first, last] = [named(nodes[0])?, named(nodes[1])?];
    (first != last).then_some([first, last])
}

/// Adopts a policy in a worker, whose current policy is `own`.
pub fn take_on(policy: PolicyId, own: &AtomicU32) {
    if policy == ANY || policy == own.load(Ordering::Relaxed) || NoFilter::look().is_none() {
        return;
    }
    let Some(entry) = TABLE.get(policy as usize - 1) else { return };
    let mode = entry.state.load(Ordering::Acquire).wrapping_sub(1) as usize;
    let nodes = entry.nodes.load(Ordering::Relaxed);
    // SAFETY: the kernel reads one word, `nodes`. A refused call leaves the policy as it was.
    unsafe { syscall!(SYS_set_mempolicy, mode, &raw const nodes, NAMED_NODES + 1) };
    own.store(policy, Ordering::Relaxed);
}

/// Returns mode and nodes of this thread's policy; `None`: unknown, or there are too many.
fn ask(flags: usize, _: NoFilter) -> Option<(u32, u64)> {
    let mut mode = 0u32;
    // Not cleared, which would be a call of memset: the kernel fills all of it.
    let mut nodes = MaybeUninit::<[u64; MOST_NODES / 64]>::uninit();
    let place = nodes.as_mut_ptr();
    // SAFETY: the kernel writes `mode`, and the `MOST_NODES` bits of `nodes`, which are read only after
    // success.
    let nodes = unsafe {
        if syscall!(SYS_get_mempolicy, &raw mut mode, place, MOST_NODES, 0, flags) != 0 {
            return None;
        }
        nodes.assume_init_ref()
    };
    nodes[1..].iter().all(|&more| more == 0).then_some((mode, nodes[0]))
}

/// Returns the default policy of this thread, expressed as a preferred node.
fn prefer_this_node(allowed: NoFilter) -> Option<(u32, u64)> {
    let node = this_node(allowed)?;
    ((node as usize) < NAMED_NODES).then_some((PREFERRED, 1 << node))
}

/// Returns the node on which this thread runs.
pub fn this_node(_: NoFilter) -> Option<u32> {
    let mut node = 0u32;
    // SAFETY: the kernel writes one number, `node`.
    let answer = unsafe { syscall!(SYS_getcpu, 0, &raw mut node) };
    (answer == 0).then_some(node)
}
