//! Forms of answers and errors of the APIs: what their frames begin and end with, and where texts and counts of tokens are.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::framing::Framing;

/// Field of a frame: pointer and text.
type Field = (&'static str, &'static str);

/// Form of an answer.
#[derive(Debug)]
pub(super) struct Shape {
    pub(super) framing: Framing,
    /// Field of the first frame.
    first: Field,
    /// Fields of the last frames, each with the distance of its frame from the last one.
    ends: &'static [(usize, Field)],
    /// Pointers to text in any frame, or to the numbers that are the answer.
    texts: &'static [&'static str],
    /// Pointers to the name of a called tool in any frame.
    calls: &'static [&'static str],
    counts: Option<Counts>,
}

/// Place of the counts of tokens: distance of the frame from the last one, and pointers.
#[derive(Debug, Clone, Copy)]
struct Counts {
    frame: usize,
    /// Pointers whose sum is the prompt.
    prompt: &'static [&'static str],
    cached: Option<&'static str>,
    generated: Option<&'static str>,
}

/// Tokens of an answer, as far as it tells them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tokens {
    pub(super) prompt: u64,
    pub(super) cached: Option<u64>,
    pub(super) generated: Option<u64>,
}

const OPENAI: Counts = Counts {
    frame: 0,
    prompt: &["/usage/prompt_tokens"],
    cached: Some("/usage/prompt_tokens_details/cached_tokens"),
    generated: Some("/usage/completion_tokens"),
};
const ANTHROPIC: Counts = Counts {
    frame: 0,
    prompt: &["/usage/input_tokens", "/usage/cache_read_input_tokens"],
    cached: Some("/usage/cache_read_input_tokens"),
    generated: Some("/usage/output_tokens"),
};

pub(super) const CHAT: Shape = Shape {
    framing: Framing::Whole,
    first: ("/object", "chat.completion"),
    ends: &[(0, ("/choices/0/message/role", "assistant"))],
    texts: &["/choices/0/message/content"],
    calls: &["/choices/0/message/tool_calls/0/function/name"],
    counts: Some(OPENAI),
};
pub(super) const CHAT_STREAM: Shape = Shape {
    framing: Framing::Events,
    first: ("/choices/0/delta/role", "assistant"),
    ends: &[(0, ("", "[DONE]")), (1, ("/choices", "[]"))],
    texts: &["/choices/0/delta/content"],
    calls: &["/choices/0/delta/tool_calls/0/function/name"],
    counts: Some(Counts { frame: 1, ..OPENAI }),
};
pub(super) const TEXT: Shape = Shape {
    first: ("/object", "text_completion"),
    ends: &[(0, ("/choices/0/finish_reason", "length"))],
    texts: &["/choices/0/text"],
    ..CHAT
};
pub(super) const TEXT_STREAM: Shape = Shape {
    first: ("/object", "text_completion"),
    ends: &[
        (0, ("", "[DONE]")),
        (1, ("/choices", "[]")),
        (2, ("/choices/0/finish_reason", "length")),
    ],
    texts: &["/choices/0/text"],
    ..CHAT_STREAM
};
pub(super) const RESPONSE: Shape = Shape {
    framing: Framing::Whole,
    first: ("/object", "response"),
    ends: &[(0, ("/error", "null"))],
    texts: &["/output/0/content/0/text"],
    // Reasoning may come first.
    calls: &["/output/0/name", "/output/1/name"],
    counts: Some(Counts {
        frame: 0,
        prompt: &["/usage/input_tokens"],
        cached: Some("/usage/input_tokens_details/cached_tokens"),
        generated: Some("/usage/output_tokens"),
    }),
};
pub(super) const RESPONSE_STREAM: Shape = Shape {
    framing: Framing::Events,
    first: ("/type", "response.created"),
    ends: &[(0, ("/type", "response.completed")), (1, ("/type", "response.output_item.done"))],
    texts: &["/delta"],
    calls: &["/item/name"],
    counts: Some(Counts {
        frame: 0,
        prompt: &["/response/usage/input_tokens"],
        cached: Some("/response/usage/input_tokens_details/cached_tokens"),
        generated: Some("/response/usage/output_tokens"),
    }),
};
pub(super) const MESSAGE: Shape = Shape {
    framing: Framing::Whole,
    first: ("/type", "message"),
    ends: &[(0, ("/role", "assistant"))],
    texts: &["/content/0/text"],
    // Thinking may come first.
    calls: &["/content/0/name", "/content/1/name"],
    counts: Some(ANTHROPIC),
};
pub(super) const MESSAGE_STREAM: Shape = Shape {
    framing: Framing::Events,
    first: ("/type", "message_start"),
    ends: &[
        (0, ("/type", "message_stop")),
        (1, ("/type", "message_delta")),
        (2, ("/type", "content_block_stop")),
    ],
    texts: &["/delta/text"],
    calls: &["/content_block/name"],
    counts: Some(Counts { frame: 1, ..ANTHROPIC }),
};
/// `/api/chat` and `/api/generate`.
pub(super) const OLLAMA: Shape = Shape {
    framing: Framing::Whole,
    first: ("/done", "true"),
    ends: &[(0, ("/done", "true"))],
    texts: &["/message/content", "/response"],
    calls: &["/message/tool_calls/0/function/name"],
    counts: Some(Counts {
        frame: 0,
        prompt: &["/prompt_eval_count"],
        cached: None,
        generated: Some("/eval_count"),
    }),
};
pub(super) const OLLAMA_STREAM: Shape =
    Shape { framing: Framing::Lines, first: ("/done", "false"), ..OLLAMA };
