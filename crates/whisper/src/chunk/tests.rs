//! Windows and segments of one chunk.

use stonechat_audio::{LogMel, decode_file};

use super::*;
use crate::WINDOW_SAMPLES;

/// Earliest end of the text of a chunk, in seconds.
fn min_end(recording: &[f32], is_batched: bool) -> Option<f64> {
    let special = SpecialTokens::new(51865).unwrap();
    let mel = LogMel::new(80).compute(recording, WINDOW_SAMPLES);
    let mut chunk = Chunk::new(0..recording.len(), mel, is_batched);
    if is_batched {
        let (vad, options) = (Vad::new().unwrap(), VadOptions::default());
        chunk.speech_end = find_speech_end(recording, &vad, &options);
    }
    let token = chunk.min_end_timestamp(&special)?;
    Some(f64::from(token - special.timestamp_begin) * TIMESTAMP_SECONDS)
}

#[test]
fn the_text_of_a_batched_chunk_ends_with_its_speech() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/audio/quick_brown_fox.wav");
    let speech = decode_file(path).unwrap().samples;
    let length = speech.len() as f64 / SAMPLE_RATE as f64;
    let early = (MAX_EARLY_FRAMES * HOP_LENGTH) as f64 / SAMPLE_RATE as f64;
    let mut recording = vec![0.0; 3 * SAMPLE_RATE];
    recording.extend(speech);
    recording.extend(vec![0.0; 4 * SAMPLE_RATE]);
    let end = min_end(&recording, true).unwrap() + early - 3.0;
    assert!((length - 1.0..=length + 0.1).contains(&end), "{end} of {length}");
    assert_eq!(min_end(&recording, false), None, "a whole recording may end anywhere");
    assert_eq!(min_end(&recording[..3 * SAMPLE_RATE], true), None, "nobody speaks");
}

/// First sample of the chunks below, one second into the audio source.
const START: usize = SAMPLE_RATE;
/// First timestamp of the English vocabulary.
const BEGIN: u32 = 50363;
/// Tokens of the letters.
const A: u32 = 97;
const B: u32 = 98;
const C: u32 = 99;

fn special() -> SpecialTokens {
    SpecialTokens::new(51864).unwrap()
}

fn tone(n_frames: usize) -> Vec<f32> {
    (0..n_frames * HOP_LENGTH).map(|i| 0.1 * (0.2 * i as f32).sin()).collect()
}

/// A chunk of `n_frames` frames of a tone that starts at [`START`].
fn chunk(n_frames: usize, is_batched: bool) -> Chunk {
    let mel = LogMel::new(2).compute(&tone(n_frames), WINDOW_SAMPLES);
    Chunk::new(START..START + n_frames * HOP_LENGTH, mel, is_batched)
}

#[test]
fn windows_follow_each_other_to_the_end_of_the_chunk() {
    let mut chunk = chunk(3500, false);
    let n_samples = 3500 * HOP_LENGTH;
    assert_eq!(chunk.end(), START + n_samples);
    let window = |c: &Chunk| (c.window_start(), c.window_start_seconds(), c.window_frames());
    assert_eq!(window(&chunk), (START, 1.0, 3000));
    assert_eq!((chunk.remaining_frames(), chunk.done_samples(), chunk.is_done()), (3500, 0, false));
    chunk.skip_window();
    assert_eq!(window(&chunk), (START + WINDOW_SAMPLES, 31.0, 500));
    assert_eq!((chunk.remaining_frames(), chunk.done_samples()), (500, WINDOW_SAMPLES));
    assert!(!chunk.is_done());
    chunk.skip_window();
    assert!(chunk.is_done());
    assert_eq!(chunk.done_samples(), n_samples);
}

