//! Timing table of `-v`.

use std::fmt::Write;
use std::time::{Duration, Instant};

use stonechat::whisper::Timings;

use crate::format_bytes;

/// Times outside of the engine.
#[derive(Debug)]
pub(super) struct Stages {
    started: Instant,
    /// Opening the device.
    pub(super) device: Duration,
    /// Loading the model.
    pub(super) load: Duration,
    /// Decoding, resampling and finding speech. The first recording is read while the device and the model are opened.
    pub(super) audio: Duration,
    /// Seconds of audio.
    pub(super) audio_s: f64,
}

impl Stages {
    /// Starts the clock.
    pub(super) fn start() -> Self {
        let zero = Duration::ZERO;
        Self { started: Instant::now(), device: zero, load: zero, audio: zero, audio_s: 0.0 }
    }

    /// Formats the table; `load` describes the device and its load statistics.
    pub(super) fn report(&self, engine: Timings, load: &str) -> String {
        let total = self.started.elapsed();
        let mut text = String::new();
        let mut line = |stage: &str, time: Duration, detail: String| {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{stage:8} {:9.3} s  {detail}", time.as_secs_f64());
        };
        line("device", self.device, String::new());
        line("load", self.load, load.to_owned());
        line("audio", self.audio, format!("{:.2} s of audio", self.audio_s));
        line("mel", engine.mel, String::new());
        line("encode", engine.encode, format!("{} windows", engine.windows));
        let speed = rate(engine.tokens as f64, engine.decode);
        let (tokens, fallbacks) = (engine.tokens, engine.fallbacks);
        line(
            "decode",
            engine.decode,
            format!("{tokens} tokens, {speed:.1}/s, {fallbacks} fallbacks"),
        );
        if !engine.align.is_zero() {
            line("align", engine.align, String::new());
        }
        let factor = if self.audio_s > 0.0 { total.as_secs_f64() / self.audio_s } else { 0.0 };
        line("total", total, format!("real-time factor {factor:.3}"));
        if let Some(bytes) = peak_memory_bytes() {
            let _ = writeln!(text, "{:8} {:>11}  peak", "memory", format_bytes(bytes));
        }
        text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
    }
}

fn rate(amount: f64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { amount / time.as_secs_f64() }
}

/// Peak resident memory of this process (Linux).
fn peak_memory_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}
