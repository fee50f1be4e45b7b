//! The tests, by subject. A name is subject, condition, outcome.
//!
//! The guest runs them in the order of their names; what hurts the device is called wreck
//! and comes after all others.

use crate::verdict::Outcome;

pub struct Test {
    pub name: &'static str,
    pub run: fn() -> Outcome,
}

/// A table of the functions named, or of what stands behind a name.
macro_rules! tests {
    (@run $name:ident $run:expr) => { $run };
    (@run $name:ident) => { $name };
    ($($name:ident $(= $run:expr;)?)*) => { tests!(TESTS: $($name $(= $run;)?)*); };
    ($table:ident: $($name:ident $(= $run:expr;)?)*) => {
        pub const $table: &[$crate::subjects::Test] = &[$($crate::subjects::Test {
            name: stringify!($name),
            run: tests!(@run $name $($run)?),
        }),*];
    };
}

mod allocation;
mod api;
mod bounce;
mod channels;
mod copy;
mod counts;
mod exports;
mod exports_ends;
mod fuzz;
mod interface;
mod kept;
mod limits;
mod messages;
mod moments;
mod oracles;
mod page_faults;
mod pages;
mod programs;
mod providers;
mod refusals;
mod rings;
mod statistics;
mod traps;
mod unbind;
mod visible;
mod wreck;
mod wreck_dead;
mod wreck_ends;
mod wreck_exports;
mod yama;

/// Every subject with its tests, in the order in which the guest runs them.
pub const SUBJECTS: &[(&str, &[Test])] = &[
    ("bounce", bounce::TESTS),
    ("api", api::TESTS),
    ("api_end", api::ENDS),
    ("channel", channels::TESTS),
    ("copy", copy::TESTS),
    ("count", counts::TESTS),
    ("fuzz", fuzz::TESTS),
    ("interface", interface::TESTS),
    ("kept", kept::TESTS),
    ("limit", limits::TESTS),
    ("message", messages::TESTS),
    ("message_end", messages::ENDS),
    ("message_killed", messages::KILLED),
    ("moment", moments::TESTS),
    // A minute each, and a subject has two.
    ("oracle", oracles::ALL_CHANNELS),
    ("oracle_one", oracles::ONE_CHANNEL),
    ("page", pages::TESTS),
    ("page_fault", page_faults::TESTS),
    ("export", exports::TESTS),
    ("export_end", exports_ends::TESTS),
    ("program", programs::TESTS),
    ("provider", providers::TESTS),
    ("refusal", refusals::TESTS),
    ("ring", rings::TESTS),
    ("statistics", statistics::TESTS),
    ("trap", traps::TESTS),
    ("visible", visible::TESTS),
    ("wreck", wreck::TESTS),
    ("wreck_dead", wreck_dead::TESTS),
    ("wreck_end", wreck_ends::TESTS),
    ("wreck_export", wreck_exports::TESTS),
    ("wreck_unbind", unbind::TESTS),
    // A checker of mappings gives up for good when its own allocations fail: last.
    ("z_allocation", allocation::TESTS),
    // And Yama stays at 3 for good.
    ("z_yama", yama::TESTS),
];

pub fn all() -> impl Iterator<Item = &'static Test> {
    SUBJECTS.iter().flat_map(|(_, tests)| *tests)
}

/// A subject, or one test.
pub fn named(name: &str) -> Option<&'static [Test]> {
    let subject = SUBJECTS.iter().find(|(subject, _)| *subject == name);
    let test = || all().find(|test| test.name == name).map(std::slice::from_ref);
    subject.map(|(_, tests)| *tests).or_else(test)
}

/// Whether the module may count errors meanwhile.
pub fn wrecks(test: &Test) -> bool {
    ["wreck_", "provider_error_"].iter().any(|prefix| test.name.starts_with(prefix))
        || test.name.contains("_takes_nothing_")
        // Swapping keeps the processor from the driver for longer than its timer.
        || test.name.contains("_control_group_smaller_")
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_are_unique_and_begin_with_their_subject() {
        let mut names: Vec<_> = super::all().map(|test| test.name).collect();
        let count = names.len() + super::SUBJECTS.len();
        for (subject, tests) in super::SUBJECTS {
            let is_of_it = |test: &super::Test| test.name.starts_with(&format!("{subject}_"));
            assert!(tests.iter().all(is_of_it), "{subject}");
            names.push(subject);
        }
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