#[test]
fn a_short_window_is_padded_with_zeros_and_in_a_batch_with_silence() {
    let mel = LogMel::new(2).compute(&tone(500), WINDOW_SAMPLES);
    let padded = chunk(500, false).window_mel();
    assert_eq!(padded.len(), 2 * WINDOW_FRAMES);
    assert_eq!(padded[..1000], mel.data[..1000]);
    assert!(padded[1000..].iter().all(|&value| value == 0.0));
    let silence = chunk(500, true).window_mel();
    assert_eq!(silence, mel.data[..2 * WINDOW_FRAMES]);
    assert!(silence[1100..].iter().all(|&value| value != 0.0));
}

#[test]
fn windows_of_digital_silence_are_skipped() {
    // Sample of the chunk that is above the last bit of 16-bit audio, and the window that is decoded first.
    for (loud, expected) in [
        (Some(0), Some(0)),
        (Some(WINDOW_SAMPLES - 1), Some(0)),
        (Some(WINDOW_SAMPLES), Some(3000)),
        (Some(2 * WINDOW_SAMPLES - 1), Some(3000)),
        (Some(2 * WINDOW_SAMPLES + 500 * HOP_LENGTH - 1), Some(6000)),
        (None, None),
    ] {
        let mut chunk = chunk(6500, false);
        let mut audio = vec![0.5; START];
        audio.resize(chunk.end(), -1.0 / 32768.0);
        audio.resize(chunk.end() + START, 0.5);
        if let Some(sample) = loud {
            audio[START + sample] = -2.0 / 32768.0;
        }
        assert_eq!(chunk.skip_silence(&audio), expected.is_some(), "{loud:?}");
        assert_eq!(chunk.seek, expected.unwrap_or(6500), "{loud:?}");
    }
}

#[test]
fn the_last_window_ends_at_most_a_second_before_speech_does() {
    let end = |n_frames, n_windows, speech_end| {
        let mut chunk = chunk(n_frames, true);
        chunk.speech_end = speech_end;
        (0..n_windows).for_each(|_| chunk.skip_window());
        chunk.min_end_timestamp(&special()).map(|token| token - BEGIN)
    };
    assert_eq!(end(3500, 0, Some(3400)), None, "another window follows");
    assert_eq!(end(3500, 1, Some(3400)), Some(150));
    assert_eq!(end(3500, 1, None), None);
    assert_eq!(end(3000, 0, Some(2900)), Some(1400));
    assert_eq!(end(3000, 0, Some(50)), Some(0));
}

#[test]
fn speech_is_found_to_the_step() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/audio/quick_brown_fox.wav");
    let speech = decode_file(path).unwrap().samples;
    // The tail starts within the recording; the first samples are not of the chunk.
    let mut recording = vec![0.0; START + 9 * SAMPLE_RATE];
    recording.extend(speech);
    recording.extend(vec![0.0; 5 * SAMPLE_RATE]);
    let samples = &recording[START..];
    let mel = LogMel::new(2).compute(samples, WINDOW_SAMPLES);
    let (vad, options) = (Vad::new().unwrap(), VadOptions::default());
    let mut chunk = Chunk::new(START..recording.len(), mel, true);
    chunk.speech_end = find_speech_end(samples, &vad, &options);
    let first = samples.len() - 10 * SAMPLE_RATE;
    let probabilities = vad.probabilities(&samples[first..]);
    let last = (0..probabilities.len()).rfind(|&i| probabilities[i] >= options.threshold).unwrap();
    let steps_after = probabilities.len() - last;
    assert!(steps_after > 50, "silence follows the speech");
    assert_eq!(chunk.speech_end, Some((first + STEP + last * STEP) / HOP_LENGTH));
}

fn result(tokens: &[u32], finish: FinishReason) -> WindowResult {
    WindowResult {
        tokens: tokens.to_vec(),
        logprobs: vec![-0.5; tokens.len()],
        text: String::new(),
        temperature: 0.2,
        avg_logprob: -0.25,
        compression_ratio: 1.5,
        no_speech_prob: 0.125,
        finish,
    }
}

/// Start and end in steps of 20 ms from the start of the window, and tokens of each segment; frames to the next window;
/// whether speech may follow.
type Split = (Vec<(u32, u32, Vec<u32>)>, usize, bool);

