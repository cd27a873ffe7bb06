//! Load statistics as text.

use stonechat::nn::LoadStats;

use super::format_bytes;

/// Bytes and seconds of repacking, copying and memory mapping, and the kernels compiled.
fn stats_text(stats: LoadStats) -> String {
    let took = |bytes, what: &str, time: std::time::Duration| {
        let text = || format!("{} {what} in {:.3} s", format_bytes(bytes), time.as_secs_f64());
        (bytes > 0).then(text)
    };
    let parts = [
        took(stats.repacked_bytes, "repacked", stats.repack_time),
        took(stats.copied_bytes, "copied", stats.copy_time),
        (stats.mapped_bytes > 0)
            .then(|| format!("{} memory-mapped", format_bytes(stats.mapped_bytes))),
        (stats.compiled_kernels > 0).then(|| {
            let seconds = stats.compile_time.as_secs_f64();
            format!("{} kernels compiled in {seconds:.3} s", stats.compiled_kernels)
        }),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Appends `separator` and the statistics to `text`, unless the device counts none.
pub(super) fn with_load_stats(text: &str, separator: &str, stats: LoadStats) -> String {
    let stats = stats_text(stats);
    if stats.is_empty() { text.to_owned() } else { format!("{text}{separator}{stats}") }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use stonechat::nn::LoadStats;

    #[test]
    fn only_what_happened_is_reported() {
        let stats = LoadStats {
            repacked_bytes: 12_300_000,
            repack_time: Duration::from_millis(45),
            mapped_bytes: 700,
            ..LoadStats::default()
        };
        assert_eq!(super::stats_text(stats), "12.3 MB repacked in 0.045 s, 700 B memory-mapped");
        let compile_time = Duration::from_millis(210);
        let stats = LoadStats { compiled_kernels: 31, compile_time, ..LoadStats::default() };
        assert_eq!(super::stats_text(stats), "31 kernels compiled in 0.210 s");
        assert_eq!(super::with_load_stats("load", ": ", LoadStats::default()), "load");
    }
}
