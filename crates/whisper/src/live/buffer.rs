//! Buffer of a live stream: its decoding, its trimming, and the words that it commits.

use super::{LiveDecoder, LiveEvent, LiveStream, LiveWord, OnEvent, seconds};
use crate::languages::Language;
use crate::times::samples;
use crate::transcript::Word;
use crate::{SAMPLE_RATE, WINDOW_SAMPLES};

/// Maximum samples of the buffer: less than a window, with room for a further VAD step.
pub(super) const MAX_BUFFER: usize = WINDOW_SAMPLES - 2 * SAMPLE_RATE;
/// Maximum seconds kept of a buffer that reached [`MAX_BUFFER`].
const MAX_KEPT_S: f64 = 20.0;
/// Maximum characters of the prompt.
pub(super) const PROMPT_CHARS: usize = 200;

impl LiveStream {
    /// Samples decoded before and after speech.
    pub(super) fn padding(&self) -> u64 {
        u64::from(self.options.decoding.vad_options.speech_pad_ms) * SAMPLE_RATE as u64 / 1000
    }

    /// End of the buffer in the stream, in samples.
    pub(super) fn buffer_end(&self) -> u64 {
        self.buffer_start + self.buffer.len() as u64
    }

    /// Removes the samples before `position` of the stream from the buffer.
    pub(super) fn drop_before(&mut self, position: u64) {
        let n = position.saturating_sub(self.buffer_start).min(self.buffer.len() as u64);
        self.buffer.drain(..n as usize);
        self.buffer_start += n;
    }

    /// Decodes the buffer, commits confirmed words, and trims a long buffer at a committed segment.
    pub(super) async fn update<D: LiveDecoder>(
        &mut self,
        decoder: &mut D,
        on_event: &mut OnEvent<'_>,
    ) -> Result<(), D::Error> {
        let hypothesis = self.decode(decoder, self.buffer_end(), false).await?;
        self.is_accepted = !hypothesis.is_rejected;
        if hypothesis.is_rejected {
            return Ok(());
        }
        let words = self.agreement.push(hypothesis.words);
        self.fix_language(hypothesis.language, &words, on_event);
        self.commit(words, on_event);
        self.emit_partial(on_event);
        let trim = samples(self.options.trim_s);
        if self.buffer.len() > trim
            && let Some(committed) = self.agreement.committed_until()
        {
            // The last segment may not be complete.
            let ends = hypothesis.ends.split_last().map_or(&[][..], |(_, ends)| ends);
            if let Some(&end) = ends.iter().rev().find(|&&end| end <= committed) {
                self.trim_until(end);
            }
        }
        Ok(())
    }

    /// Trims a buffer that reached [`MAX_BUFFER`]: commits all segments but the last, and all words
    /// older than `trim_s` or half of [`MAX_KEPT_S`], whichever is less.
    pub(super) async fn shorten_buffer<D: LiveDecoder>(
        &mut self,
        decoder: &mut D,
        on_event: &mut OnEvent<'_>,
    ) -> Result<(), D::Error> {
        let hypothesis = self.decode(decoder, self.buffer_end(), true).await?;
        let end = seconds(self.buffer_end());
        let last = hypothesis.ends.iter().rev().nth(1).copied().unwrap_or(0.0);
        let cut = last.max(end - self.options.trim_s.min(MAX_KEPT_S / 2.0));
        let words = self.agreement.push_until(hypothesis.words, cut);
        self.fix_language(hypothesis.language, &words, on_event);
        self.commit(words, on_event);
        // Not within a word, if that leaves at most `MAX_KEPT_S`.
        let cut = self.agreement.unconfirmed_start().map_or(cut, |start| start.min(cut));
        self.trim_until(cut.max(end - MAX_KEPT_S));
        self.emit_partial(on_event);
        Ok(())
    }

    /// Removes audio before `time` (seconds) from the buffer; the text of its committed words becomes
    /// the prompt.
    pub(super) fn trim_until(&mut self, time: f64) {
        for word in self.agreement.trim_until(time) {
            self.previous_text += &word.word;
        }
        let n_chars = self.previous_text.chars().count();
        if let Some(excess) = n_chars.checked_sub(PROMPT_CHARS).filter(|&n| n > 0) {
            let from = self.previous_text.char_indices().nth(excess).map_or(0, |(at, _)| at);
            // The prompt begins with a whole word, if there are spaces.
            let from = self.previous_text[from..].find(' ').map_or(from, |space| from + space);
            self.previous_text.drain(..from);
        }
        if time.is_finite() {
            self.drop_before((time * SAMPLE_RATE as f64) as u64);
        }
    }

    /// Fixes the language at the first committed words.
    pub(super) fn fix_language(
        &mut self,
        language: Option<Language>,
        words: &[Word],
        on_event: &mut OnEvent<'_>,
    ) {
        if self.language.is_none()
            && !words.is_empty()
            && let Some(language) = language
        {
            self.language = Some(language);
            on_event(LiveEvent::Language { language: language.code });
        }
    }

    /// Emits the words of the last hypothesis in the place of committed ones, if they differ.
    pub(super) fn revise(&mut self, on_event: &mut OnEvent<'_>) {
        let Some((replaced, mut words)) = self.agreement.revise() else { return };
        let start = replaced.first().map_or(0.0, |word| word.start);
        self.committed_until = start.min(self.committed_until);
        self.order_times(&mut words);
        on_event(LiveEvent::Revised { replaced, words });
    }

    /// Makes times of words ascend from the last committed word to the end of the stream.
    fn order_times(&mut self, words: &mut [Word]) {
        let now = self.seconds();
        for word in words {
            word.start = word.start.clamp(self.committed_until, now);
            word.end = word.end.clamp(word.start, now);
            self.committed_until = word.end;
        }
    }

    /// Emits committed words, with times that ascend within the stream.
    pub(super) fn commit(&mut self, mut words: Vec<Word>, on_event: &mut OnEvent<'_>) {
        if words.is_empty() {
            return;
        }
        // Committed words replace the partial text.
        self.partial.clear();
        self.order_times(&mut words);
        let now = self.seconds();
        let live = words.into_iter().map(|word| LiveWord { latency: now - word.end, word });
        on_event(LiveEvent::Committed { words: live.collect() });
    }

    /// Emits the unconfirmed text, if it changed.
    pub(super) fn emit_partial(&mut self, on_event: &mut OnEvent<'_>) {
        let text = self.agreement.unconfirmed_text();
        if text != self.partial {
            self.partial.clone_from(&text);
            on_event(LiveEvent::Partial { text });
        }
    }
}
