pub fn run(_: &crate::options::Options) {}
pub fn page(_: &crate::options::Options) {}