pub(super) const RANKING: Shape = Shape {
    framing: Framing::Whole,
    first: ("/object", "list"),
    ends: &[],
    texts: &["/results/0/document/text"],
    calls: &[],
    counts: Some(Counts { cached: None, generated: None, ..OPENAI }),
};
/// Answer that the metrics of texts do not count: numbers of tokens, and the embeddings of two texts.
pub(super) const UNCOUNTED: Shape = Shape {
    first: ("/error", ""),
    ends: &[],
    texts: &["/input_tokens", "/embeddings/1/0"],
    counts: None,
    ..CHAT
};

/// Form of errors by the start of a path: pointers to texts, and to numbers.
const ERRORS: [(&str, &[&str], &[&str]); 4] = [
    ("/v1/messages", &["/type", "/error/type", "/error/message"], &[]),
    ("/v1/responses", &["/error/code", "/error/type", "/error/message"], &[]),
    ("/api/", &["/error"], &[]),
    ("/", &["/error/type", "/error/message"], &["/error/code"]),
];

/// Text of a field, `""` of one that is absent.
fn text(frame: &Value, pointer: &str) -> String {
    match frame.pointer(pointer) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    }
}

fn ensure_field(frame: &Value, (pointer, expected): Field) -> Result<()> {
    let got = text(frame, pointer);
    ensure!(got == expected, "`{pointer}`: expected {expected:?}, got {got:?} in {frame}");
    Ok(())
}

impl Shape {
    /// Whether the metrics of texts count the answer.
    pub(super) fn is_counted(&self) -> bool {
        self.counts.is_some()
    }

    /// Checks the start and the end of an answer; its tokens, if the metrics count them.
    pub(super) fn check(&self, frames: &[Value]) -> Result<Option<Tokens>> {
        let from_end = |n: usize| {
            let index = frames.len().checked_sub(n + 1);
            let missing = || format!("expected more than {} frames", frames.len());
            index.map(|index| &frames[index]).with_context(missing)
        };
        ensure_field(frames.first().context("the answer is empty")?, self.first)?;
        for &(n, field) in self.ends {
            ensure_field(from_end(n)?, field)?;
        }
        let Some(Counts { frame, prompt, cached, generated }) = self.counts else {
            return Ok(None);
        };
        let frame = from_end(frame)?;
        let count = |pointer: &str| {
            let value = frame.pointer(pointer).and_then(Value::as_u64);
            value.with_context(|| format!("`{pointer}`: expected a count in {frame}"))
        };
        let prompt = prompt.iter().map(|pointer| count(pointer)).sum::<Result<u64>>()?;
        let (cached, generated) =
            (cached.map(count).transpose()?, generated.map(count).transpose()?);
        Ok(Some(Tokens { prompt, cached, generated }))
    }

    /// Number of frames with text, or with the name of a called tool.
    pub(super) fn n_parts(&self, frames: &[Value], is_call: bool) -> usize {
        let pointers = if is_call { self.calls } else { self.texts };
        let is_part = |value: &Value| {
            value.is_number() || value.as_str().is_some_and(|text| !text.is_empty())
        };
        let has_part = |frame: &&Value| {
            pointers.iter().any(|pointer| frame.pointer(pointer).is_some_and(is_part))
        };
        frames.iter().filter(has_part).count()
    }
}

/// Whether a stream of Responses has ended because the queue is full.
pub(super) fn is_refused(frames: &[Value]) -> bool {
    frames.last().is_some_and(|last| {
        text(last, "/type") == "response.failed"
            && text(last, "/response/error/code") == "rate_limit_exceeded"
    })
}

