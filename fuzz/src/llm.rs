//! Invariants of any language model, tokenizer, chat template and grammar.

use std::sync::OnceLock;

use stonechat_formats::ModelFile;
use stonechat_llm::{Config, Model, OutputRequest, Slot, StateOptions};
use stonechat_nn::Cpu;
use stonechat_sampling::{CompiledGrammar, GrammarSource, TokenTable, TokenText};
use stonechat_text::{ChatTemplate, Conversation, GgmlVocabulary, Tokenizer};

use crate::pass_contained_panics;

/// The weights behind the header: enough for the seeds.
const WEIGHT_BYTES: usize = 64 << 10;
/// Larger models take too long for a fuzzer.
const MAX_LAYERS: usize = 8;

/// Parses `data` as the header of a GGUF file whose weights all consist of its last byte, loads
/// the model and runs two tokens.
///
/// # Panics
/// If a promise is broken.
pub fn check_llm(data: &[u8]) {
    let Some((&fill, header)) = data.split_last() else { return };
    let mut bytes = header.to_vec();
    bytes.resize(header.len() + WEIGHT_BYTES, fill);
    let Ok(file) = ModelFile::from_reader(bytes) else { return };
    if let Ok(tokenizer) = stonechat_llm::tokenizer(&file) {
        check_text(&tokenizer, "Hello, <s> wörld! 123\n\n  x");
    }
    let Ok(config) = Config::from_file(&file) else { return };
    if config.n_layers > MAX_LAYERS {
        return;
    }
    static CPU: OnceLock<Cpu> = OnceLock::new();
    let cpu = CPU.get_or_init(|| Cpu::new(1).expect("one thread")).clone();
    let model = match Model::load(cpu, &file, |_| ()) {
        Ok(model) => model,
        Err(e) => return assert_message(&e),
    };
    let mut state = match model.state(StateOptions::new(8)) {
        Ok(state) => state,
        Err(e) => return assert_message(&e),
    };
    let last = model.config().vocab_size as u32 - 1;
    let tokens = [0, last];
    let run = state.run(Slot::new(0), &tokens, OutputRequest::Logits, 1);
    pollster::block_on(run).expect("two tokens fit");
}

/// Reads `data` as a vocabulary and encodes a text with it: after a first `{`, a
/// `tokenizer.json` up to the first zero; else the parts of a GGUF vocabulary, each ended by a
/// zero: settings, tokens, merges, text, character map.
///
/// # Panics
/// If a promise is broken.
pub fn check_tokenizer(data: &[u8]) {
    pass_contained_panics();
    let mut parts = data.splitn(5, |&byte| byte == 0);
    let mut part = || parts.next().unwrap_or_default();
    if data.first() == Some(&b'{') {
        let json = part();
        let text = String::from_utf8_lossy(part());
        match Tokenizer::from_hf_json(json) {
            Ok(tokenizer) => check_text(&tokenizer, &text),
            Err(e) => assert_message(&e),
        }
        return;
    }
    let mut settings = part().split(|&byte| byte == b'\n');
    let mut vocabulary = GgmlVocabulary {
        model: String::from_utf8_lossy(settings.next().unwrap_or_default()),
        pre: settings.next().map(String::from_utf8_lossy),
        ..GgmlVocabulary::default()
    };
    let mut numbers =
        settings.next().unwrap_or_default().iter().map(|&byte| byte.wrapping_sub(b'0'));
    let mut id = || numbers.next().filter(|&number| number < 200).map(u32::from);
    (vocabulary.bos, vocabulary.eos, vocabulary.unk) = (id(), id(), id());
    (vocabulary.sep, vocabulary.cls, vocabulary.eot) = (id(), id(), id());
    let mut flag =
        || numbers.next().and_then(|number| [None, Some(true), Some(false)][number as usize % 3]);
    (vocabulary.add_bos, vocabulary.add_eos, vocabulary.add_sep) = (flag(), flag(), flag());
    (vocabulary.add_space_prefix, vocabulary.remove_extra_whitespaces) = (flag(), flag());
    (vocabulary.lowercase, vocabulary.strip_accents) = (flag(), flag());
    // Each token's first byte is its type, and through it its score.
    for line in part().split(|&byte| byte == b'\n') {
        let (kind, text) = line.split_first().unwrap_or((&b'1', b""));
        vocabulary.token_types.to_mut().push(i32::from(*kind) - i32::from(b'0'));
        vocabulary.scores.to_mut().push(-f32::from(*kind) - text.len() as f32);
        vocabulary.tokens.to_mut().push(String::from_utf8_lossy(text).into_owned());
    }
    vocabulary.merges = String::from_utf8_lossy(part()).lines().map(str::to_owned).collect();
    let text = String::from_utf8_lossy(part()).into_owned();
    vocabulary.precompiled_charsmap = part().into();
    match Tokenizer::from_ggml(vocabulary) {
        Ok(tokenizer) => check_text(&tokenizer, &text),
        Err(e) => assert_message(&e),
    }
}

