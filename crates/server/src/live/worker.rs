//! Task of a session: commands to a live stream, or to a buffer that is transcribed as a whole.

use std::sync::Arc;
use std::time::{Duration, Instant};

use stonechat::audio::SAMPLE_RATE;
use stonechat::whisper::{LiveDecoder, LiveEvent, LiveStream, Options};
use stonechat::{Error, Recording, Transcript, Whisper, Word};
use stonechat_api::realtime::Update;
use tokio::sync::mpsc::UnboundedSender;

use super::{Command, Inbox, LiveEngine, Record, Setup};
use crate::tasks::blocking;
use crate::{ApiResult, AppState, RequestEnd};

/// Minimum seconds of new audio before it is decoded. Each word needs two decodings.
const MIN_CHUNK_S: f64 = 0.6;
/// Maximum of it, however busy the machine is.
const MAX_CHUNK_S: f64 = 4.0;
/// New audio for a second of decoding, so that the engine keeps up and others get their turn.
const CHUNK_PER_DECODING: f64 = 1.25;
/// Maximum samples between two decodings of audio that arrives faster than it is spoken.
const PIECE: usize = 5 * SAMPLE_RATE as usize;

/// State of the task of a session.
pub(super) struct Worker {
    state: AppState,
    inbox: Arc<Inbox>,
    updates: UnboundedSender<Update>,
    setup: Setup,
    engine: Option<Arc<LiveEngine>>,
    audio: Audio,
    /// Samples of the session before the current stream.
    n_before: u64,
    /// Start of the utterance in the current stream, in seconds.
    start: f64,
    record: Record,
}

/// Audio that is not transcribed.
enum Audio {
    Stream(Box<LiveStream>),
    Buffer(Vec<f32>),
}

impl Worker {
    pub(super) fn new(
        state: AppState,
        inbox: Arc<Inbox>,
        updates: UnboundedSender<Update>,
        setup: Setup,
        record: Record,
    ) -> Self {
        Self {
            state,
            inbox,
            updates,
            setup,
            engine: None,
            audio: Audio::Buffer(Vec::new()),
            n_before: 0,
            start: 0.0,
            record,
        }
    }

    /// Takes commands until the task is aborted or the model cannot be opened.
    pub(super) async fn run(mut self) {
        if let Err(error) = self.serve().await {
            self.record.finish(RequestEnd::Error, Some(error.clone()));
            self.send(Update::Failed(error));
        }
    }

    fn send(&self, update: Update) {
        // The socket may be closed already.
        let _ = self.updates.send(update);
    }

    async fn serve(&mut self) -> ApiResult<()> {
        self.audio = self.empty()?;
        loop {
            match self.inbox.next().await {
                Command::Audio(samples) => self.push(samples).await?,
                Command::Commit(event_id) => {
                    self.commit(event_id).await?;
                    self.send(Update::Done);
                }
                Command::Clear => {
                    self.clear()?;
                    self.send(Update::Cleared);
                }
                Command::Setup(setup) => self.set_up(*setup).await?,
            }
        }
    }

    /// Reports a failed utterance; the next one starts afresh.
    fn report(&mut self, result: Result<(), Error>) -> ApiResult<()> {
        let Err(error) = result else { return Ok(()) };
        self.send(Update::Failed(error.into()));
        self.clear()
    }

    /// The engine of the model, which is another after a panic without memory for a fresh state.
    async fn engine(&mut self) -> ApiResult<Arc<LiveEngine>> {
        if let Some(engine) = self.engine.as_ref().filter(|engine| engine.whisper.is_running()) {
            return Ok(Arc::clone(engine));
        }
        let engine = self.state.live().engine(&self.state, self.setup.model.as_deref()).await?;
        self.record.model(&engine.guard.spec().name);
        self.engine = Some(Arc::clone(&engine));
        Ok(engine)
    }

    /// No audio.
    fn empty(&self) -> ApiResult<Audio> {
        if self.setup.is_manual {
            return Ok(Audio::Buffer(Vec::new()));
        }
        // The weights of voice activity detection are unpacked.
        let stream = blocking(|| LiveStream::new(self.setup.options.clone()));
        let mut stream = stream.map_err(Error::from)?;
        stream.set_min_chunk_s(MIN_CHUNK_S);
        Ok(Audio::Stream(Box::new(stream)))
    }

    fn clear(&mut self) -> ApiResult<()> {
        self.record.discard();
        let empty = self.empty()?;
        match std::mem::replace(&mut self.audio, empty) {
            Audio::Buffer(samples) => self.inbox.done(samples.len()),
            Audio::Stream(stream) => self.n_before += n_samples(stream.seconds()),
        }
        Ok(())
    }

    /// Takes a setup: ends the utterance of another one; audio of the client's that is not committed is kept.
    async fn set_up(&mut self, setup: Setup) -> ApiResult<()> {
        if setup == self.setup {
            return Ok(());
        }
        if matches!(&self.audio, Audio::Stream(stream) if stream.is_speaking()) {
            self.commit(None).await?;
        }
        if setup.model != self.setup.model {
            self.engine = None;
        }
        self.setup = setup;
        let empty = self.empty()?;
        let kept = match std::mem::replace(&mut self.audio, empty) {
            Audio::Buffer(samples) => samples,
            Audio::Stream(stream) => {
                self.n_before += n_samples(stream.seconds());
                Vec::new()
            }
        };
        // The model is open when the audio comes.
        self.engine().await?;
        if kept.is_empty() { Ok(()) } else { self.push(kept).await }
    }

    /// Appends samples; a stream decodes them if they are enough.
    async fn push(&mut self, samples: Vec<f32>) -> ApiResult<()> {
        let engine = self.engine().await?;
        let result = self.decode(&engine.whisper, samples).await;
        self.report(result)
    }

