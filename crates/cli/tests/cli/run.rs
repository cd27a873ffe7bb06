//! Runs the binary in a temporary folder.

use std::fs;
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use stonechat_testkit::TinyWhisper;

/// Result of a run.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// Asserts exit code 1, nothing on standard output and one line of error that contains `expected`.
    #[track_caller]
    pub(crate) fn fails(&self, expected: &str) {
        assert_eq!(self.code, Some(1), "{self:?}");
        assert_eq!(self.stdout, "", "{self:?}");
        let lines: Vec<&str> = self.stderr.lines().collect();
        assert_eq!(lines.len(), 1, "{self:?}");
        assert!(lines[0].starts_with("error: "), "{self:?}");
        assert!(lines[0].contains(expected), "expected `{expected}` in {self:?}");
    }

    /// Asserts exit code 2, that of a usage error, and `expected` in the first line of it.
    #[track_caller]
    pub(crate) fn misused(&self, expected: &str) {
        assert_eq!(self.code, Some(2), "{self:?}");
        let line = self.stderr.lines().next().unwrap_or_default();
        assert!(line.contains(expected), "expected `{expected}` in {self:?}");
    }

    /// Asserts exit code 0 and returns standard output.
    #[track_caller]
    pub(crate) fn succeeds(&self) -> &str {
        assert_eq!(self.code, Some(0), "{self:?}");
        &self.stdout
    }
}

/// Empty working directory of the binary, removed on drop.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(test: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
        if path.exists() {
            fs::remove_dir_all(&path).unwrap();
        }
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path(name), bytes).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// Sorted names in the folder, or in one below it.
    pub(crate) fn names(&self, below: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(below)).unwrap();
        let mut names: Vec<String> =
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Writes `tiny.gguf`, a model of random weights, and `voice.wav`, one second of a voice.
    pub(crate) fn with_tiny_model(self, vocab_size: usize) -> Self {
        self.write("tiny.gguf", &TinyWhisper { vocab_size, ..TinyWhisper::default() }.gguf());
        self.write("voice.wav", &voice(16_000));
        self
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stonechat"));
        command
            .args(arguments)
            .current_dir(&self.0)
            .env("STONECHAT_MODELS", self.path("models"))
            .env("HF_HOME", self.path("hf"))
            // Outside of the folder, whose names tests compare.
            .env("XDG_CACHE_HOME", Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache"))
            .env_remove("HF_HUB_CACHE")
            .env_remove("HF_TOKEN")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        finish(self.command(arguments).spawn().unwrap())
    }

    pub(crate) fn run_with_input(&self, arguments: &[&str], input: &[u8]) -> Ran {
        let mut child = self.command(arguments).stdin(Stdio::piped()).spawn().unwrap();
        // After a usage error, the pipe is closed unread.
        let _ = child.stdin.take().unwrap().write_all(input);
        finish(child)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A failed test leaves its folder.
        if !std::thread::panicking() {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }
}

pub(crate) fn finish(child: std::process::Child) -> Ran {
    let output = child.wait_with_output().unwrap();
    Ran {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// WAV file: 16 kHz, 16-bit, mono, of a spoken sentence that starts over at its end.
pub(crate) fn voice(n_samples: u32) -> Vec<u8> {
    let path = workspace().join("test-data/audio/quick_brown_fox.wav");
    let sentence: Vec<f32> =
        hound::WavReader::open(path).unwrap().samples().collect::<Result<_, _>>().unwrap();
    let speech = sentence.iter().cycle().take(n_samples as usize);
    wav(1, &speech.map(|&sample| (32_767.0 * sample) as i16).collect::<Vec<_>>())
}

/// WAV file: 16 kHz, 16-bit, interleaved samples.
pub(crate) fn wav(n_channels: u16, samples: &[i16]) -> Vec<u8> {
    let spec = hound::WavSpec {
        channels: n_channels,
        sample_rate: 16_000,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    let mut wav = Cursor::new(Vec::new());
    let mut writer = hound::WavWriter::new(&mut wav, spec).unwrap();
    for &sample in samples {
        writer.write_sample(sample).unwrap();
    }
    writer.finalize().unwrap();
    wav.into_inner()
}

/// Root of the workspace.
pub(crate) fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Paths of the default model of the checkout and of a clip; prints why `test` is skipped otherwise.
pub(crate) fn default_model_and_clip(test: &str) -> Option<(String, String)> {
    let models = workspace().join("test-data/models");
    let model = fs::read_dir(&models)
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|extension| extension == "gguf"));
    let clip = workspace().join("test-data/audio/quick_brown_fox.wav");
    match model {
        Some(model) if clip.exists() => {
            let text = |path: PathBuf| path.to_str().unwrap().to_owned();
            Some((text(model), text(clip)))
        }
        _ => {
            println!(
                "SKIPPED {test}: no test-data/models/*.gguf or test-data/audio/quick_brown_fox.wav"
            );
            None
        }
    }
}
