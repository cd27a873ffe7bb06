use stonechat_sampling::log_sum_exp;

use super::*;

/// The end token of a vocabulary of three words.
const EOT: u32 = 3;
const VOCAB_SIZE: usize = 4;

const OPTIONS: SearchOptions = SearchOptions {
    temperature: 0.0,
    width: 1,
    patience: 1.0,
    length_penalty: None,
    eot: EOT,
    max_tokens: 5,
};

/// A model whose logits depend on the whole text, in ways that `seed` varies.
fn logits(seed: u64, text: &[u32]) -> Vec<f32> {
    let hash = text.iter().fold(seed + 1, |hash, &t| hash.wrapping_mul(31) + u64::from(t) + 7);
    let mut rng = Rng::new(hash);
    (0..VOCAB_SIZE).map(|_| (rng.uniform() * 4.0) as f32).collect()
}

fn logprobs(seed: u64, text: &[u32]) -> Vec<f64> {
    let logits = logits(seed, text);
    let total: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
    logits.iter().map(|&l| f64::from(l) - total.ln()).collect()
}

/// Computes the statistics of `logits` and steps.
fn step(search: &mut Search, logits: &[f32], forks: &mut Vec<(usize, usize)>) {
    let compute = |row: &[f32]| {
        let mut top: Vec<(u32, f32)> = (0..).zip(row.iter().copied()).collect();
        top.retain(|(_, logit)| *logit > f32::NEG_INFINITY);
        top.sort_by(|a, b| b.1.total_cmp(&a.1));
        top.truncate(search.top_k());
        LogitStats { log_sum_exp: log_sum_exp(row), top }
    };
    let stats: Vec<LogitStats> = logits.chunks_exact(VOCAB_SIZE).map(compute).collect();
    search.step(logits, &stats, forks);
}

/// Runs a search with sequences that hold tokens as those of a decoder do.
fn run(
    options: SearchOptions,
    prefix: &[u32],
    model: impl Fn(&[u32]) -> Vec<f32>,
) -> (Hypothesis, usize) {
    let mut search = Search::new(options, prefix, 1);
    let mut held = vec![Vec::new(); options.width];
    held[0] = prefix.to_vec();
    let mut forks = Vec::new();
    while !search.active().is_empty() {
        let rows: Vec<f32> =
            search.active().iter().flat_map(|h| model(&held[h.sequence])).collect();
        step(&mut search, &rows, &mut forks);
        for &(from, to) in &forks {
            held[to] = held[from].clone();
        }
        for hypothesis in search.active() {
            let held = &mut held[hypothesis.sequence];
            held.extend(hypothesis.tokens.last());
            assert_eq!(*held, hypothesis.tokens, "the sequence holds another text");
        }
    }
    search.take_best()
}

/// Reference: openai/whisper's `BeamSearchDecoder`, with beams and finished texts by their tokens.
fn reference(options: SearchOptions, seed: u64) -> (Vec<u32>, f64) {
    let SearchOptions { width, patience, max_tokens, .. } = options;
    let max_finished = (width as f32 * patience).round() as usize;
    let mut beams = vec![(Vec::new(), 0.0)];
    let mut finished: Vec<(Vec<u32>, f64)> = Vec::new();
    for _ in 0..max_tokens {
        let mut candidates = Vec::new();
        for (text, sum) in &beams {
            let mut tokens: Vec<_> = logprobs(seed, text).into_iter().enumerate().collect();
            tokens.sort_by(|a, b| b.1.total_cmp(&a.1));
            for (token, logprob) in tokens.into_iter().take(width + 1) {
                candidates.push(([&text[..], &[token as u32]].concat(), sum + logprob));
            }
        }
        candidates.sort_by(|a, b| b.1.total_cmp(&a.1));
        beams.clear();
        for (text, sum) in candidates {
            if text.last() != Some(&EOT) {
                beams.push((text, sum));
                if beams.len() == width {
                    break;
                }
            } else if finished.len() < max_finished {
                finished.push((text[..text.len() - 1].to_vec(), sum));
            }
        }
        if finished.len() >= max_finished {
            break;
        }
    }
    for beam in beams {
        if finished.len() < width {
            finished.push(beam);
        }
    }
    best_of(finished, options)
}

