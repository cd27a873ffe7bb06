//! State of a session: the configuration, the audio that was received, and the utterances that are not complete.

use std::collections::VecDeque;

use stonechat::Word;
use stonechat::audio::{PcmStream, SAMPLE_RATE};

use super::MAX_PENDING_S;
use super::action::{Action, Dialect, Update};
use super::client::{ClientEvent, ClientMessage};
use super::config::Config;
use super::server::{self, Body, ErrorView, ItemView, Logprob, ServerEvent, Usage};
use crate::ids::new_id;
use crate::{ApiError, ApiResult};

/// Minimum samples of a commit: 100 ms.
const MIN_COMMIT: u64 = SAMPLE_RATE as u64 / 10;
/// Code of the error of a commit without audio.
const COMMIT_EMPTY: &str = "input_audio_buffer_commit_empty";

/// An utterance.
#[derive(Debug)]
struct Item {
    id: String,
    previous: Option<String>,
    is_committed: bool,
    transcript: String,
    words: Vec<Word>,
}

/// A session. It holds no audio.
#[derive(Debug)]
pub struct Session {
    id: String,
    dialect: Dialect,
    config: Config,
    pcm: Option<PcmStream>,
    /// Samples that were neither committed nor cleared, if the client commits.
    n_uncommitted: u64,
    /// Utterances that are not complete.
    items: VecDeque<Item>,
    /// The last utterance that was committed.
    last_item: Option<String>,
}

impl Session {
    /// A session with the configuration of the query.
    #[must_use]
    pub fn new(config: Config, dialect: Dialect) -> Self {
        Self {
            id: new_id("sess_"),
            dialect,
            config,
            pcm: None,
            n_uncommitted: 0,
            items: VecDeque::new(),
            last_item: None,
        }
    }

    /// The first event.
    #[must_use]
    pub fn created(&self) -> ServerEvent {
        ServerEvent::new(server::session(&self.id, &self.config, self.dialect, true))
    }

    /// Configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Takes a message of the client. `n_pending` samples wait for their transcription or their commit.
    pub fn receive(&mut self, text: &str, n_pending: u64) -> Vec<Action> {
        let ClientMessage { event_id, event } = ClientMessage::parse(text);
        let actions = event.and_then(|event| self.apply(event, event_id.clone(), n_pending));
        actions.unwrap_or_else(|error| vec![Action::Send(ServerEvent::error(&error, event_id))])
    }

    fn apply(
        &mut self,
        event: ClientEvent,
        event_id: Option<String>,
        n_pending: u64,
    ) -> ApiResult<Vec<Action>> {
        Ok(match event {
            ClientEvent::Update { session, is_beta } => {
                if is_beta {
                    self.dialect = Dialect::Beta;
                }
                let config = Box::new(self.config.updated(*session)?);
                vec![Action::Check { config, event_id }]
            }
            ClientEvent::Append(bytes) => {
                let samples = self.convert(&bytes, n_pending)?;
                vec![Action::Audio(samples)]
            }
            ClientEvent::Commit if self.config.turn_detection.is_some() => {
                let mut actions = self.rest();
                actions.push(Action::Commit(event_id));
                actions
            }
            ClientEvent::Commit => {
                let mut actions = self.rest();
                if self.n_uncommitted < MIN_COMMIT {
                    // The rest of the audio still belongs to the next commit.
                    let error = commit_empty(self.n_uncommitted);
                    actions.push(Action::Send(ServerEvent::error(&error, event_id)));
                    return Ok(actions);
                }
                self.n_uncommitted = 0;
                self.items.push_back(Item::new());
                let events = self.commit_last();
                actions.extend(events.into_iter().map(Action::Send));
                actions.push(Action::Commit(event_id));
                actions
            }
            ClientEvent::Clear => {
                (self.pcm, self.n_uncommitted) = (None, 0);
                vec![Action::Clear]
            }
        })
    }

    /// Samples of an append.
    fn convert(&mut self, bytes: &[u8], n_pending: u64) -> ApiResult<Vec<f32>> {
        let (format, rate) = self.config.format.pcm();
        let pcm = match &mut self.pcm {
            Some(pcm) => pcm,
            none => none.insert(PcmStream::new(format, rate, 1).map_err(stonechat::Error::from)?),
        };
        let max = MAX_PENDING_S * u64::from(SAMPLE_RATE);
        if n_pending.saturating_add(pcm.n_samples(bytes.len())) > max {
            let expected =
                format!("at most {MAX_PENDING_S} s that wait for their transcription or a commit");
            return Err(ApiError::field("audio", &expected, "more"));
        }
        let mut samples = Vec::new();
        pcm.push(bytes, &mut samples).map_err(stonechat::Error::from)?;
        self.n_uncommitted += samples.len() as u64;
        Ok(samples)
    }

    /// The samples that the resampler still holds, before an utterance ends.
    fn rest(&mut self) -> Vec<Action> {
        let mut samples = Vec::new();
        if let Some(pcm) = self.pcm.take() {
            pcm.finish(&mut samples);
        }
        self.n_uncommitted += samples.len() as u64;
        if samples.is_empty() { Vec::new() } else { vec![Action::Audio(samples)] }
    }

    /// Takes a configuration whose model was checked; the event for the client. The live stream gets it if it is another.
    pub fn configure(
        &mut self,
        config: Config,
        checked: ApiResult<()>,
        event_id: Option<String>,
    ) -> ServerEvent {
        if let Err(error) = checked {
            return ServerEvent::error(&error, event_id);
        }
        if config.format != self.config.format {
            self.pcm = None;
        }
        self.config = config;
        ServerEvent::new(server::session(&self.id, &self.config, self.dialect, false))
    }

