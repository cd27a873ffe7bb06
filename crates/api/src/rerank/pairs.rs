//! Requests of the engine for pairs of a query and a document, and their counts.

use stonechat::{Completion, Llm, Request};
use web_time::Instant;

use super::judge::{Judge, Pair};
use crate::input_usage::InputUsage;
use crate::{ApiError, ApiResult};

/// Maximum documents or pairs of a request.
const MAX_PAIRS: usize = 1024;
/// Maximum tokens of all prompts of a request.
const MAX_PAIR_TOKENS: usize = 1 << 20;

/// Checks the number of texts of a list, before any is tokenized.
pub(super) fn check_number(name: &str, n: usize) -> ApiResult<()> {
    if (1..=MAX_PAIRS).contains(&n) {
        return Ok(());
    }
    Err(ApiError::field(name, &format!("1 to {MAX_PAIRS} texts"), n))
}

/// Requests for the labels of pairs, whose documents are the items of the field `name`.
pub(super) fn requests<'a>(
    llm: &Llm,
    name: &str,
    pairs: impl Iterator<Item = Pair<'a>>,
    deadline: Option<Instant>,
) -> ApiResult<Vec<Request>> {
    let info = llm.info();
    let judge = Judge::new(info)?;
    let n_ctx = info.n_ctx.min(info.kv_tokens);
    let (mut requests, mut n_tokens) = (Vec::new(), 0);
    for (index, pair) in pairs.enumerate() {
        let request = judge.request(info, pair)?;
        let n = request.prompt.len();
        if n > n_ctx {
            let name = format!("{name}[{index}]");
            let expected = format!("at most {n_ctx} tokens with the query (nothing is truncated)");
            return Err(ApiError::field(&name, &expected, n));
        }
        n_tokens += n;
        if n_tokens > MAX_PAIR_TOKENS {
            let expected =
                format!("at most {MAX_PAIR_TOKENS} tokens, counting the query each time");
            return Err(ApiError::field(name, &expected, format!("more up to item {index}")));
        }
        requests.push(Request { deadline, ..request });
    }
    Ok(requests)
}

/// Tokens of the prompts of all pairs.
pub(super) fn usage(texts: &[Completion]) -> InputUsage {
    InputUsage::new(texts.iter().map(|text| text.prompt_tokens).sum())
}
