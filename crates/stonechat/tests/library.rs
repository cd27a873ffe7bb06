//! `Whisper` and `Llm` as a program uses them, and the examples, on the models of the repository.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;

use stonechat::formats::ModelFile;
use stonechat::llm::OnFull;
use stonechat::sampling::SamplingOptions;
use stonechat::{
    ChatRequest, Device, Error, Finish, GenerateOptions, GpuLayers, Llm, Models, Recording, Whisper,
};

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
    Llm::builder().device(Device::Cpu).n_ctx(256).open(model).unwrap()
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
    let segments = whisper.transcribe(samples).into_iter();
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
    let text: String = pieces.items().map(Result::unwrap).collect();
    assert_eq!(text, whole.text);
    let again = pieces.wait().unwrap();
    assert_eq!(again.tokens, whole.tokens);
    assert_eq!(again.cached_tokens, again.prompt_tokens - 1);
}

#[test]
fn a_conversation_is_answered_by_its_options() {
    let llm = llm();
    let chat = ChatRequest::from("Hello").options(greedy(8));
    let answer = pollster::block_on(llm.chat(&chat)).unwrap();
    assert_eq!(answer.tokens.len(), 8);
    // The next turn begins with the one before.
    let next = chat.assistant(&answer.text).user("And then?");
    assert_eq!(next.messages().len(), 3);
    assert!(llm.chat(&next).wait().unwrap().cached_tokens > 8);
    let seeded =
        |seed| llm.chat(ChatRequest::from("Hello").seed(seed).max_tokens(8).temperature(2.0));
    assert_eq!(seeded(7).wait().unwrap().text, seeded(7).wait().unwrap().text);
    let error = llm.chat(ChatRequest::from("Hello").options(GenerateOptions {
        sampling: SamplingOptions { top_p: f32::NAN, ..SamplingOptions::default() },
        ..GenerateOptions::default()
    }));
    assert!(matches!(error.wait(), Err(Error::Llm(_))));
    assert_eq!(llm.complete("ab", greedy(3)).wait().unwrap().tokens.len(), 3);
}

/// Never ends by itself.
fn endless() -> GenerateOptions {
    let on_full = OnFull::Shift { keep: 0 };
    GenerateOptions { n_predict: None, on_full, ..greedy(0) }
}

#[test]
fn an_answer_is_cancelled_by_its_token_or_by_dropping_it() {
    let llm = llm();
    let mut job = llm.complete("ab", endless());
    job.items().next().unwrap().unwrap();
    job.cancel_token().cancel();
    let completion = job.wait().unwrap();
    assert_eq!(completion.finish, Finish::Cancelled);
    assert!(!completion.text.is_empty());
    // The next request runs, since the one before it ends.
    drop(llm.complete("ab", endless()));
    let first = llm.complete("a much longer prompt", greedy(3)).wait().unwrap();
    assert_eq!(first.tokens.len(), 3);
    // A request that is cancelled in the queue writes nothing.
    let running = llm.complete("ab", endless());
    let queued = llm.complete("zzz", greedy(3));
    queued.cancel_token().cancel();
    running.cancel_token().cancel();
    assert_eq!(running.wait().unwrap().finish, Finish::Cancelled);
    let cancelled = queued.wait().unwrap();
    assert_eq!((cancelled.finish, cancelled.tokens.len()), (Finish::Cancelled, 0));
    let left = llm.complete("ab", endless());
    drop(llm);
    drop(left);
}

#[test]
fn a_transcription_is_cancelled_by_its_token_or_by_dropping_it() {
    let whisper = whisper();
    let fox = stonechat::audio::decode_file(fox()).unwrap().samples;
    let long = fox.repeat(40);
    let mut job = whisper.transcribe(&long[..]);
    job.items().next().unwrap().unwrap();
    job.cancel_token().cancel();
    let transcript = job.wait().unwrap();
    assert!(transcript.cancelled && transcript.text.len() < 20 * TEXT.len(), "{transcript:?}");
    drop(whisper.transcribe(&long[..]));
    assert_eq!(whisper.transcribe(fox).wait().unwrap().text, TEXT);
}