fn best_of(texts: Vec<(Vec<u32>, f64)>, options: SearchOptions) -> (Vec<u32>, f64) {
    let score = |(text, sum): &(Vec<u32>, f64)| match options.length_penalty {
        None => sum / text.len().max(1) as f64,
        Some(alpha) => sum / ((5.0 + text.len() as f64) / 6.0).powf(f64::from(alpha)),
    };
    texts.into_iter().rev().max_by(|a, b| score(a).total_cmp(&score(b))).unwrap()
}

#[track_caller]
fn assert_same(options: SearchOptions, seed: u64, expected: &(Vec<u32>, f64)) {
    let (best, n_chosen) = run(options, &[], |text| logits(seed, text));
    assert_eq!(best.tokens, expected.0, "seed {seed}, {options:?}");
    assert_eq!(n_chosen, best.tokens.len());
    for (i, &token) in best.tokens.iter().enumerate() {
        let expected = logprobs(seed, &best.tokens[..i])[token as usize];
        assert!((f64::from(best.logprobs[i]) - expected).abs() < 1e-5, "{best:?}");
    }
    // An impatient search fills up with texts that have not ended.
    let may_be_open = n_chosen == options.max_tokens || options.patience < 1.0;
    assert!(best.finish == FinishReason::Eot || may_be_open, "{best:?}");
    assert!((best.sum_logprob - expected.1).abs() < 1e-4, "seed {seed}, {options:?}");
}

#[test]
fn a_search_as_wide_as_the_tree_finds_the_best_text() {
    for seed in 0..20 {
        for length_penalty in [None, Some(0.0), Some(0.6), Some(1.0)] {
            // Every text: with the end token, or as long as texts may be.
            let mut texts = Vec::new();
            let mut open = vec![(Vec::new(), 0.0)];
            for _ in 0..5 {
                let mut longer = Vec::new();
                for (text, sum) in open {
                    for (token, logprob) in logprobs(seed, &text).into_iter().enumerate() {
                        if token as u32 == EOT {
                            texts.push((text.clone(), sum + logprob));
                        } else {
                            longer.push(([&text[..], &[token as u32]].concat(), sum + logprob));
                        }
                    }
                }
                open = longer;
            }
            texts.extend(open);
            let options = SearchOptions { width: 243, length_penalty, ..OPTIONS };
            assert_same(options, seed, &best_of(texts, options));
        }
    }
}

#[test]
fn narrow_searches_keep_and_finish_what_the_reference_does() {
    let mut differ_by_patience = 0;
    for seed in 0..200 {
        for width in 1..=5 {
            for patience in [0.5, 1.0, 2.0] {
                for length_penalty in [None, Some(1.0)] {
                    let options = SearchOptions { width, patience, length_penalty, ..OPTIONS };
                    if (width as f32 * patience).round() >= 1.0 {
                        assert_same(options, seed, &reference(options, seed));
                    }
                }
            }
        }
        let patient = SearchOptions { width: 2, patience: 2.0, ..OPTIONS };
        let impatient = SearchOptions { patience: 1.0, ..patient };
        differ_by_patience +=
            usize::from(reference(patient, seed).0 != reference(impatient, seed).0);
    }
    assert!(differ_by_patience > 0, "patience changed nothing: the models are too easy");
}

#[test]
fn one_beam_is_greedy() {
    for seed in 0..50 {
        let mut text = Vec::new();
        while text.len() < 5 {
            let logits = logits(seed, &text);
            let best = (0..VOCAB_SIZE).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
            if best as u32 == EOT {
                break;
            }
            text.push(best as u32);
        }
        assert_eq!(run(OPTIONS, &[], |text| logits(seed, text)).0.tokens, text);
    }
}

#[test]
fn a_prefix_stays_and_costs_nothing() {
    let options = SearchOptions { width: 3, ..OPTIONS };
    let (best, n_chosen) = run(options, &[2, 1], |text| logits(5, text));
    assert_eq!((&best.tokens[..2], best.tokens.len()), (&[2, 1][..], 2 + n_chosen));
    let mut sum = 0.0;
    for i in 2..best.tokens.len() {
        sum += logprobs(5, &best.tokens[..i])[best.tokens[i] as usize];
    }
    if n_chosen < OPTIONS.max_tokens {
        sum += logprobs(5, &best.tokens)[EOT as usize];
    }
    assert!((best.sum_logprob - sum).abs() < 1e-4);
}

