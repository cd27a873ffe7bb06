//! Unit tests of the aliases.

use super::{
    Alias, COMMON, DRAFTS, FileText, GLOBAL_FLAGS, Is, LLAMA, LLAMA_SERVER, Noted, OLLAMA, Program,
    Switch, Values, WHISPER, WITHOUT_TEMPLATE, expand,
};

fn words(args: &str) -> impl Iterator<Item = std::ffi::OsString> {
    args.split(' ').map(Into::into)
}

#[track_caller]
fn check(args: &str, expected: &str) -> Vec<String> {
    let expanded = expand(words(args)).unwrap();
    let got: Vec<_> = expanded.args.iter().map(|arg| arg.to_str().unwrap()).collect();
    assert_eq!(got.join(" "), expected);
    expanded.notes
}

#[test]
fn flags_of_whisper_cli_are_expanded() {
    check(
        "stonechat transcribe a.wav -osrt -oj",
        "stonechat transcribe a.wav --output-format=srt --output-format=json",
    );
    check(
        "stonechat transcribe -vt 0.6 -vspd 9 a.wav",
        "stonechat transcribe --vad-threshold 0.6 --vad-min-speech-ms 9 a.wav",
    );
    check("stonechat transcribe -o srt -v", "stonechat transcribe -o srt -v");
    check("stonechat transcribe -- -osrt --vad", "stonechat transcribe -- -osrt --vad");
    check("stonechat generate -oj -p 3", "stonechat generate -oj -p 3");
    check("stonechat", "stonechat");
    check(
        "stonechat transcribe -tr -ml 40 -mc 0 -dtw base --file a.wav -f srt",
        "stonechat transcribe --print-timestamps --task=translate --max-line-count=1 --max-line-width 40 \
         --condition-on-previous-text=false --word-timestamps a.wav -f srt",
    );
    check(
        "stonechat transcribe --file a.wav -mc -1 -nt",
        "stonechat transcribe a.wav --no-timestamps",
    );
    for line in ["-mc 64 a.wav", "--max-context 224 a.wav", "--max-context=224 a.wav"] {
        let notes = check(&format!("stonechat transcribe {line}"), "stonechat transcribe a.wav");
        assert!(
            notes[0].contains("is ignored: all text that the model takes is given"),
            "{notes:?}"
        );
    }
}

#[test]
fn flags_of_llama_cpp_are_expanded() {
    check(
        "stonechat chat -m a.gguf -ngl 20 -ctk f16 -st -sys b",
        "stonechat chat -m a.gguf --gpu-layers 20 --cache-type-k f16 --single-turn --system-prompt b",
    );
    check("stonechat tokenize -ngl", "stonechat tokenize -ngl");
    for verb in ["generate", "serve"] {
        let notes = check(
            &format!("stonechat {verb} -md a.gguf -ngld 9 --draft 4"),
            &format!("stonechat {verb} --model-draft a.gguf --spec-draft-n-max 4"),
        );
        assert_eq!(notes.len(), 1);
    }
}

#[test]
fn flags_of_openai_whisper_are_expanded() {
    check(
        "stonechat transcribe --output_dir a_b --initial_prompt=x_y --word_timestamps True a.wav",
        "stonechat transcribe --output-dir a_b --initial-prompt=x_y --word-timestamps a.wav",
    );
    check(
        "stonechat transcribe --highlight_words False --condition_on_previous_text False --verbose False",
        "stonechat transcribe --condition-on-previous-text=false --quiet",
    );
    check("stonechat transcribe -f all,srt a_b.wav", "stonechat transcribe -f all,srt a_b.wav");
}

#[test]
fn vad_may_stand_alone() {
    check("stonechat transcribe --vad a.wav", "stonechat transcribe --vad=on a.wav");
    check("stonechat transcribe a.wav --vad", "stonechat transcribe a.wav --vad=on");
    check("stonechat transcribe --vad off a.wav", "stonechat transcribe --vad=off a.wav");
    check("stonechat transcribe --vad=auto a.wav", "stonechat transcribe --vad=auto a.wav");
}

