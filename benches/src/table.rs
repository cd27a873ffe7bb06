//! Reports as aligned text.

use comfy_table::{CellAlignment, Table, presets};

use crate::comparison::{Change, Verdict};
use crate::protocol::{PeakKind, Unit};
use crate::report::{Peak, Row};

/// A table without lines: the first `n_left` columns to the left, the others to the right.
#[must_use]
pub fn aligned(rows: &[Vec<String>], n_left: usize) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).add_rows(rows);
    for (i, column) in table.column_iter_mut().enumerate() {
        let side = if i < n_left { CellAlignment::Left } else { CellAlignment::Right };
        column.set_padding((0, 2)).set_cell_alignment(side);
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

fn owned(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|&cell| cell.to_owned()).collect()
}

/// Table of the machine's peaks.
#[must_use]
pub fn peaks(peaks: &[Peak]) -> String {
    let mut rows = vec![owned(&["peak", "kernel", "threads", "at most"])];
    for Peak { threads, kind, per_second, kernel } in peaks {
        let (name, unit) = match kind {
            PeakKind::Read => ("read", Unit::Bytes),
            PeakKind::F32 => ("f32", Unit::Flops),
            PeakKind::Int8 => ("int8", Unit::IntOps),
        };
        rows.push(vec![
            name.to_owned(),
            kernel.clone(),
            threads.to_string(),
            rate(*per_second, unit),
        ]);
    }
    aligned(&rows, 2)
}

/// The rows of one job, engines of a stage below each other. `~` marks what varied by more than 5 %. The last
/// column is how much faster `stonechat` was.
#[must_use]
pub fn job(rows: &[Row]) -> String {
    let has_kernels = rows.iter().any(|row| row.kernel.is_some());
    let several = rows.iter().any(|row| row.engine != rows[0].engine);
    let mut head = owned(&["stage", if has_kernels { "kernel" } else { "engine" }]);
    head.extend(owned(&["p50", "rate", "peak", "p95", "p99", "mean", "CoV", "n", "outliers"]));
    if several {
        head.push("stonechat".to_owned());
    }
    let mut lines = vec![head];
    let mut stages: Vec<&str> = Vec::new();
    for row in rows {
        if !stages.contains(&row.stage.as_str()) {
            stages.push(&row.stage);
        }
    }
    for stage in stages {
        let of_stage = || rows.iter().filter(|row| row.stage == stage);
        let ours = of_stage().find(|row| row.engine == "stonechat");
        for (i, row) in of_stage().enumerate() {
            let name = match &row.kernel {
                Some(kernel) if !several => kernel.clone(),
                None if has_kernels && !several => String::new(),
                _ => row.engine.clone(),
            };
            let mut line = vec![if i == 0 { stage.to_owned() } else { String::new() }, name];
            line.extend(figures(row));
            if let (Some(ours), true) = (ours, several) {
                line.push(if row.engine == "stonechat" {
                    String::new()
                } else {
                    format!("{:.2}x", row.p50_s / ours.p50_s)
                });
            }
            lines.push(line);
        }
    }
    aligned(&lines, 2)
}

