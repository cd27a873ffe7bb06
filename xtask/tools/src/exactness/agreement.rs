//! Greedy tokens of a model beside llama.cpp's: free, and given llama.cpp's continuations (teacher-forced).

use anyhow::{Result, ensure};
use pollster::block_on;
use serde::Deserialize;
use stonechat_llm::{Model, OutputRequest, OutputRow, Outputs, Slot, StateOptions};
use xtask::exactness::{Difference, Forced, Greedy};

const SLOT: Slot = Slot::new(0);

/// The two largest logits: token, logit, token, logit.
type Top = (u32, f32, u32, f32);

/// llama.cpp's continuation of a prompt.
#[derive(Debug, Deserialize)]
pub(super) struct Case {
    prompt: String,
    prompt_tokens: Vec<u32>,
    /// Continuation.
    tokens: Vec<u32>,
    /// At each token of the continuation, token by token.
    steps: Vec<Top>,
    /// At each position of prompt and continuation, in one batch.
    forced: Vec<Top>,
}

/// Compares greedy continuations of at most `n_tokens` tokens and largest logits.
pub(super) fn compare(model: &Model, cases: &[Case], n_tokens: usize) -> Result<(Greedy, Forced)> {
    let mut free = Greedy { n_prompts: cases.len(), n_tokens, differences: Vec::new() };
    let mut forced = Forced::default();
    for (prompt, case) in cases.iter().enumerate() {
        let tokens = model.tokenize_prompt(&case.prompt);
        ensure!(tokens == case.prompt_tokens, "{:?}: the tokens differ", case.prompt);
        let steps = continuation(model, &tokens, &case.tokens)?;
        free.differences.extend(first_difference(prompt, &steps, &case.steps));
        let all = [&case.prompt_tokens[..], &case.tokens].concat();
        let start = case.prompt_tokens.len() - 1;
        let end = start + case.steps.len();
        let decode = tops(model, &all[..end], 1)?;
        let prefill = tops(model, &all[..end], end)?;
        count(
            &mut forced,
            [&decode[start..], &prefill[start..]],
            [&case.steps, &case.forced[start..end]],
        );
        println!("stonechat: {} of {} prompts", prompt + 1, cases.len());
    }
    Ok((free, forced))
}

/// Where two continuations part, if they do.
fn first_difference(prompt: usize, own: &[Top], peer: &[Top]) -> Option<Difference> {
    let token = own.iter().zip(peer).position(|(own, peer)| own.0 != peer.0)?;
    let margin = |top: Top| top.1 - top.3;
    let (margin, peer_margin) = (margin(own[token]), margin(peer[token]));
    Some(Difference { prompt, token, margin, peer_margin })
}

/// Counts positions with the same largest logit; each engine token by token and in one batch.
fn count(forced: &mut Forced, own: [&[Top]; 2], peer: [&[Top]; 2]) {
    let equal = |a: &[Top], b: &[Top]| a.iter().zip(b).filter(|(a, b)| a.0 == b.0).count();
    forced.n_positions += own[0].len();
    forced.decode += equal(own[0], peer[0]);
    forced.prefill += equal(own[1], peer[1]);
    forced.own += equal(own[0], own[1]);
    forced.peer += equal(peer[0], peer[1]);
}

/// Greedy continuation of `prompt`, up to the first token that differs from `expected`.
fn continuation(model: &Model, prompt: &[u32], expected: &[u32]) -> Result<Vec<Top>> {
    let n_ctx = prompt.len() + expected.len();
    let mut state =
        model.state(StateOptions { n_batch: prompt.len(), ..StateOptions::new(n_ctx) })?;
    let mut steps: Vec<Top> = Vec::new();
    let mut input = prompt.to_vec();
    for &token in expected {
        let outputs = block_on(state.run(SLOT, &input, OutputRequest::Logits, 1))?;
        let step = top(outputs, 0);
        steps.push(step);
        if step.0 != token {
            break;
        }
        input = vec![token];
    }
    Ok(steps)
}

/// The two largest logits at every position of `tokens`, in batches of `n_batch` tokens.
fn tops(model: &Model, tokens: &[u32], n_batch: usize) -> Result<Vec<Top>> {
    let options = StateOptions { n_batch, n_outputs: n_batch, ..StateOptions::new(tokens.len()) };
    let mut state = model.state(options)?;
    let mut tops = Vec::new();
    for tokens in tokens.chunks(n_batch) {
        let outputs = block_on(state.run(SLOT, tokens, OutputRequest::Logits, tokens.len()))?;
        tops.extend((0..tokens.len()).map(|index| top(outputs, index)));
    }
    Ok(tops)
}

/// The two largest logits of row `index`.
fn top(outputs: Outputs<'_>, index: usize) -> Top {
    let OutputRow::Logits(logits) = outputs.row(index) else {
        unreachable!("logits were asked for")
    };
    top_of(logits)
}

fn top_of(logits: &[f32]) -> Top {
    let (mut first, mut second) = ((0, f32::NEG_INFINITY), (0, f32::NEG_INFINITY));
    for (id, &logit) in (0..).zip(logits) {
        if logit > first.1 {
            (first, second) = ((id, logit), first);
        } else if logit > second.1 {
            second = (id, logit);
        }
    }
    (first.0, first.1, second.0, second.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_largest_logits_are_found_in_any_order() {
        assert_eq!(top_of(&[0.5, 3.0, -1.0, 2.0]), (1, 3.0, 3, 2.0));
        assert_eq!(top_of(&[3.0, 0.5, 2.0]), (0, 3.0, 2, 2.0));
    }

    #[test]
    fn the_first_difference_has_both_margins() {
        let own = [(7, 5.0, 1, 2.0), (4, 3.0, 9, 2.75)];
        let peer = [(7, 5.0, 1, 2.5), (9, 3.0, 4, 2.5), (1, 1.0, 2, 0.0)];
        let difference = Difference { prompt: 3, token: 1, margin: 0.25, peer_margin: 0.5 };
        assert_eq!(first_difference(3, &own, &peer), Some(difference));
        assert_eq!(first_difference(3, &own[..1], &peer), None);
    }

    #[test]
    fn positions_are_counted_by_pair() {
        let tokens = |ids: [u32; 3]| ids.map(|id| (id, 1.0, 0, 0.0));
        let (decode, prefill) = (tokens([1, 2, 3]), tokens([1, 2, 4]));
        let (peer_decode, peer_prefill) = (tokens([1, 5, 3]), tokens([1, 2, 3]));
        let mut forced = Forced::default();
        count(&mut forced, [&decode, &prefill], [&peer_decode, &peer_prefill]);
        assert_eq!(forced, Forced { n_positions: 3, decode: 2, prefill: 2, own: 2, peer: 2 });
    }
}
