//! Outputs of the jobs of a language model: items and results from the events of their requests.

use std::fmt;

use stonechat_llm::chat::{AnswerParser, ChatEvent};
use stonechat_llm::{AcceptedToken, Completion, Finish, RequestEvent, TokenProb};

use crate::Error;
use crate::chat::ChatAnswer;
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

/// Output with items `I`, one result `T` of each text, and an output `O` of all.
#[derive(Debug)]
pub(crate) struct Results<I, T, O> {
    sender: JobSender<I, O>,
    results: Vec<Option<T>>,
    take: fn(&mut Self, usize, RequestEvent),
    output: fn(Vec<T>) -> Option<O>,
}

/// Output of one text: its pieces.
pub(crate) fn pieces(
    sender: JobSender<String, Completion>,
) -> Results<String, Completion, Completion> {
    let take = |output: &mut Results<_, _, _>, _, event| match event {
        RequestEvent::Text { text, .. } if !text.is_empty() => {
            let n_bytes = text_bytes(&text, &[]);
            output.sender.send_bytes(text, n_bytes);
        }
        RequestEvent::Ended { completion, .. } => output.results = vec![Some(completion)],
        _ => {}
    };
    Results { sender, results: vec![None], take, output: |mut texts| texts.pop() }
}

/// Output of one answer of a chat: items `I` from its parts, and an output `O`.
pub(crate) struct ChatOutput<I, O> {
    sender: JobSender<I, O>,
    parser: AnswerParser,
    answer: ChatAnswer,
    is_complete: bool,
    item: fn(ChatEvent) -> Option<I>,
    output: fn(ChatAnswer) -> O,
}

impl<I, O> fmt::Debug for ChatOutput<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatOutput").field("answer", &self.answer).finish_non_exhaustive()
    }
}

impl ChatOutput<ChatEvent, ChatAnswer> {
    /// All parts.
    pub(crate) fn events(sender: JobSender<ChatEvent, ChatAnswer>, parser: AnswerParser) -> Self {
        Self::new(sender, parser, Some, |answer| answer)
    }
}

impl ChatOutput<String, Completion> {
    /// The content.
    pub(crate) fn content(sender: JobSender<String, Completion>, parser: AnswerParser) -> Self {
        let item = |event| match event {
            ChatEvent::Content(text) => Some(text),
            _ => None,
        };
        Self::new(sender, parser, item, |ChatAnswer { message, mut completion }| {
            completion.text = message.content;
            completion
        })
    }
}

impl<I, O> ChatOutput<I, O> {
    fn new(
        sender: JobSender<I, O>,
        parser: AnswerParser,
        item: fn(ChatEvent) -> Option<I>,
        output: fn(ChatAnswer) -> O,
    ) -> Self {
        Self { sender, parser, answer: ChatAnswer::default(), is_complete: false, item, output }
    }

    fn send(&mut self, events: Vec<ChatEvent>) {
        for event in events {
            self.answer.message.push(&event);
            let n_bytes = size_of::<ChatEvent>() + event.text().len();
            if let Some(item) = (self.item)(event) {
                self.sender.send_bytes(item, n_bytes);
            }
        }
    }
}

impl<I: Send, O: Send> JobOutput for ChatOutput<I, O> {
    fn is_cancelled(&self) -> bool {
        self.sender.is_ended() || self.sender.pending_bytes() > MAX_PENDING_BYTES
    }

    fn take(&mut self, _: usize, event: RequestEvent) {
        match event {
            RequestEvent::Started { .. } => self.sender.start(),
            RequestEvent::Text { text, .. } => {
                let events = self.parser.push(&text);
                self.send(events);
            }
            RequestEvent::Ended { completion, .. } => {
                let events = self.parser.finish(completion.finish.is_complete());
                self.send(events);
                self.answer.completion = completion;
                self.is_complete = true;
            }
            _ => {}
        }
    }

    fn is_complete(&self) -> bool {
        self.is_complete
    }

    fn end(self: Box<Self>, result: Result<(), Error>) {
        let Self { sender, answer, is_complete, output, .. } = *self;
        let answer = is_complete.then(|| output(answer)).ok_or(Error::EngineStopped);
        sender.end(result.and(answer));
    }
}

/// Output of the texts after one prompt: all events.
pub(crate) fn events(
    sender: JobSender<RequestEvent, Vec<Completion>>,
    n_choices: usize,
) -> Results<RequestEvent, Completion, Vec<Completion>> {
    let take = |output: &mut Results<_, _, _>, _, event| match event {
        RequestEvent::Ended { choice, completion } => {
            // A prompt that is cancelled before its first token has one text.
            if completion.tokens.is_empty() && completion.finish == Finish::Cancelled {
                output.results.truncate(choice + 1);
            }
            output.results[choice] = Some(completion);
        }
        RequestEvent::Text { ref text, ref tokens, .. } => {
            let n_bytes = text_bytes(text, tokens);
            output.sender.send_bytes(event, n_bytes);
        }
        event => output.sender.send(event),
    };
    Results { sender, results: vec![None; n_choices], take, output: Some }
}

/// Output of a request for an embedding of each text.
pub(crate) fn embeddings(
    sender: JobSender<(), Vec<Vec<f32>>>,
    n_texts: usize,
) -> Results<(), Vec<f32>, Vec<Vec<f32>>> {
    let take = |output: &mut Results<_, _, _>, index: usize, event| {
        if let RequestEvent::Embedded(vector) = event {
            output.results[index] = Some(vector);
        }
    };
    Results { sender, results: vec![None; n_texts], take, output: Some }
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
        (self.take)(self, index, event);
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