fn split(chunk: &Chunk, tokens: &[u32], finish: FinishReason) -> Split {
    let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
    let tokenizer = Tokenizer::from_ranked(&bytes).unwrap();
    let new = chunk.split_segments(&result(tokens, finish), &special(), &tokenizer);
    let step = |time: f64| {
        let steps = (time - chunk.window_start_seconds()) / TIMESTAMP_SECONDS;
        assert!((steps - steps.round()).abs() < 1e-6, "{steps}");
        steps.round() as u32
    };
    let segment = |s: &Segment| (step(s.start), step(s.end), s.tokens.clone());
    for segment in &new.segments {
        let text: String =
            segment.tokens.iter().filter(|&&t| t < 256).map(|&t| t as u8 as char).collect();
        assert_eq!(segment.text, text);
        assert_eq!(segment.token_texts.concat(), text);
        assert_eq!(segment.token_probabilities, vec![(-0.5f64).exp(); segment.tokens.len()]);
        assert_eq!(segment.seek, chunk.window_start() / HOP_LENGTH);
        let figures = (segment.temperature, segment.avg_logprob, segment.compression_ratio);
        assert_eq!((figures, segment.no_speech_prob), ((0.2, -0.25, 1.5), 0.125));
    }
    (new.segments.iter().map(segment).collect(), new.advance, new.is_open)
}

/// Cases of openai/whisper's `transcribe.py`: consecutive timestamps, a single timestamp at the end, none.
#[test]
fn segments_end_at_pairs_of_timestamps() {
    let [t0, t120, t150, t250] = [0, 120, 150, 250].map(|steps| BEGIN + steps);
    let two = vec![(0, 120, vec![t0, A, t120]), (150, 250, vec![t150, B, C, t250])];
    let first = two[..1].to_vec();
    // One window of 30 s, and the last 5 s of a chunk.
    for (n_frames, n_windows, window) in [(3000, 0, 3000), (3500, 1, 500)] {
        let mut chunk = chunk(n_frames, false);
        (0..n_windows).for_each(|_| chunk.skip_window());
        let length = window as u32 / 2;
        for (tokens, expected) in [
            (&[t0, A, t120, t150, B, C, t250, t250, A][..], (two.clone(), 500, true)),
            (&[t0, A, t120, t150, B, C, t250, t250], (two.clone(), 500, true)),
            (&[t0, A, t120, t150, B, C, t250], (two.clone(), window, false)),
            // The pair of the advance is 120 and 150: the window starts at the end of the segment.
            (&[t0, A, t120, t150, B, C], (first.clone(), 240, true)),
            (&[t0, A, B], (vec![(0, length, vec![t0, A, B])], window, true)),
            (&[t0, A, B, t120], (vec![(0, 120, vec![t0, A, B, t120])], window, false)),
            (&[t120, A, B, t150], (vec![(0, 150, vec![t120, A, B, t150])], window, false)),
            (&[A, B], (vec![(0, length, vec![A, B])], window, true)),
            (&[A], (vec![(0, length, vec![A])], window, true)),
            (&[t0], (vec![(0, length, vec![t0])], window, true)),
            (&[], (vec![(0, length, vec![])], window, true)),
            // No time has passed: the window still moves.
            (&[t0, t0, A], (vec![(0, 0, vec![t0])], 2, true)),
        ] {
            for finish in [FinishReason::Eot, FinishReason::Limit] {
                assert_eq!(split(&chunk, tokens, finish), expected, "{tokens:?} of {n_frames}");
            }
        }
    }
}

