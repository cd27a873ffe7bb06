//! Identity and events of a request.

use std::sync::Arc;

use crate::Error;
use crate::text::completion::Completion;
use crate::text::generation::AcceptedToken;
use crate::text::probabilities::TokenProbs;

/// Identity of a request in its scheduler. Requests run in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    pub(crate) priority: i32,
    /// Order of arrival.
    pub(crate) number: u64,
}

/// Event of a request.
#[derive(Debug)]
#[non_exhaustive]
pub enum RequestEvent {
    /// The request has left the queue for the first time.
    Started {
        /// Tokens of its input that the prefix cache had.
        cached_tokens: usize,
    },
    /// A chunk of its input has run. The last one of an embedding has no event.
    Prompt {
        /// Tokens cached or run.
        done: usize,
        /// Tokens of the input.
        total: usize,
    },
    /// Probabilities of each token of the prompt but the first, once all of them are known, if they were asked for.
    PromptProbs(Arc<[TokenProbs]>),
    /// Tokens and text of a step.
    Text {
        /// Index of the text.
        choice: usize,
        /// Tokens, each with its range of `text`.
        tokens: Vec<AcceptedToken>,
        /// Text in whole code points; at the end also what was held back.
        text: String,
    },
    /// A text has ended.
    Ended {
        /// Index of the text.
        choice: usize,
        /// The whole text.
        completion: Completion,
    },
    /// The embedding, `[D]`, or `[T, D]` without pooling.
    Embedded(Vec<f32>),
    /// The request has failed.
    Failed(Error),
}
