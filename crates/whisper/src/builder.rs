//! Builder of a transcriber.

use stonechat_formats::ModelFile;
use stonechat_nn::{Device, KvDType};

use crate::cancel::CancelToken;
use crate::error::Error;
use crate::model::Model;
use crate::options::Options;
use crate::transcriber::Transcriber;
use crate::window_decoder::WindowDecoder;

/// Builder of a [`Transcriber`]; see [`Transcriber::builder`].
#[derive(Debug)]
pub struct TranscriberBuilder {
    kv_dtype: KvDType,
    options: Options,
    cancel: CancelToken,
}

impl Transcriber {
    /// Starts a builder.
    ///
    /// ```no_run
    /// use stonechat_nn::Cpu;
    /// use stonechat_whisper::{Language, Options, Transcriber};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let samples: Vec<f32> = Vec::new();
    /// let options = Options { language: Language::find("en"), ..Options::default() };
    /// let mut transcriber = Transcriber::builder().options(&options).open(Cpu::new(0)?, "base.gguf")?;
    /// let transcript = transcriber.transcribe(&samples, &options, &mut |_| {})?;
    /// println!("{}", transcript.text);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn builder() -> TranscriberBuilder {
        TranscriberBuilder {
            kv_dtype: KvDType::F16,
            options: Options::default(),
            cancel: CancelToken::new(),
        }
    }
}

impl TranscriberBuilder {
    /// Sets the type of cached keys and values; default f16.
    #[must_use]
    pub fn kv_dtype(mut self, kv_dtype: KvDType) -> Self {
        self.kv_dtype = kv_dtype;
        self
    }

    /// Sets the options to check against the model, and to allocate state for, at load time. Runs may
    /// use other options; larger state is then allocated at their start.
    #[must_use]
    pub fn options(mut self, options: &Options) -> Self {
        self.options = options.clone();
        self
    }

    /// Sets the token that cancels runs.
    #[must_use]
    pub fn cancelled_by(mut self, token: &CancelToken) -> Self {
        self.cancel = token.clone();
        self
    }

    /// Loads the model file or folder at `path`.
    ///
    /// # Errors
    /// If the file cannot be read; else as [`load`](Self::load).
    #[cfg(not(target_arch = "wasm32"))]
    pub fn open(
        self,
        device: impl Into<Device>,
        path: impl AsRef<std::path::Path>,
    ) -> Result<Transcriber, Error> {
        self.load(device, &ModelFile::open(path)?, |_| {})
    }

    /// Loads a model of any supported format; `on_progress` gets the fraction done, 0 to 1.
    ///
    /// # Errors
    /// If the file is no Whisper model, an option does not fit the model or the device is out of memory.
    pub fn load(
        self,
        device: impl Into<Device>,
        file: &ModelFile,
        on_progress: impl FnMut(f32),
    ) -> Result<Transcriber, Error> {
        self.options.validate()?;
        self.build(&Model::load(device, file, on_progress)?)
    }

    /// Allocates state for a loaded model.
    ///
    /// # Errors
    /// If an option does not fit the model or the device is out of memory.
    pub fn build(self, model: &Model) -> Result<Transcriber, Error> {
        let decoder = WindowDecoder::for_options(model, &self.options, self.kv_dtype)?;
        let mut transcriber = Transcriber::new(decoder);
        transcriber.cancelled_by(&self.cancel);
        Ok(transcriber)
    }
}