/// Encodes and decodes a text.
fn check_text(tokenizer: &Tokenizer, text: &str) {
    for (add_special, parse_special) in [(false, false), (true, true)] {
        let ids = tokenizer.tokenize(text, add_special, parse_special);
        let decoded = tokenizer.decode_with_special(&ids);
        assert!(decoded.is_empty() || !ids.is_empty());
        tokenizer.decode(&ids);
    }
    let end = tokenizer.vocab_size() as u32;
    tokenizer.decode_with_special(&[0, end.wrapping_sub(1), end, u32::MAX]);
}

/// Compiles the text before the first zero as a chat template and renders the conversation
/// behind it, or a short one.
///
/// # Panics
/// If a promise is broken.
pub fn check_chat_template(data: &[u8]) {
    pass_contained_panics();
    let text = String::from_utf8_lossy(data);
    let (source, json) = text.split_once('\0').unwrap_or((&text, ""));
    let template = match ChatTemplate::new(source, "<s>", "</s>") {
        Ok(template) => template,
        Err(e) => return assert_message(&e),
    };
    let mut conversation = serde_json::from_str(json).unwrap_or_else(|_| Conversation {
        messages: vec![
            serde_json::json!({"role": "system", "content": "Be brief."}),
            serde_json::json!({"role": "user", "content": "Hello"}),
        ],
        add_generation_prompt: true,
        ..Conversation::default()
    });
    conversation.now = Some(conversation.now.unwrap_or(1_700_000_000));
    for rendered in [template.render(&conversation), template.render_unchanged(&conversation)] {
        if let Err(e) = rendered {
            assert_message(&e);
        }
    }
}

/// Compiles the text behind the first byte as a grammar, whose language that byte chooses, and
/// follows it for a few tokens.
///
/// # Panics
/// If a promise is broken.
pub fn check_grammar(data: &[u8]) {
    pass_contained_panics();
    let Some((&kind, text)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let source = match kind % 4 {
        0 => GrammarSource::Gbnf(text.into()),
        1 => GrammarSource::JsonSchema(text.into()),
        2 => GrammarSource::Regex(text.into()),
        _ => GrammarSource::Lark(text.into()),
    };
    let (tokens, n_tokens) = token_table();
    let mut grammar = match CompiledGrammar::new(&source, tokens) {
        Ok(compiled) => compiled.start(),
        Err(e) => return assert_message(&e),
    };
    for step in 0..6 {
        let mut logits = vec![0.0f32; n_tokens];
        if let Err(e) = grammar.mask(&mut logits) {
            return assert_message(&e);
        }
        let allowed: Vec<usize> = (0..n_tokens).filter(|&i| logits[i] == 0.0).collect();
        let Some(&token) = allowed.get(step * 7 % allowed.len().max(1)) else { return };
        if let Err(e) = grammar.accept(token as u32) {
            return assert_message(&e);
        }
    }
}

/// The 256 bytes, some words, a special token and an end.
fn token_table() -> (&'static TokenTable, usize) {
    static TABLE: OnceLock<(TokenTable, usize)> = OnceLock::new();
    let (table, n_tokens) = TABLE.get_or_init(|| {
        let bytes: Vec<u8> = (0..=255).collect();
        let mut tokens: Vec<_> = bytes.chunks(1).map(TokenText::Bytes).collect();
        for word in ["the", " a", "\": ", "{\"", "true", "12", "\n\n", "ü"] {
            tokens.push(TokenText::Bytes(word.as_bytes()));
        }
        tokens.push(TokenText::Special("<think>"));
        tokens.push(TokenText::Special("</s>"));
        let end = tokens.len() as u32 - 1;
        (TokenTable::new(&tokens, &[end]).expect("a vocabulary"), tokens.len())
    });
    (table, *n_tokens)
}

fn assert_message(error: &dyn std::error::Error) {
    assert!(!error.to_string().is_empty());
}