#[test]
fn other_flags_are_ignored_with_their_value_or_refused() {
    let notes =
        check("stonechat transcribe -vm silero.bin -fa -p 4 a.wav", "stonechat transcribe a.wav");
    assert_eq!(notes.len(), 3);
    assert_eq!(notes[0], "-vm is ignored: the voice activity detector is built in");
    check("stonechat transcribe --fp16=False a.wav", "stonechat transcribe a.wav");
    for (args, expected) in [
        ("-mc some", "-mc: expected a number of tokens, got `some`"),
        ("--vad=some", "--vad: expected no value, got `some`"),
        ("--grammar x", "grammars are for language models"),
        ("--live_transcribe True", "--live_transcribe is not supported: see `stonechat listen`"),
    ] {
        let error = expand(words(&format!("stonechat transcribe {args}"))).unwrap_err();
        assert_eq!(error.verb.as_deref(), Some("transcribe"));
        assert!(error.message.contains(expected), "{error:?}");
    }
}

#[test]
fn flags_of_llama_cpp_are_known() {
    let words = |line: &str| line.split(' ').map(Into::into).collect::<Vec<_>>().into_iter();
    let expanded =
        expand(words("stonechat chat -hf u/r:Q8_0 -ngl 9 -fa on -co -ctv q8_0")).unwrap();
    let expected = "stonechat chat --model u/r:Q8_0 --gpu-layers 9 --cache-type-v q8_0";
    assert!(expanded.args.into_iter().eq(words(expected)));
    assert_eq!(expanded.notes.len(), 2);
    let expanded = expand(words("stonechat generate m -fa -p x")).unwrap();
    assert!(expanded.args.into_iter().eq(words("stonechat generate m -p x")));
    let expanded = expand(words("stonechat generate m -tb -1 -p x")).unwrap();
    assert!(expanded.args.into_iter().eq(words("stonechat generate m -p x")));
    let expanded = expand(words("stonechat --config c --models-dir=d chat m -ngl 9")).unwrap();
    let expected = "stonechat --config c --models-dir=d chat m --gpu-layers 9";
    assert!(expanded.args.into_iter().eq(words(expected)));
    let expanded = expand(words("stonechat chat -co auto m -fa m2 --color off")).unwrap();
    assert!(expanded.args.into_iter().eq(words("stonechat chat m m2")));
    let expanded = expand(words("stonechat --log debug chat m -ngl 9")).unwrap();
    let expected = "stonechat --log debug chat m --gpu-layers 9";
    assert!(expanded.args.into_iter().eq(words(expected)));
    let error = expand(words("stonechat chat m -sysf missing.txt")).unwrap_err();
    assert!(error.message.starts_with("-sysf: cannot read `missing.txt`"), "{error:?}");
}

#[test]
fn every_flag_before_a_verb_is_known() {
    let command = crate::command();
    let takes_value = |arg: &&clap::Arg| arg.is_global_set() && arg.get_action().takes_values();
    let flags: Vec<_> = command.get_arguments().filter(takes_value).collect();
    let flags: Vec<String> =
        flags.iter().map(|arg| format!("--{}", arg.get_long().unwrap())).collect();
    assert_eq!(flags, GLOBAL_FLAGS);
}

#[test]
fn every_flag_has_one_alias() {
    let language = [LLAMA, COMMON, DRAFTS, OLLAMA].concat();
    let server = [LLAMA_SERVER, COMMON, DRAFTS].concat();
    for aliases in [WHISPER.to_vec(), language, server, WITHOUT_TEMPLATE.to_vec()] {
        let mut flags = aliases.iter().flat_map(|(flags, _)| *flags).copied().collect::<Vec<_>>();
        flags.sort_unstable();
        let twice = flags.windows(2).find(|pair| pair[0] == pair[1]);
        assert_eq!(twice, None);
    }
}

#[test]
fn replacements_are_flags_of_a_verb() {
    let command = crate::command();
    let has = |verb: &str, flag: &str| {
        let verb = command.find_subcommand(verb).unwrap();
        let mut all = verb.get_arguments().chain(command.get_arguments());
        let flag = flag.trim_start_matches('-').split('=').next().unwrap();
        all.any(|arg| arg.get_long_and_visible_aliases().is_some_and(|own| own.contains(&flag)))
    };
    fn replacements(alias: Alias) -> Vec<&'static str> {
        match alias {
            Is(flags) | Noted(flags, _) => flags.to_vec(),
            Switch(on, off) => [on, off].concat(),
            FileText(flag) => vec![flag],
            Values(values, other) => {
                let all = values.iter().flat_map(|(_, flags)| *flags).copied();
                all.chain(replacements(*other)).collect()
            }
            _ => Vec::new(),
        }
    }
    for verbs in [&["transcribe"][..], &["serve"], &["chat", "generate"]] {
        let tables = Program::of(verbs[0]).unwrap().tables;
        for (names, alias) in tables.iter().copied().flatten() {
            for flag in replacements(*alias) {
                assert!(verbs.iter().any(|verb| has(verb, flag)), "{names:?}: {flag}");
            }
        }
    }
}

