//! Samples of one run: the whole recording, or its speech with the silence cut out.

use std::borrow::Cow;
use std::ops::Range;

use stonechat_audio::SpeechMap;

use crate::error::Error;
use crate::loudness::raise_quiet_parts;
use crate::model::Model;
use crate::options::{Options, VadMode};
use crate::times::{samples, seconds};
use crate::transcript::Segment;
use crate::{HOP_LENGTH, chunking};

/// Samples of a recording, 16 kHz mono, with the ranges of speech among them if they are known.
///
/// ```
/// use stonechat_whisper::Samples;
///
/// let samples = vec![0.0; 16_000];
/// let borrowed = Samples::from(&samples[..]);
/// let owned: Samples<'static> = samples.into();
/// ```
#[derive(Debug, Clone)]
pub struct Samples<'a> {
    pub(crate) samples: Cow<'a, [f32]>,
    /// Positions of `samples` in the recording; `None` if they are the whole recording.
    pub(crate) map: Option<SpeechMap>,
    /// Whether the ranges of speech are known.
    is_detected: bool,
}

impl Samples<'_> {
    /// Length of the recording in seconds, with silence that was cut.
    #[must_use]
    pub fn duration(&self) -> f64 {
        seconds(self.n_recording_samples())
    }

    /// Removes everything but the ranges of speech that [`Options::find_speech`](crate::Options::find_speech) found beforehand, for
    /// example while another recording was transcribed; nothing for `None`. A recording that was cut has no clips.
    ///
    /// # Errors
    /// If the ranges overlap, are out of order, empty or past the end.
    pub fn with_speech(self, speech: Option<Vec<Range<usize>>>) -> Result<Self, Error> {
        let Some(speech) = speech else { return Ok(Self { is_detected: true, ..self }) };
        let (samples, map) = cut(self.samples, speech)?;
        Ok(Self { samples, map: Some(map), is_detected: true })
    }

    /// Samples of the recording.
    pub(crate) fn n_recording_samples(&self) -> usize {
        self.map.as_ref().map_or(self.samples.len(), SpeechMap::n_samples)
    }

    /// Position in the recording, in samples, of something that ends at `end` in `samples`.
    pub(crate) fn recording_end(&self, end: usize) -> usize {
        self.map.as_ref().map_or(end, |map| map.original_end(end))
    }

    /// Converts the times of a segment of `samples` to times of the recording.
    pub(crate) fn restore_times(&self, segment: &mut Segment) {
        if let Some(map) = &self.map {
            restore_times(map, segment);
        }
    }
}

impl<'a> From<Cow<'a, [f32]>> for Samples<'a> {
    fn from(samples: Cow<'a, [f32]>) -> Self {
        Self { samples, map: None, is_detected: false }
    }
}

impl<'a> From<&'a [f32]> for Samples<'a> {
    fn from(samples: &'a [f32]) -> Self {
        Cow::Borrowed(samples).into()
    }
}

impl<'a> From<&'a Vec<f32>> for Samples<'a> {
    fn from(samples: &'a Vec<f32>) -> Self {
        samples[..].into()
    }
}

impl From<Vec<f32>> for Samples<'_> {
    fn from(samples: Vec<f32>) -> Self {
        Cow::<[f32]>::Owned(samples).into()
    }
}

/// Samples and chunks of a recording: its speech, else its clips, else all of it. A batch size cuts them into chunks; also
/// returns if it did.
pub(crate) fn select<'a>(
    model: &Model,
    mut audio: Samples<'a>,
    options: &Options,
) -> Result<(Samples<'a>, Vec<Range<usize>>, bool), Error> {
    if !audio.is_detected && options.needs_vad() {
        let speech = options.find_speech_with(model.vad()?, &audio.samples)?;
        audio = audio.with_speech(speech)?;
    }
    let n_samples = audio.samples.len();
    let mut chunks = if options.clip_timestamps.is_empty() || options.vad == VadMode::On {
        Vec::from_iter((n_samples > 0).then_some(0..n_samples))
    } else if audio.map.is_some() {
        let (option, expected) = ("clip-timestamps", "none where silence was cut");
        let got = format!("{:?}", options.clip_timestamps);
        return Err(Error::Option { option, expected, got });
    } else {
        options.clips(n_samples)
    };
    if audio.map.is_some() {
        raise_quiet_parts(audio.samples.to_mut(), options.max_pause());
    }
    let n_uncut = chunks.len();
    if options.n_windows() > 1 {
        let cut = |range| chunking::cut(&audio.samples, range, options.n_windows());
        chunks = chunks.into_iter().flat_map(cut).collect();
    }
    let is_batched = chunks.len() > n_uncut;
    Ok((audio, chunks, is_batched))
}

