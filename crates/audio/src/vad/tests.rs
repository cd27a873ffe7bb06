use proptest::prelude::*;

use super::*;

const GOLDEN: &str = include_str!("../../../../test-data/golden/vad.json");

fn cases() -> Vec<(serde_json::Value, Vec<f32>)> {
    let golden: serde_json::Value = serde_json::from_str(GOLDEN).unwrap();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/audio/");
    let signal = |case: &serde_json::Value| {
        let mut samples = Vec::new();
        let gaps = case["gaps"].as_array().unwrap();
        for (name, gap) in case["audio"].as_array().unwrap().iter().zip(gaps) {
            let path = format!("{folder}{}", name.as_str().unwrap());
            samples.extend(crate::decode_file(path).unwrap().samples);
            samples.resize(samples.len() + gap.as_u64().unwrap() as usize, 0.0);
        }
        samples
    };
    golden["cases"].as_array().unwrap().iter().map(|case| (case.clone(), signal(case))).collect()
}

fn probabilities(case: &serde_json::Value) -> Vec<f32> {
    let values = case["probabilities"].as_array().unwrap();
    values.iter().map(|p| p.as_f64().unwrap() as f32).collect()
}

#[test]
fn probabilities_agree_with_onnxruntime() {
    let vad = Vad::new().unwrap();
    let mut worst = 0f32;
    for (case, samples) in cases() {
        assert_eq!(samples.len() as u64, case["n_samples"].as_u64().unwrap());
        let (got, want) = (vad.probabilities(&samples), probabilities(&case));
        assert_eq!(got.len(), want.len());
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            assert!((got - want).abs() <= 1e-3, "step {i}: {got}, expected {want}");
            worst = worst.max((got - want).abs());
        }
        assert!(want.iter().any(|p| *p > 0.9) && want.iter().any(|p| *p < 0.1));
    }
    println!("largest difference {worst:e}");
}

#[test]
fn threads_do_not_change_probabilities() {
    // More than a group of batches of one thread, with a part of a batch at the end.
    let samples: Vec<f32> =
        (0..1100 * STEP + 7).map(|i| (i as f32 * 0.01).sin() * ((i / 9000 % 3) as f32)).collect();
    let expected = Vad::new().unwrap().probabilities(&samples);
    assert_eq!(expected.len(), 1101);
    for n_threads in [2, 3, 9] {
        let got = Vad::with_threads(n_threads).unwrap().probabilities(&samples);
        assert_eq!(got, expected, "{n_threads} threads");
    }
}

#[test]
fn ranges_are_those_of_faster_whisper() {
    for (case, samples) in cases() {
        let got = Vad::new().unwrap().probabilities(&samples);
        for speech in case["speech"].as_array().unwrap() {
            let set = &speech["options"];
            let ms = |key: &str, default: u32| set[key].as_u64().map_or(default, |ms| ms as u32);
            let float = |key: &str| set[key].as_f64().map(|value| value as f32);
            let defaults = VadOptions::default();
            let options = VadOptions {
                threshold: float("threshold").unwrap_or(defaults.threshold),
                neg_threshold: float("neg_threshold"),
                min_speech_ms: ms("min_speech_duration_ms", defaults.min_speech_ms),
                max_speech_s: float("max_speech_duration_s"),
                min_silence_ms: ms("min_silence_duration_ms", defaults.min_silence_ms),
                speech_pad_ms: ms("speech_pad_ms", defaults.speech_pad_ms),
            };
            options.validate().unwrap();
            let expected: Vec<Range<usize>> = speech["ranges"]
                .as_array()
                .unwrap()
                .iter()
                .map(|r| r[0].as_u64().unwrap() as usize..r[1].as_u64().unwrap() as usize)
                .collect();
            assert_eq!(options.ranges(&got, samples.len()), expected, "{set}");
        }
    }
}

#[test]
fn silence_and_nothing_hold_no_speech() {
    let vad = Vad::new().unwrap();
    for n in [0, 1, 511, 512, 100_000] {
        let samples = vec![0.0; n];
        assert_eq!(vad.probabilities(&samples).len(), n / STEP + 1);
        assert_eq!(vad.detect(&samples, &VadOptions::default()).unwrap(), []);
    }
}

/// The network sees steps in batches; where they are cut must not show.
#[test]
fn long_recordings_are_the_same_as_short_ones() {
    let (_, speech) = cases().remove(0);
    let repeated: Vec<f32> = speech.iter().copied().cycle().take(400 * STEP).collect();
    let vad = Vad::new().unwrap();
    let whole = vad.probabilities(&repeated);
    let start = vad.probabilities(&repeated[..300 * STEP]);
    for (i, (a, b)) in whole.iter().zip(&start[..300]).enumerate() {
        assert!((a - b).abs() < 1e-5, "step {i}: {a} {b}");
    }
}

