//! Receivers of the events of requests to a language model, one a job.

use std::fmt;

use stonechat_llm::{Completion, Finish, RequestEvent};

use crate::job::JobSender;
use crate::{Error, LlmEvent};

/// Receiver of the events of a job's requests.
pub(crate) trait Sink: fmt::Debug + Send {
    /// Whether the job was cancelled or dropped.
    fn is_cancelled(&self) -> bool;

    /// Takes an event of the request with this index in the job.
    fn take(&mut self, index: usize, event: RequestEvent<'_>);

    /// Whether the job has all its results.
    fn is_complete(&self) -> bool;

    /// Ends the job: with its results, or with the error of a request.
    fn end(self: Box<Self>, result: Result<(), Error>);
}

/// Job of one text, as pieces.
#[derive(Debug)]
pub(crate) struct Pieces {
    sender: JobSender<String, Completion>,
    completion: Option<Completion>,
}

impl Pieces {
    pub(crate) fn new(sender: JobSender<String, Completion>) -> Self {
        Self { sender, completion: None }
    }
}

impl Sink for Pieces {
    fn is_cancelled(&self) -> bool {
        self.sender.is_ended()
    }

    fn take(&mut self, _: usize, event: RequestEvent<'_>) {
        match event {
            RequestEvent::Text { accepted, .. } if !accepted.text.is_empty() => {
                self.sender.send(accepted.text.clone());
            }
            RequestEvent::Ended { completion, .. } => self.completion = Some(completion),
            _ => {}
        }
    }

    fn is_complete(&self) -> bool {
        self.completion.is_some()
    }

    fn end(self: Box<Self>, result: Result<(), Error>) {
        let completion = self.completion.ok_or(Error::EngineStopped);
        self.sender.end(result.and(completion));
    }
}

/// Job of the texts after one prompt, with all events.
#[derive(Debug)]
pub(crate) struct Events {
    sender: JobSender<LlmEvent, Vec<Completion>>,
    completions: Vec<Option<Completion>>,
}

impl Events {
    pub(crate) fn new(sender: JobSender<LlmEvent, Vec<Completion>>, n_choices: usize) -> Self {
        Self { sender, completions: vec![None; n_choices] }
    }
}

impl Sink for Events {
    fn is_cancelled(&self) -> bool {
        self.sender.is_ended()
    }

    fn take(&mut self, _: usize, event: RequestEvent<'_>) {
        match event {
            RequestEvent::Started { cached_tokens } => {
                self.sender.send(LlmEvent::Started { cached_tokens });
            }
            RequestEvent::Prompt { done, total } => {
                self.sender.send(LlmEvent::Prompt { done, total });
            }
            RequestEvent::Text { choice, accepted } => {
                let (tokens, text) = (accepted.tokens.clone(), accepted.text.clone());
                self.sender.send(LlmEvent::Text { choice, tokens, text });
            }
            RequestEvent::Ended { choice, completion } => {
                // A prompt that is cancelled before its first token has one text.
                if completion.tokens.is_empty() && completion.finish == Finish::Cancelled {
                    self.completions.truncate(choice + 1);
                }
                self.completions[choice] = Some(completion);
            }
            _ => {}
        }
    }

    fn is_complete(&self) -> bool {
        self.completions.iter().all(Option::is_some)
    }

    fn end(self: Box<Self>, result: Result<(), Error>) {
        let completions = self.completions.into_iter().collect::<Option<Vec<_>>>();
        self.sender.end(result.and(completions.ok_or(Error::EngineStopped)));
    }
}

/// Job of embeddings, one request a text.
#[derive(Debug)]
pub(crate) struct Embeddings {
    sender: JobSender<(), Vec<Vec<f32>>>,
    vectors: Vec<Option<Vec<f32>>>,
}

impl Embeddings {
    pub(crate) fn new(sender: JobSender<(), Vec<Vec<f32>>>, n_texts: usize) -> Self {
        Self { sender, vectors: vec![None; n_texts] }
    }
}

impl Sink for Embeddings {
    fn is_cancelled(&self) -> bool {
        self.sender.is_ended()
    }

    fn take(&mut self, index: usize, event: RequestEvent<'_>) {
        if let RequestEvent::Embedded(vector) = event {
            self.vectors[index] = Some(vector);
        }
    }

    fn is_complete(&self) -> bool {
        self.vectors.iter().all(Option::is_some)
    }

    fn end(self: Box<Self>, result: Result<(), Error>) {
        let vectors = self.vectors.into_iter().collect::<Option<Vec<_>>>();
        self.sender.end(result.and(vectors.ok_or(Error::EngineStopped)));
    }
}
