//! The verbs of language models, on a tiny model of random weights and on an installed one.

use std::fs;
use std::path::PathBuf;

use crate::run::{Folder, workspace};

fn golden(name: &str) -> String {
    let path = workspace().join("test-data/golden/llm").join(name);
    path.to_str().unwrap().to_owned()
}

/// Path of an installed model; prints why `test` is skipped otherwise.
pub(crate) fn installed(test: &str, name: &str) -> Option<String> {
    let found = stonechat::Models::from_env().find(name).ok();
    if found.is_none() {
        println!("SKIPPED {test}: model {name} is not installed (cargo xtask models {name})");
    }
    found.map(|path: PathBuf| path.to_str().unwrap().to_owned())
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn leading_blanks_of_an_answer_are_kept() {
    let folder = Folder::new("chat-blanks");
    fs::copy(workspace().join("test-data/golden/llm/llama.gguf"), folder.path("llama.gguf"))
        .unwrap();
    let grammar = ["--grammar", r#"root ::= "  a\n b""#];
    let arguments = ["chat", "llama.gguf", "-q", "-p", "hi", "--single-turn"];
    let ran = folder.run(&[&arguments[..], &grammar].concat());
    assert_eq!(ran.succeeds(), "  a\n b\n");
}

#[test]
fn generate_repeats_with_its_seed_and_reports_as_json() {
    let folder = Folder::new("llm-generate");
    let model = golden("llama.gguf");
    let arguments = ["generate", "-m", &model, "-p", "a", "-n", "8", "--ignore-eos", "--json"];
    let first = json(folder.run(&arguments).succeeds());
    assert_eq!(first["tokens"].as_array().unwrap().len(), 8);
    assert_eq!(first["finish"], "length");
    let seed = first["seed"].to_string();
    let again = [&arguments[..], &["-s", &seed]].concat();
    assert_eq!(json(folder.run(&again).succeeds())["tokens"], first["tokens"]);
    let probs = [&arguments[..], &["--temp", "0", "--n-probs", "3"]].concat();
    let probs = json(folder.run(&probs).succeeds());
    let steps = probs["probs"].as_array().unwrap();
    assert_eq!(steps.len(), 8);
    assert!(steps.iter().all(|step| step["id"] == step["top"][0]["id"]), "{probs}");
}

#[test]
fn memory_mapped_weights_give_the_same_text() {
    let folder = Folder::new("llm-repack");
    let model = golden("llama.gguf");
    let arguments =
        ["generate", "-m", &model, "-p", "ab", "-n", "8", "--temp", "0", "--ignore-eos", "-v"];
    let repacked = folder.run(&arguments);
    let mapped = folder.run(&[&arguments[..], &["--repack", "off"]].concat());
    assert_eq!(mapped.succeeds(), repacked.succeeds());
    assert!(repacked.stderr.contains(" copied in 0."), "{repacked:?}");
    assert!(mapped.stderr.contains(" memory-mapped\n"), "{mapped:?}");
}

#[test]
fn generate_reads_a_prompt_from_anywhere_and_streams_text() {
    let folder = Folder::new("llm-prompt");
    let model = golden("llama.gguf");
    folder.write("prompt.txt", b"ab");
    let tail = ["-n", "6", "--temp", "0", "--ignore-eos"];
    let run = |head: &[&str], input: &[u8]| {
        let arguments = [&["generate", "-m", &model][..], head, &tail].concat();
        folder.run_with_input(&arguments, input).succeeds().to_owned()
    };
    let expected = run(&["-p", "ab"], b"");
    assert_eq!(run(&["-f", "prompt.txt"], b""), expected);
    assert_eq!(run(&["-p", "-"], b"ab"), expected);
    assert_eq!(run(&[], b"ab"), expected);
}

#[test]
fn a_prompt_cache_is_written_and_used() {
    let folder = Folder::new("llm-cache");
    let model = golden("qwen2.gguf");
    let arguments = [
        "generate",
        "-m",
        &model,
        "-p",
        "abcabc",
        "-n",
        "4",
        "--temp",
        "0",
        "--ignore-eos",
        "--json",
        "--prompt-cache",
        "kept",
    ];
    let first = json(folder.run(&arguments).succeeds());
    let second = json(folder.run(&arguments).succeeds());
    assert_eq!((&first["tokens"], first["cached_tokens"].as_u64()), (&second["tokens"], Some(0)));
    assert!(second["cached_tokens"].as_u64().unwrap() > 0, "{second}");
    let other = golden("llama.gguf");
    let mut wrong = arguments;
    wrong[2] = &other;
    folder.run(&wrong).fails("was saved with another model");
}

#[test]
fn tokenize_needs_the_vocabulary_only() {
    let folder = Folder::new("llm-tokenize");
    let model = golden("llama.gguf");
    let ids = json(folder.run(&["tokenize", "-m", &model, "--json", "abc"]).succeeds());
    let plain =
        json(folder.run(&["tokenize", "-m", &model, "--json", "--no-special", "abc"]).succeeds());
    assert!(!ids.as_array().unwrap().is_empty() && !plain.as_array().unwrap().is_empty());
    let lines = folder.run(&["tokenize", "-m", &model, "abc"]);
    assert_eq!(lines.succeeds().lines().count(), ids.as_array().unwrap().len());
    folder.write("texts.json", br#"["abc", "", "abc"]"#);
    let all = folder.run(&["tokenize", "-m", &model, "--texts", "texts.json"]);
    let all: Vec<_> = all.succeeds().lines().map(json).collect();
    assert_eq!((all.len(), &all[0], &all[2]), (3, &ids, &ids));
}

#[test]
fn perplexity_is_the_last_number() {
    let folder = Folder::new("llm-perplexity");
    let model = golden("llama.gguf");
    folder.write("text.txt", "abcdefgh abc dab ".repeat(20).as_bytes());
    let ran = folder.run(&["perplexity", "-m", &model, "-f", "text.txt", "-c", "16", "-q"]);
    let last: f64 = ran.succeeds().split_whitespace().last().unwrap().parse().unwrap();
    let report = folder.run(&["perplexity", "-m", &model, "-f", "text.txt", "-c", "16", "--json"]);
    let value = json(report.succeeds())["perplexity"].as_f64().unwrap();
    assert!(last > 1.0 && (last - value).abs() < 1e-3, "{last} {value}");
    folder.write("short.txt", b"abc");
    folder
        .run(&["perplexity", "-m", &model, "-f", "short.txt", "-q"])
        .fails("at least 1024 tokens");
}

#[test]
fn bench_reports_every_test() {
    let folder = Folder::new("llm-bench");
    let model = golden("llama.gguf");
    let arguments = ["bench", "-m", &model, "-p", "8,4", "-n", "2", "-r", "3", "-t", "1"];
    let table = folder.run(&arguments);
    assert_eq!(table.succeeds().lines().count(), 5);
    let report = folder.run(&[&arguments[..], &["-o", "json"]].concat());
    let report = json(report.succeeds());
    let tests: Vec<_> = report.as_array().unwrap().iter().map(|test| &test["test"]).collect();
    assert_eq!(tests, ["pp8", "pp4", "tg2"]);
    assert_eq!(report[0]["samples_tok_s"].as_array().unwrap().len(), 3);
    // All weights are f32: nothing is repacked.
    assert!(report[0]["load_s"].as_f64().unwrap() > 0.0 && report[0]["repack_s"] == 0.0);
}

#[test]
fn chat_works_over_a_pipe() {
    let folder = Folder::new("llm-chat");
    let model = golden("qwen2.gguf");
    let arguments = [
        "chat",
        "-m",
        &model,
        "--chat-template",
        "chatml",
        "-n",
        "3",
        "--temp",
        "0",
        "--ignore-eos",
        "-q",
    ];
    let input = b"ab\n/save kept.json\n/clear\nab\n/regen\n/exit\n";
    let ran = folder.run_with_input(&arguments, input);
    let answers = ran.succeeds();
    let kept = json(&folder.read("kept.json"));
    let answer = kept[1]["content"].as_str().unwrap();
    assert_eq!(kept[0]["content"], "ab");
    // The same message has the same answer: after /clear, and after /regen.
    assert_eq!(answers, format!("{answer}\n").repeat(3));

    let ran = folder.run_with_input(&arguments, b"/nonsense\n/load missing.json\n/regen\n");
    assert_eq!((ran.code, ran.stderr.lines().count()), (Some(1), 3), "{ran:?}");
    let ran = folder.run(&["chat", "-m", &model, "-p", "x", "-n", "1", "--st"]);
    ran.succeeds();
    assert!(ran.stderr.contains("no chat template"), "{ran:?}");
    folder.run(&["chat", "-m", &model, "--chat-template", "{% if"]).fails("--chat-template");
}

#[test]
fn commands_of_chat_lose_nothing() {
    let folder = Folder::new("llm-chat-commands");
    let arguments =
        ["chat", &golden("qwen2.gguf"), "--chat-template", "chatml", "-n", "1", "--ignore-eos"];
    folder.write("old.json", b"[]");
    let input = b"/system be brief\nab\n/system\n/save old.json\n/save new.json\n/save new.json\n\
                  /set temp -5\n/set parameter temperature 0.2\n/set\n/load new.json\n/show info\n";
    let ran = folder.run_with_input(&arguments, input);
    assert_eq!(folder.read("old.json"), "[]");
    assert_eq!(json(&folder.read("new.json")).as_array().unwrap().len(), 3);
    let expected = [
        "be brief\n",
        "error: /save: `old.json` exists: expected another name\n",
        "wrote 3 messages to `new.json`\n",
        "error: /set temp: expected 0 or more, got -5\n",
        "temp            0.2\n",
        "read 3 messages from `new.json`\n",
        "`stonechat show MODEL`",
    ];
    let mut rest = ran.stderr.as_str();
    for text in expected {
        let Some((_, after)) = rest.split_once(text) else {
            panic!("expected `{text}` in {ran:?}")
        };
        rest = after;
    }
}

#[test]
fn wrong_values_of_language_models_are_usage_errors() {
    let folder = Folder::new("llm-usage");
    let model = golden("llama.gguf");
    for (flags, expected) in [
        (&["--top-p", "2"][..], "`top_p`: expected a number from 0 to 1"),
        (&["--logit-bias", "x"], "--logit-bias: expected ID+BIAS"),
        (&["--logit-bias", "9999+1"], "--logit-bias: expected a token below"),
        (&["--samplers", "nothing"], "nothing"),
        (&["--beams", "65", "-n", "1"], "--beams: expected 1 to 64, got 65"),
        (&["--beams", "2"], "--beams: expected --n-predict"),
        (&["--grammar", "root ::= ("], "GBNF"),
    ] {
        let ran = folder.run(&[&["generate", "-m", &model, "-p", "a"][..], flags].concat());
        ran.misused(expected);
    }
    let ran = folder.run(&["generate", "-m", &model, "-p", "a", "-n", "1", "-c", "100000"]);
    ran.succeeds();
    assert!(ran.stderr.contains("--ctx-size 100000: the model was trained on "), "{ran:?}");
}

#[test]
fn chat_continues_with_another_model() {
    let folder = Folder::new("llm-chat-model");
    let other = golden("llama.gguf");
    let arguments = ["chat", &golden("qwen2.gguf"), "--chat-template", "chatml", "-n", "3"];
    let arguments = [&arguments[..], &["--temp", "0", "--ignore-eos", "-q"]].concat();
    let input = format!("/set n_predict 1\nab\n/model {other}\ncd\n/save kept.json\n");
    folder.run_with_input(&arguments, input.as_bytes()).succeeds();
    let kept = json(&folder.read("kept.json"));
    let roles: Vec<_> = kept.as_array().unwrap().iter().map(|m| m["role"].clone()).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant"]);
    // The second model answers to the whole conversation, with the parameters of /set.
    folder.write(
        "begin.json",
        serde_json::to_vec(&kept.as_array().unwrap()[..2]).unwrap().as_slice(),
    );
    let arguments = ["chat", &other, "--chat-template", "chatml", "-n", "1"];
    let arguments = [&arguments[..], &["--temp", "0", "--ignore-eos", "-q"]].concat();
    let ran = folder.run_with_input(&arguments, b"/load begin.json\ncd\n");
    assert_eq!(ran.succeeds().trim_end_matches('\n'), kept[3]["content"].as_str().unwrap());

    // A model that cannot be loaded leaves the first in place.
    folder.write("damaged.gguf", b"GGUF");
    let input = b"/model damaged.gguf\n/model missing\n/set tmp 1\nab\n/save after.json\n";
    let arguments = ["chat", &golden("qwen2.gguf"), "-n", "1", "--ignore-eos", "-q"];
    let ran = folder.run_with_input(&arguments, input);
    assert!(ran.stderr.contains("no model `missing`"), "{ran:?}");
    assert!(ran.stderr.contains("/set: expected one of temp, top_k"), "{ran:?}");
    assert_eq!(json(&folder.read("after.json")).as_array().unwrap().len(), 2);
}

/// Runs `generate` with each set of flags and checks that drafts of it do not change the tokens. Those of a flag set with
/// `true` are accepted in part.
fn assert_drafts_keep_the_tokens(folder: &Folder, generate: &[&str], drafters: &[(&[&str], bool)]) {
    for sampling in [&["--temp", "0"][..], &["--temp", "0.6", "-s", "7"]] {
        let run =
            |flags: &[&str]| json(folder.run(&[generate, sampling, flags].concat()).succeeds());
        let plain = run(&[]);
        assert!(plain["drafts"].is_null(), "{plain}");
        for (flags, are_accepted) in drafters {
            let drafted = run(flags);
            assert_eq!(drafted["tokens"], plain["tokens"], "{sampling:?} {flags:?}");
            let count = |name: &str| drafted["drafts"][name].as_u64().unwrap();
            assert!(count("proposed") > 0, "{sampling:?} {flags:?}: {drafted}");
            assert!(!are_accepted || count("accepted") > 0, "{sampling:?} {flags:?}: {drafted}");
            assert!(count("proposed") >= count("accepted"), "{drafted}");
        }
    }
}

#[test]
fn drafts_do_not_change_the_text() {
    let folder = Folder::new("llm-drafts");
    let model = golden("llama.gguf");
    let generate = ["generate", &model, "-p", "abcabc", "-n", "60", "--ignore-eos", "--json"];
    // Random weights repeat themselves by chance, and drafts that do not pay pause.
    let drafters: [(&[&str], bool); 4] = [
        (&["--model-draft", &model], true),
        (&["-md", &model, "--spec-type", "draft-simple", "--draft-max", "7"], true),
        (
            &[
                "--spec-type",
                "ngram-simple",
                "--spec-ngram-size-n",
                "1",
                "--spec-ngram-size-m",
                "4",
            ],
            false,
        ),
        (
            &["--spec-type", "ngram-mod", "--spec-ngram-size-n", "1", "--spec-draft-n-min", "1"],
            false,
        ),
    ];
    assert_drafts_keep_the_tokens(&folder, &generate, &drafters);
}

#[test]
fn drafts_do_not_change_the_text_of_a_real_model() {
    let test = "drafts_do_not_change_the_text_of_a_real_model";
    let Some(model) = installed(test, "qwen2.5-coder-1.5b") else { return };
    let Some(draft) = installed(test, "qwen2.5-coder-0.5b") else { return };
    let folder = Folder::new("llm-drafts-real");
    let prompt =
        "fn add(a: i32, b: i32) -> i32 {\n    a + b\n}\n\nfn sub(a: i32, b: i32) -> i32 {\n";
    let generate = ["generate", &model, "-p", prompt, "-n", "48", "--json"];
    let drafters: [(&[&str], bool); 2] = [
        (&["--model-draft", &draft], true),
        (
            &[
                "--spec-type",
                "ngram-simple",
                "--spec-ngram-size-n",
                "3",
                "--spec-ngram-size-m",
                "8",
            ],
            true,
        ),
    ];
    assert_drafts_keep_the_tokens(&folder, &generate, &drafters);
}

#[test]
fn flags_of_drafts_are_checked() {
    let folder = Folder::new("llm-draft-flags").with_tiny_model(51_864);
    let model = golden("llama.gguf");
    let run = |flags: &[&str]| {
        folder.run(&[&["generate", &model, "-p", "a", "-n", "2"][..], flags].concat())
    };
    run(&["--spec-type", "draft-simple"]).misused("expected --model-draft");
    run(&["--spec-type", "ngram-mod", "-md", &model]).misused("expected --spec-type draft-simple");
    run(&["--spec-type", "ngram-mod", "--spec-draft-n-max", "1000"]).misused("at most 256");
    run(&["-md", &model, "--draft-max", "2", "--draft-min", "3"]).misused("at most the 2");
    run(&["--spec-type", "ngram-simple", "--spec-ngram-size-n", "0"]).misused("at least 1");
    run(&["--spec-type", "ngram-simple", "--beams", "2"]).misused("--beams");
    run(&["-md", "missing.gguf"]).fails("no model `missing.gguf`");
    run(&["-md", "tiny.gguf"]).fails("stonechat transcribe");
}

#[test]
fn embeddings_are_vectors_of_unit_length() {
    let folder = Folder::new("llm-embed");
    let model = golden("llama.gguf");
    let vectors = |text: &str| -> Vec<Vec<f32>> {
        let parse = |line: &str| line.split(' ').map(|value| value.parse().unwrap()).collect();
        text.lines().map(parse).collect()
    };
    let two = folder.run(&["embed", &model, "abc", "ab"]);
    let two = vectors(two.succeeds());
    assert_eq!(two.len(), 2);
    for vector in &two {
        let norm: f32 = vector.iter().map(|x| x * x).sum();
        assert!((norm - 1.0).abs() < 1e-5, "{norm}");
    }
    assert_ne!(two[0], two[1]);
    let alone = folder.run(&["embed", &model, "ab"]);
    assert_eq!(vectors(alone.succeeds()), two[1..]);

    let raw = folder.run(&["embed", &model, "abc", "--embd-normalize", "-1"]);
    let raw = vectors(raw.succeeds()).remove(0);
    let length = raw.iter().map(|x| x * x).sum::<f32>().sqrt();
    for (raw, unit) in raw.iter().zip(&two[0]) {
        assert!((raw / length - unit).abs() < 1e-5, "{raw} / {length}, {unit}");
    }
    let max = folder.run(&["embed", &model, "abc", "--embd-normalize", "0"]);
    let max = vectors(max.succeeds()).remove(0);
    let largest = max.iter().fold(0.0f32, |max, x| max.max(x.abs()));
    assert!((largest - 32760.0).abs() < 0.01, "{largest}");

    let last = ["embed", &model, "--pooling", "last", "--json"];
    let report = folder.run_with_input(&last, b"abc\nab\n");
    let report = json(report.succeeds());
    assert_eq!(report["object"], "list");
    assert_eq!(report["data"][1]["index"], 1);
    assert_eq!(report["data"][1]["embedding"].as_array().unwrap().len(), two[1].len());
    assert!(report["usage"]["prompt_tokens"].as_u64().unwrap() >= 5, "{report}");
    let last = report["data"][0]["embedding"][0].as_f64().unwrap();
    assert!((last - f64::from(two[0][0])).abs() > 1e-4, "mean and last pooling agree");

    let expected = "expected none, mean, cls or last";
    folder.run(&["embed", &model, "--pooling", "max", "a"]).misused(expected);
    // A line for each token.
    let rows = folder.run(&["embed", &model, "--pooling", "none", "ab"]);
    let rows = vectors(rows.succeeds());
    assert!(rows.len() > 1 && rows.iter().all(|row| row.len() == two[0].len()), "{}", rows.len());
    folder.run(&["embed", &model, "--embd-normalize", "-2", "a"]).misused("expected -1 or more");
    folder.run(&["embed", &model]).misused("no text: expected TEXT");
    folder.run(&["embed", &model, "-f", "missing.txt"]).fails("cannot read `missing.txt`");
    folder.run(&["embed", &model, ""]).fails("text 1: expected at least one token");
    folder.run_with_input(&["embed", &model], b"").misused("no text");
}

#[test]
fn errors_have_a_reason() {
    let folder = Folder::new("llm-errors").with_tiny_model(51_864);
    let model = golden("llama.gguf");
    let check = |arguments: &[&str], expected: &str| {
        folder.run(&[&["generate", "-n", "2"][..], arguments].concat()).fails(expected);
    };
    check(&["-m", "missing.gguf", "-p", "a"], "no model `missing.gguf`");
    check(
        &["-m", "tiny.gguf", "-p", "a"],
        "`tiny.gguf` is a speech model: expected a language model",
    );
    folder
        .run(&["run", "tiny.gguf", "hi"])
        .fails("`stonechat transcribe -m` runs it on recordings");
    let short = ["-m", &model, "-p", "abcdefghij", "-c", "4"];
    check(&short, "do not fit the context of 4: shorten the prompt, or raise --ctx-size, up to ");
    // A context shift makes room for the answer, not for the prompt.
    check(&[&short[..], &["--context-shift"]].concat(), "shorten the prompt, or raise --ctx-size");
    let long = "abcdefghij".repeat(2000);
    check(&["-m", &model, "-p", &long, "-c", "0"], "shorten the prompt; the model was trained on");
    check(&["-m", &model, "-p", "a", "--suffix", "b"], "fill-in-the-middle");
    check(&["-m", &model, "-f", "missing.txt"], "cannot read `missing.txt`");
    folder.write("latin.txt", b"caf\xe9");
    check(&["-m", &model, "-f", "latin.txt"], "expected UTF-8 text");
    folder.run(&["transcribe", "-m", &model, "voice.wav"]).fails("stonechat generate");

    let bytes = fs::read(&model).unwrap();
    for len in [0, 3, 100, bytes.len() / 2, bytes.len() - 1] {
        folder.write("cut.gguf", &bytes[..len]);
        folder.run(&["generate", "-m", "cut.gguf", "-p", "a", "-n", "1"]).fails("cut.gguf");
    }
}

#[test]
fn a_real_model_knows_the_capital_of_france() {
    let test = "a_real_model_knows_the_capital_of_france";
    let Some(model) = installed(test, "smollm2-135m") else { return };
    let folder = Folder::new("llm-real");
    let arguments = ["generate", "-m", &model, "-p", "The capital of France is", "--temp", "0"];
    let text = folder.run(&[&arguments[..], &["-n", "2"]].concat());
    assert!(text.succeeds().starts_with(" Paris"), "{text:?}");
    let mapped = folder.run(&[&arguments[..], &["-n", "2", "--repack", "off"]].concat());
    assert_eq!(mapped.succeeds(), text.succeeds());
    let schema = serde_json::json!({
        "type": "object",
        "properties": { "city": { "type": "string" }, "people": { "type": "integer" } },
        "required": ["city", "people"],
        "additionalProperties": false,
    })
    .to_string();
    let ruled = folder.run(&[&arguments[..], &["-n", "120", "-j", &schema]].concat());
    let value = json(ruled.succeeds());
    assert!(value["city"].is_string() && value["people"].is_i64(), "{value}");
    let answer = folder.run_with_input(
        &["chat", "-m", &model, "--temp", "0", "-n", "40", "-q"],
        b"What is 2+2?\n",
    );
    assert!(answer.succeeds().contains('4'), "{answer:?}");
}