/// Method and texts of each engine in a job, one line each.
#[must_use]
pub fn remarks(rows: &[Row]) -> String {
    let mut lines: Vec<String> = Vec::new();
    for row in rows.iter().filter(|row| !row.settings.is_empty()) {
        let line = format!("{}: {}", row.engine, row.settings);
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    let texts: Vec<(&str, &str)> =
        rows.iter().filter_map(|row| Some((row.engine.as_str(), row.text.as_deref()?))).collect();
    match texts.split_first() {
        Some(((_, text), others)) if others.iter().all(|other| other.1.trim() == text.trim()) => {
            lines.push(format!("text: {}", text.trim()));
        }
        _ => lines
            .extend(texts.iter().map(|(name, text)| format!("text of {name}: {}", text.trim()))),
    }
    lines.into_iter().map(|line| line + "\n").collect()
}

fn figures(row: &Row) -> [String; 9] {
    [
        duration(row.p50_s),
        rate(row.per_second, row.unit),
        row.of_peak.map_or_else(String::new, |part| format!("{:.0} %", 100.0 * part)),
        duration(row.p95_s),
        duration(row.p99_s),
        duration(row.mean_s),
        format!("{}{:.1} %", if row.is_stable() { "" } else { "~" }, 100.0 * row.cov),
        row.samples_s.len().to_string(),
        row.outliers.len().to_string(),
    ]
}

/// Each measurement before and now.
#[must_use]
pub fn changes(pairs: &[(&Row, &Row)], interleaved: bool) -> String {
    let mut lines =
        vec![owned(&["model", "work", "stage", "threads", "before", "now", "time", "noise", ""])];
    for (now, before) in pairs {
        let change = Change::between(now, before, interleaved);
        let verdict = match change.verdict() {
            Verdict::Slower => "SLOWER",
            Verdict::Faster => "faster",
            Verdict::Same => "",
        };
        lines.push(vec![
            now.model.clone(),
            now.work.clone(),
            now.stage.clone(),
            now.threads.to_string(),
            duration(before.p50_s),
            duration(now.p50_s),
            format!("{:+.1} %", 100.0 * (change.ratio - 1.0)),
            if change.noise.is_finite() {
                format!("{:.1} %", 100.0 * change.noise)
            } else {
                "too few".to_owned()
            },
            verdict.to_owned(),
        ]);
    }
    aligned(&lines, 3)
}

/// Seconds with three digits.
#[must_use]
pub fn duration(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s >= 1.0 => (s, "s"),
        s if s >= 1e-3 => (1e3 * s, "ms"),
        s if s >= 1e-6 => (1e6 * s, "µs"),
        s => (1e9 * s, "ns"),
    };
    format!("{} {unit}", three_digits(value))
}

/// Work in a second.
#[must_use]
pub fn rate(per_second: f64, unit: Unit) -> String {
    let (value, unit) = match unit {
        Unit::Tokens => (per_second, "tok/s"),
        Unit::Bytes => (per_second / 1e9, "GB/s"),
        Unit::Flops => (per_second / 1e9, "GFLOP/s"),
        Unit::IntOps => (per_second / 1e9, "GOP/s"),
        Unit::AudioSeconds => (per_second, "x real time"),
        Unit::Calls => (per_second, "/s"),
    };
    format!("{} {unit}", three_digits(value))
}

fn three_digits(value: f64) -> String {
    let n_decimals = match value {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{value:.n_decimals$}");
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut grouped = String::new();
    for (i, digit) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::example;

    #[test]
    fn numbers_have_three_digits() {
        #[track_caller]
        fn check(seconds: f64, expected: &str) {
            assert_eq!(duration(seconds), expected);
        }
        check(12.345, "12.3 s");
        check(0.012_345, "12.3 ms");
        check(0.000_001_2, "1.20 µs");
        check(0.000_000_012, "12.0 ns");
        assert_eq!(rate(1860.4, Unit::Tokens), "1,860 tok/s");
        assert_eq!(rate(43.21e9, Unit::Bytes), "43.2 GB/s");
        assert_eq!(rate(1_234_567.0, Unit::Calls), "1,234,567 /s");
        assert_eq!(rate(0.0, Unit::Flops), "0.00 GFLOP/s");
    }

    #[test]
    fn engines_stand_below_each_other() {
        let report = example();
        let text = job(&report.rows);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[1].starts_with("decode 32  stonechat  200 ms   160 tok/s  50 %"), "{text}");
        assert!(lines[1].contains('~') && !lines[2].contains('~'), "{text}");
        assert!(lines[2].trim_start().starts_with("llama.cpp"), "{text}");
        assert!(lines[2].ends_with("2.00x"), "{text}");
        assert!(peaks(&report.peaks).contains("40.0 GB/s"));
    }

    #[test]
    fn remarks_tell_what_differs() {
        let mut rows = example().rows;
        assert_eq!(remarks(&rows), "stonechat: KV f16\nllama.cpp: KV f16\n");
        rows[0].text = Some(" Hello.".to_owned());
        rows[1].text = Some("Hello.".to_owned());
        assert!(remarks(&rows).ends_with("\ntext: Hello.\n"));
        rows[1].text = Some("Hallo.".to_owned());
        assert!(remarks(&rows).ends_with("text of stonechat: Hello.\ntext of llama.cpp: Hallo.\n"));
    }

    #[test]
    fn regressions_are_marked() {
        let mut report = example();
        report.rows[0].engine = "llama.cpp".to_owned();
        let text = changes(&[(&report.rows[1], &report.rows[0])], false);
        assert!(text.lines().nth(1).unwrap().ends_with("SLOWER"), "{text}");
    }
}
