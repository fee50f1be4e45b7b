//! Names of C++ and Rust functions as their sources have them: untrusted input, whose result can be
//! exponentially longer than the symbol, and take exponentially long to be parsed.

use cpp_demangle::{DemangleOptions, ParseOptions, Symbol};
use std::fmt::{self, Write};

/// Longest symbol that is read, and longest name that is shown, in bytes.
const LONGEST_SYMBOL: usize = 16 << 10;
const LONGEST_NAME: usize = 1 << 10;
/// Deepest nesting of a symbol of C++: the parser tries several ways at each level, for ten seconds and more with 130
/// bytes at its own limit of 96. Of 72,346 symbols of libLLVM, libstdc++ and others 63 are deeper.
const DEEPEST: u32 = 48;

/// Returns the name of a function without parameters and result: `cv::Mat::copyTo` of
/// `_ZNK2cv3Mat6copyToERKNS_12_OutputArrayE`. Other symbols are returned as they are.
pub fn name(symbol: &str) -> String {
    let readable =
        if symbol.len() <= LONGEST_SYMBOL { of_rust(symbol).or(of_cpp(symbol)) } else { None };
    readable.map_or_else(|| symbol.to_owned(), |name| crate::say::printable(&name))
}

/// Asked first: older names of Rust are valid ones of C++, which end with a hash.
fn of_rust(symbol: &str) -> Option<String> {
    let name = rustc_demangle::try_demangle(symbol).ok()?;
    let mut bounded = Bounded::default();
    write!(bounded, "{name:#}").ok()?; // without the hash
    Some(bounded.0)
}

fn of_cpp(symbol: &str) -> Option<String> {
    if !symbol.starts_with("_Z") {
        return None; // `i` would be the type int
    }
    let symbol =
        Symbol::new_with_options(symbol, &ParseOptions::default().recursion_limit(DEEPEST)).ok()?;
    let (options, mut bounded) =
        (DemangleOptions::new().no_params().no_return_type(), Bounded::default());
    symbol.structured_demangle(&mut bounded, &options).ok()?;
    Some(bounded.0)
}

/// Refuses what exceeds `LONGEST_NAME`, which ends the work.
#[derive(Default)]
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > LONGEST_NAME {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_cpp_and_rust_are_those_of_their_sources() {
        for (symbol, expected) in [
            ("_ZNK2cv3Mat6copyToERKNS_12_OutputArrayE", "cv::Mat::copyTo"),
            ("_ZN2at6native5copy_ERNS_6TensorERKS1_b", "at::native::copy_"),
            (
                "_ZNSt6vectorIdSaIdEEC2ERKS1_",
                "std::vector<double, std::allocator<double> >::vector",
            ),
            ("_ZN3foo3barEv.part.0", "foo::bar"),
            ("_ZN4core3ptr4copy17h0123456789abcdefE", "core::ptr::copy"),
            ("_RNvCsdBezzDwma51_7mycrate4main", "mycrate::main"),
            ("memcpy", "memcpy"),
            ("i", "i"),
            ("_Z", "_Z"),
            ("_ZN3fo", "_ZN3fo"),
            ("_PyBytes_Join", "_PyBytes_Join"),
            ("", ""),
        ] {
            assert_eq!(name(symbol), expected);
        }
    }

    #[test]
    fn symbols_that_are_spoiled_or_explode_stay_as_they_are() {
        // Each argument is a pair of the one before it, twice: two to the 24th names in all.
        let pairs = |last: char| -> String {
            let pair = |n: char| format!("S1_IS{n}_S{n}_E");
            ('2'..='9').chain('A'..='Z').take_while(|&n| n != last).map(pair).collect()
        };
        let doubled = |last: char| format!("_Z1fI1aSt4pairIS0_S0_E{}Evv", pairs(last));
        let two = "std::pair<std::pair<a, a>, std::pair<a, a> >";
        assert_eq!(name(&doubled('3')), format!("f<a, std::pair<a, a>, {two} >"));
        assert_eq!(name(&doubled('Q')), doubled('Q'));
        let nested = format!("_Z1f{}i", "P".repeat(10_000));
        assert_eq!(name(&nested), nested);
        let long = format!("_Z{0}{1}v", LONGEST_SYMBOL, "x".repeat(LONGEST_SYMBOL));
        assert_eq!(name(&long), long);
        // Each level is parsed in several ways before it is refused.
        let begun = std::time::Instant::now();
        for (start, each, end) in
            [("cv", "T_ISa", "Gtl"), ("1a", "SsIT_", ""), ("St", "cvDvnw", "D0I")]
        {
            (18..22).for_each(|n| _ = name(&format!("_Z{start}{}{end}", each.repeat(n))));
        }
        assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
        let good = "_ZNSt6vectorIdSaIdEEC2ERKS1_";
        for end in 0..good.len() {
            let _ = name(&good[..end]);
            let _ = name(&format!("{}\u{202e}\x1b{}", &good[..end], &good[end..]));
        }
    }
}