#[test]
fn the_rest_of_the_last_window_of_a_batched_chunk_is_a_segment() {
    let [t0, t120, t150] = [0, 120, 150].map(|steps| BEGIN + steps);
    let mut chunk = chunk(500, true);
    chunk.speech_end = Some(400);
    let open = [t0, A, t120, t150, B, C];
    let first = (0, 120, vec![t0, A, t120]);
    let rest = (150, 250, vec![t150, B, C]);
    let all = (vec![first.clone(), rest], 500, true);
    assert_eq!(split(&chunk, &open, FinishReason::Eot), all);
    // The text was cut short: another window follows.
    let cut = (vec![first.clone()], 240, true);
    assert_eq!(split(&chunk, &open, FinishReason::Limit), cut);
    // No text follows the last pair.
    let ended = (vec![first], 500, true);
    assert_eq!(split(&chunk, &open[..4], FinishReason::Eot), ended);
}

#[test]
fn empty_segments_are_dropped_and_times_end_with_the_chunk() {
    let mut chunk = chunk(500, false);
    let segment = |start, end, text: &str| {
        let text = text.to_owned();
        Segment { id: 9, start, end, text, ..Segment::default() }
    };
    let segments = vec![
        segment(1.0, 2.0, " a"),
        segment(2.0, 3.0, " "),
        segment(3.0, 3.0, " b"),
        segment(4.0, 3.5, " c"),
        segment(3.004, 3.0051, " d"),
        segment(5.5, 9.0, " e"),
        segment(6.5, 9.0, " f"),
    ];
    chunk.push_segments(WindowSegments { segments, advance: 300, is_open: true });
    assert_eq!(chunk.seek, 300);
    let kept = |s: &Segment| (s.id, s.start, s.end, s.text.trim().to_owned());
    let expected =
        [(0, 1.0, 2.0, "a"), (1, 3.0, 3.01, "d"), (2, 5.5, 6.0, "e"), (3, 6.0, 6.0, "f")];
    let expected = expected.map(|(id, start, end, text)| (id, start, end, text.to_owned()));
    assert_eq!(chunk.segments.iter().map(kept).collect::<Vec<_>>(), expected);
    let segments = vec![segment(1.0, 2.0, " g")];
    chunk.push_segments(WindowSegments { segments, advance: 7, is_open: true });
    assert_eq!((chunk.seek, chunk.segments[4].id), (307, 4));
}

#[test]
fn an_open_window_ends_with_its_last_word() {
    let advance = |end, is_open, offset| {
        let segments = vec![Segment { end, ..Segment::default() }];
        let mut window = WindowSegments { segments, advance: 3000, is_open };
        window.advance_to_last_word(offset);
        window.advance
    };
    assert_eq!(advance(7.5, true, 2.0), 550);
    assert_eq!(advance(2.001, true, 2.0), 1);
    assert_eq!(advance(7.5, false, 2.0), 3000);
    assert_eq!(advance(2.0, true, 2.0), 3000);
    assert_eq!(advance(1.5, true, 2.0), 3000);
}

#[test]
fn only_the_samples_of_the_window_decide_on_silence() {
    const QUIET: f32 = 1.0 / 32768.0;
    // Frames 0 to 2 are loud, 3 and 4 are quiet, 5 is loud.
    let mut samples = vec![QUIET; 6 * HOP_LENGTH];
    samples[..3 * HOP_LENGTH].fill(0.1);
    samples[5 * HOP_LENGTH] = -0.1;
    let is_silent = |seek, n| is_digital_silence(&samples, seek, n);
    assert!(is_silent(3, 2) && is_silent(3, 1) && is_silent(4, 1));
    assert!(!is_silent(3, 3) && !is_silent(2, 2) && !is_silent(0, 6));
    // A window that begins at or after the end.
    assert!(is_silent(6, 3) && is_silent(9, 3));
}

/// A chunk of 60 s of speech with a pause at 16 to 17 s, and its samples.
fn spoken_chunk() -> (Chunk, Vec<f32>) {
    let mut samples = vec![0.0; START];
    samples.extend(tone(6000));
    samples[START + 16 * SAMPLE_RATE..START + 17 * SAMPLE_RATE].fill(0.0);
    let mut chunk = chunk(6000, false);
    chunk.is_speech = true;
    (chunk, samples)
}