    /// Takes an update of the live stream; the events for the client.
    pub fn update(&mut self, update: Update) -> Vec<ServerEvent> {
        let bodies = match update {
            Update::SpeechStart { time } => {
                let item = Item::new();
                let item_id = item.id.clone();
                self.items.push_back(item);
                vec![Body::SpeechStarted { audio_start_ms: milliseconds(time), item_id }]
            }
            Update::SpeechEnd { time } => {
                let Some(item) = self.items.back() else { return Vec::new() };
                let item_id = item.id.clone();
                let stopped = Body::SpeechStopped { audio_end_ms: milliseconds(time), item_id };
                let mut events = vec![ServerEvent::new(stopped)];
                events.extend(self.commit_last());
                return events;
            }
            Update::Text { text, words } => self.delta(&text, words),
            Update::Revised { replaced, words } => {
                if let Some(item) = self.items.front_mut() {
                    item.revise(&replaced, words);
                }
                Vec::new()
            }
            Update::End { seconds } => self.complete(seconds),
            Update::Failed(error) => match self.items.pop_front() {
                Some(Item { id: item_id, .. }) => {
                    vec![Body::Failed { item_id, content_index: 0, error: ErrorView::new(&error) }]
                }
                None => return vec![ServerEvent::error(&error, None)],
            },
            Update::NoSpeech(event_id) => {
                let message = "the buffer has no speech that is not committed";
                let error = ApiError::bad_request(message).with_code(COMMIT_EMPTY);
                return vec![ServerEvent::error(&error, event_id)];
            }
            Update::Language(_) | Update::Done => Vec::new(),
            Update::Cleared => {
                self.items.retain(|item| item.is_committed);
                vec![Body::Cleared {}]
            }
        };
        bodies.into_iter().map(ServerEvent::new).collect()
    }

    /// Commits the last utterance.
    fn commit_last(&mut self) -> Vec<ServerEvent> {
        let previous_item_id = self.last_item.clone();
        let Some(item) = self.items.back_mut() else { return Vec::new() };
        (item.is_committed, item.previous) = (true, previous_item_id.clone());
        let item_id = item.id.clone();
        self.last_item = Some(item_id.clone());
        let view = ItemView::new(&item_id, None);
        let added = match self.dialect {
            Dialect::Ga => {
                Body::ItemAdded { item: view, previous_item_id: previous_item_id.clone() }
            }
            Dialect::Beta => {
                Body::ItemCreated { item: view, previous_item_id: previous_item_id.clone() }
            }
        };
        let committed = Body::Committed { item_id, previous_item_id };
        vec![ServerEvent::new(committed), ServerEvent::new(added)]
    }

    fn delta(&mut self, text: &str, words: Vec<Word>) -> Vec<Body> {
        let has_logprobs = self.config.has_logprobs;
        let Some(item) = self.items.front_mut() else { return Vec::new() };
        // The deltas are the text of the last event, which does not begin with a space.
        let delta = if item.transcript.is_empty() { text.trim_start() } else { text };
        if delta.is_empty() {
            return Vec::new();
        }
        item.transcript += delta;
        let logprobs = has_logprobs.then(|| words.iter().map(Logprob::from).collect());
        if has_logprobs {
            item.words.extend(words);
        }
        let (item_id, delta) = (item.id.clone(), delta.to_owned());
        vec![Body::Delta { item_id, content_index: 0, delta, logprobs }]
    }

    fn complete(&mut self, seconds: f64) -> Vec<Body> {
        let Some(item) = self.items.pop_front() else { return Vec::new() };
        let Item { id: item_id, previous: previous_item_id, transcript, words, .. } = item;
        let view = ItemView::new(&item_id, Some(transcript.clone()));
        let logprobs = self.config.has_logprobs.then(|| words.iter().map(Logprob::from).collect());
        let usage = Usage::of(seconds);
        let mut bodies =
            vec![Body::Completed { item_id, content_index: 0, transcript, usage, logprobs }];
        if self.dialect == Dialect::Ga {
            bodies.push(Body::ItemDone { item: view, previous_item_id });
        }
        bodies
    }

    /// Whether an utterance is not complete.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        !self.items.is_empty()
    }
}

impl Item {
    fn new() -> Self {
        Self {
            id: new_id("item_"),
            previous: None,
            is_committed: false,
            transcript: String::new(),
            words: Vec::new(),
        }
    }

    /// Replaces the last words.
    fn revise(&mut self, replaced: &[Word], words: Vec<Word>) {
        super::revise(&mut self.transcript, replaced, &words);
        // Without log-probabilities the words are not kept.
        if !self.words.is_empty() {
            self.words.truncate(self.words.len().saturating_sub(replaced.len()));
            self.words.extend(words);
        }
    }
}

fn commit_empty(n_samples: u64) -> ApiError {
    let ms = n_samples as f64 / f64::from(SAMPLE_RATE) * 1000.0;
    let message =
        format!("the buffer is too small: expected at least 100 ms of audio, got {ms:.0}");
    ApiError::bad_request(message).with_code(COMMIT_EMPTY)
}

fn milliseconds(seconds: f64) -> u64 {
    (seconds * 1000.0).round().max(0.0) as u64
}

#[cfg(test)]
mod tests;
