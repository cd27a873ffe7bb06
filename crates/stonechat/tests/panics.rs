//! A panic on the thread of a model: its requests fail, the model gets a fresh state, and later requests work.
#![expect(clippy::panic, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use stonechat::llm::{PageName, PageStore};
use stonechat::sampling::SamplingOptions;
use stonechat::whisper::VadMode;
use stonechat::{Device, Error, GenerateOptions, Llm, Recording, Whisper};
use stonechat_testkit::{Bomb, Lcg, TinyWhisper};

fn greedy(n: usize) -> GenerateOptions {
    GenerateOptions {
        n_predict: Some(n),
        sampling: SamplingOptions::greedy(),
        ignore_eos: true,
        ..GenerateOptions::default()
    }
}

fn llama() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test-data/golden/llm/llama.gguf")
}

/// A store of pages that may panic.
#[derive(Debug)]
struct Store(Bomb);

impl PageStore for Store {
    fn read(&mut self, _: PageName, _: &mut dyn FnMut(&[u8])) -> bool {
        self.0.call();
        false
    }

    fn contains(&mut self, _: PageName) -> bool {
        self.0.call();
        false
    }

    fn put(&mut self, _: PageName, _: &Arc<Vec<u8>>) {
        self.0.call();
    }

    fn takes_new(&self) -> bool {
        true
    }
}

#[test]
fn a_language_model_goes_on_after_panics_at_any_call() {
    let (bomb, n_panics) = (Bomb::default(), Arc::new(AtomicUsize::new(0)));
    let (in_step, counter) = (bomb.clone(), Arc::clone(&n_panics));
    let llm = Llm::builder()
        .device(Device::Cpu)
        .n_ctx(512)
        .page_store(Box::new(Store(bomb.clone())))
        .on_step(move |_| in_step.call())
        .on_panic(move |reason| {
            assert_eq!(reason, "boom");
            counter.fetch_add(1, Ordering::SeqCst);
        })
        .open(llama())
        .unwrap();
    let prompt = "abc ".repeat(80);
    let expected = llm.complete(&prompt, greedy(8)).wait().unwrap().tokens;
    let mut random = Lcg::new(7);
    for round in 1..=12 {
        bomb.set(1 + random.next_u32() as usize % 8);
        let jobs = [prompt.as_str(), "ab", "zz"].map(|text| llm.complete(text, greedy(64)));
        // A panic may come after a short job has ended.
        let errors = jobs.into_iter().filter_map(|job| job.wait().err());
        let errors: Vec<String> = errors.map(|error| error.to_string()).collect();
        assert!(!errors.is_empty(), "round {round}");
        for error in errors {
            assert_eq!(error, "an internal error ended the request: boom");
        }
        bomb.set(0);
        assert!(llm.is_running());
        assert_eq!(llm.complete(&prompt, greedy(8)).wait().unwrap().tokens, expected);
    }
    assert!(n_panics.load(Ordering::SeqCst) >= 12);
    assert_eq!(llm.slots().wait().unwrap().len(), 16);
}

#[test]
fn a_callback_that_always_panics_does_not_end_the_engine() {
    let llm = Llm::builder().device(Device::Cpu).n_ctx(128).on_step(|_| panic!("always"));
    let llm = llm.open(llama()).unwrap();
    for _ in 0..3 {
        let error = llm.complete("ab", greedy(8)).wait().unwrap_err();
        assert!(matches!(error, Error::Panicked { .. }), "{error}");
    }
}

#[test]
fn a_speech_model_goes_on_after_panics_at_any_step() {
    let (bomb, n_panics) = (Bomb::default(), Arc::new(AtomicUsize::new(0)));
    let (in_step, counter) = (bomb.clone(), Arc::clone(&n_panics));
    let whisper = Whisper::builder()
        .device(Device::Cpu)
        .parallel(2)
        .on_step(move |_| in_step.call())
        .on_panic(move |_| _ = counter.fetch_add(1, Ordering::SeqCst))
        .open_file(TinyWhisper::default().file())
        .unwrap();
    let samples = Lcg::new(3).normals(16_000, 0.1);
    // Noise is no speech.
    let recording = || Recording::from(&samples[..]).vad(VadMode::Off);
    let expected = whisper.transcribe(recording()).wait().unwrap().text;
    for n_calls in 1..=4 {
        bomb.set(n_calls);
        let jobs = [0, 1].map(|_| whisper.transcribe(recording()));
        let errors: Vec<Error> = jobs.into_iter().filter_map(|job| job.wait().err()).collect();
        assert!(errors.iter().all(|error| matches!(error, Error::Panicked { .. })), "{errors:?}");
        bomb.set(0);
        assert_eq!(whisper.transcribe(recording()).wait().unwrap().text, expected);
    }
    assert_eq!(n_panics.load(Ordering::SeqCst), 4);
    assert!(whisper.is_running());
}

/// A model file whose loading panics is an error of opening, not of the program.
#[test]
fn a_panic_while_loading_is_an_error() {
    let builder = Llm::builder().device(Device::Cpu).on_progress(|_| panic!("loading"));
    let error = builder.open(llama()).unwrap_err().to_string();
    assert_eq!(error, "an internal error ended the request: loading");
}
