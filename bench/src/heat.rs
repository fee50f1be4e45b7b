//! Where the bytes of a copy are before it, and what the program does with them afterwards.

#[derive(Clone, Copy, PartialEq)]
pub enum Heat {
    Cold,
    Hot,
    /// Cold, and the program reads the destination afterwards: the savings of streaming stores may
    /// be lost here.
    Read,
    /// Hot, and the program writes the source before and reads the destination afterwards. All
    /// three are timed: lines in the workers' caches are fetched from there.
    Used,
}

impl Heat {
    pub const BOTH: [Heat; 2] = [Heat::Cold, Heat::Hot];

    const ALL: [(Heat, &str); 4] =
        [(Heat::Cold, "cold"), (Heat::Hot, "hot"), (Heat::Read, "read"), (Heat::Used, "used")];

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(_, known)| *known == name).map(|(heat, _)| heat)
    }

    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}