/// Streaming gives the segments of the whole, however the stream is cut.
#[test]
fn turns_are_the_ends_of_stretches() {
    for (case, samples) in cases() {
        let options = VadOptions { min_silence_ms: 300, speech_pad_ms: 0, ..VadOptions::default() };
        let ranges = options.ranges(&probabilities(&case), samples.len());
        assert!(!ranges.is_empty());
        for piece in [1000, STEP, 16_000] {
            let mut gate = SpeechGate::new(&options).unwrap();
            let mut turns: Vec<Turn> = Vec::new();
            for piece in samples.chunks(piece) {
                turns.extend(gate.push(piece));
            }
            let expected =
                ranges.iter().flat_map(|r| [Turn::Start(r.start as u64), Turn::End(r.end as u64)]);
            let mut expected: Vec<Turn> = expected.collect();
            // Speech that the recording ends in has no end in the stream.
            if expected.len() > turns.len() {
                assert!(gate.is_speech());
                expected.pop();
            }
            assert_eq!(turns, expected, "pieces of {piece}");
        }
    }
}

#[test]
fn options_outside_their_ranges_are_refused() {
    let refused = |options: VadOptions| options.validate().unwrap_err().to_string();
    let default = VadOptions::default();
    let message = refused(VadOptions { threshold: 1.5, ..default });
    assert_eq!(message, "vad threshold: expected 0 to 1, got 1.5");
    refused(VadOptions { neg_threshold: Some(f32::NAN), ..default });
    refused(VadOptions { speech_pad_ms: 3_600_001, ..default });
    refused(VadOptions { max_speech_s: Some(0.8), ..default });
    assert!(VadOptions { max_speech_s: Some(f32::INFINITY), ..default }.validate().is_ok());
}

/// Any options that are accepted.
fn any_options() -> impl Strategy<Value = VadOptions> {
    let ms = || prop_oneof![Just(0u32), 0..300u32, 0..3000u32];
    let max = prop::option::of(0.1f32..8.0);
    (0f32..=1.0, prop::option::of(0f32..=1.0), ms(), ms(), ms(), max).prop_map(
        |(threshold, neg_threshold, min_speech_ms, min_silence_ms, speech_pad_ms, max)| {
            VadOptions {
                threshold,
                neg_threshold,
                min_speech_ms,
                max_speech_s: max.map(|s| s + 2.0 * speech_pad_ms as f32 / 1000.0),
                min_silence_ms,
                speech_pad_ms,
            }
        },
    )
}

/// Gaps and lengths of segments, and samples after the last.
fn any_map() -> impl Strategy<Value = SpeechMap> {
    (prop::collection::vec((0..50usize, 1..60usize), 0..8), 0..50usize).prop_map(|(parts, rest)| {
        let mut end = 0;
        let mut ranges = Vec::new();
        for (gap, len) in parts {
            ranges.push(end + gap..end + gap + len);
            end += gap + len;
        }
        SpeechMap::new(ranges, end + rest)
    })
}

#[test]
fn a_split_at_the_start_of_a_segment_leaves_no_empty_one() {
    let options = VadOptions {
        threshold: 0.4,
        neg_threshold: Some(0.7),
        max_speech_s: Some(0.2),
        min_silence_ms: 129,
        speech_pad_ms: 0,
        ..VadOptions::default()
    };
    let mut steps = vec![0.0; 41];
    for at in [0, 7, 14, 21, 28, 39] {
        steps[at] = 1.0;
    }
    steps[34] = 0.5;
    let ranges = options.ranges(&steps, 40 * STEP);
    assert!(!ranges.is_empty() && ranges.iter().all(|range| !range.is_empty()), "{ranges:?}");
}

