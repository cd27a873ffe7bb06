//! Requests for generated text in any dialect: from a body to requests of the engine, and from their events to JSON.
//!
//! ```text
//! bytes ──► Body::parse ──► Body::prepare ──► requests ──► Run ──► events, texts
//!                                │                                     │
//!                                └──────────► Answer ◄─────────────────┘──► objects of a stream, or one object
//! ```

use std::fmt;

use serde_json::{Map, Value};
use stonechat::llm::ReasoningControl;
use stonechat::{Completion, Llm, Request, RequestEvent};

use crate::generation::{GenerationFields, RequestStats};
use crate::json::{JsonFields, ParseBody};
use crate::{ApiError, ApiResult, Defaults};

pub use crate::frame::{Frame, Framing};

/// Model that answers a request, with its names.
#[derive(Debug, Clone, Copy)]
pub struct Model<'a> {
    /// The model.
    pub llm: &'a Llm,
    /// Name in answers of llama-server.
    pub id: &'a str,
    /// Name in answers of OpenAI: the requested one, if the model has it.
    pub name: &'a str,
}

/// Fields of a body that a dialect has beside those of generation.
pub trait Dialect: Sized + Send {
    /// Rewrites a body to the names of [`GenerationFields`], before the limits of fields are checked.
    ///
    /// # Errors
    /// 400 with the field.
    fn adapt(_body: &mut Map<String, Value>) -> ApiResult<()> {
        Ok(())
    }

    /// Moves the own fields out of a body.
    ///
    /// # Errors
    /// 400 with the field.
    fn take(body: &mut JsonFields) -> ApiResult<Self>;

    /// Checks that need no model.
    ///
    /// # Errors
    /// 400 with the field.
    fn check(&mut self) -> ApiResult<()> {
        Ok(())
    }

    /// Whether unknown fields pass that resemble known ones.
    fn ignores_unknown() -> bool {
        false
    }

    /// Requests of the engine, and the writer of their answer.
    ///
    /// # Errors
    /// 400 with the field; 501 if the model has no tokens for it.
    fn prepare(
        self,
        fields: &GenerationFields,
        model: Model<'_>,
        defaults: &Defaults<'_>,
    ) -> ApiResult<Prepared>;
}

/// Body of a request for generated text.
#[derive(Debug)]
pub struct Body<T> {
    own: T,
    fields: GenerationFields,
}

/// Requests of a body, and the answer to them.
#[derive(Debug)]
pub struct Prepared {
    /// A request for each prompt.
    pub requests: Requests,
    /// Answer to the requests in this order.
    pub answer: Box<dyn Answer>,
    /// Identifier of the answer, and the handle that ends its reasoning.
    pub control: Option<(String, ReasoningControl)>,
}

impl Prepared {
    /// The same request for each prompt; that of `request` is not used.
    pub(crate) fn new(
        prompts: Vec<Vec<u32>>,
        request: Request,
        answer: impl Answer + 'static,
    ) -> Self {
        let requests = Requests { prompts: prompts.into_iter(), request };
        Self { requests, answer: Box::new(answer), control: None }
    }
}

/// Requests of a body, one for each prompt. Options, which may be large, are copied when the request is taken.
#[derive(Debug)]
pub struct Requests {
    prompts: std::vec::IntoIter<Vec<u32>>,
    request: Request,
}

impl Iterator for Requests {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        let prompt = self.prompts.next()?;
        Some(Request { prompt, ..self.request.clone() })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.prompts.size_hint()
    }
}

impl ExactSizeIterator for Requests {}

impl<T: Dialect> ParseBody for Body<T> {
    /// Parses a body and checks the limits of its fields. The time of the request counts from now.
    fn parse(body: &[u8], defaults: &Defaults<'_>) -> ApiResult<Self> {
        let mut body = JsonFields::parse(body, defaults.max_choices, T::adapt)?;
        let (own, fields) = (T::take(&mut body), body.take::<GenerationFields>());
        if !T::ignores_unknown() {
            body.check_rest()?;
        }
        let (mut own, mut fields) = (own?, fields?);
        fields.set_deadline(defaults.timeout);
        own.check()?;
        Ok(Self { own, fields })
    }
}

impl<T> Body<T> {
    /// Names another model.
    pub(crate) fn set_model(&mut self, name: &str) {
        self.fields.model = Some(name.to_owned());
    }
}

impl<T: Dialect> Body<T> {
    /// Fields of generation.
    #[must_use]
    pub fn fields(&self) -> &GenerationFields {
        &self.fields
    }

    /// Fields of the dialect.
    #[must_use]
    pub fn own(&self) -> &T {
        &self.own
    }

    /// Fields of the dialect, to change.
    pub fn own_mut(&mut self) -> &mut T {
        &mut self.own
    }

    /// Takes the fields of the dialect.
    #[must_use]
    pub fn into_own(self) -> T {
        self.own
    }

    /// Tokenizes the prompts and compiles the grammar, which may take milliseconds.
    ///
    /// # Errors
    /// 400 with the field; 501 if the model has no tokens for an infill.
    pub fn prepare(self, model: Model<'_>, defaults: &Defaults<'_>) -> ApiResult<Prepared> {
        self.own.prepare(&self.fields, model, defaults)
    }
}

/// Answer to the requests of a body.
///
/// A stream takes the prompts in turn: their events by [`event`](Self::event), then their texts by [`end`](Self::end). One
/// object takes the texts of all prompts by [`whole`](Self::whole).
pub trait Answer: fmt::Debug + Send {
    /// Objects of an event of the running prompt, whose counts are `stats`.
    fn event(&mut self, stats: &RequestStats, event: RequestEvent) -> Vec<Frame>;

    /// Objects at the end of the running prompt, whose counts are `stats`. The next one follows.
    fn end(&mut self, stats: &RequestStats, completions: &[Completion]) -> Vec<Frame>;

    /// The answer in one object, from the texts of each prompt.
    fn whole(&self, texts: &[Vec<Completion>]) -> Frame;

    /// Objects that end a stream after an error.
    fn error(&mut self, error: &ApiError) -> Vec<Frame> {
        vec![Frame::new(&error.to_json())]
    }

    /// Framing of a stream.
    fn framing(&self) -> Framing {
        Framing::Events { ends_with_done: true }
    }
}