#[test]
fn the_input_of_whisper_cli_is_told_from_a_format() {
    for (args, expected) in [
        ("-m a.bin -f Cargo.toml -osrt", "-m a.bin Cargo.toml --output-format=srt"),
        ("-f missing.wav", "missing.wav"),
        ("-f=samples/jfk.wav -l en", "samples/jfk.wav -l en"),
        ("-f -", "-"),
        ("-f Cargo.toml,src/main.rs", "Cargo.toml src/main.rs"),
        ("-f src", "src"),
        ("-f a.wav -f b.wav -of out", "a.wav b.wav --output-file out"),
    ] {
        let expected = format!("stonechat transcribe --print-timestamps {expected}");
        check(&format!("stonechat transcribe {args}"), &expected);
    }
    for args in ["-f srt,json a.wav", "-f docx a.wav"] {
        check(&format!("stonechat transcribe {args}"), &format!("stonechat transcribe {args}"));
    }
    // Where the user says what is printed, it is not changed.
    for (args, expected) in [
        ("-f a.wav -nt", "a.wav --no-timestamps"),
        ("--file a.wav -osrt -o -", "a.wav --output-format=srt -o -"),
        ("--print-timestamps -f a.wav", "--print-timestamps a.wav"),
    ] {
        check(&format!("stonechat transcribe {args}"), &format!("stonechat transcribe {expected}"));
    }
}

#[test]
fn flags_of_whisper_cli_that_do_nothing_here_are_ignored() {
    for flag in ["-et 2.4", "-wt 0.01", "-ac 512", "-tdrz", "-dl", "-owts", "-ls", "-on 1", "-pc"] {
        let line = format!("stonechat transcribe {flag} a.wav");
        assert_eq!(check(&line, "stonechat transcribe a.wav").len(), 1, "{flag}");
    }
    let notes =
        check("stonechat transcribe -di a.wav", "stonechat transcribe --channels=split a.wav");
    assert!(notes[0].starts_with("-di: speakers are told apart by channel"), "{notes:?}");
}

#[test]
fn flags_of_faster_whisper_and_whisperx_are_expanded() {
    for (args, expected, n_notes) in [
        ("--compute_type int8 --vad_filter True a.wav", "--vad=on a.wav", 1),
        ("--vad_filter False --batched True a.wav", "--batch-size=8 --vad=off a.wav", 0),
        ("--batched True --batch_size 4 a.wav", "--batch-size 4 a.wav", 0),
        ("--batched=False a.wav", "a.wav", 0),
        ("--local_files_only True --device_index 0 a.wav", "a.wav", 2),
        ("--print_colors True --pretty_json True a.wav", "a.wav", 2),
        ("--carry_initial_prompt True a.wav", "a.wav", 1),
        (
            "--word_timestamps=True --suppress_blank False a.wav",
            "--word-timestamps --suppress-blank=false a.wav",
            0,
        ),
        ("--without_timestamps True a.wav", "--no-timestamps a.wav", 0),
        ("--model_dir d --hf_token t a.wav", "--models-dir d a.wav", 1),
        ("--diarize --min_speakers 2 --max_speakers 3 a.wav", "--channels=split a.wav", 3),
        ("--align_model x --no_align --vad_method silero a.wav", "a.wav", 3),
        ("--multilingual True --print_progress True a.wav", "a.wav", 2),
    ] {
        let line = format!("stonechat transcribe {args}");
        let notes = check(&line, &format!("stonechat transcribe {expected}"));
        assert_eq!(notes.len(), n_notes, "{args}: {notes:?}");
    }
    check(
        "stonechat transcribe --max_initial_timestamp 0.5 a.wav",
        "stonechat transcribe --max-initial-timestamp 0.5 a.wav",
    );
    // Notes spell a flag as its user does.
    let notes = check("stonechat transcribe --compute_type int8 a", "stonechat transcribe a");
    assert!(notes[0].starts_with("--compute_type is ignored"), "{notes:?}");
}

