use super::*;

fn sine(hz: f64, rate: u32, n: usize) -> Vec<f32> {
    let step = std::f64::consts::TAU * hz / f64::from(rate);
    (0..n).map(|i| (i as f64 * step).sin() as f32).collect()
}

const RATES: [u32; 10] =
    [8000, 11_025, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000, 192_000, ODD_RATE];

/// Shares no factor with 16 kHz, so that one transform spans seconds; rubato designs that long
/// filter in f32. Measured: -80.5 dB at 7.5 kHz, where the other rates have -109 dB or better.
const ODD_RATE: u32 = 37_123;

#[test]
fn sines_keep_phase_and_amplitude_at_every_rate() {
    for rate in RATES {
        let top = f64::from(rate.min(SAMPLE_RATE)) / 2.0;
        for hz in [100.0, 0.3 * top, 0.9375 * top] {
            let n = rate as usize;
            let got = resample(&sine(hz, rate, n), rate).unwrap();
            let want = sine(hz, SAMPLE_RATE, SAMPLE_RATE as usize);
            assert_eq!(got.len(), want.len(), "{rate}");
            let middle = 2000..14_000;
            let error: f64 =
                middle.clone().map(|i| f64::from(got[i] - want[i]).powi(2)).sum::<f64>()
                    / middle.len() as f64;
            let db = 10.0 * (error / 0.5).log10();
            println!("{hz} Hz from {rate}: {db:.1} dB");
            let bound = if rate == ODD_RATE { -75.0 } else { -100.0 };
            assert!(db <= bound, "{hz} Hz from {rate}: {db} dB");
        }
    }
}

#[test]
fn what_lies_above_8_khz_does_not_come_back() {
    for rate in [24_000, 44_100, 48_000, 96_000] {
        for hz in [8800.0, 10_000.0, 11_500.0] {
            let got = resample(&sine(hz, rate, rate as usize), rate).unwrap();
            let power: f64 =
                got[2000..14_000].iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / 12_000.0;
            let db = 10.0 * (power / 0.5 + 1e-30).log10();
            println!("{hz} Hz from {rate}: {db:.1} dB");
            assert!(db <= -70.0, "{hz} Hz from {rate}: {db} dB");
        }
    }
}

#[test]
fn an_impulse_stays_where_it_is() {
    for rate in RATES {
        let mut samples = vec![0.0; rate as usize];
        samples[rate as usize / 2] = 1.0;
        let got = resample(&samples, rate).unwrap();
        let peak = (0..got.len()).max_by(|&a, &b| got[a].total_cmp(&got[b])).unwrap();
        assert!(peak.abs_diff(8000) <= 1, "{rate}: {peak}");
    }
}

#[test]
fn length_is_rounded_and_pushes_do_not_matter() {
    for rate in [8000, 44_100, 48_000, 37_123] {
        for n in [0usize, 1, 2, 3, 1000, 20_011] {
            let samples = sine(440.0, rate, n);
            let whole = resample(&samples, rate).unwrap();
            let want = (n as f64 * 16_000.0 / f64::from(rate)).round() as usize;
            assert_eq!(whole.len(), want, "{n} at {rate}");
            let mut resampler = Resampler::new(rate).unwrap();
            let mut pieces = Vec::new();
            for piece in samples.chunks(577) {
                resampler.push(piece, &mut pieces);
            }
            resampler.finish(&mut pieces);
            assert_eq!(pieces, whole);
        }
    }
    assert!(Resampler::new(0).is_err());
    assert!(Resampler::new(u32::MAX).is_err());
}
