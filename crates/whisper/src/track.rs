//! A stretch of a recording that is transcribed from its beginning to its end: where it stands, and
//! the segments that its windows were cut into.
//!
//! Source: openai/whisper `transcribe.py`.

use std::ops::Range;

use stonechat_audio::vad::STEP;
use stonechat_audio::{Mel, Vad, VadOptions};
use stonechat_text::Tokenizer;

use crate::context::History;
use crate::times::{frames, hundredths, seconds};
use crate::words::speech_end;
use crate::{
    FRAMES_PER_POSITION, Finish, HOP_LENGTH, SAMPLE_RATE, Segment, SpecialTokens,
    TIMESTAMP_SECONDS, WINDOW_FRAMES, WindowResult,
};

/// So much of a stretch is searched for the end of its speech: longer than a sentence that the model
/// leaves to a further window.
const TAIL_SAMPLES: usize = 10 * SAMPLE_RATE;
/// Timestamps are so early at most.
const REACH_FRAMES: usize = 100;

/// One stretch.
#[derive(Debug)]
pub(crate) struct Track {
    /// Where it lies in the recording.
    range: Range<usize>,
    mel: Mel,
    n_frames: usize,
    /// The first frame that is not done.
    seek: usize,
    /// Whether it was cut out of a longer one, for windows side by side.
    is_piece: bool,
    /// The frame where the last speech in a piece ends, which its text has to reach.
    speech_end: Option<usize>,
    /// Where speech ended in the recording, in seconds.
    pub(crate) last_speech: f64,
    /// What its window at hand knows of what was said before.
    pub(crate) history: History,
    /// Segments that nobody has been told of; their ids are not final.
    pub(crate) segments: Vec<Segment>,
}

impl Track {
    /// The stretch `range` of a recording, with its spectrogram and that of a window of silence after it; a piece was
    /// cut out of a longer one, for windows side by side.
    pub(crate) fn new(range: Range<usize>, mel: Mel, is_piece: bool) -> Self {
        let n_frames = mel.n_frames - WINDOW_FRAMES;
        let last_speech = seconds(range.start);
        Self {
            range,
            mel,
            n_frames,
            is_piece,
            speech_end: None,
            seek: 0,
            last_speech,
            history: History::default(),
            segments: Vec::new(),
        }
    }

    /// Finds where the last speech in a piece ends, which the text of its last window has to reach. The model likes
    /// to end with the last whole sentence, and leave the rest to a further window.
    pub(crate) fn find_end(&mut self, recording: &[f32], vad: &Vad, options: &VadOptions) {
        let samples = &recording[self.range.clone()];
        let tail = samples.len().saturating_sub(TAIL_SAMPLES);
        let probabilities = vad.probabilities(&samples[tail..]);
        let last = probabilities.iter().rposition(|&p| p >= options.threshold);
        self.speech_end =
            last.map(|step| (tail + (step + 1) * STEP).min(samples.len()) / HOP_LENGTH);
    }

    /// The timestamp that the text of the window at hand may not end before; none where it may.
    pub(crate) fn reach(&self, special: &SpecialTokens) -> Option<u32> {
        let end = self.speech_end.filter(|_| self.n_left() <= WINDOW_FRAMES)?;
        let steps = end.saturating_sub(self.seek + REACH_FRAMES) / FRAMES_PER_POSITION;
        Some(special.timestamp_begin + steps as u32)
    }

    /// Passes over windows of digital silence in its recording; whether something is left to be heard.
    pub(crate) fn find_sound(&mut self, recording: &[f32]) -> bool {
        let samples = &recording[self.range.clone()];
        while !self.is_done() && is_digital_silence(samples, self.seek, self.size()) {
            self.seek += self.size();
        }
        !self.is_done()
    }

    /// Whether nothing is left.
    pub(crate) fn is_done(&self) -> bool {
        self.seek >= self.n_frames
    }

    /// The samples of it that are done.
    pub(crate) fn done_samples(&self) -> usize {
        if self.is_done() { self.range.len() } else { self.seek * HOP_LENGTH }
    }

    /// Samples in it.
    pub(crate) fn len(&self) -> usize {
        self.range.len()
    }

