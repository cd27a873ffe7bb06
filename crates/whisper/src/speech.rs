//! Listening to speech only: what is kept of a recording is transcribed as if it were all, and the
//! times of what was heard are mapped back.

use std::borrow::Cow;
use std::ops::Range;

use stonechat_audio::SpeechMap;
use stonechat_nn::Backend;

use crate::times::{samples, seconds};
use crate::transcription::{Listened, Transcription};
use crate::{Error, HOP_LENGTH, Options, Progress, Segment, Transcriber, Transcript, ranges};

impl<B: Backend> Transcriber<B> {
    /// Like [`segments`](Self::segments), for callers that may not block.
    ///
    /// # Errors
    /// If an option does not fit the model or the device fails.
    pub async fn segments_async<'a>(
        &'a mut self,
        samples: &'a [f32],
        options: &'a Options,
    ) -> Result<Transcription<'a, B>, Error> {
        options.validate()?;
        let speech = options.find_speech(samples, 1)?;
        self.segments_of(samples, speech, options).await
    }

    /// Transcribes 16 kHz mono samples of which [`Options::find_speech`] said what holds speech, for
    /// example while another recording was being transcribed; blocks until done.
    ///
    /// # Errors
    /// If the stretches are not ascending, an option does not fit the model or the device fails.
    pub fn transcribe_speech(
        &mut self,
        samples: &[f32],
        speech: Option<Vec<Range<usize>>>,
        options: &Options,
        on_progress: &mut (dyn FnMut(Progress<'_>) + Send),
    ) -> Result<Transcript, Error> {
        options.validate()?;
        pollster::block_on(async {
            self.segments_of(samples, speech, options).await?.run(on_progress).await
        })
    }

    /// Begins with the clips that were asked for, or with what holds speech, or with everything.
    async fn segments_of<'a>(
        &'a mut self,
        samples: &'a [f32],
        speech: Option<Vec<Range<usize>>>,
        options: &'a Options,
    ) -> Result<Transcription<'a, B>, Error> {
        let mut heard = Listened::all(samples);
        let mut ranges = options.clips(samples.len());
        if options.clip_timestamps.is_empty() {
            if let Some(speech) = speech {
                ranges::check(&speech, samples.len())?;
                let map = SpeechMap::new(speech, samples.len());
                heard.samples = Cow::Owned(map.collect(samples));
                heard.map = Some(map);
            }
            let n_samples = heard.samples.len();
            ranges.extend((n_samples > 0).then_some(0..n_samples));
        }
        if options.n_windows() > 1 {
            let n = ranges.len();
            let cut = |range| ranges::cut(&heard.samples, range, options.n_windows());
            ranges = ranges.into_iter().flat_map(cut).collect();
            heard.is_cut = ranges.len() > n;
        }
        Transcription::new(self, heard, ranges, options).await
    }
}

/// Moves a segment of what is kept to where it was said.
pub(crate) fn restore(map: &SpeechMap, segment: &mut Segment) {
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

#[cfg(test)]
mod tests {
    use stonechat_audio::SpeechMap;

    use super::restore;
    use crate::{Segment, Word};

    fn word(start: f64, end: f64) -> Word {
        Word { word: " a".to_owned(), start, end, probability: 0.5 }
    }

    #[test]
    fn times_are_those_of_the_recording() {
        // 2 s from second 10 on, then 3 s from second 20.5 on.
        let map = SpeechMap::new(vec![160_000..192_000, 328_000..376_000], 400_000);
        let times = |start: f64, end: f64, words: Option<Vec<Word>>| {
            let mut segment = Segment { start, end, words, seek: 200, ..Segment::default() };
            restore(&map, &mut segment);
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
}
