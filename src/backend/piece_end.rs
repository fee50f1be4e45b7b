//! How a piece ended: what the copy loops return, and the byte that the queue keeps for each piece.

/// End of a piece. The queue's byte is 0 until there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PieceEnd {
    Done = 1,
    /// A page was bad, or a function of the piece's own could not do all of it.
    Failed = 2,
    /// Compared: two bytes differ.
    Differs = 3,
    /// The caller has taken the piece: back from the worker that had begun it, or off the queue so
    /// that signals are delivered first.
    TakenBack = 4,
}

impl PieceEnd {
    /// Returns the end with this number; `None`: no end has it.
    pub const fn of(number: usize) -> Option<Self> {
        Some(match number {
            1 => Self::Done,
            2 => Self::Failed,
            3 => Self::Differs,
            4 => Self::TakenBack,
            _ => return None,
        })
    }
}