    /// Where it ends in the recording, in samples.
    pub(crate) fn end(&self) -> usize {
        self.range.end
    }

    /// Where in the recording the window at hand begins, in samples.
    pub(crate) fn window_start(&self) -> usize {
        self.range.start + self.seek * HOP_LENGTH
    }

    /// Frames of the window at hand, without padding.
    pub(crate) fn size(&self) -> usize {
        WINDOW_FRAMES.min(self.n_frames - self.seek)
    }

    /// The window at hand, `[WINDOW_FRAMES, n_mels]`: padded with zeros as the reference does, a piece with
    /// the spectrogram of silence, which makes fewer errors where most windows are padded.
    pub(crate) fn window(&self) -> Vec<f32> {
        let frames = self.size() * self.mel.n_mels;
        let mut window = self.mel.window(self.seek, WINDOW_FRAMES);
        if !self.is_piece {
            window[frames..].fill(0.0);
        }
        window
    }

    /// Where in the recording the window at hand begins, in seconds.
    pub(crate) fn offset(&self) -> f64 {
        seconds(self.window_start())
    }

    /// Frames from the window at hand to the end of the stretch.
    pub(crate) fn n_left(&self) -> usize {
        self.n_frames - self.seek
    }

    /// Passes over the window at hand: nobody speaks.
    pub(crate) fn skip_window(&mut self) {
        self.seek += self.size();
    }

    /// Cuts what the window at hand was decoded to into segments at its timestamp pairs.
    pub(crate) fn cut(
        &self,
        result: &WindowResult,
        special: &SpecialTokens,
        tokenizer: &Tokenizer,
    ) -> Cut {
        let tokens = &result.tokens;
        let is_timestamp = |i: usize| special.is_timestamp(tokens[i]);
        let steps = |token: u32| token.saturating_sub(special.timestamp_begin) as usize;
        let n = tokens.len();
        let single_ending = n >= 2 && !is_timestamp(n - 2) && is_timestamp(n - 1);
        let is_open = !single_ending;
        let mut cuts: Vec<usize> =
            (1..n).filter(|&i| is_timestamp(i - 1) && is_timestamp(i)).collect();
        if cuts.is_empty() {
            let last = (0..n).rev().find(|&i| is_timestamp(i)).map(|i| steps(tokens[i]));
            let length = match last {
                Some(last) if last > 0 => last as f64 * TIMESTAMP_SECONDS,
                _ => seconds(self.size() * HOP_LENGTH),
            };
            let segments = vec![self.segment(result, 0..n, (0.0, length), tokenizer)];
            return Cut { segments, advance: self.size(), is_open };
        }
        if single_ending {
            cuts.push(n);
        }
        let mut segments = Vec::with_capacity(cuts.len());
        let mut from = 0;
        for &cut in &cuts {
            let piece = &tokens[from..cut];
            let time = |token: u32| steps(token) as f64 * TIMESTAMP_SECONDS;
            let times = (time(piece[0]), time(piece[piece.len() - 1]));
            segments.push(self.segment(result, from..cut, times, tokenizer));
            from = cut;
        }
        let is_last = self.reach(special).is_some() && result.finish == Finish::End;
        if is_last && from + 1 < n {
            // What the end of the stretch left without a stamp.
            let start = steps(tokens[from]) as f64 * TIMESTAMP_SECONDS;
            let times = (start, seconds(self.size() * HOP_LENGTH));
            segments.push(self.segment(result, from..n, times, tokenizer));
        }
        let advance = if single_ending || is_last {
            // Nothing was said after that.
            self.size()
        } else {
            // The rules make the last stamp positive; an advance of zero would never end.
            steps(tokens[from - 1]).max(1) * FRAMES_PER_POSITION
        };
        Cut { segments, advance, is_open }
    }