proptest! {
    #[test]
    fn ranges_are_ascending_disjoint_and_inside(
        options in any_options(),
        steps in prop::collection::vec(prop_oneof![0f32..=1.0, Just(0.0), Just(1.0)], 1..400),
        extra in 0..STEP,
    ) {
        let n_samples = (steps.len() - 1) * STEP + extra;
        prop_assert!(options.validate().is_ok());
        let ranges = options.ranges(&steps, n_samples);
        // Panics if they are not.
        let map = SpeechMap::new(ranges, n_samples);
        prop_assert!(map.n_kept() <= n_samples);
    }

    #[test]
    fn maps_are_monotonic_inside_and_invertible(map in any_map()) {
        let (mut last_start, mut last_end) = (0, 0);
        for kept in 0..=map.n_kept() {
            let (start, end) = (map.original_start(kept), map.original_end(kept));
            prop_assert!(last_start <= start && last_end <= end);
            prop_assert!(end <= start && start <= map.n_samples());
            if kept < map.n_kept() {
                prop_assert!(map.ranges().iter().any(|range| range.contains(&start)));
                prop_assert_eq!(map.kept(start), kept);
            }
            if kept > 0 {
                prop_assert_eq!(map.kept(end - 1), kept - 1);
            }
            (last_start, last_end) = (start, end);
        }
        for original in 0..=map.n_samples() {
            let kept = map.kept(original);
            prop_assert!(kept <= map.n_kept());
            if map.ranges().iter().any(|range| range.contains(&original)) {
                prop_assert_eq!(map.original_start(kept), original);
            }
        }
    }

    #[test]
    fn words_stay_in_one_stretch_and_in_order(
        map in any_map().prop_filter("speech", |map| map.n_kept() > 0),
        cuts in prop::collection::btree_set(0..400usize, 2..10),
    ) {
        let cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(map.n_kept())).collect();
        let mut last = 0;
        for pair in cuts.windows(2) {
            let word = map.original(pair[0]..pair[1]);
            prop_assert!(last <= word.start && word.start <= word.end);
            prop_assert!(map.ranges().iter().any(|r| r.start <= word.start && word.end <= r.end));
            last = word.end;
        }
    }

    #[test]
    fn what_is_kept_is_what_the_map_says(map in any_map()) {
        let samples: Vec<f32> = (0..map.n_samples()).map(|i| i as f32).collect();
        let kept = map.collect(&samples);
        prop_assert_eq!(kept.len(), map.n_kept());
        let mut retained = samples;
        map.retain(&mut retained);
        prop_assert_eq!(&retained, &kept);
        for (i, sample) in kept.into_iter().enumerate() {
            prop_assert_eq!(sample as usize, map.original_start(i));
        }
    }
}

/// After loud speech the network takes quiet speech for silence; a run that begins with it finds it.
#[test]
fn quiet_speech_after_loud_speech_is_found() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/audio/quick_brown_fox.wav");
    let spoken = crate::decode_file(path).unwrap().samples;
    let peak = spoken.iter().fold(0f32, |peak, sample| peak.max(sample.abs()));
    let at_level = |level: f32| spoken.iter().map(move |sample| sample * level / peak);
    let vad = Vad::new().unwrap();
    let options = VadOptions::default();
    let alone = vad.detect(&spoken, &options).unwrap();
    for level in [0.01, 0.004] {
        let mut samples: Vec<f32> = at_level(0.95).chain(at_level(0.95)).collect();
        let start = samples.len();
        samples.extend(at_level(level));
        samples.extend(at_level(level));
        let speech = vad.detect(&samples, &options).unwrap();
        let covered = |at: usize| speech.iter().any(|range| range.contains(&at));
        let quiet = alone.iter().flat_map(|range| range.clone().step_by(STEP));
        let n_missed = quiet.clone().filter(|at| !covered(start + at)).count();
        assert!(
            n_missed * 10 <= quiet.count(),
            "level {level}: {n_missed} steps missed, {speech:?}"
        );
        assert!(speech.windows(2).all(|pair| pair[0].end <= pair[1].start), "{speech:?}");
    }
}

/// Noise, hum, clicks and the room after speech are no speech when they are searched again.
#[test]
fn other_sound_after_speech_is_not_searched_into_speech() {
    let (_, speech) = cases().remove(0);
    let vad = Vad::new().unwrap();
    let options = VadOptions::default();
    let n = 20 * SAMPLE_RATE as usize;
    let mut seed = 1u32;
    let mut noise = |level: f32| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        level * ((seed >> 8) as f32 / (1 << 23) as f32 - 1.0)
    };
    for (name, sound) in [
        ("zeros", vec![0.0; n]),
        ("noise of -60 dB", (0..n).map(|_| noise(0.001_7)).collect()),
        ("noise of -40 dB", (0..n).map(|_| noise(0.017)).collect()),
        ("hum", (0..n).map(|i| 0.1 * (i as f32 * 0.0196).sin()).collect()),
        ("clicks", (0..n).map(|i| if i % 16_000 == 0 { 0.5 } else { 0.0 }).collect::<Vec<f32>>()),
    ] {
        let mut samples = speech.clone();
        samples.extend(&sound);
        samples.extend(&speech);
        let ranges = vad.detect(&samples, &options).unwrap();
        let middle =
            speech.len() + 3 * SAMPLE_RATE as usize..speech.len() + n - SAMPLE_RATE as usize;
        let is_outside = |r: &Range<usize>| r.end <= middle.start || middle.end <= r.start;
        assert!(ranges.iter().all(is_outside), "{name}: {ranges:?}");
    }
}
