//! Metadata values: GGUF's kinds, which cover the values of the other formats.

use std::fmt;

use crate::error::printable;

macro_rules! kinds {
    ($($variant:ident($type:ty) = $id:expr, $name:literal;)*) => {
        /// A metadata value.
        #[derive(Debug, Clone, PartialEq)]
        #[non_exhaustive]
        pub enum Value {
            $(#[doc = concat!("GGUF's `", $name, "`.")] $variant($type),)*
            /// Values of one kind.
            Array(Array),
        }

        /// An array of metadata values of one kind.
        #[derive(Debug, Clone, PartialEq)]
        #[non_exhaustive]
        pub enum Array {
            $(#[doc = concat!("Elements of GGUF's `", $name, "`.")] $variant(Vec<$type>),)*
            /// Arrays, each of its own kind and length.
            Array(Vec<Array>),
        }

        $(
            impl From<$type> for Value {
                fn from(value: $type) -> Self {
                    Self::$variant(value)
                }
            }

            impl From<Vec<$type>> for Value {
                fn from(values: Vec<$type>) -> Self {
                    Self::Array(Array::$variant(values))
                }
            }
        )*

        impl Value {
            /// GGUF's id of the kind (`enum gguf_metadata_value_type`).
            pub(crate) fn kind_id(&self) -> u32 {
                match self {
                    $(Self::$variant(_) => $id,)*
                    Self::Array(_) => Array::KIND_ID,
                }
            }

            /// The kind's name, as in error messages: `u32`, `array of string`.
            #[must_use]
            pub fn type_name(&self) -> String {
                match self {
                    $(Self::$variant(_) => $name.to_owned(),)*
                    Self::Array(array) => format!("array of {}", array.element_name()),
                }
            }
        }

        impl Array {
            /// GGUF's id of the array kind.
            pub(crate) const KIND_ID: u32 = 9;

            /// GGUF's id of the elements' kind.
            pub(crate) fn element_kind_id(&self) -> u32 {
                match self {
                    $(Self::$variant(_) => $id,)*
                    Self::Array(_) => Self::KIND_ID,
                }
            }

            /// The name of the elements' kind.
            #[must_use]
            pub fn element_name(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => $name,)*
                    Self::Array(_) => "array",
                }
            }

            /// The number of elements.
            #[must_use]
            pub fn len(&self) -> usize {
                match self {
                    $(Self::$variant(values) => values.len(),)*
                    Self::Array(values) => values.len(),
                }
            }
        }
    };
}

kinds! {
    U8(u8) = 0, "u8";
    I8(i8) = 1, "i8";
    U16(u16) = 2, "u16";
    I16(i16) = 3, "i16";
    U32(u32) = 4, "u32";
    I32(i32) = 5, "i32";
    F32(f32) = 6, "f32";
    Bool(bool) = 7, "bool";
    String(String) = 8, "string";
    U64(u64) = 10, "u64";
    I64(i64) = 11, "i64";
    F64(f64) = 12, "f64";
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::String(value.to_owned())
    }
}

impl From<Array> for Value {
    fn from(value: Array) -> Self {
        Self::Array(value)
    }
}

impl Value {
    /// The value of any integer kind, if it fits.
    #[must_use]
    pub fn as_i128(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(v) => v.into(),
            Self::I8(v) => v.into(),
            Self::U16(v) => v.into(),
            Self::I16(v) => v.into(),
            Self::U32(v) => v.into(),
            Self::I32(v) => v.into(),
            Self::U64(v) => v.into(),
            Self::I64(v) => v.into(),
            _ => return None,
        })
    }

    /// The value of any integer kind, if it fits.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        self.as_i128()?.try_into().ok()
    }

    /// The value of any integer kind, if it fits.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        self.as_i128()?.try_into().ok()
    }

    /// The value of a float kind.
    #[must_use]
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Self::F32(v) => Some(v.into()),
            Self::F64(v) => Some(v),
            _ => None,
        }
    }

    /// The value of a bool.
    #[must_use]
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Self::Bool(v) => Some(v),
            _ => None,
        }
    }

    /// The value of a string.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(v) => Some(v),
            _ => None,
        }
    }

    /// The value of an array.
    #[must_use]
    pub fn as_array(&self) -> Option<&Array> {
        match self {
            Self::Array(v) => Some(v),
            _ => None,
        }
    }
}

