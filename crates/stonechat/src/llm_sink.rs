//! Receivers of the events of requests to a language model, one a job.

use std::fmt;

use stonechat_llm::{AcceptedToken, Completion, Finish, RequestEvent, TokenProb};

use crate::job::JobSender;
use crate::{Error, LlmEvent};

/// Most bytes of a text's events that its reader has not taken: the text of one that reads no more ends there, since a text
/// may have no other end. A reader that lags by ten thousands of tokens is not met.
const MAX_PENDING_BYTES: usize = 32 << 20;

/// Bytes of a piece of text in the queue of a job.
fn piece_bytes(text: &str, tokens: &[AcceptedToken]) -> usize {
    let probs = |token: &AcceptedToken| token.probs.as_ref().map_or(0, |probs| probs.top.len());
    let n_probs: usize = tokens.iter().map(probs).sum();
    size_of::<LlmEvent>() + text.len() + size_of_val(tokens) + n_probs * size_of::<TokenProb>()
}

/// Receiver of the events of a job's requests.
pub(crate) trait Sink: fmt::Debug + Send {
    /// Whether the job was cancelled or dropped.
    fn is_cancelled(&self) -> bool;

    /// Takes an event of the request with this index in the job.
    fn take(&mut self, index: usize, event: RequestEvent);

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
        self.sender.is_ended() || self.sender.pending_bytes() > MAX_PENDING_BYTES
    }

    fn take(&mut self, _: usize, event: RequestEvent) {
        match event {
            RequestEvent::Text { text, .. } if !text.is_empty() => {
                let n_bytes = piece_bytes(&text, &[]);
                self.sender.send_bytes(text, n_bytes);
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
        let max_bytes = MAX_PENDING_BYTES * self.completions.len();
        self.sender.is_ended() || self.sender.pending_bytes() > max_bytes
    }

    fn take(&mut self, _: usize, event: RequestEvent) {
        match event {
            RequestEvent::Started { cached_tokens } => {
                self.sender.send(LlmEvent::Started { cached_tokens });
            }
            RequestEvent::Prompt { done, total } => {
                self.sender.send(LlmEvent::Prompt { done, total });
            }
            RequestEvent::Text { choice, tokens, text } => {
                let n_bytes = piece_bytes(&text, &tokens);
                self.sender.send_bytes(LlmEvent::Text { choice, tokens, text }, n_bytes);
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

    fn take(&mut self, index: usize, event: RequestEvent) {
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use stonechat_llm::RequestEvent;

    use super::{Events, MAX_PENDING_BYTES, Sink};
    use crate::LlmEvent;
    use crate::job::Job;

    #[test]
    fn a_text_that_nobody_reads_ends() {
        for n_choices in [1, 2] {
            let (mut job, sender) = Job::new(Arc::new(()));
            let mut events = Events::new(sender, n_choices);
            let mut send = |n: usize| {
                for done in 0..n {
                    events.take(0, RequestEvent::Prompt { done, total: n });
                }
                events.is_cancelled()
            };
            let most = MAX_PENDING_BYTES * n_choices / size_of::<LlmEvent>();
            assert!(!send(most));
            // Events that were read no longer count against the limit.
            assert_eq!(job.items().take(10).count(), 10);
            assert!(!send(10));
            assert!(send(1));
        }
    }
}