    async fn decode(&mut self, whisper: &Whisper, samples: Vec<f32>) -> Result<(), Error> {
        let Self { audio, inbox, updates, n_before, start, record, .. } = self;
        let stream = match audio {
            Audio::Stream(stream) => stream,
            Audio::Buffer(buffer) => {
                buffer.extend_from_slice(&samples);
                return Ok(());
            }
        };
        record.audio(seconds(samples.len()));
        let mut decoder = TimedDecoder { whisper: whisper.clone(), last: None };
        let mut result = Ok(());
        for piece in samples.chunks(PIECE) {
            if result.is_ok() {
                let speech = blocking(|| stream.detect(piece));
                result = {
                    let mut on_event = forward(updates, *n_before, start, record);
                    stream.push_detected(&mut decoder, speech, &mut on_event).await
                };
                if let Some(time) = decoder.last.take() {
                    record.work(time.as_secs_f64());
                    let chunk = time.as_secs_f64() * CHUNK_PER_DECODING;
                    stream.set_min_chunk_s(chunk.clamp(MIN_CHUNK_S, MAX_CHUNK_S));
                }
                // Silence is never decoded: the task of a client that has gone ends here.
                tokio::task::yield_now().await;
            }
            inbox.done(piece.len());
        }
        result
    }

    /// Ends the utterance.
    async fn commit(&mut self, event_id: Option<String>) -> ApiResult<()> {
        match &self.audio {
            Audio::Stream(stream) if !stream.is_speaking() => {
                self.send(Update::NoSpeech(event_id));
                return Ok(());
            }
            Audio::Buffer(samples) if samples.is_empty() => return Ok(()),
            _ => {}
        }
        let engine = self.engine().await?;
        let result = self.finish(&engine.whisper).await;
        self.report(result)
    }

    async fn finish(&mut self, whisper: &Whisper) -> Result<(), Error> {
        let Self { audio, inbox, updates, n_before, start, setup, record, .. } = self;
        let started = Instant::now();
        let result = match audio {
            Audio::Stream(stream) => {
                let mut decoder = TimedDecoder { whisper: whisper.clone(), last: None };
                let mut on_event = forward(updates, *n_before, start, record);
                stream.finish_with(&mut decoder, &mut on_event).await
            }
            Audio::Buffer(buffer) => {
                let samples = std::mem::take(buffer);
                let n = samples.len();
                record.audio(seconds(n));
                let options = setup.options.decoding.clone();
                let result = transcribe(whisper, samples, options, updates, record).await;
                inbox.done(n);
                result
            }
        };
        record.work(started.elapsed().as_secs_f64());
        result
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let is_speaking = matches!(&self.audio, Audio::Stream(stream) if stream.is_speaking());
        if !is_speaking && self.inbox.n_pending() == 0 {
            self.record.finish(RequestEnd::Stop, None);
        }
    }
}

/// Transcribes a whole utterance, segment by segment.
async fn transcribe(
    whisper: &Whisper,
    samples: Vec<f32>,
    options: Options,
    updates: &UnboundedSender<Update>,
    record: &mut Record,
) -> Result<(), Error> {
    record.begin();
    let seconds = seconds(samples.len());
    let mut job = whisper.transcribe(Recording::samples(samples).options(options));
    while let Some(segment) = job.next_async().await {
        let segment = segment?;
        let words = segment.words.unwrap_or_default();
        record.text();
        let _ = updates.send(Update::Text { text: segment.text, words });
    }
    job.await?;
    record.end(seconds);
    let _ = updates.send(Update::End { seconds });
    Ok(())
}

/// Callback that records and sends the events of a stream, which began after `n_before` samples.
fn forward<'a>(
    updates: &'a UnboundedSender<Update>,
    n_before: u64,
    start: &'a mut f64,
    record: &'a mut Record,
) -> impl FnMut(LiveEvent) + Send + 'a {
    let offset = n_before as f64 / f64::from(SAMPLE_RATE);
    move |event| {
        let update = match event {
            LiveEvent::SpeechStart { time } => {
                *start = time;
                record.begin();
                Update::SpeechStart { time: time + offset }
            }
            LiveEvent::SpeechEnd { time } => Update::SpeechEnd { time: time + offset },
            LiveEvent::Committed { words } => {
                record.text();
                let words: Vec<Word> = words.into_iter().map(|live| live.word).collect();
                let text = words.iter().map(|word| word.word.as_str()).collect();
                Update::Text { text, words }
            }
            LiveEvent::Revised { replaced, words } => Update::Revised { replaced, words },
            LiveEvent::End { time } => {
                record.end(time - *start);
                Update::End { seconds: time - *start }
            }
            LiveEvent::Language { language } => Update::Language(language),
            // Text that is not final is not sent.
            _ => return,
        };
        // The socket may be closed already.
        let _ = updates.send(update);
    }
}

fn seconds(n_samples: usize) -> f64 {
    n_samples as f64 / f64::from(SAMPLE_RATE)
}

fn n_samples(seconds: f64) -> u64 {
    (seconds * f64::from(SAMPLE_RATE)).round() as u64
}

/// The model, with the time of the last decoding, its wait for the engine included.
struct TimedDecoder {
    whisper: Whisper,
    last: Option<Duration>,
}

impl LiveDecoder for TimedDecoder {
    type Error = Error;

    async fn decode(&mut self, samples: &[f32], options: &Options) -> Result<Transcript, Error> {
        let started = Instant::now();
        let transcript = self.whisper.decode(samples, options).await;
        self.last = Some(self.last.unwrap_or_default() + started.elapsed());
        transcript
    }
}
