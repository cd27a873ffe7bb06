//! Builder of a transcriber.

use stonechat_formats::ModelFile;
use stonechat_nn::{Backend, KvDType};

use crate::cancel::CancelToken;
use crate::error::Error;
use crate::model::Model;
use crate::options::Options;
use crate::transcriber::Transcriber;

/// Builder of a [`Transcriber`]; see [`Transcriber::builder`].
#[derive(Debug)]
pub struct TranscriberBuilder<B: Backend> {
    backend: B,
    kv_dtype: KvDType,
    options: Options,
    cancel: CancelToken,
}

impl<B: Backend> Transcriber<B> {
    /// Starts a builder on a device.
    ///
    /// ```no_run
    /// use stonechat_nn::Cpu;
    /// use stonechat_whisper::{Language, Options, Transcriber};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let samples: Vec<f32> = Vec::new();
    /// let options = Options { language: Language::find("en"), ..Options::default() };
    /// let mut transcriber = Transcriber::builder(Cpu::new(0)?).options(&options).open("base.gguf")?;
    /// let transcript = transcriber.transcribe(&samples, &options, &mut |_| {})?;
    /// println!("{}", transcript.text);
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(backend: B) -> TranscriberBuilder<B> {
        TranscriberBuilder {
            backend,
            kv_dtype: KvDType::F16,
            options: Options::default(),
            cancel: CancelToken::new(),
        }
    }
}

impl<B: Backend> TranscriberBuilder<B> {
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
    pub fn open(self, path: impl AsRef<std::path::Path>) -> Result<Transcriber<B>, Error> {
        self.load(&ModelFile::open(path)?, |_| {})
    }

    /// Loads a model of any supported format; `on_progress` gets the fraction done, 0 to 1.
    ///
    /// # Errors
    /// If the file is no Whisper model, an option does not fit the model or the device is out of memory.
    pub fn load(
        self,
        file: &ModelFile,
        on_progress: impl FnMut(f32),
    ) -> Result<Transcriber<B>, Error> {
        self.options.validate()?;
        let model = Model::load(self.backend.clone(), file, on_progress)?;
        self.build(model)
    }

    /// Allocates state for a loaded model.
    ///
    /// # Errors
    /// If an option does not fit the model or the device is out of memory.
    pub fn build(self, model: Model<B>) -> Result<Transcriber<B>, Error> {
        self.options.validate()?;
        let mut transcriber = Transcriber::new(model, self.kv_dtype)?;
        transcriber.cancelled_by(&self.cancel);
        transcriber.prepare(&self.options, self.options.n_windows())?;
        Ok(transcriber)
    }
}
