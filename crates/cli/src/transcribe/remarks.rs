//! Notes on a recording, printed beside its text.

use std::path::PathBuf;

use anyhow::ensure;
use stonechat::audio::{Channels, SourceInfo};
use stonechat::whisper::{Language, Segment, Transcript};

use super::Args;
use super::results::Task;
use crate::recognizer::MULTILINGUAL;

/// Mean log-probability below which the text of an English-only model is probably that of another language. With tiny.en, all
/// of 26 clips in other languages were below it, and of 40 English ones only those of one word.
const FOREIGN_LOGPROB: f64 = -0.8;
/// Fewest tokens for that judgement.
const FOREIGN_TOKENS: usize = 12;

/// Tells if a transcript has no text.
pub(super) fn is_silent(transcript: &Transcript) -> bool {
    !transcript.segments.iter().any(has_text)
}

/// Tells if a segment has text.
pub(super) fn has_text(segment: &Segment) -> bool {
    !segment.text.trim().is_empty()
}

/// A note if the text of an English-only model looks like another language's.
pub(super) fn foreign(transcript: &Transcript, model: &str) -> Option<String> {
    let segments = || transcript.segments.iter();
    let n_tokens: usize = segments().map(|segment| segment.tokens.len()).sum();
    let sum: f64 = segments().map(|s| s.avg_logprob * s.tokens.len() as f64).sum();
    let is_foreign = n_tokens >= FOREIGN_TOKENS && sum / (n_tokens as f64) < FOREIGN_LOGPROB;
    is_foreign.then(|| {
        format!("this may be another language: the model `{model}` is English-only; {MULTILINGUAL}")
    })
}

/// The note on a detected language.
pub(super) fn detected(language: Language, probability: f32) -> String {
    let percent = probability * 100.0;
    format!("detected language: {} ({}, {percent:.0}%)", language.name, language.code)
}

/// Notes on the signals of a recording: tracks, damage, and channels that it does not have.
pub(super) fn signals(args: &Args, n_signals: usize, source: &SourceInfo) -> Vec<String> {
    let mut notes = Vec::new();
    if args.verbose {
        notes.extend(origin(source));
    }
    notes.extend(damage(source));
    if args.files.channels == Channels::Each && n_signals == 1 {
        notes.push(
            "one channel: --channels split has no effect, no speaker is told apart".to_owned(),
        );
    }
    notes
}

/// Notes on the track that was decoded and on the program that decoded it.
fn origin(source: &SourceInfo) -> Vec<String> {
    let n_tracks = source.tracks.len();
    let tracks = source.tracks.join("; ");
    let track = (source.track > 0).then(|| {
        format!(
            "audio track {} of {n_tracks} ({tracks}); --audio-track N takes another",
            source.track
        )
    });
    let ffmpeg = source.is_through_ffmpeg.then(|| {
        let SourceInfo { container, codec, .. } = source;
        format!("decoded by the installed ffmpeg ({container}, {codec})")
    });
    track.into_iter().chain(ffmpeg).collect()
}

/// The note on sound that is missing.
pub(crate) fn damage(source: &SourceInfo) -> Option<String> {
    let SourceInfo { missing_s, is_cut, n_bad_packets, .. } = *source;
    let seconds = format!("{missing_s:.1} s");
    match (is_cut, missing_s >= 0.05) {
        (true, true) => Some(format!("the file was cut short or damaged, {seconds} are missing")),
        (true, false) => Some("the file was cut short, its end is missing".to_owned()),
        (false, true) => Some(format!("damaged: {seconds} are missing, silence in their place")),
        (false, false) => (n_bad_packets > 0)
            .then(|| format!("damaged: {n_bad_packets} packets could not be decoded")),
    }
}

/// Checks that clips lie within a recording of `duration_s`; returns notes about those that do not.
pub(super) fn clips(clips: &[f64], duration_s: f64) -> anyhow::Result<Vec<String>> {
    let starts: Vec<f64> = clips.iter().copied().step_by(2).collect();
    let outside: Vec<f64> =
        starts.iter().copied().filter(|&start| start > 0.0 && start >= duration_s).collect();
    ensure!(
        outside.is_empty() || outside.len() < starts.len(),
        "clip timestamps: expected a start within the recording of {duration_s:.1} s, got {} s",
        outside[0]
    );
    let note = |start: &f64| {
        format!("the clip at {start} s is left out, the recording has {duration_s:.1} s")
    };
    Ok(outside.iter().map(note).collect())
}

/// The note on a recording that was interrupted: how much of it was written where.
pub(super) fn stopped(transcript: &Transcript, written: &[PathBuf]) -> String {
    let end = transcript.segments.iter().map(|segment| segment.end).fold(0.0, f64::max);
    let paths: Vec<_> = written.iter().map(|path| format!("`{}`", path.display())).collect();
    format!("stopped, {} has the text of the first {end:.1} s", paths.join(", "))
}

/// The last note on a recording: what was written where, or that there was no speech.
pub(super) fn done(
    task: &Task,
    written: &[PathBuf],
    is_silent: bool,
    audio_s: f64,
    seconds: f64,
) -> Option<String> {
    if task.results.is_empty() && !is_silent {
        return None;
    }
    let paths = written.iter().map(|path| format!("`{}`", path.display()));
    let silence = is_silent.then(|| "no speech found".to_owned());
    let nothing = (is_silent && written.is_empty() && !task.results.is_empty())
        .then(|| "nothing written".to_owned());
    let time = format!("{audio_s:.1} s of audio in {seconds:.1} s");
    let parts: Vec<_> = silence.into_iter().chain(paths).chain(nothing).chain([time]).collect();
    Some(parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::clips;

    #[test]
    fn clips_lie_within_the_recording() {
        assert!(clips(&[], 11.0).unwrap().is_empty());
        assert!(clips(&[0.0], 0.0).unwrap().is_empty());
        assert!(clips(&[2.0, 20.0], 11.0).unwrap().is_empty());
        assert_eq!(clips(&[2.0, 3.0, 12.0, 13.0], 11.0).unwrap().len(), 1);
        let error = clips(&[100.0, 200.0], 11.0).unwrap_err().to_string();
        assert!(error.ends_with("within the recording of 11.0 s, got 100 s"), "{error}");
    }
}
