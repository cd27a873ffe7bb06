//! Blocking methods of a job.

use pollster::block_on;

use super::Job;
use crate::Error;

impl<I, O> Job<I, O> {
    /// Blocks until the end of the request; skips the items that are left.
    ///
    /// # Errors
    /// If the request failed.
    pub fn wait(self) -> Result<O, Error> {
        block_on(self)
    }

    /// Iterates over the items, blocking for each; an error is the last one. [`wait`](Self::wait) then gives the output.
    pub fn items(&mut self) -> Items<'_, I, O> {
        Items(self)
    }
}

/// Items of a job, each of which is waited for; see [`Job::items`].
#[derive(Debug)]
pub struct Items<'a, I, O>(&'a mut Job<I, O>);

impl<I, O> Iterator for Items<'_, I, O> {
    type Item = Result<I, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        block_on(self.0.next_async())
    }
}

impl<'a, I, O> IntoIterator for &'a mut Job<I, O> {
    type Item = Result<I, Error>;
    type IntoIter = Items<'a, I, O>;

    fn into_iter(self) -> Items<'a, I, O> {
        self.items()
    }
}

/// Iterator that owns its job.
#[derive(Debug)]
pub struct IntoItems<I, O>(Job<I, O>);

impl<I, O> Iterator for IntoItems<I, O> {
    type Item = Result<I, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.items().next()
    }
}

impl<I, O> IntoIterator for Job<I, O> {
    type Item = Result<I, Error>;
    type IntoIter = IntoItems<I, O>;

    fn into_iter(self) -> IntoItems<I, O> {
        IntoItems(self)
    }
}
