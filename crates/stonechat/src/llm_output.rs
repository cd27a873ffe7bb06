//! Outputs of the jobs of a language model: items and results from the events of their requests.

use std::fmt;

use stonechat_llm::{AcceptedToken, Completion, Finish, RequestEvent, TokenProb};

use crate::Error;
use crate::job::JobSender;

/// Maximum bytes of a text's events that the caller has not read. The text of a caller that reads no more ends there, since
/// it may have no other end; a caller may lag by ten thousands of tokens.
const MAX_PENDING_BYTES: usize = 32 << 20;

/// Output of a job, which takes the events of the job's requests.
pub(crate) trait JobOutput: fmt::Debug + Send {
    /// Whether the job was cancelled or dropped, or its events are not read.
    fn is_cancelled(&self) -> bool;

    /// Takes an event of the request with this index in the job.
    fn take(&mut self, index: usize, event: RequestEvent);

    /// Whether the job has all its results.
    fn is_complete(&self) -> bool;

    /// Ends the job: with its results, or with the error of a request.
    fn end(self: Box<Self>, result: Result<(), Error>);
}

/// Part of a job's output that an event carries.
enum Part<I, T> {
    /// An item with its bytes in the queue of the job.
    Item(I, usize),
    /// The result of the text with this index.
    Result(usize, T),
    /// The result of the text with this index, after which there are no others.
    LastResult(usize, T),
    /// No output.
    Nothing,
}

/// Output with items `I`, one result `T` of each text, and an output `O` of all.
#[derive(Debug)]
pub(crate) struct Results<I, T, O> {
    sender: JobSender<I, O>,
    results: Vec<Option<T>>,
    part: fn(usize, RequestEvent) -> Part<I, T>,
    output: fn(Vec<T>) -> Option<O>,
}

/// Output of one text: its pieces.
pub(crate) fn pieces(
    sender: JobSender<String, Completion>,
) -> Results<String, Completion, Completion> {
    let part = |_, event| match event {
        RequestEvent::Text { text, .. } if !text.is_empty() => {
            let n_bytes = text_bytes(&text, &[]);
            Part::Item(text, n_bytes)
        }
        RequestEvent::Ended { completion, .. } => Part::Result(0, completion),
        _ => Part::Nothing,
    };
    Results { sender, results: vec![None], part, output: |mut texts| texts.pop() }
}

/// Output of the texts after one prompt: all events.
pub(crate) fn events(
    sender: JobSender<RequestEvent, Vec<Completion>>,
    n_choices: usize,
) -> Results<RequestEvent, Completion, Vec<Completion>> {
    let part = |_, event| match event {
        RequestEvent::Ended { choice, completion } => {
            // A prompt that is cancelled before its first token has one text.
            if completion.tokens.is_empty() && completion.finish == Finish::Cancelled {
                Part::LastResult(choice, completion)
            } else {
                Part::Result(choice, completion)
            }
        }
        RequestEvent::Text { ref text, ref tokens, .. } => {
            let n_bytes = text_bytes(text, tokens);
            Part::Item(event, n_bytes)
        }
        event => Part::Item(event, size_of::<RequestEvent>()),
    };
    Results { sender, results: vec![None; n_choices], part, output: Some }
}

/// Output of a request for an embedding of each text.
pub(crate) fn embeddings(
    sender: JobSender<(), Vec<Vec<f32>>>,
    n_texts: usize,
) -> Results<(), Vec<f32>, Vec<Vec<f32>>> {
    let part = |index, event| match event {
        RequestEvent::Embedded(vector) => Part::Result(index, vector),
        _ => Part::Nothing,
    };
    Results { sender, results: vec![None; n_texts], part, output: Some }
}

/// Bytes of an event with text in the queue of a job.
fn text_bytes(text: &str, tokens: &[AcceptedToken]) -> usize {
    let probs = |token: &AcceptedToken| token.probs.as_ref().map_or(0, |probs| probs.top.len());
    let n_probs: usize = tokens.iter().map(probs).sum();
    size_of::<RequestEvent>() + text.len() + size_of_val(tokens) + n_probs * size_of::<TokenProb>()
}

impl<I, T, O> JobOutput for Results<I, T, O>
where
    Self: fmt::Debug + Send,
{
    fn is_cancelled(&self) -> bool {
        let max_bytes = MAX_PENDING_BYTES * self.results.len();
        self.sender.is_ended() || self.sender.pending_bytes() > max_bytes
    }

    fn take(&mut self, index: usize, event: RequestEvent) {
        if matches!(event, RequestEvent::Started { .. }) {
            self.sender.start();
        }
        match (self.part)(index, event) {
            Part::Item(item, n_bytes) => self.sender.send_bytes(item, n_bytes),
            Part::Result(text, result) => self.results[text] = Some(result),
            Part::LastResult(text, result) => {
                self.results.truncate(text + 1);
                self.results[text] = Some(result);
            }
            Part::Nothing => {}
        }
    }

    fn is_complete(&self) -> bool {
        self.results.iter().all(Option::is_some)
    }

    fn end(self: Box<Self>, result: Result<(), Error>) {
        let results = self.results.into_iter().collect::<Option<Vec<_>>>();
        let output = results.and_then(self.output).ok_or(Error::EngineStopped);
        self.sender.end(result.and(output));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use stonechat_llm::RequestEvent;

    use super::{JobOutput, MAX_PENDING_BYTES, events};
    use crate::job::Job;

    #[test]
    fn a_text_that_nobody_reads_ends() {
        for n_choices in [1, 2] {
            let (mut job, sender) = Job::new(Arc::new(()));
            let mut output = events(sender, n_choices);
            let mut send = |n: usize| {
                for done in 0..n {
                    output.take(0, RequestEvent::Prompt { done, total: n });
                }
                output.is_cancelled()
            };
            let most = MAX_PENDING_BYTES * n_choices / size_of::<RequestEvent>();
            assert!(!send(most));
            // Events that were read no longer count against the limit.
            assert_eq!(job.items().take(10).count(), 10);
            assert!(!send(10));
            assert!(send(1));
        }
    }
}
