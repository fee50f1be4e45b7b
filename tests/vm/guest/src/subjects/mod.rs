//! The tests, by subject. A name is subject, condition, outcome.
//!
//! The guest runs them in the order of their names; what hurts the device is called wreck
//! and comes last.

use crate::verdict::Outcome;

pub struct Test {
    pub name: &'static str,
    pub run: fn() -> Outcome,
}

/// A table of the functions named.
macro_rules! tests {
    ($($name:ident)*) => {
        pub const TESTS: &[$crate::subjects::Test] =
            &[$($crate::subjects::Test { name: stringify!($name), run: $name }),*];
    };
}

mod allocation;
mod channels;
mod copy;
mod counts;
mod fuzz;
mod interface;
mod limits;
mod moments;
mod page_faults;
mod pages;
mod programs;
mod refusals;
mod statistics;
mod wreck;
mod wreck_ends;

pub fn all() -> impl Iterator<Item = &'static Test> {
    [
        allocation::TESTS,
        channels::TESTS,
        copy::TESTS,
        counts::TESTS,
        fuzz::TESTS,
        interface::TESTS,
        limits::TESTS,
        moments::TESTS,
        page_faults::TESTS,
        pages::TESTS,
        programs::TESTS,
        refusals::TESTS,
        statistics::TESTS,
        wreck::TESTS,
        wreck_ends::TESTS,
    ]
    .into_iter()
    .flatten()
}

pub fn find(name: &str) -> Option<&'static Test> {
    all().find(|test| test.name == name)
}

/// Whether the module may count errors meanwhile.
pub fn wrecks(test: &Test) -> bool {
    test.name.starts_with("wreck_")
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = super::all().map(|test| test.name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
