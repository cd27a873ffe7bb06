//! Flags of the environment and of the configuration file; completions and man pages.

use std::fs;

use crate::run::{Folder, Ran, finish, workspace};

/// Runs `generate` on a tiny model with variables of the environment; returns the number of tokens.
fn generate(folder: &Folder, arguments: &[&str], variables: &[(&str, &str)]) -> Ran {
    let model = workspace().join("test-data/golden/llm/llama.gguf");
    let model = model.to_str().unwrap();
    let fixed = ["generate", model, "-p", "ab", "--ignore-eos", "--temp", "0"];
    let mut command = folder.command(&[&fixed[..], arguments].concat());
    finish(command.envs(variables.iter().copied()).spawn().unwrap())
}

/// Number of tokens of a run with `--json`.
#[track_caller]
fn n_tokens(ran: &Ran) -> usize {
    let json: serde_json::Value = serde_json::from_str(ran.succeeds()).unwrap();
    json["tokens"].as_array().unwrap().len()
}

#[test]
fn the_command_line_wins_then_the_environment_then_the_file() {
    let folder = Folder::new("settings");
    folder.write("c.toml", b"n-predict = 3\nquiet = true\n[generate]\njson = true\n");
    let config = ["--config", "c.toml"];
    assert_eq!(n_tokens(&generate(&folder, &config, &[])), 3);
    let variable = [("STONECHAT_N_PREDICT", "5")];
    assert_eq!(n_tokens(&generate(&folder, &config, &variable)), 5);
    assert_eq!(n_tokens(&generate(&folder, &["--config", "c.toml", "-n", "7"], &variable)), 7);
    // The table of a verb wins over the top, and a file may be named by the environment.
    folder.write("d.toml", b"n_predict = 3\n[generate]\nn_predict = 4\njson = true\n");
    assert_eq!(n_tokens(&generate(&folder, &[], &[("STONECHAT_CONFIG", "d.toml")])), 4);
    // Switches are off by 0 and false.
    let off = [("STONECHAT_JSON", "0"), ("STONECHAT_N_PREDICT", "2")];
    assert!(!generate(&folder, &[], &off).succeeds().starts_with('{'));
    let on = [("STONECHAT_JSON", "1"), ("STONECHAT_N_PREDICT", "2")];
    assert_eq!(n_tokens(&generate(&folder, &[], &on)), 2);
}

#[test]
fn wrong_settings_are_refused() {
    let folder = Folder::new("settings-wrong");
    for (text, expected) in [
        ("[chat]\ntmp = 1\n", "`stonechat chat` has no flag --tmp"),
        ("[chatt]\ntemp = 1\n", "there is no verb `chatt`"),
        ("tmp = 1\n", "no verb has a flag --tmp"),
        ("temp = 1979-05-27\n", "expected a string, a number"),
        ("temp = \n", "TOML parse error at line 1"),
    ] {
        folder.write("c.toml", text.as_bytes());
        folder.run(&["--config", "c.toml", "models"]).fails(expected);
    }
    folder.run(&["--config", "none.toml", "models"]).fails("cannot read `none.toml`");
    folder.write("c.toml", b"threads = \"x\"\n");
    let ran = folder.run(&["--config", "c.toml", "chat", "m"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.starts_with("flags are read from `c.toml`, too\n"), "{ran:?}");
    assert!(ran.stderr.contains("invalid value 'x' for '--threads <N>'"), "{ran:?}");
}

#[test]
fn wrong_and_unknown_variables_are_named() {
    let folder = Folder::new("settings-variables");
    let wrong = generate(&folder, &[], &[("STONECHAT_THREADS", "abc")]);
    assert_eq!(wrong.code, Some(2));
    assert!(wrong.stderr.starts_with("the variable STONECHAT_THREADS is `abc`\n"), "{wrong:?}");
    // That of the command line is no variable's.
    let flag = generate(&folder, &["--threads", "abc"], &[("STONECHAT_THREADS", "abc")]);
    assert_eq!(flag.code, Some(2));
    assert!(!flag.stderr.contains("STONECHAT_THREADS"), "{flag:?}");
    let serve = |name: &str| {
        let mut command = folder.command(&["serve", "-m", "none"]);
        finish(command.env(name, "x").spawn().unwrap())
    };
    serve("LLAMA_ARG_PORT").misused("the variable LLAMA_ARG_PORT is `x`");
    let reasoning = ["REASONING", "THINK", "THINK_BUDGET"].map(|name| format!("LLAMA_ARG_{name}"));
    for name in reasoning.iter().map(String::as_str).chain(["LLAMA_CHAT_TEMPLATE_KWARGS"]) {
        serve(name).misused(&format!("the variable {name} is `x`"));
    }
    serve("STONECHAT_BODY_TIMEOUT").misused("the variable STONECHAT_BODY_TIMEOUT is `x`");
    let two = [("STONECHAT_N_PREDICT", "2"), ("STONECHAT_THREDS", "1"), ("STONECHAT_TEST_X", "1")];
    let unknown = generate(&folder, &[], &two);
    unknown.succeeds();
    let expected = "warning: STONECHAT_THREDS: there is no flag of this variable";
    assert_eq!(unknown.stderr.lines().filter(|line| line.contains("warning")).count(), 1);
    assert!(unknown.stderr.contains(expected), "{unknown:?}");
}

#[test]
fn a_model_on_the_command_line_wins() {
    let folder = Folder::new("settings-model");
    let model = [("STONECHAT_MODEL", "none"), ("STONECHAT_N_PREDICT", "2")];
    generate(&folder, &[], &model).succeeds();
    let ran = folder.run(&["generate", "-p", "x"]);
    assert_eq!(ran.code, Some(2));
    assert_eq!(ran.stderr, "error: no model: expected MODEL or --model\n");
}

#[test]
fn shells_complete_verbs_flags_and_models() {
    let folder = Folder::new("completions");
    fs::create_dir(folder.path("models")).unwrap();
    folder.write("models/my-model.gguf", b"");
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        assert!(folder.run(&["completions", shell]).succeeds().contains("stonechat"), "{shell}");
    }
    let complete = |words: &[&str]| {
        let mut command = folder.command(&[&["--", "stonechat"], words].concat());
        command.env("COMPLETE", "bash").env("_CLAP_IFS", "\n").env("_CLAP_COMPLETE_COMP_TYPE", "9");
        command.env("_CLAP_COMPLETE_INDEX", words.len().to_string());
        finish(command.spawn().unwrap()).succeeds().to_owned()
    };
    assert_eq!(complete(&["tran"]), "transcribe");
    assert_eq!(complete(&["chat", "--no-th"]), "--no-think");
    assert_eq!(complete(&["run", "my"]), "my-model");
    assert_eq!(complete(&["transcribe", "-m", "large-v3-t"]), "large-v3-turbo");
    assert_eq!(complete(&["rm", "smollm2"]), "");
    assert_eq!(complete(&["transcribe", "-f", "srt,js"]), "srt,json\nsrt,json-full");
    assert_eq!(complete(&["transcribe", "-l", "d"]), "de\nda");
    assert_eq!(complete(&["listen", "-l", "germ"]), "german");
    // A model of the catalog is offered to the verbs of its kind.
    folder.write("models/smollm2-135m.gguf", b"");
    assert_eq!(complete(&["transcribe", "-m", "smol"]), "");
    assert_eq!(complete(&["generate", "-m", "smollm2-1"]), "smollm2-135m");
}

