//! Sizes of the state of a decoder: it grows for recordings, shrinks after them, and is replaced after a panic.

use super::{Place, WindowDecoder};
use crate::error::Error;
use crate::options::Options;
use crate::state::StateOptions;

impl WindowDecoder {
    /// Makes room for recordings with `options`, `n_windows` of them at a time. A larger state replaces the current one.
    ///
    /// # Errors
    /// If an option does not fit the model, the device is out of memory, or windows are being decoded and the state is too
    /// small.
    pub fn reserve(&mut self, options: &Options, n_windows: usize) -> Result<(), Error> {
        options.validate_for(self.model.config())?;
        let old = self.state.options();
        let n_windows = n_windows.max(old.n_windows);
        let new = StateOptions {
            n_windows,
            encoder_batch_size: self
                .model
                .encoder_batch_size(n_windows)
                .max(old.encoder_batch_size),
            n_sequences: options.n_sequences().max(old.n_sequences),
            has_alignment: options.needs_alignment() || old.has_alignment,
            ..old
        };
        if new == old {
            return Ok(());
        }
        self.remove_abandoned();
        if !self.is_idle() {
            let expected = "options that fit the state while other recordings are transcribed";
            let got = format!(
                "{n_windows} windows of {} beams{}",
                options.n_sequences(),
                if options.needs_alignment() { " with word times" } else { "" }
            );
            return Err(Error::Option {
                option: "batch-size, beam-size, word-timestamps",
                expected,
                got,
            });
        }
        self.reopen(new)
    }

    /// Gives memory back: replaces the state by one of the sizes `least`, unless it has them or windows wait, are decoded or
    /// keep their audio.
    ///
    /// # Errors
    /// If the device is out of memory.
    pub fn shrink_to(&mut self, least: StateOptions) -> Result<(), Error> {
        self.remove_abandoned();
        if self.state.options() == least || !self.is_idle() {
            return Ok(());
        }
        self.reopen(least)
    }

    /// Replaces the state by a fresh one of these sizes; all windows and kept audio are lost.
    ///
    /// # Errors
    /// If the device is out of memory; the state is then the smallest one.
    pub fn reopen(&mut self, sizes: StateOptions) -> Result<(), Error> {
        self.queue.clear();
        self.finished.clear();
        self.places.clear();
        // The old state and the new one are never in memory together.
        let smallest = StateOptions { kv_dtype: sizes.kv_dtype, ..StateOptions::default() };
        self.replace(smallest)?;
        if sizes == smallest { Ok(()) } else { self.replace(sizes) }
    }

    fn replace(&mut self, sizes: StateOptions) -> Result<(), Error> {
        self.state = self.model.state(sizes)?;
        self.places = (0..sizes.n_windows).map(|_| Place::Free).collect();
        Ok(())
    }
}
