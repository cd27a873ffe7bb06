//! Table of the kinds of requests: path, form of the answer, share of the traffic, body.

use std::ops::RangeInclusive;

use anyhow::{Result, ensure};
use fastrand::Rng;
use serde_json::Value;

use super::CONTEXT;
use super::bodies::{self, Ask, N_DOCUMENTS};
use super::dialects::{
    CHAT, CHAT_STREAM, MESSAGE, MESSAGE_STREAM, OLLAMA, OLLAMA_STREAM, RANKING, RESPONSE,
    RESPONSE_STREAM, Shape, TEXT, TEXT_STREAM, UNCOUNTED,
};
use super::framing::Framing;
use super::ledger::Work;

/// Tokens that a chat template may add to a prompt: the scripted model has a token for each byte of it.
const TEMPLATE_TOKENS: usize = 768;
/// Most tokens of a call with its reasoning; one that is required may have spaces and line feeds between its parts.
const CALL_TOKENS: RangeInclusive<usize> = 300..=300;

/// Kind of requests.
#[derive(Debug)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    /// Share of the traffic.
    weight: usize,
    pub(super) path: &'static str,
    pub(super) shape: &'static Shape,
    pub(super) body: fn(&Ask) -> Value,
    /// Words of the text.
    pub(super) words: RangeInclusive<usize>,
    /// Tokens of the answer: as many with `ignore_eos`, at most as many of a call or a ranking.
    pub(super) tokens: RangeInclusive<usize>,
    /// Whether the answer is a call of a tool, by the model for these.
    pub(super) is_call: bool,
    /// Whether the answer may continue another one, and others may continue it.
    pub(super) is_chained: bool,
    n_choices: u64,
    /// Prompts that the metrics count as texts of their own.
    pub(super) n_texts: u64,
}

const STREAM: Kind = Kind {
    name: "chat",
    weight: 8,
    path: "/v1/chat/completions",
    shape: &CHAT_STREAM,
    body: bodies::chat,
    words: 20..=200,
    tokens: 8..=64,
    is_call: false,
    is_chained: false,
    n_choices: 1,
    n_texts: 1,
};
const WHOLE: Kind = Kind { shape: &CHAT, words: 10..=100, tokens: 8..=24, ..STREAM };
const CALL: Kind = Kind {
    weight: 2,
    body: bodies::chat_auto,
    words: 2..=8,
    tokens: CALL_TOKENS,
    is_call: true,
    ..STREAM
};
const RESPONSES: Kind = Kind {
    weight: 3,
    path: "/v1/responses",
    shape: &RESPONSE_STREAM,
    body: bodies::response,
    words: 10..=60,
    tokens: 8..=32,
    is_chained: true,
    ..STREAM
};
const MESSAGES: Kind = Kind {
    weight: 3,
    path: "/v1/messages",
    shape: &MESSAGE_STREAM,
    body: bodies::message,
    ..STREAM
};
const OLLAMA_CHAT: Kind = Kind {
    weight: 3,
    path: "/api/chat",
    shape: &OLLAMA_STREAM,
    body: bodies::ollama_chat,
    ..STREAM
};
const ECHO: Kind = Kind {
    weight: 2,
    path: "/v1/completions",
    shape: &TEXT,
    body: bodies::echo,
    words: 10..=60,
    tokens: 1..=16,
    ..STREAM
};

