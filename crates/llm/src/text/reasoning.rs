//! Reasoning of a text: its markers, a budget of tokens, and its end from another thread.
//!
//! ```text
//! text     <think> Let me see … </think> It is 4.
//!          '-open-''-counted-''- closing: sampled, or forced when the budget is spent
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use stonechat_sampling::TextMatch;
use stonechat_text::Tokenizer;

use crate::Error;

/// Tokens that may complete a code point before the end of reasoning is forced: a code point has at most 4 bytes.
const MAX_GRACE: usize = 4;

/// Limit of the tokens of reasoning.
#[derive(Debug, Clone, Default)]
pub struct ReasoningBudget {
    /// Texts that open reasoning, each of one or several tokens. Special tokens are written by name.
    pub start: Vec<String>,
    /// Texts that close it.
    pub end: Vec<String>,
    /// Tokens that are forced to close it: a closing text, or a message and a closing text.
    pub closing: Vec<u32>,
    /// Maximum tokens of reasoning in the whole text; `None`: no limit.
    pub budget: Option<usize>,
    /// Whether the prompt has opened it.
    pub starts_open: bool,
    /// Handle that closes it.
    pub control: ReasoningControl,
}

/// Handle that ends the reasoning of a running text from any thread. Clones are the same handle, so that all choices of a
/// request are ended together.
#[derive(Debug, Clone, Default)]
pub struct ReasoningControl(Arc<AtomicBool>);

impl ReasoningControl {
    /// Ends the reasoning, after the tokens that are being sampled. Reasoning that opens later ends at once.
    pub fn end(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether [`end`](Self::end) was called.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// State of the reasoning of one text.
#[derive(Debug, Clone)]
pub(crate) struct Reasoning {
    phase: Phase,
    is_first: bool,
    start: Vec<Marker>,
    end: Vec<Marker>,
    closing: Arc<[u32]>,
    /// Tokens left of the budget.
    left: Option<usize>,
    /// Tokens left to complete a code point.
    grace: usize,
    control: ReasoningControl,
    /// The control as of the last step.
    is_ended: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Closed,
    Open,
    /// The closing token of this index is forced next.
    Closing(usize),
}

/// Part of a token outside of reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outside {
    Whole,
    /// The bytes from an offset on, after the end of reasoning.
    From(usize),
    Nothing,
}

/// A text to find, or the special token of that name.
#[derive(Debug, Clone)]
struct Marker {
    /// Token that is the whole text.
    token: Option<u32>,
    /// The text, unless it is a special token: those are never spelled.
    text: Option<TextMatch>,
}

impl Marker {
    fn new(text: &str, tokenizer: &Tokenizer) -> Self {
        let token = tokenizer.token_id(text);
        let is_special = token.is_some_and(|token| tokenizer.is_special(token));
        Self { token, text: (!is_special).then(|| TextMatch::new(text.as_bytes())) }
    }

    fn push(&mut self, byte: u8) -> bool {
        self.text.as_mut().is_some_and(|text| text.push(byte))
    }
}

/// Appends a byte to all markers; returns whether one of them ends with it.
fn push(markers: &mut [Marker], byte: u8) -> bool {
    let mut found = false;
    for marker in markers {
        found |= marker.push(byte);
    }
    found
}

fn reset(markers: &mut [Marker]) {
    markers.iter_mut().filter_map(|marker| marker.text.as_mut()).for_each(TextMatch::reset);
}

/// Whether `token` is a marker.
fn is_marker(markers: &[Marker], token: u32) -> bool {
    markers.iter().any(|marker| marker.token == Some(token))
}

impl Reasoning {
    /// State before the first token.
    pub(crate) fn new(
        budget: &ReasoningBudget,
        tokenizer: &Tokenizer,
        vocab_size: usize,
    ) -> Result<Self, Error> {
        let closing = &budget.closing;
        let unknown = closing.iter().find(|&&token| token as usize >= vocab_size);
        if closing.is_empty() || unknown.is_some() {
            let expected = format!("at least one token, each below {vocab_size}");
            let got = unknown.map_or("none".to_owned(), u32::to_string);
            return Err(Error::Option { option: "end of reasoning", expected, got });
        }
        let markers = |texts: &[String]| -> Vec<Marker> {
            texts.iter().map(|text| Marker::new(text, tokenizer)).collect()
        };
        let mut reasoning = Self {
            phase: if budget.starts_open { Phase::Open } else { Phase::Closed },
            is_first: true,
            start: markers(&budget.start),
            end: markers(&budget.end),
            closing: closing.as_slice().into(),
            left: budget.budget,
            grace: MAX_GRACE,
            control: budget.control.clone(),
            is_ended: false,
        };
        reasoning.poll(true);
        Ok(reasoning)
    }

    /// Whether it is open, closing included.
    pub(crate) fn is_open(&self) -> bool {
        self.phase != Phase::Closed
    }

    /// Token that comes next in place of a draw.
    pub(crate) fn forced(&self) -> Option<u32> {
        match self.phase {
            Phase::Closing(index) => self.closing.get(index).copied(),
            _ => None,
        }
    }