    /// The tokens `range` of what was decoded; `start` and `end` are seconds from the window's begin.
    fn segment(
        &self,
        result: &WindowResult,
        range: Range<usize>,
        (start, end): (f64, f64),
        tokenizer: &Tokenizer,
    ) -> Segment {
        let tokens = &result.tokens[range.clone()];
        let spelled = |&token: &u32| tokenizer.decode_with_special(&[token]);
        let probability = |&logprob: &f32| f64::from(logprob).exp();
        Segment {
            id: 0,
            seek: self.window_start() / HOP_LENGTH,
            start: self.offset() + start,
            end: self.offset() + end,
            text: tokenizer.decode(tokens),
            tokens: tokens.to_vec(),
            token_texts: tokens.iter().map(spelled).collect(),
            token_probabilities: result.logprobs[range].iter().map(probability).collect(),
            token_times: Vec::new(),
            temperature: result.temperature,
            avg_logprob: result.avg_logprob,
            compression_ratio: result.compression_ratio,
            no_speech_prob: result.no_speech_prob,
            words: None,
            speaker: None,
        }
    }

    /// Keeps the segments of the window at hand that say something and moves on.
    pub(crate) fn take(&mut self, cut: Cut) {
        // Stamps in the padding of a window lie beyond the stretch.
        let limit = seconds(self.range.end);
        for mut segment in cut.segments {
            if segment.start >= segment.end || segment.text.trim().is_empty() {
                continue;
            }
            segment.id = self.segments.len();
            segment.start = hundredths(segment.start.min(limit));
            segment.end = hundredths(segment.end.min(limit));
            self.segments.push(segment);
        }
        self.seek += cut.advance;
    }
}

/// What a window was cut into.
#[derive(Debug)]
pub(crate) struct Cut {
    pub(crate) segments: Vec<Segment>,
    /// Frames to the next window.
    pub(crate) advance: usize,
    /// Whether something may have been said after the last segment.
    is_open: bool,
}

impl Cut {
    /// Moves on to where the last word of the window at `offset` seconds ended.
    pub(crate) fn follow_words(&mut self, offset: f64) {
        let end = speech_end(&self.segments).filter(|&end| self.is_open && end > offset);
        if let Some(end) = end {
            self.advance = frames(end - offset).max(1);
        }
    }
}

/// Whether the window holds nothing above the last bit of 16-bit audio. The reference hears "you"
/// in such a window; there is nothing to hear.
fn is_digital_silence(samples: &[f32], seek: usize, size: usize) -> bool {
    const LAST_BIT: f32 = 1.5 / 32768.0;
    let end = ((seek + size) * HOP_LENGTH).min(samples.len());
    samples[(seek * HOP_LENGTH).min(end)..end].iter().all(|s| s.abs() <= LAST_BIT)
}

#[cfg(test)]
mod tests {
    use stonechat_audio::{LogMel, Vad, VadOptions, decode_file};

    use super::{REACH_FRAMES, Track};
    use crate::{HOP_LENGTH, SAMPLE_RATE, SpecialTokens, TIMESTAMP_SECONDS, WINDOW_SAMPLES};

    /// How far the text of a piece has to reach, in seconds.
    fn reach(recording: &[f32], is_piece: bool) -> Option<f64> {
        let special = SpecialTokens::new(51865).unwrap();
        let mel = LogMel::new(80).compute(recording, WINDOW_SAMPLES);
        let mut track = Track::new(0..recording.len(), mel, is_piece);
        if is_piece {
            track.find_end(recording, &Vad::new().unwrap(), &VadOptions::default());
        }
        let token = track.reach(&special)?;
        Some(f64::from(token - special.timestamp_begin) * TIMESTAMP_SECONDS)
    }

    #[test]
    fn the_text_of_a_piece_reaches_the_end_of_its_speech() {
        let path =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/audio/quick_brown_fox.wav");
        let speech = decode_file(path).unwrap().samples;
        let length = speech.len() as f64 / SAMPLE_RATE as f64;
        let early = (REACH_FRAMES * HOP_LENGTH) as f64 / SAMPLE_RATE as f64;
        let mut recording = vec![0.0; 3 * SAMPLE_RATE];
        recording.extend(speech);
        recording.extend(vec![0.0; 4 * SAMPLE_RATE]);
        let end = reach(&recording, true).unwrap() + early - 3.0;
        assert!((length - 1.0..=length + 0.1).contains(&end), "{end} of {length}");
        assert_eq!(reach(&recording, false), None, "what was not cut may end anywhere");
        assert_eq!(reach(&recording[..3 * SAMPLE_RATE], true), None, "nobody speaks");
    }
}
