use std::fs;
use std::path::Path;

use super::*;

/// A report with two engines' rows.
pub(crate) fn example() -> Report {
    let peaks = vec![
        Peak { threads: 2, kind: PeakKind::Read, per_second: 40e9, kernel: "sum".to_owned() },
        Peak { threads: 2, kind: PeakKind::F32, per_second: 400e9, kernel: "fma".to_owned() },
    ];
    let stage = Stage {
        name: "decode 32".to_owned(),
        amount: 32.0,
        unit: Unit::Tokens,
        peak: vec![PeakWork { kind: PeakKind::Read, amount: 4e9 }],
        kernel: None,
    };
    let row = |engine: &str, samples: &[f64]| {
        let head = RowHead {
            engine: engine.to_owned(),
            version: "1".to_owned(),
            model: "smollm2-135m".to_owned(),
            weights: "q4_1".to_owned(),
            work: "text".to_owned(),
            backend: "cpu".to_owned(),
            threads: 2,
            settings: "KV f16".to_owned(),
        };
        Row::new(&head, &stage, samples.to_vec(), &peaks).unwrap()
    };
    Report {
        schema: SCHEMA,
        created_unix_s: 1_800_000_000,
        command: vec!["cargo".to_owned(), "xtask".to_owned(), "bench".to_owned()],
        machine: Machine {
            cpu: "Example".to_owned(),
            cores: 2,
            memory_bytes: 16 << 30,
            ..Machine::default()
        },
        build: Build::default(),
        limits: Limits { warm_up: 1, min_samples: 5, max_samples: 30, max_seconds: 20.0 },
        rows: vec![
            row("stonechat", &[0.2, 0.2, 0.2, 0.202, 0.3]),
            row("llama.cpp", &[0.4, 0.41, 0.4, 0.39, 0.4]),
        ],
        peaks,
        notes: Vec::new(),
    }
}

#[test]
fn json_round_trips_and_refuses_what_it_does_not_know() {
    let report = example();
    let json = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
    let more = json.replacen("\"schema\"", "\"color\":1,\"schema\"", 1);
    let error = serde_json::from_str::<Report>(&more).unwrap_err().to_string();
    assert!(error.contains("unknown field `color`"), "{error}");
    let less = json.replacen("\"notes\":[]", "\"notes\":3", 1);
    assert!(serde_json::from_str::<Report>(&less).is_err());
}

#[test]
fn a_row_knows_its_rate_and_its_peak() {
    let report = example();
    let row = &report.rows[0];
    assert!((row.per_second - 160.0).abs() < 1e-9);
    // 4 GB at 40 GB/s take 0.1 of 0.2 s.
    assert!((row.of_peak.unwrap() - 0.5).abs() < 1e-9);
    assert!(!row.is_stable() && report.rows[1].is_stable());
    assert!(row.is_same_measurement(&report.rows[1]));
    let int8 = [PeakWork { kind: PeakKind::Int8, amount: 1.0 }];
    assert_eq!(peak_seconds(&int8, &report.peaks, 2), None);
    let both = [
        PeakWork { kind: PeakKind::Read, amount: 20e9 },
        PeakWork { kind: PeakKind::F32, amount: 100e9 },
    ];
    assert_eq!(peak_seconds(&both, &report.peaks, 2), Some(0.75));
    assert_eq!(peak_seconds(&both, &report.peaks, 1), None);
}

#[test]
fn machines_are_told_apart() {
    let machine = example().machine;
    let mut other = Machine { load_before: Some(3.0), ..machine.clone() };
    assert_eq!(machine.difference(&other), None);
    other.cores = 16;
    assert_eq!(machine.difference(&other).unwrap(), "2 and 16 cores");
}

#[test]
fn the_schema_is_the_one_checked_in() {
    let schema = schemars::schema_for!(Report);
    let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("report.schema.json");
    let checked_in = fs::read_to_string(&path).unwrap_or_default();
    if text != checked_in {
        let new = std::env::temp_dir().join("report.schema.json");
        fs::write(&new, text).unwrap();
        panic!("{} does not describe `Report`: copy {} over it", path.display(), new.display());
    }
}
