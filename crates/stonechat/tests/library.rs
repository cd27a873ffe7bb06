//! `Whisper` and `Llm` as a program uses them, and the examples, on the models of the repository.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;

use stonechat::llm::{Finish, GenerateOptions};
use stonechat::nn::sample::SamplingOptions;
use stonechat::{Chat, Device, Error, Llm, Models, Recording, Whisper};

const TEXT: &str = " The quick brown fox jumps over the lazy dog.";

fn test_data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test-data").join(path)
}

fn fox() -> PathBuf {
    test_data("audio/quick_brown_fox.wav")
}

fn speech_model() -> PathBuf {
    test_data("models/tiny.en-q5_1.gguf")
}

fn whisper() -> Whisper {
    Whisper::builder().device(Device::Cpu).open(speech_model()).unwrap()
}

/// A tiny model of random weights.
fn llm() -> Llm {
    let model = test_data("golden/llm/llama.gguf");
    Llm::builder().device(Device::Cpu).context(256).open(model).unwrap()
}

fn greedy(n: usize) -> GenerateOptions {
    GenerateOptions {
        n_predict: Some(n),
        sampling: SamplingOptions::greedy(),
        ignore_eos: true,
        ..GenerateOptions::default()
    }
}

#[test]
fn a_recording_is_waited_for_iterated_or_awaited() {
    let whisper = whisper();
    assert!(!whisper.info().is_multilingual);
    assert!(whisper.info().device.starts_with("cpu "), "{}", whisper.info().device);
    let transcript = whisper.transcribe(fox()).wait().unwrap();
    assert_eq!((transcript.text.as_str(), transcript.language.as_str()), (TEXT, "en"));

    let samples = stonechat::audio::decode_file(fox()).unwrap().samples;
    let segments = whisper.transcribe(samples);
    let texts: Vec<String> = segments.map(|segment| segment.unwrap().text).collect();
    assert_eq!(texts.concat(), TEXT);

    let bytes = std::fs::read(fox()).unwrap();
    let recording = Recording::bytes(bytes).word_timestamps().language("en");
    let mut job = whisper.transcribe(recording);
    let segment = pollster::block_on(job.next_async()).unwrap().unwrap();
    assert_eq!(segment.words.unwrap().len(), 9);
    assert!(pollster::block_on(job.next_async()).is_none());
    assert_eq!(pollster::block_on(job).unwrap().text, TEXT);
}

#[test]
fn recordings_wait_for_each_other_and_errors_end_only_their_own() {
    let whisper = whisper();
    let (first, missing) = (whisper.transcribe(fox()), whisper.transcribe("no such.mp3"));
    let wrong = whisper.transcribe(Recording::file(fox()).language("klingon"));
    let last = whisper.clone().transcribe(fox());
    // The jobs keep the engine.
    drop(whisper);
    let error = missing.wait().unwrap_err().to_string();
    assert!(error.starts_with("cannot open `no such.mp3`"), "{error}");
    let error = wrong.wait().unwrap_err().to_string();
    assert!(error.starts_with("language `klingon`: expected a code such as"), "{error}");
    assert_eq!(last.wait().unwrap().text, TEXT);
    assert_eq!(first.wait().unwrap().text, TEXT);
}

#[test]
fn a_text_is_completed_and_its_prefix_is_cached() {
    let llm = llm();
    assert_eq!(llm.info().n_ctx, 256);
    let whole = llm.complete("ab", greedy(12)).wait().unwrap();
    assert_eq!((whole.tokens.len(), whole.finish, whole.cached_tokens), (12, Finish::Length, 0));
    let mut pieces = llm.complete("ab", greedy(12));
    let text: String = pieces.by_ref().map(Result::unwrap).collect();
    assert_eq!(text, whole.text);
    let again = pieces.wait().unwrap();
    assert_eq!(again.tokens, whole.tokens);
    assert_eq!(again.cached_tokens, again.prompt_tokens - 1);
}

