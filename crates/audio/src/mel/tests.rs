use super::*;

const GOLDEN: &str = include_str!("../../../../test-data/golden/mel.json");
const FOX: &[u8] = include_bytes!("../../../../test-data/audio/quick_brown_fox.wav");

/// The same bits as `synthetic` in `test-data/golden/mel.py`.
fn synthetic(n: usize) -> Vec<f32> {
    let sample = |i: usize| {
        let hash = ((i as u64 * 2_654_435_761) % (1 << 32)) >> 16;
        let noise = (hash as f32 - 32768.0) / 32768.0;
        let square = if (i / 20).is_multiple_of(2) { 1.0 } else { -1.0 };
        noise * 0.125 + square * 0.25
    };
    (0..n).map(sample).collect()
}

fn scaled(samples: Vec<f32>, factor: f32) -> Vec<f32> {
    samples.into_iter().map(|x| x * factor).collect()
}

fn signal(name: &str) -> Vec<f32> {
    let fox = || crate::decode_bytes(FOX.to_vec()).unwrap().samples;
    match name {
        "fox" => fox(),
        "fox_quiet" => scaled(fox(), 2f32.powi(-10)),
        "synthetic" => synthetic(20_000),
        "synthetic_quiet" => scaled(synthetic(8001), 2f32.powi(-14)),
        "short" => synthetic(201),
        other => panic!("no signal called {other}"),
    }
}

#[test]
fn agrees_with_openai_whisper_within_1e_4() {
    let golden: serde_json::Value = serde_json::from_str(GOLDEN).unwrap();
    let mut worst = 0f64;
    let mut n_values = 0;
    for case in golden["cases"].as_array().unwrap() {
        let number = |key: &str| case[key].as_u64().unwrap() as usize;
        let name = case["signal"].as_str().unwrap();
        let mel = LogMel::new(number("n_mels")).compute(&signal(name), number("padding"));
        assert_eq!(mel.n_frames, number("n_frames"), "{name}");
        let mean = mel.data.iter().map(|&x| f64::from(x)).sum::<f64>() / mel.data.len() as f64;
        assert!((mean - case["mean"].as_f64().unwrap()).abs() < 1e-5, "{name}: mean {mean}");
        for frame in case["frames"].as_array().unwrap() {
            let got = mel.frame(frame["index"].as_u64().unwrap() as usize);
            let want = frame["values"].as_array().unwrap();
            assert_eq!(got.len(), want.len());
            for (&got, want) in got.iter().zip(want) {
                let error = (f64::from(got) - want.as_f64().unwrap()).abs();
                assert!(error <= 1e-4, "{name} frame {}: off by {error}", frame["index"]);
                worst = worst.max(error);
                n_values += 1;
            }
        }
    }
    println!("{n_values} values, largest difference {worst:e}");
}

#[test]
fn given_filters_equal_computed_ones() {
    let mut dense = vec![0.0; 80 * N_BINS];
    let bank = FilterBank::slaney(80);
    for bin in 0..N_BINS {
        let mut power = [0.0; N_BINS];
        power[bin] = 1.0;
        let mut mels = [0.0; 80];
        bank.apply(&power, &mut mels);
        for (band, weight) in mels.into_iter().enumerate() {
            dense[band * N_BINS + bin] = weight;
        }
    }
    let samples = synthetic(5000);
    let given = LogMel::with_filters(80, &dense).unwrap().compute(&samples, 0);
    assert_eq!(given, LogMel::new(80).compute(&samples, 0));
    assert!(LogMel::with_filters(80, &dense[1..]).is_err());
}

#[test]
fn any_length_gives_finite_frames_and_windows_are_padded_with_zeros() {
    for n in [0, 1, 2, 159, 160, 161, 200, 201, 399, 400, 401] {
        let mel = LogMel::new(80).compute(&synthetic(n), 160);
        assert_eq!((mel.n_frames, mel.data.len()), ((n + 160) / 160, (n + 160) / 160 * 80));
        assert!(mel.data.iter().all(|x| x.is_finite()));
        let window = mel.window(1, 4);
        assert_eq!(window.len(), 4 * 80);
        let n_real = mel.n_frames.saturating_sub(1).min(4) * 80;
        assert!(window[n_real..].iter().all(|&x| x == 0.0));
    }
}

#[test]
fn frames_of_a_kernel_and_of_the_host_make_one_spectrogram() {
    let log_mel = LogMel::new(80);
    for n in [0, 1, 150, 199, 200, 201, 400, 519, 520, 521, 679, 680, 1000, 100_003] {
        for padding in [0, 1, 160, 3000] {
            let samples = synthetic(n);
            let mut n_frames = 0;
            // The window of frame 2 starts at sample 120.
            let kernel = |windows: &[f32], out: &mut [f32]| {
                n_frames = out.len() / 80;
                assert_eq!(windows.len(), (n_frames - 1) * HOP + N_FFT);
                assert_eq!(windows, &samples[120..120 + windows.len()]);
                let signal = [&[0.0; 120], windows].concat();
                let mut chunk = MelChunk { first: 2, data: out, max: f32::NEG_INFINITY };
                log_mel.transform(&signal, 0, &mut chunk);
                Ok::<_, Error>(chunk.max)
            };
            let got = log_mel.compute_with(&samples, padding, kernel, |chunks, task| {
                chunks.iter_mut().for_each(task);
            });
            assert_eq!(got.unwrap(), log_mel.compute(&samples, padding), "{n} and {padding}");
            let ends = (0..(n + padding) / HOP).map(|frame| frame * HOP + N_FFT / 2);
            let inside = ends.filter(|&end| end >= N_FFT && end <= n).count();
            assert_eq!(n_frames, inside, "{n} and {padding}");
        }
    }
    let fail = |_: &[f32], _: &mut [f32]| Err("a fault");
    assert_eq!(log_mel.compute_with(&synthetic(1000), 0, fail, |_, _| ()), Err("a fault"));
}
