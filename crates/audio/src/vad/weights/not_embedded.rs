//! No weights in this crate: a browser loads them beside the binary.

pub(super) const EMBEDDED: Option<&'static [u8]> = None;