#[test]
fn bash_completes_names_with_colons() {
    let folder = Folder::new("completions-colons");
    let script = folder.run(&["completions", "bash"]).succeeds().to_owned();
    folder.write("stonechat.bash", script.as_bytes());
    if std::process::Command::new("bash").arg("--version").output().is_err() {
        println!("SKIPPED bash_completes_names_with_colons: no bash");
        return;
    }
    // Words as bash splits them.
    let complete = |words: &str, last: &str| {
        let test = format!(
            "shopt -s progcomp; . ./stonechat.bash; COMP_TYPE=9 COMP_WORDS=({words}); \
             COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMP_WORDBREAKS=$' :='; \
             _stonechat stonechat '{last}' ''; echo \"${{COMPREPLY[*]}}\""
        );
        let program = std::path::Path::new(env!("CARGO_BIN_EXE_stonechat"));
        let path = std::env::var("PATH").unwrap();
        let path = format!("{}:{path}", program.parent().unwrap().display());
        let mut bash = std::process::Command::new("bash");
        bash.args(["--norc", "-c", &test]).current_dir(folder.path(".")).env("PATH", path);
        bash.env("STONECHAT_MODELS", folder.path("models")).env("HF_HOME", folder.path("hub"));
        String::from_utf8(bash.output().unwrap().stdout).unwrap().trim().to_owned()
    };
    assert_eq!(complete("stonechat run smollm2 : 3", "3"), "360m");
    assert_eq!(complete("stonechat run gemma3 :", ""), "1b 270m 4b 12b 27b");
    assert_eq!(complete("stonechat run smollm2:135", "smollm2:135"), "135m");
    assert_eq!(complete("stonechat run gpt-o", "gpt-o"), "gpt-oss:20b gpt-oss:120b");
    assert_eq!(complete("stonechat tran", "tran"), "transcribe");
}

#[test]
fn each_verb_has_a_man_page() {
    let folder = Folder::new("man-pages");
    folder.run(&["man-pages", "man"]).succeeds();
    for page in ["stonechat.1", "stonechat-chat.1", "stonechat-transcribe.1"] {
        assert!(folder.read(&format!("man/{page}")).contains(".SH NAME"), "{page}");
    }
    let page = folder.read("man/stonechat-chat.1");
    for expected in
        [".SH SYNOPSIS\nstonechat chat [OPTIONS] [MODEL]\n", ".SH EXAMPLES\n.nf\n  stonechat chat "]
    {
        assert!(page.contains(expected), "{expected}: {page}");
    }
    assert!(folder.read("man/stonechat-chat.1").contains("top\\-k"));
    for page in folder.names("man") {
        let text = folder.read(&format!("man/{page}"));
        // Commands are not hyphenated at the ends of lines, which the title would turn on again.
        let title = text.lines().skip_while(|line| !line.starts_with(".TH "));
        assert!(title.skip(1).take(2).eq([".nh", ".ad l"]), "{page}");
        for section in ["\"EXIT STATUS\"", "ENVIRONMENT", "FILES"] {
            assert!(text.contains(&format!(".SH {section}\n")), "{page}: {section}");
        }
    }
    folder.run(&["man", "same"]).succeeds();
    assert_eq!(folder.names("man"), folder.names("same"));
    assert!(folder.run(&["-h"]).succeeds().contains("man-pages"));
    // Internal verbs have none.
    assert!(!folder.names("man").iter().any(|name| name.contains("help-markdown")));
}
