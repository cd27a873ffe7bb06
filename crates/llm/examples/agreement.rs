//! Agreement of greedy tokens with llama.cpp on the same file.
//!
//! ```sh
//! python test-data/text/reference.py greedy --model MODEL --input test-data/text/prompts.txt > reference.json
//! cargo run --release -p stonechat-llm --example agreement -- MODEL reference.json f16
//! ```
//!
//! For each prompt: whether the greedy continuations are equal, else the first difference with the two
//! largest logits of both engines. Then, teacher-forced with llama.cpp's continuations: how often the argmax is
//! equal, token by token (decode) and in one batch (prefill), and how often each engine agrees with itself
//! between the two.
#![expect(clippy::print_stdout, reason = "a command-line tool reports by printing")]

use std::error::Error;
use std::path::Path;

use pollster::block_on;
use serde::Deserialize;
use stonechat_formats::ModelFile;
use stonechat_llm::{Model, OutputRequest, OutputRow, Outputs, Slot, StateOptions};
use stonechat_nn::{Cpu, KvDType};

const SLOT: Slot = Slot::new(0);

/// The two largest logits: token, logit, token, logit.
type Top = (u32, f32, u32, f32);

#[derive(Deserialize)]
struct Reference {
    prompts: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    prompt: String,
    prompt_tokens: Vec<u32>,
    tokens: Vec<u32>,
    steps: Vec<Top>,
    forced: Vec<Top>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, reference, kv_dtype] = &arguments[..] else {
        return Err("expected a model, llama.cpp's results and f16 or f32".into());
    };
    let kv_dtype = if kv_dtype == "f32" { KvDType::F32 } else { KvDType::F16 };
    let reference: Reference = serde_json::from_slice(&std::fs::read(reference)?)?;
    let file = ModelFile::open(Path::new(model))?;
    let model = Model::load(Cpu::new(2)?, &file, |_| {})?;

    let (mut n_equal, mut n_positions) = (0, 0);
    let [mut decoding, mut prompts, mut with_itself, mut ours] = [0; 4];
    for case in &reference.prompts {
        let tokens = model.tokenize_prompt(&case.prompt);
        if tokens != case.prompt_tokens {
            return Err(format!("{:?}: the tokens differ", case.prompt).into());
        }
        let greedy = greedy(&model, kv_dtype, &tokens, &case.tokens)?;
        let first = greedy.iter().zip(&case.steps).position(|(ours, theirs)| ours.0 != theirs.0);
        match first {
            None => n_equal += 1,
            Some(at) => {
                println!("{:?}, token {at}:", case.prompt);
                print_top(&model, "  stonechat", greedy[at]);
                print_top(&model, "  llama.cpp", case.steps[at]);
            }
        }
        let all = [&case.prompt_tokens[..], &case.tokens].concat();
        let start = case.prompt_tokens.len() - 1;
        let end = start + case.steps.len();
        let one_by_one = forced(&model, kv_dtype, &all[..end], 1)?;
        let at_once = forced(&model, kv_dtype, &all[..end], end)?;
        for (at, theirs) in (start..end).zip(&case.steps) {
            decoding += usize::from(one_by_one[at].0 == theirs.0);
            prompts += usize::from(at_once[at].0 == case.forced[at].0);
            with_itself += usize::from(case.forced[at].0 == theirs.0);
            ours += usize::from(one_by_one[at].0 == at_once[at].0);
            n_positions += 1;
        }
    }
    println!("greedy continuations: {n_equal} of {} equal", reference.prompts.len());
    let percent = |n: usize| 100.0 * n as f64 / f64::from(n_positions);
    println!("teacher-forced, the largest of {n_positions} positions:");
    println!("  one by one: {:.2} % equal to llama.cpp's one by one", percent(decoding));
    println!("  at once:    {:.2} % equal to llama.cpp's at once", percent(prompts));
    println!("  llama.cpp:  {:.2} % equal to itself, at once to one by one", percent(with_itself));
    println!("  stonechat:  {:.2} % equal to itself, at once to one by one", percent(ours));
    Ok(())
}

fn print_top(model: &Model, name: &str, (a, logit_a, b, logit_b): Top) {
    let text = |id| String::from_utf8_lossy(model.tokenizer().token_piece(id, true)).into_owned();
    println!(
        "{name} {:?} {logit_a:.3}, {:?} {logit_b:.3}, {:.3} apart",
        text(a),
        text(b),
        logit_a - logit_b
    );
}

/// Greedy continuation, up to the first token that differs from `expected`.
fn greedy(
    model: &Model,
    kv_dtype: KvDType,
    prompt: &[u32],
    expected: &[u32],
) -> Result<Vec<Top>, Box<dyn Error>> {
    let n_ctx = prompt.len() + expected.len();
    let mut state = model.state(StateOptions {
        n_batch: prompt.len(),
        kv_dtype,
        ..StateOptions::new(n_ctx)
    })?;
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
fn forced(
    model: &Model,
    kv_dtype: KvDType,
    tokens: &[u32],
    n_batch: usize,
) -> Result<Vec<Top>, Box<dyn Error>> {
    let options =
        StateOptions { n_batch, n_outputs: n_batch, kv_dtype, ..StateOptions::new(tokens.len()) };
    let mut state = model.state(options)?;
    let mut steps = Vec::new();
    for tokens in tokens.chunks(n_batch) {
        let outputs = block_on(state.run(SLOT, tokens, OutputRequest::Logits, tokens.len()))?;
        steps.extend((0..tokens.len()).map(|index| top(outputs, index)));
    }
    Ok(steps)
}

/// The two largest logits of row `index`.
fn top(outputs: Outputs<'_>, index: usize) -> Top {
    let OutputRow::Logits(logits) = outputs.row(index) else {
        unreachable!("logits were asked for")
    };
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
