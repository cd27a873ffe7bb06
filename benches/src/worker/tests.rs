use std::path::{Path, PathBuf};

use stonechat_benches::protocol::{Job, ModelKind, Reply, Request, Stage};
use stonechat_nn::Cpu;

use super::Worker;

fn test_data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../test-data").join(path)
}

/// Opens a job and takes two samples; the stages with the seconds of the second, and its text.
#[track_caller]
fn measured(worker: &mut Worker, job: Job) -> (Vec<(Stage, f64)>, Option<String>) {
    let Reply::Opened { stages, .. } = worker.answer(Request::Open { job }).unwrap() else {
        panic!("expected an open job")
    };
    worker.answer(Request::Sample).unwrap();
    let Reply::Sample { seconds, text, .. } = worker.answer(Request::Sample).unwrap() else {
        panic!("expected a sample")
    };
    assert_eq!(seconds.len(), stages.len());
    assert!(seconds.iter().all(|&s| s > 0.0), "{seconds:?}");
    (stages.into_iter().zip(seconds).collect(), text)
}

#[test]
fn speech_is_measured_by_stage_and_as_a_whole() {
    let mut worker = Worker::new(Cpu::new(2).unwrap());
    let model = test_data("models/tiny.en-q5_1.gguf");
    let inspected = worker.answer(Request::Inspect { model: model.clone() }).unwrap();
    let Reply::Model { kind, dtype, is_quantized } = inspected else { panic!() };
    assert_eq!((kind, dtype.as_str(), is_quantized), (ModelKind::Speech, "q5_1", true));

    let folder = std::env::temp_dir().join(format!("bench-worker-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let audio = folder.join("clip.wav");
    let parts = ["hello_world.wav", "quick_brown_fox.wav"];
    let parts = parts.map(|name| test_data("audio").join(name));
    let lengths =
        parts.iter().map(|file| stonechat_audio::decode_file(file).unwrap().samples.len());
    let n_samples: usize = lengths.sum();
    worker.answer(Request::Join { audio: parts.to_vec(), to: audio.clone() }).unwrap();
    assert_eq!(stonechat_audio::decode_file(&audio).unwrap().samples.len(), n_samples);

    let bin = folder.join("model.bin");
    worker.answer(Request::Convert { model, to: bin.clone(), dtype: None }).unwrap();
    let (stages, text) = measured(&mut worker, Job::Speech { model: bin.clone(), audio });
    let text = text.unwrap().to_lowercase();
    assert!(text.contains("quick brown fox"), "{text}");
    let seconds = |name: &str| stages.iter().find(|(stage, _)| stage.name == name).unwrap().1;
    let both = seconds("encoder") + seconds("cross keys");
    assert!((seconds("encoder with cross keys") - both).abs() < 1e-9);
    // The transcription includes the spectrogram.
    assert!(seconds("transcribe") > seconds("mel"));
    let (stages, _) = measured(&mut worker, Job::Load { model: bin });
    assert_eq!(stages.len(), 1);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn language_models_are_measured_by_phase() {
    let folder = stonechat_testkit::models_folder();
    let model = folder.map(|folder| folder.join("smollm2-135m/model.gguf"));
    let Some(model) = model.filter(|model| model.is_file()) else {
        println!("SKIPPED language_models_are_measured_by_phase: smollm2-135m is not installed");
        return;
    };
    let mut worker = Worker::new(Cpu::new(2).unwrap());
    let job = Job::Text { model, prefill: vec![40, 20], decode: vec![3], batch: vec![1, 3] };
    let (stages, _) = measured(&mut worker, job);
    let found: Vec<_> =
        stages.iter().map(|(stage, _)| (stage.name.as_str(), stage.amount)).collect();
    let expected = [
        ("prefill 20", 20.0),
        ("prefill 40", 40.0),
        ("decode 3", 3.0),
        ("batch of 1", 16.0),
        ("batch of 3", 48.0),
    ];
    assert_eq!(found, expected);
    // Three tokens read the weights, tied to the embedding, three times.
    let bytes = stages[2].0.peak[0].amount / 3.0;
    assert!((90e6..99e6).contains(&bytes), "{bytes}");
}

#[test]
fn peaks_are_measured() {
    let mut worker = Worker::new(Cpu::new(1).unwrap());
    let (stages, _) = measured(&mut worker, Job::Peaks { bytes: 1 << 20 });
    assert_eq!(stages[0].0.name, "read");
    assert!(stages[0].0.amount >= f64::from(1 << 20));
}

#[test]
fn what_cannot_be_done_is_an_error() {
    let mut worker = Worker::new(Cpu::new(1).unwrap());
    let mut error = |request| worker.answer(request).unwrap_err().to_string();
    assert_eq!(error(Request::Sample), "no job is open");
    let readme = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    assert!(error(Request::Inspect { model: readme.clone() }).contains("not a model file"));
    let job = Job::Text { model: readme, prefill: vec![0], decode: Vec::new(), batch: Vec::new() };
    assert!(error(Request::Open { job }).contains("expected at least 1"));
    let job = Job::Kernel { name: "nothing".to_owned() };
    assert!(error(Request::Open { job }).contains("unknown kernel `nothing`"));
}
