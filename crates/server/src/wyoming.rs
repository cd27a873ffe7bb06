//! Wyoming over TCP, for the voice assistants of Home Assistant. A connection has one transcript.

use std::sync::Arc;

use stonechat::{ModelKind, Whisper};
use stonechat_api::realtime::{Update, revise};
use stonechat_api::wyoming::{Action, Answer, Conversation, FrameReader, SpeechModel};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::live::{Command, LivePermit, LiveSession, Protocol, Setup};
use crate::otlp::LiveTrace;
use crate::server::ACCEPT_PAUSE;
use crate::tasks::blocking;
use crate::write_limit::WriteLimit;
use crate::{ApiError, ApiResult, AppState};

/// Bytes of a read.
const READ_BYTES: usize = 16 << 10;
/// Vocabulary of the first multilingual models; those for English have one token less.
const MULTILINGUAL_VOCAB: usize = 51_865;

/// Accepts connections until the server stops; waits for their end. They count as connections of the server.
pub(crate) async fn accept_all(listener: TcpListener, state: AppState, permits: Arc<Semaphore>) {
    let mut tasks = JoinSet::new();
    loop {
        let accepted = async {
            let permit = Arc::clone(&permits).acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            accepted = accepted => accepted,
            () = state.live().stopping() => break,
        };
        match (permit, accepted) {
            (Ok(permit), Ok((stream, _))) => {
                tasks.spawn(serve(stream, state.clone(), permit));
            }
            (_, Err(error)) => {
                tracing::warn!("cannot accept a connection of Wyoming: {error}");
                sleep(ACCEPT_PAUSE).await;
            }
            // The semaphore is never closed.
            (Err(_), _) => break,
        }
        while tasks.try_join_next().is_some() {}
    }
    drop(listener);
    while tasks.join_next().await.is_some() {}
}

async fn serve(stream: TcpStream, state: AppState, permit: OwnedSemaphorePermit) {
    // Each event is a small packet.
    if let Err(error) = stream.set_nodelay(true) {
        return tracing::debug!("Wyoming: {error}");
    }
    let stream = WriteLimit::new(stream, state.options().write_timeout);
    let connection = Connection {
        stream,
        state: state.clone(),
        reader: FrameReader::default(),
        conversation: Conversation::default(),
        live: None,
        transcript: Transcript::default(),
    };
    tokio::select! {
        ended = connection.serve() => if let Err(error) = ended {
            // A client that goes away is not an error of the server.
            tracing::debug!("Wyoming: {error}");
        },
        () = state.live().ended() => {}
    }
    drop(permit);
}

/// A connection and its transcript.
struct Connection {
    stream: WriteLimit<TcpStream>,
    state: AppState,
    reader: FrameReader,
    conversation: Conversation,
    /// Live session, once audio has started.
    live: Option<(LiveSession, LivePermit)>,
    transcript: Transcript,
}

/// Text so far.
#[derive(Debug, Default)]
struct Transcript {
    text: String,
    language: Option<String>,
    /// Whether the client has ended its audio.
    is_stopped: bool,
    has_started: bool,
}

/// Reason of the end of a connection, for the log.
type Ended = Result<(), String>;

impl Connection {
    async fn serve(mut self) -> Ended {
        match self.exchange().await {
            Err(Failure::Client(error)) => Err(error),
            Err(Failure::Request(error)) => {
                let reason = error.message().to_owned();
                self.send(&Answer::Error(error)).await?;
                Err(reason)
            }
            Ok(()) => Ok(()),
        }
    }

    /// Exchanges events until the transcript was sent, or the client has gone.
    async fn exchange(&mut self) -> Result<(), Failure> {
        let mut bytes = vec![0; READ_BYTES];
        let idle = self.state.options().live_idle_timeout;
        let state = self.state.clone();
        let mut is_stopping = false;
        loop {
            tokio::select! {
                read = timeout(idle, self.stream.read(&mut bytes)) => {
                    let n = match read {
                        Ok(read) => read.map_err(|error| error.to_string())?,
                        Err(_) if self.transcript.is_stopped => continue,
                        Err(_) => return Err(ApiError::timed_out("the connection was idle").into()),
                    };
                    if n == 0 {
                        return Ok(());
                    }
                    self.receive(&bytes[..n]).await?;
                }
                update = next_update(&mut self.live) => {
                    let missing = || ApiError::server("the model cannot be used");
                    if self.update(update.ok_or_else(missing)?).await? {
                        return Ok(());
                    }
                }
                () = state.live().stopping(), if !is_stopping => {
                    is_stopping = true;
                    if !self.transcript.is_stopped {
                        // A transcript of the audio so far.
                        let Some((live, _)) = &self.live else { return Ok(()) };
                        live.inbox.push(Command::Commit(None))?;
                        self.transcript.is_stopped = true;
                    }
                }
            }
        }
    }

