//! Tokens and durations of an answer.

use serde::Serialize;
use stonechat::Completion;

/// `usage` of OpenAI.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Counts {
    completion_tokens: usize,
    prompt_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptDetails,
    /// Details of chats; other texts have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_tokens_details: Option<CompletionDetails>,
}

#[derive(Debug, Clone, Serialize)]
struct PromptDetails {
    cached_tokens: usize,
}

#[derive(Debug, Clone, Serialize)]
struct CompletionDetails {
    reasoning_tokens: usize,
}

/// `timings` of llama-server.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Timings {
    cache_n: usize,
    prompt_n: usize,
    prompt_ms: f64,
    prompt_per_token_ms: f64,
    prompt_per_second: f64,
    predicted_n: usize,
    predicted_ms: f64,
    predicted_per_token_ms: f64,
    predicted_per_second: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    draft_n: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    draft_n_accepted: Option<usize>,
}

/// Counts and durations of a request, at its end or so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Usage {
    /// Tokens of the prompt.
    pub(crate) prompt_tokens: usize,
    /// Tokens of the prompt found in the prefix cache.
    pub(crate) cached_tokens: usize,
    /// Duration of the prompt.
    pub(crate) prompt_ms: f64,
    /// Tokens of all texts.
    pub(crate) generated: usize,
    /// Number of texts with a token.
    pub(crate) n_texts: usize,
    /// Duration of the texts, from their first token on.
    pub(crate) decode_ms: f64,
    /// Tokens of drafts.
    pub(crate) drafted: usize,
    /// Tokens of drafts that were accepted.
    pub(crate) accepted: usize,
}

impl Counts {
    /// The counts with that of the tokens of reasoning.
    pub(crate) fn with_reasoning(self, reasoning_tokens: usize) -> Self {
        Self { completion_tokens_details: Some(CompletionDetails { reasoning_tokens }), ..self }
    }
}

impl Usage {
    /// Counts of the texts after one prompt.
    pub(crate) fn of<'a>(completions: impl IntoIterator<Item = &'a Completion>) -> Self {
        let mut usage = Self::default();
        for (index, completion) in completions.into_iter().enumerate() {
            if index == 0 {
                usage.prompt_tokens = completion.prompt_tokens;
                usage.cached_tokens = completion.cached_tokens;
                usage.prompt_ms = completion.timings.prompt_ms;
            }
            usage.generated += completion.tokens.len();
            usage.n_texts += usize::from(!completion.tokens.is_empty());
            usage.decode_ms = usage.decode_ms.max(completion.timings.decode_ms);
            usage.drafted += completion.drafts.proposed;
            usage.accepted += completion.drafts.accepted;
        }
        usage
    }

    /// `timings` of llama-server; all numbers are finite. The rate of the texts leaves their first tokens out, which come
    /// from the prompt.
    pub(crate) fn timings(self) -> Timings {
        let prompt_n = self.prompt_tokens - self.cached_tokens;
        let after_first = (self.generated - self.n_texts) as f64;
        let drafts = (self.drafted > 0).then_some((self.drafted, self.accepted));
        Timings {
            cache_n: self.cached_tokens,
            prompt_n,
            prompt_ms: self.prompt_ms,
            prompt_per_token_ms: ratio(self.prompt_ms, prompt_n as f64),
            prompt_per_second: ratio(1e3 * prompt_n as f64, self.prompt_ms),
            predicted_n: self.generated,
            predicted_ms: self.decode_ms,
            predicted_per_token_ms: ratio(self.decode_ms, after_first),
            predicted_per_second: ratio(1e3 * after_first, self.decode_ms),
            draft_n: drafts.map(|(drafted, _)| drafted),
            draft_n_accepted: drafts.map(|(_, accepted)| accepted),
        }
    }

    /// `usage` of OpenAI, in which the prompt counts once for all texts.
    pub(crate) fn counts(self) -> Counts {
        Counts {
            completion_tokens: self.generated,
            prompt_tokens: self.prompt_tokens,
            total_tokens: self.prompt_tokens + self.generated,
            prompt_tokens_details: PromptDetails { cached_tokens: self.cached_tokens },
            completion_tokens_details: None,
        }
    }

    /// Counts of the texts after several prompts.
    pub(crate) fn sum(self, other: Self) -> Self {
        Self {
            prompt_tokens: self.prompt_tokens + other.prompt_tokens,
            cached_tokens: self.cached_tokens + other.cached_tokens,
            prompt_ms: self.prompt_ms + other.prompt_ms,
            generated: self.generated + other.generated,
            n_texts: self.n_texts + other.n_texts,
            decode_ms: self.decode_ms.max(other.decode_ms),
            drafted: self.drafted + other.drafted,
            accepted: self.accepted + other.accepted,
        }
    }
}

fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Usage;

    #[test]
    fn rates_are_finite_and_leave_first_tokens_out() {
        let none = json!(Usage::default().timings());
        let numbers = none.as_object().unwrap().values();
        assert!(numbers.clone().all(|value| value.as_f64() == Some(0.0)), "{none}");
        let usage = Usage {
            prompt_tokens: 30,
            cached_tokens: 10,
            prompt_ms: 100.0,
            generated: 22,
            n_texts: 2,
            decode_ms: 1000.0,
            ..Usage::default()
        };
        let (timings, counts) = (json!(usage.timings()), json!(usage.counts()));
        let prompt = (&timings["prompt_n"], &timings["prompt_per_second"]);
        assert_eq!(prompt, (&20.into(), &200.0.into()));
        assert_eq!(timings["predicted_per_second"], 20.0);
        assert_eq!(counts["total_tokens"], 52);
        assert!(counts.get("completion_tokens_details").is_none(), "{counts}");
        let counts = json!(usage.counts().with_reasoning(3));
        assert_eq!(counts["completion_tokens_details"]["reasoning_tokens"], 3);
    }
}