/// Kinds of the mixed traffic.
#[rustfmt::skip]
static KINDS: &[Kind] = &[
    STREAM,
    Kind { name: "choices", weight: 4, body: bodies::choices, n_choices: 2, ..WHOLE },
    Kind { name: "chat call", body: bodies::chat_auto, ..CALL },
    Kind { name: "chat call whole", shape: &CHAT, ..CALL },
    Kind { name: "chat call required", body: bodies::chat_required, ..CALL },
    Kind { name: "chat call required whole", shape: &CHAT, body: bodies::chat_required, ..CALL },
    Kind { name: "responses", ..RESPONSES },
    Kind { name: "responses whole", shape: &RESPONSE, ..RESPONSES },
    Kind { name: "responses not stored", body: bodies::response_not_stored, is_chained: false, ..RESPONSES },
    Kind { name: "responses call", body: bodies::response_call, is_chained: false, path: RESPONSES.path, shape: &RESPONSE_STREAM, ..CALL },
    Kind { name: "responses input_tokens", path: "/v1/responses/input_tokens", weight: 1, body: bodies::input_tokens, shape: &UNCOUNTED, is_chained: false, ..RESPONSES },
    Kind { name: "messages", ..MESSAGES },
    Kind { name: "messages whole", shape: &MESSAGE, ..MESSAGES },
    Kind { name: "messages call", path: MESSAGES.path, shape: &MESSAGE_STREAM, body: bodies::message_call, ..CALL },
    Kind { name: "messages call whole", path: MESSAGES.path, shape: &MESSAGE, body: bodies::message_call, ..CALL },
    Kind { name: "messages count_tokens", path: "/v1/messages/count_tokens", weight: 1, body: bodies::count_tokens, shape: &UNCOUNTED, ..MESSAGES },
    Kind { name: "ollama chat", ..OLLAMA_CHAT },
    Kind { name: "ollama chat whole", shape: &OLLAMA, ..OLLAMA_CHAT },
    Kind { name: "ollama call", path: OLLAMA_CHAT.path, shape: &OLLAMA_STREAM, body: bodies::ollama_call, ..CALL },
    Kind { name: "ollama generate", path: "/api/generate", body: bodies::ollama_generate, ..OLLAMA_CHAT },
    Kind { name: "ollama embed", path: "/api/embed", weight: 2, body: bodies::embed, shape: &UNCOUNTED, words: 10..=60, ..OLLAMA_CHAT },
    Kind { name: "rerank", path: "/v1/rerank", weight: 2, body: bodies::rerank, shape: &RANKING, words: 10..=40, tokens: 1..=1, n_texts: N_DOCUMENTS, ..STREAM },
    Kind { name: "echo", ..ECHO },
    Kind { name: "echo streamed", shape: &TEXT_STREAM, ..ECHO },
];

/// Request of a flood.
pub(super) static FLOOD: Kind = Kind { name: "flood", words: 5..=20, tokens: 8..=8, ..WHOLE };
/// Request whose client goes away during its prompt.
pub(super) static LONG_PROMPT: Kind =
    Kind { name: "abort in prompt", words: 400..=800, tokens: 64..=64, ..STREAM };
/// Request of a slow reader: its probabilities fill the buffers of the connection.
pub(super) static SLOW: Kind = Kind {
    name: "slow reader",
    body: bodies::probabilities,
    words: 10..=50,
    tokens: 96..=96,
    ..STREAM
};

/// A random kind, by the weights.
pub(super) fn pick(random: &mut Rng) -> &'static Kind {
    let total: usize = KINDS.iter().map(|kind| kind.weight).sum();
    let mut rest = random.usize(..total);
    let is_it = |kind: &&Kind| {
        let is_it = rest < kind.weight;
        rest = rest.saturating_sub(kind.weight);
        is_it
    };
    KINDS.iter().find(is_it).unwrap_or(&KINDS[0])
}

impl Kind {
    pub(super) fn is_stream(&self) -> bool {
        self.shape.framing != Framing::Whole
    }

    /// Most work of a request with a body of `n_bytes`. A token has a byte or more.
    pub(super) fn bounds(&self, n_bytes: usize, ask: &Ask) -> Work {
        if !self.shape.is_counted() {
            return Work::default();
        }
        let history = if ask.previous.is_some() { CONTEXT } else { 0 };
        let prompt = (n_bytes + TEMPLATE_TOKENS + history).min(CONTEXT) as u64 * self.n_texts;
        Work {
            texts: self.n_texts,
            prompt_tokens: prompt,
            cached_tokens: prompt,
            generated_tokens: self.most_generated(ask),
            ..Work::default()
        }
    }

    fn most_generated(&self, ask: &Ask) -> u64 {
        ask.max_tokens as u64 * self.n_choices * self.n_texts
    }

    /// Whether a text has all of its tokens.
    fn is_exact(&self) -> bool {
        !self.is_call && self.n_texts == 1
    }

    /// Least work behind the frames that a client has seen: each part of a text has a token or more, but for one that is
    /// held back or repeats the prompt.
    pub(super) fn least(&self, frames: &[Value]) -> Work {
        if !self.shape.is_counted() || !self.is_exact() {
            return Work::default();
        }
        let n_parts = self.shape.n_parts(frames, false) as u64;
        let generated_tokens = n_parts.saturating_sub(1);
        Work { generated_tokens, ..Work::default() }
    }

