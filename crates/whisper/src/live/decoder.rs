//! Decoders of live streams.

use crate::error::Error;
use crate::options::Options;
use crate::transcriber::Transcriber;
use crate::transcript::Transcript;

/// Decodes the buffers of live streams: a [`Transcriber`], or the handle of an engine that runs other recordings, too.
pub trait LiveDecoder {
    /// Error of a decoding.
    type Error;

    /// Transcribes 16 kHz mono samples with word times, as [`Transcriber::transcribe_async`] does.
    ///
    /// # Errors
    /// If an option does not fit the model or the device fails.
    fn decode(
        &mut self,
        samples: &[f32],
        options: &Options,
    ) -> impl Future<Output = Result<Transcript, Self::Error>>;
}

impl LiveDecoder for Transcriber {
    type Error = Error;

    async fn decode(&mut self, samples: &[f32], options: &Options) -> Result<Transcript, Error> {
        self.transcribe_async(samples, options, |_| {}).await
    }
}
