//! A value with its unit: formatted for people by `text` and `page`, a bare number for programs.

use crate::units;
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Value {
    /// Not known.
    #[default]
    None,
    Text(String),
    Flag(bool),
    Count(u64),
    Bytes(u64),
    Nanoseconds(u64),
    /// Negative: lost instead of saved, for instance.
    Seconds(f64),
    /// Seconds of a benchmark, to three digits.
    Timed(f64),
    /// Bytes per nanosecond.
    Speed(f64),
    /// Bytes per second.
    ByteRate(f64),
    /// Events per second.
    Rate(f64),
    /// A part of 1.
    Part(f64),
    /// A part, and the whole.
    #[serde(serialize_with = "quotient")]
    Share(u64, u64),
    /// A quotient of equal units.
    Ratio(f64),
    List(Vec<Value>),
    Map(BTreeMap<String, Value>),
}

fn quotient<S: Serializer>(part: &u64, whole: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(*part as f64 / (*whole).max(1) as f64)
}

impl Value {
    /// Returns a map of these keys.
    pub fn map<K: Into<String>>(entries: impl IntoIterator<Item = (K, Value)>) -> Self {
        Self::Map(entries.into_iter().map(|(key, value)| (key.into(), value)).collect())
    }

    /// Formats the value for a terminal.
    pub fn text(&self) -> String {
        match self {
            Self::None => "-".to_owned(),
            Self::Count(value) => value.to_string(),
            other => other.formatted(),
        }
    }

    /// Formats the value for a page.
    pub fn page(&self) -> String {
        match self {
            Self::None => "–".to_owned(),
            Self::Count(value) => units::count(*value),
            other => other.formatted(),
        }
    }

    /// Returns whether there is nothing to show.
    pub fn is_none(&self) -> bool {
        matches!(self, Self::None) || matches!(self, Self::Text(text) if text.is_empty())
    }

    /// Formats a value that looks the same everywhere.
    fn formatted(&self) -> String {
        match self {
            Self::None => String::new(),
            Self::Text(text) => text.clone(),
            Self::Flag(value) => (if *value { "yes" } else { "no" }).to_owned(),
            Self::Count(value) => value.to_string(),
            Self::Bytes(value) => units::bytes(*value),
            Self::Nanoseconds(value) => units::nanoseconds(*value),
            Self::Seconds(value) if *value < 0.0 => format!("−{}", units::seconds(-value)),
            Self::Seconds(value) => units::seconds(*value),
            Self::Timed(value) => units::timed(*value),
            Self::Speed(value) => units::speed(*value),
            Self::ByteRate(value) => units::bytes(*value as u64),
            Self::Rate(value) if *value < 10_000.0 => format!("{value:.1}"),
            Self::Rate(value) => format!("{value:.0}"),
            Self::Part(value) => format!("{:.0} %", 100.0 * value),
            Self::Share(part, whole) => units::percent(*part, *whole),
            Self::Ratio(value) => format!("{value:.2}"),
            Self::List(all) => all.iter().map(Self::text).collect::<Vec<_>>().join(", "),
            Self::Map(all) => {
                let all = all.iter().map(|(key, value)| format!("{key} {}", value.text()));
                all.collect::<Vec<_>>().join(", ")
            }
        }
    }

    /// Returns the number, without its unit.
    pub fn number(&self) -> Option<f64> {
        match *self {
            Self::Flag(value) => Some(f64::from(u8::from(value))),
            Self::Count(value) | Self::Bytes(value) | Self::Nanoseconds(value) => {
                Some(value as f64)
            }
            Self::Seconds(value)
            | Self::Timed(value)
            | Self::Speed(value)
            | Self::ByteRate(value)
            | Self::Rate(value)
            | Self::Part(value)
            | Self::Ratio(value) => Some(value),
            Self::Share(part, whole) => Some(part as f64 / whole.max(1) as f64),
            Self::None | Self::Text(_) | Self::List(_) | Self::Map(_) => None,
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::None, Into::into)
    }
}
