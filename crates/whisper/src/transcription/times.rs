//! Times of the words of a window, by which its segments get their words and the next window its start.
//!
//! A text without timestamps does not say where it ends, and the model ends some windows after a sentence. The time of the last
//! word tells what is left:
//!
//! ```text
//! window   |──── words ────|▁▁▁▁▁▁▁▁▁▁▁▁|      no speech after the last word: the next window follows
//! window   |──── words ────|── speech ──|      the next window starts at the last word's end
//! ```

use stonechat_audio::vad::STEP;

use super::{DecodedSegments, Request, Transcription};
use crate::align::AlignRequest;
use crate::error::Error;
use crate::options::Task;
use crate::times::{samples, seconds};
use crate::window_decoder::WindowDecoder;
use crate::window_request::{WindowAudio, WindowHandle, WindowRequest, WindowTask};
use crate::words::{Placement, TokenTimes, place_words, speech_end, time_words};
use crate::{HOP_LENGTH, hallucination};

/// Minimum seconds of speech after the last word for a further window: times of words are not more exact.
const MIN_SPEECH_LEFT: f64 = 1.5;
/// Minimum seconds between the starts of two windows.
const MIN_ADVANCE: f64 = 1.0;

impl Transcription<'_> {
    /// Requests the times of the tokens of `decoded`, over the audio that `handle` kept.
    pub(super) fn request_times(
        &mut self,
        index: usize,
        handle: WindowHandle,
        decoded: DecodedSegments,
        decoder: &mut WindowDecoder,
    ) -> Result<(), Error> {
        let no_timestamps = self.model.special().no_timestamps;
        let prompts = self.prompts.as_ref().expect("the language is known");
        let start = prompts.sot_sequence().iter().copied().filter(|&t| t != no_timestamps);
        let request = AlignRequest {
            start: start.collect(),
            text: decoded.text.clone(),
            n_frames: self.chunks[index].chunk.window_frames(),
        };
        let handle = decoder.add(WindowRequest {
            owner: self.id,
            audio: WindowAudio::Kept(handle),
            task: WindowTask::Align(request),
            keep_audio: false,
        })?;
        self.chunks[index].request = Some(Request::Times(handle, Box::new(decoded)));
        Ok(())
    }

    /// Sets the words of the segments, removes hallucinated segments, and moves the advance to the end of the last word.
    pub(super) fn place_words(
        &mut self,
        index: usize,
        decoded: &mut DecodedSegments,
        times: &TokenTimes,
    ) {
        let spoken = self.language().filter(|_| self.options.task != Task::Translate);
        let language = spoken.map_or("en", |language| language.code);
        let chunk = &mut self.chunks[index].chunk;
        let options = &self.options;
        let new = &mut decoded.new;
        let punctuation = (&*options.prepend_punctuations, &*options.append_punctuations);
        let (words, median) =
            time_words(self.model.tokenizer(), &decoded.text, times, language, punctuation);
        let (offset, last_speech) = (chunk.window_start_seconds(), chunk.last_speech);
        let placement =
            Placement { offset, last_speech, median, token_seconds: &times.seconds[..] };
        place_words(words, &mut new.segments, self.model.special(), placement);
        new.advance_to_last_word(offset);
        if let Some(threshold) = options.hallucination_silence_threshold {
            let (n_frames, n_left) = (chunk.window_frames(), chunk.remaining_frames());
            let window = hallucination::Window { offset, n_frames, n_left, last_speech };
            if let Some(advance) = hallucination::remove(&mut new.segments, window, threshold) {
                new.advance = advance;
            }
        }
        chunk.last_speech = speech_end(&new.segments).unwrap_or(last_speech);
    }

    /// Moves the advance to the end of the last word of a window without timestamps, if speech follows it.
    pub(super) fn seek_last_word(
        &self,
        index: usize,
        decoded: &mut DecodedSegments,
        times: &TokenTimes,
    ) -> Result<(), Error> {
        let chunk = &self.chunks[index].chunk;
        let Some(&end) = times.seconds.last().filter(|&&end| end >= MIN_ADVANCE) else {
            return Ok(());
        };
        let window_end = chunk.window_start() + chunk.window_frames() * HOP_LENGTH;
        let left = chunk.window_start() + samples(end)..window_end.min(chunk.end());
        if left.len() < samples(MIN_SPEECH_LEFT) {
            return Ok(());
        }
        let probabilities = self.model.vad()?.probabilities(&self.audio.samples[left]);
        let threshold = self.options.vad_options.threshold;
        let n_steps = probabilities.into_iter().filter(|&p| p >= threshold).count();
        if seconds(n_steps * STEP) >= MIN_SPEECH_LEFT {
            decoded.new.end_at(chunk.window_start_seconds(), end);
        }
        Ok(())
    }
}
