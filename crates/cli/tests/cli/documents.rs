//! The commands of the documents: every `stonechat` line of a `sh` block runs as written and exits with 0.
//!
//! A line that ends in `&` starts a server, which runs until the end of its document; the `curl` lines after it run, too,
//! and fail on a status of 400 or more. A `text` block that follows a `sh` block is the output of its last command, `…` any
//! text.
//!
//! The blocks run in one folder with the files that the documents speak of (`talk.mp3`, `model.gguf`, …). Commands of cargo
//! are parsed by `cargo xtask tidy` instead.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::background::{Background, in_background};
use super::run::{Folder, finish, workspace};

/// Commands that this test cannot run, with the reason.
const NOT_RUN: [(&str, &str); 7] = [
    ("stonechat serve", "runs until it is stopped; tests/cli/serve.rs runs it"),
    ("stonechat pull", "needs the hub; tests/cli/hub.rs runs it"),
    ("stonechat run user/repo", "needs the hub; tests/cli/hub.rs runs it"),
    ("stonechat rm", "needs models to remove; tests/cli/hub.rs runs it"),
    ("--device cuda", "needs an NVIDIA GPU"),
    ("--device wgpu", "needs a GPU"),
    ("MANIFEST", "needs a corpus"),
];

/// A command line of a document.
#[derive(Debug)]
struct Line {
    document: String,
    place: String,
    command: String,
    /// Output that the document shows.
    shown: Option<String>,
}

/// The lines of all `sh` blocks of README.md, CONTRIBUTING.md and the files below `docs`.
fn lines() -> Vec<Line> {
    let root = workspace();
    let mut files = vec![root.join("README.md"), root.join("CONTRIBUTING.md")];
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                files.push(path);
            }
        }
    }
    files.sort();
    files.iter().flat_map(|path| of_file(path)).collect()
}

fn of_file(path: &Path) -> Vec<Line> {
    let document = path.file_name().unwrap().display().to_string();
    of_text(&document, &fs::read_to_string(path).unwrap())
}

/// The commands of a document. One goes on after a `|` or `\` at the end of a line and inside single quotes.
fn of_text(document: &str, text: &str) -> Vec<Line> {
    let mut found: Vec<Line> = Vec::new();
    let mut in_block = false;
    let mut begun = String::new();
    // Whether nothing is between the last block of commands and this line.
    let mut follows = false;
    let mut shown: Option<String> = None;
    for (i, line) in text.lines().enumerate() {
        if let Some(output) = &mut shown {
            if line.trim() == "```" {
                found.last_mut().unwrap().shown = shown.take();
            } else {
                output.push_str(line);
                output.push('\n');
            }
            continue;
        }
        match line.trim() {
            "```sh" => in_block = true,
            "```" => follows = std::mem::take(&mut in_block),
            "```text" if follows => (shown, follows) = (Some(String::new()), false),
            part if in_block && !part.is_empty() => {
                let rest = part.trim_end_matches('\\');
                begun = format!("{begun} {rest}").trim_start().to_owned();
                let goes_on = part.ends_with(['|', '\\']) || begun.matches('\'').count() % 2 == 1;
                if !goes_on {
                    let (document, place) = (document.to_owned(), format!("{document}:{}", i + 1));
                    let command = std::mem::take(&mut begun);
                    found.push(Line { document, place, command, shown: None });
                }
            }
            part => follows &= part.is_empty(),
        }
    }
    found
}

/// Tells if `text` is `shown`, where `…` stands for any text.
fn matches(shown: &str, text: &str) -> bool {
    let (shown, text) = (shown.trim(), text.trim());
    let Some((first, others)) = shown.split_once('…') else { return shown == text };
    let (between, last) = others.rsplit_once('…').unwrap_or(("", others));
    let Some(mut rest) = text.strip_prefix(first).and_then(|rest| rest.strip_suffix(last)) else {
        return false;
    };
    between.split('…').all(|part| {
        let found = rest.split_once(part);
        found.inspect(|(_, after)| rest = after).is_some()
    })
}

/// The names that a shell would look up: the first word of each part of a pipeline.
fn programs(command: &str) -> Vec<&str> {
    let is_assignment = |word: &&str| word.contains('=') && !word.starts_with('-');
    let parts = command.split(" | ");
    parts.filter_map(|part| part.split_whitespace().find(|word| !is_assignment(word))).collect()
}

