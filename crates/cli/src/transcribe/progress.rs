//! Progress bar over all inputs, in milliseconds of audio.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::console::Console;

/// Progress of all inputs.
#[derive(Debug)]
pub(super) struct Overall<'a> {
    console: &'a Console,
    /// Name of a single input.
    name: Option<String>,
    files: Mutex<Vec<File>>,
}

/// Progress of one input.
#[derive(Debug, Clone, Copy)]
struct File {
    bytes: u64,
    /// Duration; `None` until the input is read.
    length_s: Option<f64>,
    done_s: f64,
    is_over: bool,
}

impl<'a> Overall<'a> {
    /// Progress of inputs with these sizes in bytes; `name` is that of a single input.
    pub(super) fn new(
        console: &'a Console,
        name: Option<String>,
        bytes: impl Iterator<Item = u64>,
    ) -> Self {
        let file = |bytes| File { bytes, length_s: None, done_s: 0.0, is_over: false };
        Self { console, name, files: Mutex::new(bytes.map(file).collect()) }
    }

    /// Sets the duration of input `index`.
    pub(super) fn set_length(&self, index: usize, length_s: f64) {
        self.lock()[index].length_s = Some(length_s);
    }

    /// Sets the position within input `index`.
    pub(super) fn set_position(&self, index: usize, done_s: f64) {
        let mut files = self.lock();
        files[index].done_s = done_s;
        self.show(&files);
    }

    /// Marks input `index` as done or failed.
    pub(super) fn finish(&self, index: usize) {
        let mut files = self.lock();
        let file = &mut files[index];
        file.done_s = *file.length_s.get_or_insert(0.0);
        file.is_over = true;
        self.show(&files);
    }

    fn show(&self, files: &[File]) {
        let (done_s, all_s) = totals(files);
        let n_over = files.iter().filter(|file| file.is_over).count();
        let ms = |seconds: f64| (seconds * 1000.0).round() as u64;
        let counted = || format!("{n_over}/{} files", files.len());
        let stage = self.name.clone().unwrap_or_else(counted);
        self.console.set_stage(&stage, ms(done_s), ms(all_s));
    }

    fn lock(&self) -> MutexGuard<'_, Vec<File>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Seconds done and total seconds. The duration of unread inputs is estimated from their sizes, by the mean
/// bytes per second of those that were read.
fn totals(files: &[File]) -> (f64, f64) {
    let read = files.iter().filter_map(|file| Some((file.length_s?, file.bytes)));
    let (known_s, known_bytes) = read.fold((0.0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    let unread_bytes: u64 =
        files.iter().filter(|file| file.length_s.is_none()).map(|file| file.bytes).sum();
    let unread_s =
        if known_bytes == 0 { 0.0 } else { known_s * unread_bytes as f64 / known_bytes as f64 };
    (files.iter().map(|file| file.done_s).sum(), known_s + unread_s)
}

#[cfg(test)]
mod tests {
    use super::Overall;
    use crate::console::Console;

    #[test]
    fn lengths_are_estimated_until_known_and_right_in_the_end() {
        let console = Console::new(true);
        let overall = Overall::new(&console, None, [100, 300, 50].into_iter());
        let totals = || super::totals(&overall.lock());
        assert_eq!(totals(), (0.0, 0.0));
        overall.set_length(0, 10.0);
        assert_eq!(totals(), (0.0, 45.0));
        overall.set_position(0, 4.0);
        overall.set_length(1, 50.0);
        assert_eq!(totals(), (4.0, 67.5));
        overall.finish(0);
        overall.finish(2);
        assert_eq!(totals(), (10.0, 60.0));
        overall.finish(1);
        assert_eq!(totals(), (60.0, 60.0));
    }
}
