//! Stop strings in streamed text.

use std::sync::Arc;

/// Buffers the end of the text while it is a prefix of a stop string.
#[derive(Debug, Clone)]
pub(crate) struct StopFilter {
    stops: Arc<[String]>,
    pending: String,
    /// Index of the stop string that was found.
    found: Option<usize>,
}

impl StopFilter {
    pub(crate) fn new(stops: Arc<[String]>) -> Self {
        Self { stops, pending: String::new(), found: None }
    }

    /// Appends text; returns the text to emit, and whether a stop string was found. The text from
    /// the stop string on is dropped.
    pub(crate) fn push(&mut self, text: &str) -> (String, bool) {
        self.pending.push_str(text);
        let stops = self.stops.iter().enumerate().filter(|(_, stop)| !stop.is_empty());
        let found = stops.filter_map(|(index, stop)| Some((self.pending.find(stop)?, index)));
        if let Some((at, index)) = found.min() {
            self.found = Some(index);
            let shown = self.pending[..at].to_owned();
            self.pending.clear();
            return (shown, true);
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.pending, stop)).max().unwrap_or(0);
        let rest = self.pending.split_off(self.pending.len() - keep);
        (std::mem::replace(&mut self.pending, rest), false)
    }

    /// The stop string that was found.
    pub(crate) fn found(&self) -> Option<&str> {
        self.found.map(|index| self.stops[index].as_str())
    }

    /// Returns the buffered text at the end of generation.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.pending)
    }
}

/// Length of the longest proper prefix of `stop` that `text` ends with.
fn overlap(text: &str, stop: &str) -> usize {
    let starts = stop.char_indices().map(|(i, _)| i).skip(1);
    starts.filter(|&n| text.ends_with(&stop[..n])).last().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{Arc, StopFilter};

    fn run(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let stops: Arc<[String]> = stops.iter().map(|&s| s.to_owned()).collect();
        let mut filter = StopFilter::new(stops);
        let mut shown = String::new();
        for piece in pieces {
            let (text, stopped) = filter.push(piece);
            shown += &text;
            if stopped {
                return (shown, true);
            }
        }
        (shown + &filter.finish(), false)
    }

    #[test]
    fn a_stop_string_across_pieces_is_never_shown() {
        assert_eq!(run(&["END"], &["ab", "cE", "N", "Dxy"]), ("abc".to_owned(), true));
        assert_eq!(run(&["\n\n", "é!"], &["a\n", "bé", "?é", "!"]), ("a\nbé?".to_owned(), true));
    }

    #[test]
    fn text_that_only_began_like_one_is_shown() {
        assert_eq!(run(&["END"], &["E", "N", "O", " EN"]), ("ENO EN".to_owned(), false));
        assert_eq!(run(&["aab"], &["a", "a", "a", "b"]), ("a".to_owned(), true));
        assert_eq!(run(&[], &["x", "y"]), ("xy".to_owned(), false));
    }
}
