//! Cursor over an untrusted file: every read is checked, and every count is checked against the
//! remaining bytes before memory is allocated for it.

use std::borrow::Cow;
use std::mem;

use crate::error::{Error, Result};
use crate::storage::Storage;

/// Smallest window in bytes, used at the start and after a gap.
const MIN_WINDOW: usize = 4 << 10;

/// Largest window in bytes, reached by doubling.
const MAX_WINDOW: usize = 256 << 10;

/// Reads little-endian values from the start of a file. Files that are not in memory are read in
/// windows of [`MIN_WINDOW`] to [`MAX_WINDOW`] bytes, longer for a longer value.
pub(crate) struct Reader<'a> {
    storage: &'a Storage,
    pos: u64,
    /// All bytes if they are in memory, else a part of them.
    window: Cow<'a, [u8]>,
    /// Offset of the window in the file, at most `pos`.
    window_start: u64,
    /// Bytes of the next window.
    window_len: usize,
}

macro_rules! scalars {
    ($($name:ident: $type:ty;)*) => {
        $(pub(crate) fn $name(&mut self, what: &'static str) -> Result<$type> {
            self.array(what).map(<$type>::from_le_bytes)
        })*
    };
}

impl<'a> Reader<'a> {
    pub(crate) fn new(storage: &'a Storage) -> Self {
        let window = storage.memory().map_or(&[][..], |bytes| bytes);
        Self {
            storage,
            pos: 0,
            window: Cow::Borrowed(window),
            window_start: 0,
            window_len: MIN_WINDOW,
        }
    }

    /// The offset of the next byte, from the start of the file.
    pub(crate) fn pos(&self) -> u64 {
        self.pos
    }

    /// Bytes of the file.
    pub(crate) fn len(&self) -> u64 {
        self.storage.len()
    }

    pub(crate) fn remaining(&self) -> u64 {
        self.len() - self.pos
    }

    /// Moves to the start of the file.
    pub(crate) fn rewind(&mut self) {
        self.pos = 0;
        if self.window_start > 0 {
            self.forget_window();
        }
    }

    /// The next `n` bytes; does not move.
    pub(crate) fn peek(&mut self, n: usize, what: &'static str) -> Result<&[u8]> {
        if n as u64 > self.remaining() {
            return Err(self.truncated(n as u64, what));
        }
        let window_end = self.window_start + self.window.len() as u64;
        if self.pos + n as u64 > window_end {
            self.read_window(n, what)?;
        }
        // The window has these bytes, so the offset in it is a `usize`.
        let start = (self.pos - self.window_start) as usize;
        Ok(&self.window[start..start + n])
    }

    /// Moves the window to the next bytes, `n` or more; keeps those of them that it has.
    #[cold]
    fn read_window(&mut self, n: usize, what: &'static str) -> Result<()> {
        let mut window = mem::take(&mut self.window).into_owned();
        match usize::try_from(self.pos - self.window_start) {
            Ok(before) if before <= window.len() => drop(window.drain(..before)),
            _ => {
                window.clear();
                self.window_len = MIN_WINDOW;
            }
        }
        let n_kept = window.len();
        let rest = usize::try_from(self.remaining()).unwrap_or(usize::MAX);
        let len = self.window_len.max(n).min(rest);
        let out_of_memory = |_| Error::OutOfMemory { what: what.to_owned(), bytes: len - n_kept };
        window.try_reserve_exact(len - n_kept).map_err(out_of_memory)?;
        window.resize(len, 0);
        let read = self.storage.read_at(&mut window[n_kept..], self.pos + n_kept as u64, what);
        if let Err(error) = read {
            self.forget_window();
            return Err(error);
        }
        self.window = Cow::Owned(window);
        self.window_start = self.pos;
        self.window_len = (2 * self.window_len).min(MAX_WINDOW);
        Ok(())
    }

    fn forget_window(&mut self) {
        self.window = Cow::Borrowed(&[]);
        self.window_start = self.pos;
        self.window_len = MIN_WINDOW;
    }

    /// The next `n` bytes.
    pub(crate) fn take(&mut self, n: usize, what: &'static str) -> Result<&[u8]> {
        self.peek(n, what)?;
        let start = (self.pos - self.window_start) as usize;
        self.pos += n as u64;
        Ok(&self.window[start..start + n])
    }

    /// Moves over the next `n` bytes without reading them.
    pub(crate) fn skip(&mut self, n: usize, what: &'static str) -> Result<()> {
        if n as u64 > self.remaining() {
            return Err(self.truncated(n as u64, what));
        }
        self.pos += n as u64;
        Ok(())
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N, what)?);
        Ok(array)
    }

    /// The next `n` bytes, for an `n` read from the file.
    pub(crate) fn take_u64(&mut self, n: u64, what: &'static str) -> Result<&[u8]> {
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
            Ok(n) if needed <= self.remaining() => Ok(n),
            _ => Err(self.truncated(needed, what)),
        }
    }

    pub(crate) fn truncated(&self, expected: u64, what: &'static str) -> Error {
        Error::Truncated { what, offset: self.pos, expected, got: self.remaining() }
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_WINDOW, MIN_WINDOW, Reader};
    use crate::error::Error;
    use crate::storage::Storage;

    /// Equal bytes in memory and in a reader.
    fn both(bytes: &[u8]) -> [Storage; 2] {
        let bytes = bytes.to_vec();
        [Storage::Memory(bytes.clone().into()), Storage::of_reader(Box::new(bytes)).unwrap()]
    }

    #[test]
    fn reads_stop_at_the_end() {
        for storage in both(&[1, 0, 2, 0, 0]) {
            let mut r = Reader::new(&storage);
            assert_eq!(r.u16("a").unwrap(), 1);
            assert!(matches!(
                r.u32("b"),
                Err(Error::Truncated { what: "b", offset: 2, expected: 4, got: 3 })
            ));
            assert_eq!(r.pos(), 2, "a failed read does not move");
            assert!(r.take(usize::MAX, "c").is_err());
            assert!(r.take_u64(u64::MAX, "d").is_err());
            assert!(r.skip(4, "e").is_err());
        }
    }

    #[test]
    fn counts_are_checked_without_overflow() {
        let storage = Storage::Memory(vec![0; 100].into());
        let r = Reader::new(&storage);
        assert_eq!(r.fits(12, 8, "n").unwrap(), 12);
        assert!(r.fits(13, 8, "n").is_err());
        assert!(r.fits(1 << 63, 8, "n").is_err());
        assert!(r.fits(u64::MAX, 0, "n").is_ok(), "items of no bytes are bounded elsewhere");
    }

    #[test]
    fn windows_give_the_bytes_of_the_file() {
        let bytes: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
        for storage in both(&bytes) {
            let mut r = Reader::new(&storage);
            let sizes = [1, 7, MIN_WINDOW, 5, MIN_WINDOW + 1, MAX_WINDOW + 3, 2, 400_000];
            for (i, n) in sizes.into_iter().cycle().take(20).enumerate() {
                let start = r.pos() as usize;
                assert_eq!(r.peek(n, "n").unwrap(), &bytes[start..start + n]);
                assert_eq!(r.take(n, "n").unwrap(), &bytes[start..start + n]);
                r.skip(i * 999, "gap").unwrap();
                assert_eq!(r.pos() as usize, start + n + i * 999);
            }
            r.rewind();
            assert_eq!(r.u8("first").unwrap(), bytes[0]);
            assert_eq!(r.take(100, "n").unwrap(), &bytes[1..101]);
        }
    }
}