    /// Checks a whole answer; its least and its most work.
    pub(super) fn check(&self, frames: &[Value], ask: &Ask) -> Result<(Work, Work)> {
        let (tokens, most) = (self.shape.check(frames)?, self.most_generated(ask));
        let generated = tokens.and_then(|tokens| tokens.generated);
        let is_whole = generated.is_none_or(|n| n == most || !self.is_exact() && n < most);
        ensure!(is_whole, "expected {most} tokens, got {generated:?}");
        let n_parts = self.shape.n_parts(frames, self.is_call);
        let part = if self.is_call { "a call" } else { "a text" };
        ensure!(n_parts > 0, "expected {part} in {} frames", frames.len());
        let Some(tokens) = tokens else { return Ok((Work::default(), Work::default())) };
        let exact = Work {
            texts: self.n_texts,
            prompt_tokens: tokens.prompt,
            cached_tokens: tokens.cached.unwrap_or(0),
            generated_tokens: generated.unwrap_or(0),
            ..Work::default()
        };
        let cached_tokens = tokens.cached.unwrap_or(tokens.prompt);
        let generated_tokens = generated.unwrap_or(most);
        Ok((exact, Work { cached_tokens, generated_tokens, ..exact }))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use serde_json::json;

    use super::*;

    fn ask(kind: &Kind) -> Ask {
        Ask {
            model: "m".to_owned(),
            text: "a b".to_owned(),
            max_tokens: *kind.tokens.end(),
            is_stream: kind.is_stream(),
            previous: None,
        }
    }

    fn kind(name: &str) -> &'static Kind {
        KINDS.iter().find(|kind| kind.name == name).unwrap()
    }

    #[test]
    fn each_kind_has_its_name_and_its_share() {
        let names: BTreeSet<&str> = KINDS.iter().map(|kind| kind.name).collect();
        assert_eq!(names.len(), KINDS.len());
        let (mut random, mut counts) = (Rng::with_seed(1), BTreeMap::<&str, usize>::new());
        for _ in 0..10_000 {
            *counts.entry(pick(&mut random).name).or_insert(0) += 1;
        }
        let total: usize = KINDS.iter().map(|kind| kind.weight).sum();
        for kind in KINDS {
            let (got, expected) = (counts[kind.name], 10_000 * kind.weight / total);
            assert!((expected / 2..expected * 2).contains(&got), "{}: {got}", kind.name);
        }
    }

    #[test]
    fn streams_are_asked_for_where_the_answer_is_one() {
        for kind in KINDS {
            let body = (kind.body)(&ask(kind));
            assert_eq!(body["model"], "m", "{}", kind.name);
            // The default of Ollama is a stream.
            let stream = body.get("stream").is_some_and(|stream| *stream == true);
            assert_eq!(stream, kind.is_stream(), "{}", kind.name);
            assert_eq!(body.get("tools").is_some(), kind.is_call, "{}", kind.name);
        }
    }

    #[test]
    fn work_is_that_of_the_answer() {
        let kind = kind("rerank");
        let usage = json!({"prompt_tokens": 30, "total_tokens": 30});
        let answer = |text: &str| {
            let results = json!([{"index": 1, "document": {"text": text}}]);
            [json!({"object": "list", "results": results, "usage": usage})]
        };
        let (low, high) = kind.check(&answer("a"), &ask(kind)).unwrap();
        let least = Work { texts: 3, prompt_tokens: 30, ..Work::default() };
        assert_eq!(low, least);
        assert_eq!(high, Work { cached_tokens: 30, generated_tokens: 3, ..least });
        assert!(kind.check(&answer(""), &ask(kind)).is_err());
        let bounds = kind.bounds(100, &ask(kind));
        assert_eq!((bounds.texts, bounds.prompt_tokens), (3, 3 * 868));
        let uncounted = self::kind("messages count_tokens");
        assert_eq!(uncounted.bounds(100, &ask(uncounted)), Work::default());
    }

    #[test]
    fn texts_have_all_tokens_and_calls_a_name() {
        let answer = |message: Value, n: u64| {
            let usage = json!({"prompt_tokens": 7, "completion_tokens": n,
                "prompt_tokens_details": {"cached_tokens": 3}});
            let choices = json!([{"message": message}, {"message": message}]);
            [json!({"object": "chat.completion", "choices": choices, "usage": usage})]
        };
        let text = json!({"role": "assistant", "content": "a"});
        let call = json!({"role": "assistant", "content": null,
            "tool_calls": [{"function": {"name": "get_weather"}}]});
        let is_fine = |name: &str, message: &Value, n| {
            let kind = kind(name);
            kind.check(&answer(message.clone(), n), &ask(kind)).is_ok()
        };
        assert!(is_fine("choices", &text, 48) && !is_fine("choices", &text, 47));
        assert!(!is_fine("choices", &call, 48));
        assert!(is_fine("chat call whole", &call, 40) && !is_fine("chat call whole", &call, 301));
        assert!(!is_fine("chat call whole", &text, 40));
    }
}