    /// Takes bytes of the client.
    async fn receive(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.reader.push(bytes);
        loop {
            let frame = self.reader.next_frame();
            let frame = frame.map_err(|error| ApiError::bad_request(error.to_string()))?;
            let Some(frame) = frame else { return Ok(()) };
            if self.transcript.is_stopped {
                continue;
            }
            let n_pending = self.live.as_ref().map_or(0, |(live, _)| live.inbox.n_pending());
            let conversation = &mut self.conversation;
            for action in blocking(|| conversation.receive(frame, n_pending))? {
                self.act(action).await?;
            }
        }
    }

    async fn act(&mut self, action: Action) -> Result<(), Failure> {
        match action {
            Action::Describe => {
                let models = speech_models(&self.state).await;
                self.send(&Answer::Info(models)).await?;
            }
            Action::Send(answer) => self.send(&answer).await?,
            Action::Start { model, options } => {
                self.state.check_ready()?;
                self.state.models().check::<Whisper>(model.as_deref()).await?;
                let language = options.decoding.language.map(|language| language.code.to_owned());
                self.transcript.language = language;
                let state = &self.state;
                let permit = state.live().admit(Protocol::Wyoming, state.metrics())?;
                let setup = Setup { model, options: *options, is_manual: false };
                let live = LiveSession::start(state, setup, LiveTrace::wyoming(state));
                self.live = Some((live, permit));
            }
            Action::Audio(samples) => self.push(Command::Audio(samples))?,
            Action::Stop => {
                self.push(Command::Commit(None))?;
                self.transcript.is_stopped = true;
            }
        }
        Ok(())
    }

    fn push(&self, command: Command) -> ApiResult<()> {
        self.live.as_ref().map_or(Ok(()), |(live, _)| live.inbox.push(command))
    }

    /// Takes an update of the session; tells if it was the last.
    async fn update(&mut self, update: Update) -> Result<bool, Failure> {
        match update {
            Update::Language(code) => self.transcript.language = Some(code.to_owned()),
            Update::Text { text, .. } => {
                self.start().await?;
                let is_first = self.transcript.text.is_empty();
                let text = if is_first { text.trim_start() } else { &text };
                self.transcript.text += text;
                self.send(&Answer::TranscriptChunk(text.to_owned())).await?;
            }
            Update::Revised { replaced, words } => {
                revise(&mut self.transcript.text, &replaced, &words);
            }
            Update::Failed(error) => return Err(error.into()),
            Update::Done => {
                self.start().await?;
                let Transcript { text, language, .. } = std::mem::take(&mut self.transcript);
                self.send(&Answer::Transcript { text, language }).await?;
                self.send(&Answer::TranscriptStop).await?;
                return Ok(true);
            }
            _ => {}
        }
        Ok(false)
    }

    /// Sends the start of the transcript once.
    async fn start(&mut self) -> Ended {
        if std::mem::replace(&mut self.transcript.has_started, true) {
            return Ok(());
        }
        let language = self.transcript.language.clone();
        self.send(&Answer::TranscriptStart { language }).await
    }

    async fn send(&mut self, answer: &Answer) -> Ended {
        let sent = self.stream.write_all(&answer.to_bytes()).await;
        sent.map_err(|error| error.to_string())
    }
}

/// The next update of a session; without one it is waited for forever.
async fn next_update(live: &mut Option<(LiveSession, LivePermit)>) -> Option<Update> {
    match live {
        Some((live, _)) => live.update().await,
        None => std::future::pending().await,
    }
}

/// Failure of a connection.
enum Failure {
    /// The client has gone, or does not read.
    Client(String),
    /// An error that the client gets.
    Request(ApiError),
}

impl From<String> for Failure {
    fn from(reason: String) -> Self {
        Self::Client(reason)
    }
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        Self::Request(error)
    }
}

/// Speech models of the server, without waking them.
async fn speech_models(state: &AppState) -> Vec<SpeechModel> {
    let listed = state.models().list().await;
    let speech = listed.into_iter().filter(|model| model.spec.kind != ModelKind::Language);
    let model = |spec: &crate::ModelSpec| SpeechModel {
        name: spec.id().to_owned(),
        is_multilingual: spec.n_vocab >= MULTILINGUAL_VOCAB,
    };
    speech.map(|listed| model(&listed.spec)).collect()
}