fn is_installed(program: &str) -> bool {
    let mut shell = Command::new("sh");
    shell
        .arg("-c")
        .arg(format!("command -v {program}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    shell.status().is_ok_and(|status| status.success())
}

/// The folder of installed models; `cargo xtask test` names it.
fn models() -> Option<PathBuf> {
    let folder = PathBuf::from(std::env::var_os("STONECHAT_MODELS")?);
    let all = ["base", "smollm2-135m"].iter().all(|name| folder.join(name).is_dir());
    all.then_some(folder)
}

#[cfg(unix)]
fn link(from: &Path, to: &Path) {
    assert!(from.exists(), "{}", from.display());
    std::os::unix::fs::symlink(from, to).unwrap();
}

/// Links `test-data`, with an excerpt in the place of the text whose perplexity takes half a minute.
#[cfg(unix)]
fn link_test_data(data: &Path, folder: &Folder, excerpt: &str) {
    for below in ["test-data", "test-data/text"] {
        fs::create_dir(folder.path(below)).unwrap();
        for entry in fs::read_dir(data.join("..").join(below)).unwrap() {
            let entry = entry.unwrap();
            let to = folder.path(below).join(entry.file_name());
            match entry.file_name().to_str().unwrap() {
                "text" => {}
                "evaluation.txt" => fs::write(to, excerpt).unwrap(),
                _ => link(&entry.path(), &to),
            }
        }
    }
}

/// Copies the recordings that the documents speak of.
#[cfg(unix)]
fn copy_recordings(data: &Path, folder: &Folder) {
    for (from, to) in [
        ("formats/fox.mp3", "talk.mp3"),
        ("formats/fox.m4a", "talk.m4a"),
        ("formats/fox_stereo.mp4", "talk.mp4"),
        ("formats/fox_mp3.mkv", "film.mkv"),
        ("formats/fox_s24_48k_stereo.wav", "interview.wav"),
        ("formats/fox.mp3", "talks/one.mp3"),
        ("hello_world.wav", "talks/two.wav"),
        ("hello_world.wav", "recordings/one.wav"),
    ] {
        fs::copy(data.join("audio").join(from), folder.path(to)).unwrap();
    }
}

/// Asserts that `n` is the number of the requests of serve.md, counted without a parser of its commands.
#[cfg(unix)]
fn assert_all_requests_ran(n: usize) {
    if !is_installed("curl") {
        println!("SKIPPED commands_of_documents_run: no curl for the requests of serve.md");
        return;
    }
    let page = fs::read_to_string(workspace().join("docs/guide/serve.md")).unwrap();
    assert_eq!(n, page.lines().filter(|line| line.starts_with("curl ")).count());
}

#[cfg(unix)]
#[test]
fn commands_of_documents_run() {
    let Some(models) = models() else {
        println!("SKIPPED commands_of_documents_run: base and smollm2-135m are not installed");
        return;
    };
    let folder = Folder::new("documents");
    let data = workspace().canonicalize().unwrap().join("test-data");
    let link = |from: PathBuf, to: &str| link(&from, &folder.path(to));
    // A tiny model under a name of the catalog.
    let qwen3 = "models/unsloth--Qwen3-0.6B-GGUF";
    for name in ["talks", "recordings", "models", qwen3, "path", "path/to"] {
        fs::create_dir(folder.path(name)).unwrap();
    }
    let text = fs::read_to_string(data.join("text/evaluation.txt")).unwrap();
    let excerpt = text.chars().take(12_000).collect::<String>();
    link_test_data(&data, &folder, &excerpt);
    copy_recordings(&data, &folder);
    folder.write("wiki.test.raw", excerpt.as_bytes());
    folder.write("prompt.txt", b"Once upon a time");
    folder.write("sentences.txt", b"A dog barks.\nA cat sleeps.\n");
    folder.write("main.rs", b"fn main() {\n    println!(\"Stones are hard.\");\n}\n");
    let small =
        fs::read_dir(models.join("smollm2-135m")).unwrap().map(|entry| entry.unwrap().path());
    let small =
        small.into_iter().find(|path| path.extension().is_some_and(|e| e == "gguf")).unwrap();
    for name in ["model.gguf", "q4_k.gguf", "q8_0.gguf"] {
        link(small.clone(), name);
    }
    link(data.join("golden/llm/llama.gguf"), "model-f16.gguf");
    link(data.join("golden/llm/llama.gguf"), &format!("{qwen3}/Qwen3-0.6B-Q4_K_M.gguf"));
    folder.write("notes.txt", b"Stones are hard.");
    link(models.join("base"), "path/to/whisper-small-hf");
    // Names of models that are too large for a test stand for the small ones.
    for (name, stand_in) in [
        ("base", "base"),
        ("large-v3-turbo", "base"),
        ("smollm2-135m", "smollm2-135m"),
        ("qwen2.5-coder-0.5b", "smollm2-135m"),
    ] {
        link(models.join(stand_in), &format!("models/{name}"));
    }

    let binary = Path::new(env!("CARGO_BIN_EXE_stonechat"));
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", binary.parent().unwrap().display());
    folder.write(".curlrc", b"fail\nsilent\nshow-error\nmax-time = 120\n");
    let shell = |command: &str| {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(command).current_dir(folder.path("")).env("PATH", &path);
        shell.env("STONECHAT_MODELS", folder.path("models"));
        shell.env("HOME", folder.path("")).env("CURL_HOME", folder.path(""));
        shell.stdin(Stdio::null());
        shell
    };
    let (mut n_run, mut n_requests) = (0, 0);
    let mut server: Option<Background> = None;
    for Line { document, place, command, shown } in lines() {
        server = server.filter(|server| server.document == document);
        let programs = programs(&command);
        let is_request = server.is_some() && programs.contains(&"curl");
        if !is_request && !programs.contains(&"stonechat") {
            continue;
        }
        let excluded = NOT_RUN.iter().find(|(part, _)| command.contains(part));
        if let Some((_, reason)) = excluded.filter(|_| in_background(&command).is_none()) {
            println!("{place}: `{command}` {reason}");
            continue;
        }
        if let Some(absent) =
            programs.iter().find(|name| **name != "stonechat" && !is_installed(name))
        {
            println!("{place}: `{command}` needs {absent}, which is absent");
            continue;
        }
        if let Some(command) = in_background(&command) {
            // The server before it in the document ends first.
            drop(server.take());
            server = Some(Background::start(command, &document, |command| {
                let log = fs::File::create(folder.path("server.log")).unwrap();
                let mut shell = shell(command);
                shell.stdout(log.try_clone().unwrap()).stderr(log);
                shell
            }));
            n_run += 1;
            continue;
        }
        let command = server.as_ref().map_or(command.clone(), |server| server.address(&command));
        let mut shell = shell(&command);
        let ran = finish(shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        assert_eq!(ran.code, Some(0), "{place}: `{command}`: {ran:?}");
        if let Some(shown) = shown {
            assert!(matches(&shown, &ran.stdout), "{place}: expected `{shown}` in {ran:?}");
        }
        n_run += 1;
        n_requests += usize::from(is_request && document == "serve.md");
    }
    assert!(n_run > 20, "{n_run} commands");
    assert_all_requests_ran(n_requests);
}

#[test]
fn outputs_follow_their_commands() {
    let text = "```sh\na\nb\n```\n\n```text\nx …\ny\n```\n```sh\nc\n```\nprose\n```text\nz\n```\n";
    let shown: Vec<Option<String>> =
        of_text("x.md", text).into_iter().map(|line| line.shown).collect();
    assert_eq!(shown, [None, Some("x …\ny\n".to_owned()), None]);
    for (shown, text, expected) in [
        ("a\n", "a\n", true),
        ("a …", "a b\nc", true),
        ("a …c", "a b\nc", true),
        ("a …c", "a b\nc d", false),
        ("a … c … e", "a b c d e", true),
        ("a … e … c", "a b e d", false),
        ("a", "b a", false),
        ("… a …", "b\nc a d", true),
    ] {
        assert_eq!(matches(shown, text), expected, "{shown}: {text}");
    }
}

#[test]
fn programs_of_a_pipeline_are_found() {
    assert_eq!(programs("A=1 stonechat x"), ["stonechat"]);
    assert_eq!(programs("arecord -t raw | stonechat listen -"), ["arecord", "stonechat"]);
    assert_eq!(programs("cargo run --release -- transcribe a"), ["cargo"]);
}

#[test]
fn commands_of_several_lines_are_joined() {
    let text = "a\n```sh\nb \\\n  -c 'd\n  e' |\nf\ng\n```\nh\n";
    let found = of_text("x.md", text);
    let found: Vec<(&str, &str)> =
        found.iter().map(|line| (line.place.as_str(), line.command.as_str())).collect();
    assert_eq!(found, [("x.md:6", "b  -c 'd e' | f"), ("x.md:7", "g")]);
}