#[test]
fn a_conversation_is_answered_by_its_options() {
    let llm = llm();
    let chat = Chat::from("Hello").options(greedy(8));
    let answer = pollster::block_on(llm.chat(&chat)).unwrap();
    assert_eq!(answer.tokens.len(), 8);
    // The next turn begins with the one before.
    let next = chat.assistant(&answer.text).user("And then?");
    assert_eq!(next.messages().len(), 3);
    assert!(llm.chat(&next).wait().unwrap().cached_tokens > 8);
    let seeded = |seed| llm.chat(Chat::from("Hello").seed(seed).max_tokens(8).temperature(2.0));
    assert_eq!(seeded(7).wait().unwrap().text, seeded(7).wait().unwrap().text);
    let error = llm.chat(Chat::from("Hello").options(GenerateOptions {
        sampling: SamplingOptions { top_p: f32::NAN, ..SamplingOptions::default() },
        ..GenerateOptions::default()
    }));
    assert!(matches!(error.wait(), Err(Error::Llm(_))));
    assert_eq!(llm.complete("ab", greedy(3)).wait().unwrap().tokens.len(), 3);
}

#[test]
fn a_request_is_cancelled_by_its_token_or_by_dropping_it() {
    let llm = llm();
    let mut job = llm.complete("ab", greedy(200));
    job.next().unwrap().unwrap();
    job.cancel_token().cancel();
    let completion = job.wait().unwrap();
    // The engine may have finished before.
    assert!(completion.finish == Finish::Cancelled || completion.tokens.len() == 200);
    drop(llm.complete("ab", greedy(200)));
    let cancelled = llm.complete("ab", greedy(200));
    cancelled.cancel_token().cancel();
    assert_eq!(llm.complete("ab", greedy(3)).wait().unwrap().tokens.len(), 3);
    drop(cancelled);
}

#[test]
fn a_model_that_cannot_be_opened_is_an_error() {
    let error = Llm::open("no-such-model").unwrap_err();
    assert!(matches!(error, Error::ModelNotFound { .. }), "{error}");
    let error = Llm::builder().device(Device::Cpu).open(fox()).unwrap_err();
    assert!(matches!(error, Error::Format(_)), "{error}");
    let model = test_data("golden/llm/llama.gguf");
    let error = Whisper::builder().device(Device::Cpu).open(&model).unwrap_err();
    assert!(matches!(error, Error::Whisper(_)), "{error}");
    let error = Llm::builder().device(Device::Wgpu(Some(99))).open(&model).unwrap_err();
    assert!(matches!(error, Error::Device(_) | Error::NoGpuSupport), "{error}");
    let error = Llm::builder().device(Device::Cpu).context(0).open(&model).unwrap_err();
    assert!(matches!(error, Error::Llm(_)), "{error}");
}

/// Runs an example, which cargo builds with the tests.
fn example(name: &str, args: &[&Path]) -> String {
    let exe = std::env::current_exe().unwrap();
    let path = exe.ancestors().nth(2).unwrap().join("examples").join(name);
    let output = Command::new(&path).args(args).output().unwrap();
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_examples_run() {
    let speech = speech_model();
    let language = test_data("golden/llm/llama.gguf");
    assert_eq!(example("transcribe", &[&fox(), &speech]), format!("   0.00 s{TEXT}\n"));
    let folder = std::env::temp_dir().join(format!("stonechat-examples-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let recording = folder.join("fox.wav");
    std::fs::copy(fox(), &recording).unwrap();
    let printed = example("subtitles", &[&recording, &speech]);
    assert!(printed.starts_with("1 segments in "), "{printed}");
    let subtitles = std::fs::read_to_string(folder.join("fox.srt")).unwrap();
    assert!(subtitles.starts_with("1\n00:00:00,000 --> "), "{subtitles}");
    std::fs::remove_dir_all(&folder).unwrap();
    let printed = example("chat", &[&language]);
    assert!(printed.starts_with("> Why is the sky blue?\n"), "{printed}");
    assert!(printed.contains("\n> And at sunset?\n"), "{printed}");
    assert!(!example("ask", &[&language]).is_empty());
    example("voice", &[&fox(), &speech, &language]);
}

#[test]
fn the_example_of_a_schema_runs() {
    let Ok(model) = Models::from_env().find("smollm2-135m") else {
        println!("SKIPPED the_example_of_a_schema_runs: smollm2-135m is not installed");
        return;
    };
    let printed = example("json", &[&model]);
    assert!(printed.contains(" x \""), "{printed}");
}
