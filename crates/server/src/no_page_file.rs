//! A build without a disk cache.

use std::path::Path;
use std::sync::Arc;

use stonechat::llm::{PageName, PageStore};

/// This build has no disk cache.
#[derive(Debug, thiserror::Error)]
#[error(
    "this build keeps no KV pages on disk (feature `disk-cache`: cargo install --features full)"
)]
pub struct PageFileError;

/// Has no value: [`PageFile::open`] is an error.
#[derive(Debug, Clone)]
pub enum PageFile {}

impl PageFile {
    /// Refuses the file.
    ///
    /// # Errors
    /// Always.
    pub fn open(_folder: &Path, _limit: u64) -> Result<Self, PageFileError> {
        Err(PageFileError)
    }

    /// Cannot be called.
    pub fn close(&self) {
        match *self {}
    }
}

impl PageStore for PageFile {
    fn read(&mut self, _: PageName, _: &mut dyn FnMut(&[u8])) -> bool {
        match *self {}
    }

    fn contains(&mut self, _: PageName) -> bool {
        match *self {}
    }

    fn put(&mut self, _: PageName, _: &Arc<Vec<u8>>) {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::PageFile;

    #[test]
    fn a_file_is_refused_by_the_feature() {
        let error = PageFile::open(Path::new("folder"), 1).unwrap_err().to_string();
        assert!(error.contains("(feature `disk-cache`"), "{error}");
    }
}