impl Array {
    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// One line: strings escaped and shortened, arrays cut after a few elements.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::U8(v) => v.fmt(f),
            Self::I8(v) => v.fmt(f),
            Self::U16(v) => v.fmt(f),
            Self::I16(v) => v.fmt(f),
            Self::U32(v) => v.fmt(f),
            Self::I32(v) => v.fmt(f),
            Self::F32(v) => v.fmt(f),
            Self::Bool(v) => v.fmt(f),
            Self::String(v) => f.write_str(&printable(v)),
            Self::U64(v) => v.fmt(f),
            Self::I64(v) => v.fmt(f),
            Self::F64(v) => v.fmt(f),
            Self::Array(v) => v.fmt(f),
        }
    }
}

/// Elements of an array that are shown.
const SHOWN: usize = 6;

/// One line, cut after a few elements: `[1, 2, 3, 4, 5, 6, … 51864 of u32]`.
impl fmt::Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn list<T>(
            f: &mut fmt::Formatter<'_>,
            array: &Array,
            values: &[T],
            show: impl Fn(&T) -> String,
        ) -> fmt::Result {
            let shown: Vec<String> = values.iter().take(SHOWN).map(show).collect();
            write!(f, "[{}", shown.join(", "))?;
            if values.len() > SHOWN {
                write!(f, ", … {} of {}", values.len(), array.element_name())?;
            }
            f.write_str("]")
        }
        match self {
            Self::U8(v) => list(f, self, v, u8::to_string),
            Self::I8(v) => list(f, self, v, i8::to_string),
            Self::U16(v) => list(f, self, v, u16::to_string),
            Self::I16(v) => list(f, self, v, i16::to_string),
            Self::U32(v) => list(f, self, v, u32::to_string),
            Self::I32(v) => list(f, self, v, i32::to_string),
            Self::F32(v) => list(f, self, v, f32::to_string),
            Self::Bool(v) => list(f, self, v, bool::to_string),
            Self::String(v) => list(f, self, v, |s| format!("\"{}\"", printable(s))),
            Self::U64(v) => list(f, self, v, u64::to_string),
            Self::I64(v) => list(f, self, v, i64::to_string),
            Self::F64(v) => list(f, self, v, f64::to_string),
            Self::Array(v) => list(f, self, v, |a| {
                // The inner elements could repeat this all the way down.
                format!("{} of {}", a.len(), a.element_name())
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Array, Value};

    #[test]
    fn integers_convert_when_they_fit() {
        assert_eq!(Value::I8(-1).as_u64(), None);
        assert_eq!(Value::I8(-1).as_i64(), Some(-1));
        assert_eq!(Value::U64(u64::MAX).as_i64(), None);
        assert_eq!(Value::U64(u64::MAX).as_u64(), Some(u64::MAX));
        assert_eq!(Value::F32(1.0).as_u64(), None);
        assert_eq!(Value::Bool(true).as_u64(), None);
    }

    #[track_caller]
    fn shows(value: impl Into<Value>, expected: &str) {
        assert_eq!(value.into().to_string(), expected);
    }

    #[test]
    fn long_values_are_cut() {
        shows(vec![1u32, 2], "[1, 2]");
        shows((0..100u32).collect::<Vec<_>>(), "[0, 1, 2, 3, 4, 5, … 100 of u32]");
        shows("two\nlines", "two\\nlines");
        shows(vec!["a".to_owned()], "[\"a\"]");
        shows(Array::Array(vec![Array::Bool(vec![true; 9])]), "[9 of bool]");
    }
}