#[test]
fn loading_is_awaited_and_reported() {
    let (sender, fractions) = std::sync::mpsc::channel();
    let model = test_data("golden/llm/llama.gguf");
    let builder = Llm::builder().on_progress(move |done| sender.send(done).unwrap());
    let llm = pollster::block_on(builder.chat_template("chatml").open_async(&model)).unwrap();
    // The callback is dropped with the load, so that this ends.
    let fractions: Vec<f32> = fractions.into_iter().collect();
    assert!(fractions.is_sorted() && fractions.last() == Some(&1.0), "{fractions:?}");
    let with_template = llm.chat(ChatRequest::from("Hello").options(greedy(1))).wait().unwrap();
    let plain = self::llm().chat(ChatRequest::from("Hello").options(greedy(1))).wait().unwrap();
    assert_ne!(with_template.prompt_tokens, plain.prompt_tokens);
}

#[test]
fn models_are_opened_through_readers() {
    let read = |path: PathBuf| ModelFile::from_reader(std::fs::File::open(path).unwrap()).unwrap();
    let whisper = Whisper::builder().device(Device::Cpu).open_file(read(speech_model())).unwrap();
    assert_eq!(whisper.transcribe(fox()).wait().unwrap().text, TEXT);

    let file = read(test_data("golden/llm/llama.gguf"));
    let read = Llm::builder().device(Device::Cpu).n_ctx(256).open_file(file).unwrap();
    let text =
        |llm: &Llm| llm.chat(ChatRequest::from("Hello").options(greedy(8))).wait().unwrap().text;
    assert_eq!(text(&read), text(&llm()));
    let file = ModelFile::open(speech_model()).unwrap();
    let error = Llm::builder().device(Device::Cpu).open_file(file).unwrap_err();
    assert!(error.to_string().contains("tiny.en-q5_1.gguf`: "), "{error}");
}

#[test]
fn requests_and_models_move_between_threads() {
    fn check<T: Send>(_: &T) {}
    fn check_sync<T: Send + Sync + Clone + 'static>() {}
    check_sync::<Llm>();
    check_sync::<Whisper>();
    check(&Llm::open_async("model"));
    check(&Whisper::open_async("model"));
    let job = llm().chat("Hello");
    check(&job);
}

#[test]
fn layers_need_a_gpu() {
    let model = test_data("golden/llm/llama.gguf");
    let builder = || Llm::builder().device(Device::Cpu);
    let error = builder().gpu_layers(GpuLayers::Last(1)).open(&model).unwrap_err();
    assert_eq!(error.to_string(), "gpu_layers: expected a GPU, got cpu");
    let llm = Llm::builder().gpu_layers(GpuLayers::Last(0)).open(&model).unwrap();
    assert!(llm.info().device.starts_with("cpu "), "{}", llm.info().device);
}

#[test]
fn a_model_that_cannot_be_opened_is_an_error() {
    let error = Llm::open("no-such-model").unwrap_err();
    assert!(matches!(error, Error::ModelNotFound { .. }), "{error}");
    let error = Llm::builder().device(Device::Cpu).open(fox()).unwrap_err();
    assert!(matches!(error, Error::Format(_)), "{error}");
    let model = test_data("golden/llm/llama.gguf");
    let error = Whisper::builder().device(Device::Cpu).open(&model).unwrap_err();
    assert!(error.to_string().starts_with("cannot open `"), "{error}");
    assert!(error.to_string().contains("llama.gguf`: "), "{error}");
    let Error::Open { source, .. } = error else { panic!("{error}") };
    assert!(matches!(*source, Error::Whisper(_)), "{source}");
    let error = Llm::builder().device(Device::Wgpu(Some(99))).open(&model).unwrap_err();
    assert!(matches!(error, Error::Device(_) | Error::NoGpuSupport { .. }), "{error}");
    let error = Llm::builder().device(Device::Cpu).n_ctx(0).open(&model).unwrap_err();
    assert!(matches!(error, Error::Open { .. }), "{error}");
}

/// Runs an example, which `cargo test` builds with all targets of the package.
fn example(name: &str, args: &[&Path]) -> String {
    let exe = std::env::current_exe().unwrap();
    let path = exe.ancestors().nth(2).unwrap().join("examples").join(name);
    let hint = "run `cargo test -p stonechat`, which builds the examples";
    let output = Command::new(&path).args(args).output();
    let output = output.unwrap_or_else(|error| panic!("{}: {error}; {hint}", path.display()));
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
    let printed = example("recordings", &[&speech, Path::new("2"), &fox(), &fox()]);
    assert_eq!(printed.matches(TEXT).count(), 2, "{printed}");
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