fn speech(samples: &[f32]) -> Vec<bool> {
    vec![true; samples.len().div_ceil(STEP)]
}

/// Segments of a window that starts at `offset` seconds, as their ends and bytes of text.
fn segments(offset: f64, spans: &[(f64, usize)], advance: usize) -> WindowSegments {
    let mut start = offset;
    let segment = |&(end, n_bytes): &(f64, usize)| {
        let text = "a".repeat(n_bytes);
        let segment = Segment { start, end: offset + end, text, ..Segment::default() };
        start = offset + end;
        segment
    };
    WindowSegments { segments: spans.iter().map(segment).collect(), advance, is_open: false }
}

#[test]
fn a_window_starts_again_where_its_text_leaves_speech_out() {
    for (spans, advance, n_kept, expected) in [
        // Enough text, a slow speaker, short gaps.
        (&[(10.0, 140), (30.0, 280)][..], 3000, 2, 3000),
        (&[(10.0, 100), (30.0, 210)], 3000, 2, 3000),
        (&[(10.0, 140), (28.1, 280)], 3000, 2, 3000),
        (&[(10.0, 140), (12.0, 2), (30.0, 200)], 3000, 3, 3000),
        // An open window: what follows is that of the next.
        (&[(10.0, 140)], 1000, 1, 1000),
        // The model ended after a sentence.
        (&[(10.0, 140)], 3000, 1, 1000),
        // A few words all of the time, then a segment that was made up or not.
        (&[(10.0, 140), (30.0, 20)], 3000, 1, 1000),
        (&[(10.0, 140), (25.0, 20), (30.0, 60)], 3000, 1, 1000),
    ] {
        let (mut chunk, samples) = spoken_chunk();
        let new =
            chunk.split_at_missed_speech(segments(1.0, spans, advance), &samples, speech).unwrap();
        assert_eq!((new.segments.len(), new.advance), (n_kept, expected), "{spans:?}");
        let mut whole = self::chunk(6000, false);
        let new =
            whole.split_at_missed_speech(segments(1.0, spans, advance), &samples, speech).unwrap();
        assert_eq!((new.segments.len(), new.advance), (spans.len(), advance), "not only speech");
    }
}

#[test]
fn time_without_speech_needs_no_text() {
    // Speech in the first half of the window.
    let half = |samples: &[f32]| {
        let n_steps = samples.len().div_ceil(STEP);
        (0..n_steps).map(|step| 2 * step < n_steps).collect()
    };
    for (spans, digits, n_kept) in [
        (&[(14.0, 140)][..], "", 1),
        (&[(30.0, 150)], "", 1),
        (&[(5.0, 70), (30.0, 20)], "", 1),
        (&[(5.0, 70), (30.0, 100)], "", 2),
        (&[(5.0, 70), (30.0, 0)], "555 123 4567 890 12345", 2),
    ] {
        let (mut chunk, samples) = spoken_chunk();
        let mut new = segments(1.0, spans, 3000);
        new.segments.last_mut().unwrap().text += digits;
        let new = chunk.split_at_missed_speech(new, &samples, half).unwrap();
        assert_eq!(new.segments.len(), n_kept, "{spans:?} {digits}");
    }
}

#[test]
fn a_window_of_too_little_text_is_cut_in_a_pause() {
    let (mut chunk, samples) = spoken_chunk();
    assert!(
        chunk
            .split_at_missed_speech(segments(1.0, &[(30.0, 20)], 3000), &samples, speech)
            .is_none()
    );
    let cut = chunk.window_frames();
    assert!((1600..1700).contains(&cut), "{cut}");
    assert!(chunk.window_mel()[2 * cut..].iter().all(|&value| value == 0.0));
    assert_eq!(chunk.min_end_timestamp(&special()), None);
    // The text of the first part is complete; the second starts there and is as long as a window may be.
    let new =
        chunk.split_at_missed_speech(segments(1.0, &[(16.0, 200)], cut), &samples, speech).unwrap();
    chunk.push_segments(new);
    assert_eq!((chunk.seek, chunk.window_frames()), (cut, 3000));
    // Parts are cut again until they are short, and then end.
    let mut n_cuts = 0;
    while chunk
        .split_at_missed_speech(segments(0.0, &[], chunk.window_frames()), &samples, speech)
        .is_none()
    {
        n_cuts += 1;
    }
    assert!((2..5).contains(&n_cuts) && chunk.window_frames() < 800, "{n_cuts}");
}

