//! Loading a model and making the buffers to run it.

use stonechat_formats::ModelFile;
use stonechat_nn::{Backend, KvDType};

use crate::{CancelToken, Error, Model, Options, Transcriber};

/// Makes a [`Transcriber`]; begins with [`Transcriber::builder`].
#[derive(Debug)]
pub struct TranscriberBuilder<B: Backend> {
    backend: B,
    kv_dtype: KvDType,
    options: Options,
    cancel: CancelToken,
}

impl<B: Backend> Transcriber<B> {
    /// A transcriber on a device.
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
    /// The type of cached keys and values; f16 unless said otherwise.
    #[must_use]
    pub fn kv_dtype(mut self, kv_dtype: KvDType) -> Self {
        self.kv_dtype = kv_dtype;
        self
    }

    /// What runs will ask for: that it fits the model is checked when it is loaded, and the buffers
    /// are made then. A run with other options is possible and makes its buffers itself.
    #[must_use]
    pub fn options(mut self, options: &Options) -> Self {
        self.options = options.clone();
        self
    }

    /// What ends runs early.
    #[must_use]
    pub fn cancelled_by(mut self, token: &CancelToken) -> Self {
        self.cancel = token.clone();
        self
    }

    /// Loads the model file or folder at `path`.
    ///
    /// # Errors
    /// If the file cannot be read, as [`load`](Self::load) otherwise.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn open(self, path: impl AsRef<std::path::Path>) -> Result<Transcriber<B>, Error> {
        self.load(&ModelFile::open(path)?, |_| {})
    }

    /// Loads a model of any supported format; `on_progress` is told the fraction done.
    ///
    /// # Errors
    /// If the file is no Whisper model, an option does not fit the model or the device is full.
    pub fn load(
        self,
        file: &ModelFile,
        on_progress: impl FnMut(f32),
    ) -> Result<Transcriber<B>, Error> {
        self.options.validate()?;
        let model = Model::load(self.backend.clone(), file, on_progress)?;
        self.build(model)
    }

    /// Makes the buffers of a model that is loaded already.
    ///
    /// # Errors
    /// If an option does not fit the model or the device is full.
    pub fn build(self, model: Model<B>) -> Result<Transcriber<B>, Error> {
        self.options.validate()?;
        let mut transcriber = Transcriber::new(model, self.kv_dtype)?;
        transcriber.cancelled_by(&self.cancel);
        transcriber.prepare(&self.options, self.options.n_windows())?;
        Ok(transcriber)
    }
}