/// Checks the form of an error of a path.
pub(super) fn check_error(path: &str, error: &Value) -> Result<()> {
    let form = ERRORS.iter().find(|(start, ..)| path.starts_with(start));
    let (_, texts, numbers) = form.with_context(|| format!("expected a path, got `{path}`"))?;
    let is = |pointer: &str, is: fn(&Value) -> bool| error.pointer(pointer).is_some_and(is);
    let has_form = texts.iter().all(|pointer| is(pointer, Value::is_string))
        && numbers.iter().all(|pointer| is(pointer, Value::is_number));
    ensure!(has_form, "expected texts {texts:?} and numbers {numbers:?} in the error {error}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Checks a shape with a whole answer, and without one of its last `n` frames.
    #[track_caller]
    fn check(shape: &Shape, frames: &[Value], expected: [u64; 3], n: usize) {
        let [prompt, cached, generated] = expected;
        let tokens = shape.check(frames).unwrap().unwrap();
        assert_eq!((tokens.prompt, tokens.cached.unwrap_or(0)), (prompt, cached));
        assert_eq!(tokens.generated, Some(generated));
        assert_eq!(shape.n_parts(frames, false), 1);
        for missing in frames.len() - n..frames.len() {
            let mut broken = frames.to_vec();
            broken.remove(missing);
            assert!(shape.check(&broken).is_err(), "without frame {missing}");
        }
        assert!(shape.check(&frames[1..]).is_err());
    }

    #[test]
    fn streams_have_their_start_end_and_counts() {
        let usage = json!({"prompt_tokens": 7, "completion_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 3}});
        let chat = [
            json!({"choices": [{"delta": {"role": "assistant", "content": null}}]}),
            json!({"choices": [{"delta": {"content": "a"}}]}),
            json!({"choices": [], "usage": usage}),
            json!("[DONE]"),
        ];
        check(&CHAT_STREAM, &chat, [7, 3, 5], 2);
        let usage = json!({"input_tokens": 4, "cache_read_input_tokens": 3, "output_tokens": 5});
        let message = [
            json!({"type": "message_start"}),
            json!({"type": "content_block_delta", "delta": {"text": "a"}}),
            json!({"type": "content_block_stop"}),
            json!({"type": "message_delta", "usage": usage}),
            json!({"type": "message_stop"}),
        ];
        check(&MESSAGE_STREAM, &message, [7, 3, 5], 3);
        let usage = json!({"input_tokens": 7, "output_tokens": 5,
            "input_tokens_details": {"cached_tokens": 3}});
        let response = [
            json!({"type": "response.created"}),
            json!({"type": "response.output_text.delta", "delta": "a"}),
            json!({"type": "response.output_item.done"}),
            json!({"type": "response.completed", "response": {"usage": usage}}),
        ];
        check(&RESPONSE_STREAM, &response, [7, 3, 5], 2);
        let lines = [
            json!({"message": {"content": "a"}, "done": false}),
            json!({"message": {"content": ""}, "done": true, "prompt_eval_count": 7, "eval_count": 5}),
        ];
        check(&OLLAMA_STREAM, &lines, [7, 0, 5], 1);
    }

    #[test]
    fn called_tools_are_found_by_their_names() {
        let call = |name: &str| json!({"content": [{"thinking": "a"}, {"name": name}]});
        assert_eq!(MESSAGE.n_parts(&[call("get_weather")], true), 1);
        assert_eq!(MESSAGE.n_parts(&[call("")], true), 0);
        assert_eq!(MESSAGE.n_parts(&[call("get_weather")], false), 0);
    }

    #[test]
    fn errors_have_the_form_of_their_path() {
        let forms = [
            (
                "/v1/messages/count_tokens",
                json!({"type": "error", "error": {"type": "a", "message": "b"}}),
            ),
            ("/v1/responses", json!({"error": {"code": "a", "message": "b", "type": "c"}})),
            ("/api/chat", json!({"error": "a"})),
            ("/v1/rerank", json!({"error": {"code": 400, "message": "b", "type": "c"}})),
        ];
        for (i, (path, _)) in forms.iter().enumerate() {
            for (j, (_, error)) in forms.iter().enumerate() {
                assert_eq!(check_error(path, error).is_ok(), i == j, "{path}: {error}");
            }
        }
    }

    #[test]
    fn a_stream_of_responses_may_be_refused() {
        let failed =
            |code: &str| json!({"type": "response.failed", "response": {"error": {"code": code}}});
        assert!(is_refused(&[failed("rate_limit_exceeded")]));
        assert!(!is_refused(&[failed("server_error")]) && !is_refused(&[]));
    }
}