#[test]
fn punctuation_alone_is_no_text() {
    for (text, expected) in [
        (" . . . . . . . . .", true),
        (" ...", true),
        ("。、", true),
        (" -", true),
        ("", true),
        (" No.", false),
        (" ♪", false),
        (" 5", false),
        ("はい。", false),
    ] {
        assert_eq!(has_no_word(text), expected, "{text}");
    }
}

#[test]
fn split_characters_belong_to_the_token_that_completes_them() {
    let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
    let tokenizer = Tokenizer::from_ranked(&bytes).unwrap();
    let texts = |bytes: &[u8]| {
        let tokens: Vec<u32> = bytes.iter().map(|&byte| byte.into()).collect();
        token_texts(&tokens, &tokenizer)
    };
    let text = "aö謝🦜b";
    let split = texts(text.as_bytes());
    assert_eq!(split, ["a", "", "ö", "", "", "謝", "", "", "", "🦜", "b"]);
    assert_eq!(split.concat(), text);
    // A character that no token completes stays a mark of that.
    assert_eq!(texts(&"謝".as_bytes()[..2]), ["", "\u{fffd}"]);
    assert_eq!(texts(&[]), [""; 0]);
}

#[test]
fn the_last_word_ends_a_window_without_timestamps() {
    let seeks = |n_frames, is_batched, without_timestamps, word_timestamps| {
        let options = Options { without_timestamps, word_timestamps, ..Options::default() };
        chunk(n_frames, is_batched).seeks_last_word(&options)
    };
    assert!(seeks(3001, false, true, false) && seeks(2000, true, true, false));
    assert!(!seeks(3000, false, true, false), "one window is all of the text");
    assert!(!seeks(6000, false, false, false) && !seeks(6000, false, true, true));
    let mut new = segments(1.0, &[(30.0, 70)], 3000);
    new.end_at(1.0, 12.5);
    assert_eq!((new.advance, new.segments[0].end), (1250, 13.5));
    new.end_at(1.0, 40.0);
    assert_eq!(new.advance, 1250, "never later");
}

#[test]
fn windows_without_timestamps_end_in_pauses() {
    let mut samples = vec![0.0; START];
    samples.extend(tone(6000));
    for pause in [19, 42] {
        samples[START + pause * SAMPLE_RATE..START + (pause + 1) * SAMPLE_RATE].fill(0.0);
    }
    let mut chunk = chunk(6000, false).with_windows_cut(true, &samples);
    let mut windows = Vec::new();
    while !chunk.is_done() {
        let n_frames = chunk.window_frames();
        assert!(chunk.window_mel()[2 * n_frames..].iter().all(|&value| value == 0.0));
        windows.push((chunk.seek, n_frames));
        chunk.skip_window();
    }
    let [(0, first), (second_start, second), (third_start, third)] = windows[..] else {
        panic!("{windows:?}")
    };
    assert!((1900..2000).contains(&first) && (4200..4300).contains(&third_start), "{windows:?}");
    assert_eq!(
        (first, second_start + second, third_start + third),
        (second_start, third_start, 6000)
    );
    // Windows of digital silence are passed over, too.
    let silence = vec![0.0; START + 6000 * HOP_LENGTH];
    let mut silent = self::chunk(6000, false).with_windows_cut(true, &silence);
    assert!(silent.window_frames() < 3000 && !silent.skip_silence(&silence) && silent.is_done());
    let whole = self::chunk(6000, false).with_windows_cut(false, &samples);
    assert_eq!(whole.window_frames(), 3000);
}
