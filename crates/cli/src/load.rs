//! How weights are loaded, for every verb that runs a model, and what that took.

use clap::ValueEnum;
use stonechat::nn::{Cpu, Error, LoadStats, Repack};

use super::megabytes;

/// Flags of every verb that runs a model.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct LoadArgs {
    /// Whether to rearrange quantized weights for speed; off starts at once, from the file's memory map
    #[arg(long, value_enum, default_value_t = RepackName::On)]
    repack: RepackName,
}

/// Values of `--repack`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RepackName {
    On,
    Off,
}

impl LoadArgs {
    /// A device that loads as asked.
    pub(super) fn cpu(self, n_threads: usize) -> Result<Cpu, Error> {
        Ok(Cpu::new(n_threads)?.with_repack(match self.repack {
            RepackName::On => Repack::On,
            RepackName::Off => Repack::Off,
        }))
    }
}

/// What became of the weights, which kernels they needed and how long that took.
fn cost_text(cost: LoadStats) -> String {
    let took = |bytes, what: &str, time: std::time::Duration| {
        let text = || format!("{} {what} in {:.3} s", megabytes(bytes), time.as_secs_f64());
        (bytes > 0).then(text)
    };
    let parts = [
        took(cost.repacked_bytes, "rearranged", cost.repack_time),
        took(cost.copied_bytes, "copied", cost.copy_time),
        (cost.mapped_bytes > 0).then(|| format!("{} used in place", megabytes(cost.mapped_bytes))),
        (cost.compiled_kernels > 0).then(|| {
            let seconds = cost.compile_time.as_secs_f64();
            format!("{} kernels compiled in {seconds:.3} s", cost.compiled_kernels)
        }),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// `text`, and after `separator` what loading cost, if the device counts that.
pub(super) fn with_cost(text: &str, separator: &str, cost: LoadStats) -> String {
    let cost = cost_text(cost);
    if cost.is_empty() { text.to_owned() } else { format!("{text}{separator}{cost}") }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use stonechat::nn::LoadStats;

    #[test]
    fn only_what_happened_is_told() {
        let cost = LoadStats {
            repacked_bytes: 12_300_000,
            repack_time: Duration::from_millis(45),
            mapped_bytes: 700,
            ..LoadStats::default()
        };
        assert_eq!(super::cost_text(cost), "12.3 MB rearranged in 0.045 s, 0.7 kB used in place");
        let compile_time = Duration::from_millis(210);
        let cost = LoadStats { compiled_kernels: 31, compile_time, ..LoadStats::default() };
        assert_eq!(super::cost_text(cost), "31 kernels compiled in 0.210 s");
        assert_eq!(super::with_cost("load", ": ", LoadStats::default()), "load");
    }
}