/// Keeps only the sample ranges `speech`; owned samples in place.
///
/// # Errors
/// If the ranges overlap, are out of order, empty or past the end.
fn cut(
    samples: Cow<'_, [f32]>,
    speech: Vec<Range<usize>>,
) -> Result<(Cow<'_, [f32]>, SpeechMap), Error> {
    check_ranges(&speech, samples.len())?;
    let map = SpeechMap::new(speech, samples.len());
    let samples = match samples {
        Cow::Owned(mut samples) => {
            map.retain(&mut samples);
            samples
        }
        Cow::Borrowed(samples) => map.collect(samples),
    };
    Ok((Cow::Owned(samples), map))
}

fn restore_times(map: &SpeechMap, segment: &mut Segment) {
    segment.seek = map.original_start(segment.seek * HOP_LENGTH) / HOP_LENGTH;
    segment.start = seconds(map.original_start(samples(segment.start)));
    segment.end = seconds(map.original_end(samples(segment.end)));
    let Some(words) = &mut segment.words else { return };
    let words_and_tokens = words
        .iter_mut()
        .map(|word| (&mut word.start, &mut word.end))
        .chain(segment.token_times.iter_mut().map(|(start, end)| (start, end)));
    for (start, end) in words_and_tokens {
        let range = map.original(samples(*start)..samples(*end));
        (*start, *end) = (seconds(range.start), seconds(range.end));
    }
    if let (Some(first), Some(last)) = (words.first(), words.last()) {
        (segment.start, segment.end) = (first.start, last.end);
    }
}

/// Checks that `ranges` are ascending, disjoint, not empty and within `n_samples`.
fn check_ranges(ranges: &[Range<usize>], n_samples: usize) -> Result<(), Error> {
    let mut previous_end = 0;
    for range in ranges {
        if range.start < previous_end || range.is_empty() || range.end > n_samples {
            let Range { start, end } = *range;
            return Err(Error::SpeechRange { start, end, previous_end, n_samples });
        }
        previous_end = range.end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use stonechat_audio::SpeechMap;

    use super::{check_ranges, restore_times};
    use crate::transcript::{Segment, Word};

    fn word(start: f64, end: f64) -> Word {
        Word { word: " a".to_owned(), start, end, probability: 0.5 }
    }

    #[test]
    fn times_are_those_of_the_recording() {
        // 2 s from second 10 on, then 3 s from second 20.5 on.
        let map = SpeechMap::new(vec![160_000..192_000, 328_000..376_000], 400_000);
        let times = |start: f64, end: f64, words: Option<Vec<Word>>| {
            let mut segment = Segment { start, end, words, seek: 200, ..Segment::default() };
            restore_times(&map, &mut segment);
            assert_eq!(segment.seek, 2050);
            segment
        };
        let whole = times(0.5, 2.0, None);
        assert_eq!((whole.start, whole.end), (10.5, 12.0));
        let second = times(2.0, 5.0, None);
        assert_eq!((second.start, second.end), (20.5, 23.5));
        let words = times(0.0, 5.0, Some(vec![word(0.25, 1.5), word(1.5, 2.25), word(3.0, 5.0)]));
        let got: Vec<_> = words.words.unwrap().iter().map(|w| (w.start, w.end)).collect();
        // The word across the cut stays where its middle is.
        assert_eq!(got, [(10.25, 11.5), (11.5, 12.0), (21.5, 23.5)]);
        assert_eq!((words.start, words.end), (10.25, 23.5));
    }

    #[test]
    fn wrong_ranges_are_refused() {
        check_ranges(&[], 0).unwrap();
        check_ranges(&[0..5, 5..10], 10).unwrap();
        for wrong in [[0..5, 5..11], [1..2, 5..5], [4..8, 7..9], [6..9, 1..3]] {
            assert!(check_ranges(&wrong, 10).is_err(), "{wrong:?}");
        }
    }
}
