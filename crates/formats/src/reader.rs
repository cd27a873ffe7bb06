//! A cursor over untrusted bytes: every read is checked, every count is checked against the bytes
//! left before anything is allocated for it.

use crate::error::{Error, Result};

/// Reads little-endian values from the front of a byte slice.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    pos: usize,
}

macro_rules! scalars {
    ($($name:ident: $type:ty;)*) => {
        $(pub(crate) fn $name(&mut self, what: &'static str) -> Result<$type> {
            self.array(what).map(<$type>::from_le_bytes)
        })*
    };
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, pos: 0 }
    }

    /// The offset of the next byte, from the start of the file.
    pub(crate) fn pos(&self) -> usize {
        self.pos
    }

    pub(crate) fn remaining(&self) -> usize {
        self.bytes.len() - self.pos
    }

    /// The next `n` bytes.
    pub(crate) fn take(&mut self, n: usize, what: &'static str) -> Result<&'a [u8]> {
        let end = self.pos.checked_add(n).filter(|&end| end <= self.bytes.len());
        let Some(end) = end else {
            return Err(self.truncated(n as u64, what));
        };
        let taken = &self.bytes[self.pos..end];
        self.pos = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N]> {
        let Some(&array) = self.bytes[self.pos..].first_chunk() else {
            return Err(self.truncated(N as u64, what));
        };
        self.pos += N;
        Ok(array)
    }

    /// The next `n` bytes, for an `n` read from the file.
    pub(crate) fn take_u64(&mut self, n: u64, what: &'static str) -> Result<&'a [u8]> {
        let n = usize::try_from(n).map_err(|_| self.truncated(n, what))?;
        self.take(n, what)
    }

    scalars! {
        u8: u8; i8: i8; u16: u16; i16: i16; u32: u32; i32: i32; u64: u64; i64: i64;
        f32: f32; f64: f64;
    }

    /// An `i32` that must not be negative, as a count or a size.
    pub(crate) fn size_i32(&mut self, what: &'static str) -> Result<u32> {
        let offset = self.pos;
        let value = self.i32(what)?;
        u32::try_from(value).map_err(|_| Error::Invalid {
            what,
            offset,
            expected: "a value of 0 or more".into(),
            got: value.to_string(),
        })
    }

    /// `count` as a `usize`, if that many items of at least `min_bytes` each can still follow.
    /// Call it before allocating for `count` items.
    pub(crate) fn fits(&self, count: u64, min_bytes: usize, what: &'static str) -> Result<usize> {
        let needed = count.saturating_mul(min_bytes as u64);
        match usize::try_from(count) {
            Ok(n) if needed <= self.remaining() as u64 => Ok(n),
            _ => Err(self.truncated(needed, what)),
        }
    }

    pub(crate) fn truncated(&self, expected: u64, what: &'static str) -> Error {
        Error::Truncated { what, offset: self.pos, expected, got: self.remaining() }
    }
}

#[cfg(test)]
mod tests {
    use super::Reader;
    use crate::error::Error;

    #[test]
    fn reads_stop_at_the_end() {
        let mut r = Reader::new(&[1, 0, 2, 0, 0]);
        assert_eq!(r.u16("a").unwrap(), 1);
        assert!(matches!(
            r.u32("b"),
            Err(Error::Truncated { what: "b", offset: 2, expected: 4, got: 3 })
        ));
        assert_eq!(r.pos(), 2, "a failed read does not move");
        assert!(r.take(usize::MAX, "c").is_err());
        assert!(r.take_u64(u64::MAX, "d").is_err());
    }

    #[test]
    fn counts_are_checked_without_overflow() {
        let r = Reader::new(&[0; 100]);
        assert_eq!(r.fits(12, 8, "n").unwrap(), 12);
        assert!(r.fits(13, 8, "n").is_err());
        assert!(r.fits(1 << 63, 8, "n").is_err());
        assert!(r.fits(u64::MAX, 0, "n").is_ok(), "items of no bytes are bounded elsewhere");
    }
}
