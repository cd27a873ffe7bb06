//! Host work outside the ops of devices: spectrograms, resampling, an empty parallel loop.

use std::hint::black_box;

use stonechat_audio::LogMel;
use stonechat_benches::protocol::Unit;

use super::{Case, Repeated, made_up};

/// Seconds of audio: one window.
const SECONDS: usize = 30;

pub(super) fn cases() -> Vec<Case> {
    vec![log_mel(80), log_mel(128), resample(44_100), resample(48_000), region()]
}

fn log_mel(n_mels: usize) -> Case {
    Case {
        name: format!("log-mel {n_mels} bands {SECONDS} s"),
        quick: n_mels == 80,
        open: Box::new(move |_| {
            let samples = made_up(SECONDS * stonechat_audio::SAMPLE_RATE as usize);
            let log_mel = LogMel::new(n_mels);
            let run = move || {
                black_box(log_mel.compute(&samples, 0));
            };
            Ok(Repeated::new((SECONDS as f64, Unit::AudioSeconds), run))
        }),
    }
}

fn resample(rate: u32) -> Case {
    Case {
        name: format!("resample {rate} Hz {SECONDS} s"),
        quick: rate == 44_100,
        open: Box::new(move |_| {
            let samples = made_up(SECONDS * rate as usize);
            let run = move || {
                black_box(stonechat_audio::resample(&samples, rate).map(|out| out.len()).ok());
            };
            Ok(Repeated::new((SECONDS as f64, Unit::AudioSeconds), run))
        }),
    }
}

/// A parallel loop that does nothing.
fn region() -> Case {
    Case {
        name: "parallel loop".to_owned(),
        quick: true,
        open: Box::new(move |cpu| {
            let team = cpu.device().threads.clone();
            let n_tasks = team.n_threads();
            let run = move || {
                team.run(n_tasks, |i| {
                    black_box(i);
                });
            };
            Ok(Repeated::new((1.0, Unit::Calls), run))
        }),
    }
}
