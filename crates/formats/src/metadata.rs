//! Ordered, typed metadata.

use std::collections::HashMap;
use std::fmt;

use crate::error::{Error, Result};
use crate::value::{Array, Value};

/// Metadata entries in file order, with typed look-ups.
#[derive(Clone, Default)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

/// Prints the entries; the index repeats them in a changing order.
impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl PartialEq for Metadata {
    fn eq(&self, other: &Self) -> bool {
        self.entries == other.entries
    }
}

impl Metadata {
    /// No entries.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entries in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The value of `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&i| &self.entries[i].1)
    }

    /// Sets `key`, in place if it exists, at the end otherwise.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<Value>) {
        let (key, value) = (key.into(), value.into());
        match self.index.get(&key) {
            Some(&i) => self.entries[i].1 = value,
            None => {
                self.index.insert(key.clone(), self.entries.len());
                self.entries.push((key, value));
            }
        }
    }

    pub(crate) fn remove(&mut self, key: &str) {
        if let Some(at) = self.index.remove(key) {
            self.entries.remove(at);
            self.index.values_mut().filter(|i| **i > at).for_each(|i| *i -= 1);
        }
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<T> {
        match self.get(key) {
            None => Err(Error::metadata(key, expected, "no such entry")),
            Some(value) => convert(value).ok_or_else(|| {
                Error::metadata(key, expected, format!("{} {value}", value.type_name()))
            }),
        }
    }

    /// The integer `key`, of any integer kind, as a `u32`.
    ///
    /// # Errors
    /// [`Error::Metadata`] if it is missing, of another kind or does not fit.
    pub fn u32(&self, key: &str) -> Result<u32> {
        self.typed(key, "u32", |v| v.as_i128()?.try_into().ok())
    }

    /// The integer `key`, of any integer kind, as a `usize`.
    ///
    /// # Errors
    /// [`Error::Metadata`] if it is missing, of another kind or does not fit.
    pub fn usize(&self, key: &str) -> Result<usize> {
        self.typed(key, "a size", |v| v.as_i128()?.try_into().ok())
    }

    /// The float `key`, rounded to an `f32` if it is an `f64`.
    ///
    /// # Errors
    /// [`Error::Metadata`] if it is missing or of another kind.
    pub fn f32(&self, key: &str) -> Result<f32> {
        self.typed(key, "f32", |v| v.as_f64().map(|v| v as f32))
    }

    /// The bool `key`.
    ///
    /// # Errors
    /// [`Error::Metadata`] if it is missing or of another kind.
    pub fn bool(&self, key: &str) -> Result<bool> {
        self.typed(key, "bool", Value::as_bool)
    }

    /// The string `key`.
    ///
    /// # Errors
    /// [`Error::Metadata`] if it is missing or of another kind.
    pub fn str(&self, key: &str) -> Result<&str> {
        self.typed(key, "string", Value::as_str)
    }

    /// The array `key`, of any kind of elements.
    ///
    /// # Errors
    /// [`Error::Metadata`] if it is missing or no array.
    pub fn array(&self, key: &str) -> Result<&Array> {
        self.typed(key, "array", Value::as_array)
    }

    /// The array of strings `key`.
    ///
    /// # Errors
    /// [`Error::Metadata`] if it is missing or of another kind.
    pub fn strings(&self, key: &str) -> Result<&[String]> {
        self.typed(key, "array of string", |v| match v {
            Value::Array(Array::String(strings)) => Some(strings.as_slice()),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Metadata;

    #[test]
    fn look_ups_say_what_is_there() {
        let mut m = Metadata::new();
        m.set("a", 7u8);
        m.set("b", "text");
        m.set("a", 300u16);
        assert_eq!(m.iter().map(|(k, _)| k).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(m.u32("a").unwrap(), 300);
        assert_eq!(m.str("b").unwrap(), "text");
        m.set("c", -1i32);
        let e = m.u32("c").unwrap_err().to_string();
        assert_eq!(e, "metadata `c`: expected u32, got i32 -1");
        let e = m.f32("z").unwrap_err().to_string();
        assert_eq!(e, "metadata `z`: expected f32, got no such entry");
    }
}
