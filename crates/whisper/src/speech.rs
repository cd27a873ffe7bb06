//! Listening to speech only. Windows side by side are cut from the stretches of it; else what is kept
//! of a recording is transcribed as if it were all, and the times of what was heard are mapped back.

use std::ops::Range;

use stonechat_audio::SpeechMap;
use stonechat_nn::Backend;

use crate::times::{samples, seconds};
use crate::{Error, HOP_LENGTH, Options, Progress, Segment, Transcriber, Transcript};

impl<B: Backend> Transcriber<B> {
    /// Transcribes 16 kHz mono samples.
    ///
    /// # Errors
    /// If an option does not fit the model or the device fails.
    pub async fn transcribe_async(
        &mut self,
        samples: &[f32],
        options: &Options,
        on_progress: &mut (dyn FnMut(Progress<'_>) + Send),
    ) -> Result<Transcript, Error> {
        options.validate()?;
        let speech = options.find_speech(samples)?;
        self.transcribe_speech_async(samples, speech, options, on_progress).await
    }

    /// Transcribes 16 kHz mono samples of which [`Options::find_speech`] said what holds speech, for
    /// example while another recording was being transcribed.
    ///
    /// # Errors
    /// If the stretches are not ascending, an option does not fit the model or the device fails.
    pub async fn transcribe_speech_async(
        &mut self,
        samples: &[f32],
        speech: Option<Vec<Range<usize>>>,
        options: &Options,
        on_progress: &mut (dyn FnMut(Progress<'_>) + Send),
    ) -> Result<Transcript, Error> {
        options.validate()?;
        if !options.clip_timestamps.is_empty() {
            let clips = options.clips(samples.len());
            return self.transcribe_tracks(samples, clips, options, on_progress).await;
        }
        let Some(ranges) = speech else {
            return self.transcribe_all(samples, options, on_progress).await;
        };
        if options.batch_size.is_some() {
            return self.transcribe_ranges_async(samples, &ranges, options, on_progress).await;
        }
        let map = SpeechMap::new(ranges, samples.len());
        let mut on_kept = |news: Progress<'_>| match news {
            Progress::Segment(segment) => {
                let mut segment = segment.clone();
                restore(&map, &mut segment);
                on_progress(Progress::Segment(&segment));
            }
            Progress::Position(done, _) => {
                on_progress(Progress::Position(map.original_end(done), samples.len()));
            }
            Progress::Language(..) => on_progress(news),
        };
        let kept = map.collect(samples);
        let mut transcript = self.transcribe_all(&kept, options, &mut on_kept).await?;
        transcript.segments.iter_mut().for_each(|segment| restore(&map, segment));
        if !transcript.cancelled {
            on_progress(Progress::Position(samples.len(), samples.len()));
        }
        Ok(transcript)
    }

    /// Like [`transcribe_speech_async`](Self::transcribe_speech_async); blocks until done.
    ///
    /// # Errors
    /// As there.
    pub fn transcribe_speech(
        &mut self,
        samples: &[f32],
        speech: Option<Vec<Range<usize>>>,
        options: &Options,
        on_progress: &mut (dyn FnMut(Progress<'_>) + Send),
    ) -> Result<Transcript, Error> {
        pollster::block_on(self.transcribe_speech_async(samples, speech, options, on_progress))
    }
}

/// Moves a segment of what is kept to where it was said.
fn restore(map: &SpeechMap, segment: &mut Segment) {
    segment.seek = map.original_start(segment.seek * HOP_LENGTH) / HOP_LENGTH;
    segment.start = seconds(map.original_start(samples(segment.start)));
    segment.end = seconds(map.original_end(samples(segment.end)));
    let Some(words) = &mut segment.words else { return };
    for word in words.iter_mut() {
        let range = map.original(samples(word.start)..samples(word.end));
        (word.start, word.end) = (seconds(range.start), seconds(range.end));
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