#[test]
fn forbidden_tokens_are_never_taken() {
    // After the first word only the end is allowed, and there are more beams than ways to go.
    let model = |text: &[u32]| match text.len() {
        0 => vec![1.0, 0.0, f32::NEG_INFINITY, f32::NEG_INFINITY],
        _ => vec![f32::NEG_INFINITY, f32::NEG_INFINITY, f32::NEG_INFINITY, 0.0],
    };
    for temperature in [0.0, 0.8] {
        let options = SearchOptions { width: 4, temperature, ..OPTIONS };
        let (best, _) = run(options, &[], model);
        assert_eq!(best.tokens, [0]);
        assert!((best.sum_logprob + (1.0 + (-1f64).exp()).ln()).abs() < 1e-6);
    }
    let nothing = |_: &[u32]| vec![f32::NEG_INFINITY; VOCAB_SIZE];
    for temperature in [0.0, 0.8] {
        let (best, _) = run(SearchOptions { temperature, ..OPTIONS }, &[1], nothing);
        assert!(best.tokens.is_empty() || best.tokens == [1]);
    }
}

#[test]
fn the_most_probable_draw_is_kept() {
    // One of the two words is likely, and a text is one word: one of eight draws takes it.
    let model = |text: &[u32]| match text.len() {
        0 => vec![1.5, 0.0, f32::NEG_INFINITY, f32::NEG_INFINITY],
        _ => vec![f32::NEG_INFINITY, f32::NEG_INFINITY, f32::NEG_INFINITY, 0.0],
    };
    let drawn = |width, seed| {
        let options = SearchOptions { temperature: 1.0, width, ..OPTIONS };
        let mut search = Search::new(options, &[], seed);
        let mut forks = Vec::new();
        step(&mut search, &model(&[]), &mut forks);
        assert_eq!(forks, (1..width).map(|to| (0, to)).collect::<Vec<_>>());
        let words: Vec<u32> = search.active().iter().map(|h| h.tokens[0]).collect();
        step(&mut search, &model(&[0]).repeat(width), &mut forks);
        assert!(forks.is_empty() && search.active().is_empty());
        (words, search.take_best().0)
    };
    let mut n_unlikely = 0;
    for seed in 0..100 {
        let (words, best) = drawn(8, seed);
        assert_eq!(best.tokens, [*words.iter().min().unwrap()]);
        let logprob = if best.tokens == [0] { 1.5 } else { 0.0 } - (1.5f64.exp() + 1.0).ln();
        assert!((best.sum_logprob - logprob).abs() < 1e-6, "the sum is that of temperature 1");
        n_unlikely += words.iter().filter(|&&word| word == 1).count();
    }
    let expected = 800.0 / (1.0 + 1.5f64.exp());
    assert!((n_unlikely as f64 - expected).abs() < 5.0 * expected.sqrt(), "{n_unlikely}");
}

#[test]
fn loops_end_the_search() {
    let stuck = |_: &[u32]| vec![0.0, 9.0, 0.0, -9.0];
    for (temperature, width) in [(0.0, 1), (0.0, 5), (0.1, 2)] {
        let options = SearchOptions { temperature, width, max_tokens: 200, ..OPTIONS };
        let (best, _) = run(options, &[0], stuck);
        assert_eq!(best.finish, FinishReason::Loop, "temperature {temperature}");
        assert_eq!(best.tokens.len(), 37, "a prefix and the shortest loop");
    }
}

#[test]
fn loops_lose_and_the_prefix_does_not_count_for_the_length() {
    let prefix = [0, 1, 2];
    let hypothesis = |n: usize, sum_logprob, finish| Hypothesis {
        tokens: [&prefix[..], &vec![0; n]].concat(),
        sum_logprob,
        finish,
        ..Hypothesis::default()
    };
    let best = |hypotheses: [Hypothesis; 2]| {
        let mut search = Search::new(SearchOptions { width: 2, ..OPTIONS }, &prefix, 1);
        search.active.clear();
        search.finished.extend(hypotheses);
        search.take_best()
    };
    let (looped, eot) = (FinishReason::Loop, FinishReason::Eot);
    let (taken, n) = best([hypothesis(4, -0.1, looped), hypothesis(2, -9.0, eot)]);
    assert_eq!((taken.finish, n), (eot, 2));
    // -1.0 a token of one, -0.9 a token of two; with the prefix it would be -0.25 and -0.36.
    let (taken, n) = best([hypothesis(1, -1.0, eot), hypothesis(2, -1.8, eot)]);
    assert_eq!((taken.sum_logprob, n), (-1.8, 2));
}