    /// Whether the text may open it with the next token although a grammar rules the text: that is the first token.
    pub(crate) fn may_open_first(&self) -> bool {
        self.is_first && self.phase == Phase::Closed
    }

    /// Whether `token` is the whole of a text that opens it.
    pub(crate) fn is_start(&self, token: u32) -> bool {
        is_marker(&self.start, token)
    }

    /// Appends a token with its bytes, those of a special token being its name. `is_whole`: the text so far has no incomplete
    /// code point.
    pub(crate) fn accept(
        &mut self,
        token: u32,
        bytes: &[u8],
        can_open: bool,
        is_whole: bool,
    ) -> Outside {
        self.is_first = false;
        if let Phase::Closing(index) = self.phase {
            if index + 1 < self.closing.len() {
                self.phase = Phase::Closing(index + 1);
                return Outside::Nothing;
            }
            self.close();
            return Outside::From(bytes.len());
        }
        if let (Phase::Open, Some(left)) = (self.phase, &mut self.left) {
            *left = left.saturating_sub(1);
        }
        let mut outside = if self.is_open() { Outside::Nothing } else { Outside::Whole };
        for (end, &byte) in (1..).zip(bytes) {
            if outside == Outside::Nothing {
                if push(&mut self.end, byte) {
                    outside = Outside::From(end);
                    reset(&mut self.start);
                }
            } else if can_open && push(&mut self.start, byte) {
                outside = Outside::Nothing;
                reset(&mut self.end);
            }
        }
        if self.is_open() && is_marker(&self.end, token) {
            outside = Outside::From(bytes.len());
        } else if !self.is_open() && can_open && is_marker(&self.start, token) {
            outside = Outside::Nothing;
        }
        if outside != Outside::Nothing {
            if self.is_open() {
                self.close();
            }
            return outside;
        }
        self.phase = Phase::Open;
        self.close_if_spent(is_whole);
        outside
    }

    /// Reads the control between two steps, so that the next token is known to be forced before its step is planned.
    pub(crate) fn poll(&mut self, is_whole: bool) {
        let was_ended = self.is_ended;
        self.is_ended = was_ended || self.control.is_ended();
        if self.phase == Phase::Open && (self.is_ended != was_ended || self.is_first) {
            self.close_if_spent(is_whole);
        }
    }

    fn close(&mut self) {
        (self.phase, self.grace) = (Phase::Closed, MAX_GRACE);
        reset(&mut self.start);
        reset(&mut self.end);
    }

    /// Begins to force the end if nothing is left, at a whole code point or after a few more tokens.
    fn close_if_spent(&mut self, is_whole: bool) {
        if !self.is_ended && self.left != Some(0) {
            return;
        }
        if is_whole || self.grace == 0 {
            self.phase = Phase::Closing(0);
        } else {
            self.grace -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Arc, TextMatch};
    use super::{AtomicBool, MAX_GRACE, Marker, Outside, Phase, Reasoning, ReasoningControl};

    fn open(left: usize) -> Reasoning {
        let marker =
            |text: &str| vec![Marker { token: None, text: Some(TextMatch::new(text.as_bytes())) }];
        Reasoning {
            phase: Phase::Open,
            is_first: true,
            start: marker("<think>"),
            end: marker("</think>"),
            closing: Arc::new([7, 8]),
            left: Some(left),
            grace: MAX_GRACE,
            control: ReasoningControl(Arc::new(AtomicBool::new(false))),
            is_ended: false,
        }
    }

    #[test]
    fn the_end_is_forced_after_an_incomplete_code_point() {
        for n_incomplete in 0..8 {
            let mut reasoning = open(1);
            let mut n = 0;
            while reasoning.forced().is_none() {
                reasoning.accept(3, b"x", true, n >= n_incomplete);
                n += 1;
            }
            assert_eq!(n, 1 + n_incomplete.min(MAX_GRACE), "tokens up to the end");
            assert_eq!(reasoning.forced(), Some(7));
            assert_eq!(reasoning.accept(7, b"!", true, true), Outside::Nothing);
            assert_eq!(reasoning.forced(), Some(8));
            assert_eq!(reasoning.accept(8, b"</think>", true, true), Outside::From(8));
            assert!(!reasoning.is_open());
        }
    }

    #[test]
    fn markers_may_share_a_token_with_other_text() {
        let mut reasoning = open(100);
        assert_eq!(reasoning.accept(3, b"so</thi", true, true), Outside::Nothing);
        assert_eq!(reasoning.accept(3, b"nk> It", true, true), Outside::From(3));
        assert_eq!(reasoning.accept(3, b" is", true, true), Outside::Whole);
        assert_eq!(reasoning.accept(3, b"<think>a</think>b", true, true), Outside::From(16));
        assert_eq!(reasoning.accept(3, b"c<think>d", false, true), Outside::Whole);
        assert_eq!(reasoning.accept(3, b"c<think>d", true, true), Outside::Nothing);
        assert!(reasoning.is_open());
    }
}