#[test]
fn gpus_of_llama_cpp_are_devices() {
    for (args, expected) in [
        ("m -ts 1,1", "--device=cuda:0,1 m"),
        ("m --tensor-split 3/1/0/2 -mg 1", "--device=cuda:0,1,3 m"),
        ("m -mg 1 -sm none", "--device=cuda:1 m"),
        ("m -mg 1 -ts 1,1", "--device=cuda:0,1 m"),
        ("m -mg 0", "m"),
        ("m -ts 0,1", "--device=cuda:1 m"),
        ("m --device cpu -ts 1,1", "m --device cpu"),
        ("m -dev none", "m --device=cpu"),
        ("m -dev CUDA0,CUDA1", "m --device=cuda:0,1"),
        ("m --device Vulkan1", "m --device=wgpu:1"),
        ("m --device cuda:1", "m --device cuda:1"),
    ] {
        for verb in ["run", "generate", "serve"] {
            check(&format!("stonechat {verb} {args}"), &format!("stonechat {verb} {expected}"));
        }
    }
    for wrong in ["-ts a", "-ts 0,0", "-ts", "-mg x", "-ts 1,-1"] {
        let error = expand(words(&format!("stonechat chat m {wrong}"))).unwrap_err();
        assert!(error.message.contains(": expected "), "{error:?}");
    }
}

#[test]
fn flags_of_ollama_are_expanded() {
    for (args, expected) in [
        ("m --format json hi", "m --json-schema={} hi"),
        ("m --format={} hi", "m --json-schema {} hi"),
        ("m --think=false hi", "m --think=false hi"),
        ("m --think hi", "m --think hi"),
        ("m --keepalive 5m --nowordwrap --hidethinking --insecure hi", "m hi"),
        ("m --reasoning off hi", "m --no-think hi"),
        ("m --reasoning on hi", "m --think hi"),
    ] {
        check(&format!("stonechat run {args}"), &format!("stonechat run {expected}"));
    }
    check("stonechat generate m --think=false -st", "stonechat generate m");
    for verb in ["ps", "stop", "cp", "create", "push"] {
        let error = expand(words(&format!("stonechat {verb} x"))).unwrap_err();
        assert!(error.message.starts_with(&format!("there is no verb `{verb}`: ")), "{error:?}");
    }
}

#[test]
fn flags_of_llama_cpp_without_a_meaning_here_are_ignored_or_refused() {
    for flag in [
        "--n-cpu-moe 4",
        "-ot exps=CPU",
        "--numa distribute",
        "--log-disable",
        "--perf",
        "--no-jinja",
        "--prio 2",
        "--fit on",
        "-nkvo",
        "--poll 50",
    ] {
        for verb in ["chat", "generate", "serve"] {
            let line = format!("stonechat {verb} m {flag}");
            assert_eq!(check(&line, &format!("stonechat {verb} m")).len(), 1, "{verb} {flag}");
        }
    }
    check("stonechat chat m --in-prefix x", "stonechat chat m");
    for verb in ["chat", "generate"] {
        let line = format!("stonechat {verb} m --reasoning-format none");
        assert_eq!(check(&line, &format!("stonechat {verb} m")).len(), 1, "{verb}");
    }
    let reasoning = "stonechat serve m --reasoning-format none --reasoning-budget 0";
    assert!(check(reasoning, reasoning).is_empty());
    check("stonechat serve m -rea off", "stonechat serve m --reasoning off");
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../rust-toolchain.toml");
    let expanded = expand(words(&format!("stonechat chat m -jf {file}"))).unwrap();
    let schema = expanded.args.last().unwrap().to_str().unwrap();
    assert!(schema.starts_with("--json-schema=[toolchain]"), "{schema}");
    for flag in ["--override-kv a=int:1", "--rope-scaling yarn"] {
        let error = expand(words(&format!("stonechat chat m {flag}"))).unwrap_err();
        assert!(error.message.contains("is not supported: the "), "{error:?}");
    }
    let error = expand(words("stonechat generate m -sys x")).unwrap_err();
    assert!(error.message.contains("stonechat chat"), "{error:?}");
}
