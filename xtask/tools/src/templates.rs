//! `cargo xtask templates`: renders the chat templates of real models with this engine and with
//! jinja2 and compares the prompts byte for byte.
//!
//! The templates come from the source package of llama-cpp-python, which carries those that
//! llama.cpp is tested with; none is committed. Python's side is an environment set up like that
//! of transformers' `apply_chat_template`.

mod conversations;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use stonechat_text::{ChatTemplate, Conversation};

use crate::{shell, venv};
use conversations::Case;

/// Options of `cargo xtask templates`.
#[derive(Debug, clap::Args)]
pub(crate) struct TemplatesArgs {
    /// Compare the files `*.jinja` of this folder instead of downloading templates
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Only templates whose names contain this
    #[arg(long)]
    only: Option<String>,
    /// Print why conversations are refused by both
    #[arg(long)]
    refusals: bool,
    /// Print both prompts of the first difference of each template
    #[arg(long)]
    show: bool,
}

const PACKAGE: &str = "llama-cpp-python";
const VERSION: &str = "0.3.36";
const SHA256: &str = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e";
const TEMPLATES: &str = "vendor/llama.cpp/models/templates";

/// 2026-03-01 12:34:56.
const NOW: i64 = 1_772_368_496;

/// Result of one renderer for one template and conversation.
type Rendered = Result<String, String>;

/// Compares every template with every conversation; an error if any differs.
pub(crate) fn run(args: &TemplatesArgs) -> Result<()> {
    let folder = match &args.folder {
        Some(folder) => folder.clone(),
        None => templates()?,
    };
    let mut sources = read(&folder)?;
    if let Some(only) = &args.only {
        sources.retain(|name, _| name.contains(only.as_str()));
    }
    ensure!(!sources.is_empty(), "{}: no file *.jinja", folder.display());
    let cases = conversations::cases();
    let expected = render_with_jinja2(&sources, &cases)?;
    let mut totals = Counts::default();
    let mut fitted = 0;
    for (name, source) in &sources {
        let (got, rendered) = render(source, &cases);
        let expected = expected.get(name).with_context(|| format!("{name}: not rendered"))?;
        let counts = compare(name, &cases, expected, &got, args);
        fitted += rendered;
        totals.equal += counts.equal;
        totals.refused += counts.refused;
        totals.differ += counts.differ;
    }
    println!(
        "{} templates x {} conversations: {} equal, {} refused by both ({} of them rendered once \
         fitted to the template), {} differ",
        sources.len(),
        cases.len(),
        totals.equal,
        totals.refused,
        fitted,
        totals.differ,
    );
    ensure!(totals.differ == 0, "{} prompts differ from jinja2's", totals.differ);
    Ok(())
}

#[derive(Debug, Default)]
struct Counts {
    equal: usize,
    refused: usize,
    differ: usize,
}

/// One row of the table: how many are equal, and the conversations that are not.
fn compare(
    name: &str,
    cases: &[Case],
    expected: &[Rendered],
    got: &[Rendered],
    args: &TemplatesArgs,
) -> Counts {
    let mut counts = Counts::default();
    let mut different = Vec::new();
    let mut reasons: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for ((case, expected), got) in cases.iter().zip(expected).zip(got) {
        match (expected, got) {
            (Ok(expected), Ok(got)) if expected == got => counts.equal += 1,
            (Err(a), Err(b)) => {
                counts.refused += 1;
                reasons.entry(format!("jinja2: {a} | here: {b}")).or_default().push(&case.name);
            }
            _ => {
                counts.differ += 1;
                different.push((case, expected, got));
            }
        }
    }
    let differ = match different.len() {
        0 => String::new(),
        n => format!(", {n} differ"),
    };
    println!("{name:56} {:3} equal, {:2} refused by both{differ}", counts.equal, counts.refused);
    for (case, expected, got) in &different {
        println!("    {}: {}", case.name, difference(expected, got));
    }
    for (reason, names) in reasons.iter().filter(|_| args.refusals) {
        println!("    {}: {reason}", names.join(" "));
    }
    if let (true, Some((case, expected, got))) = (args.show, different.first()) {
        println!("--- {}: jinja2\n{expected:?}\n--- here\n{got:?}", case.name);
    }
    counts
}

/// First difference of two results, in one line.
fn difference(expected: &Rendered, got: &Rendered) -> String {
    match (expected, got) {
        (Ok(expected), Ok(got)) => {
            let same = expected.chars().zip(got.chars()).take_while(|(a, b)| a == b).count();
            let excerpt = |text: &str| text.chars().skip(same).take(40).collect::<String>();
            format!("at {same}: jinja2 {:?}, here {:?}", excerpt(expected), excerpt(got))
        }
        (Ok(_), Err(error)) => format!("jinja2 renders, here: {error}"),
        (Err(error), Ok(_)) => format!("renders here, jinja2: {error}"),
        (Err(a), Err(b)) => format!("{a}; {b}"),
    }
}

/// Every conversation rendered by this engine as it is, and how many of those that are refused can
/// be rendered when their messages are fitted to the template.
fn render(source: &str, cases: &[Case]) -> (Vec<Rendered>, usize) {
    let template = match ChatTemplate::new(source, BOS, EOS) {
        Ok(template) => template,
        Err(error) => return (cases.iter().map(|_| Err(error.to_string())).collect(), 0),
    };
    let mut fitted = 0;
    let one = |case: &Case| {
        let conversation = Conversation {
            messages: case.messages.clone(),
            tools: case.tools.clone(),
            documents: None,
            add_generation_prompt: case.add_generation_prompt,
            continues: false,
            now: Some(NOW),
            variables: case.variables.clone(),
        };
        template.render_unchanged(&conversation).map_err(|error| {
            fitted += usize::from(template.render(&conversation).is_ok());
            error.to_string()
        })
    };
    (cases.iter().map(one).collect(), fitted)
}

const BOS: &str = "<s>";
const EOS: &str = "</s>";

/// Every template and conversation rendered by jinja2, in the order of `cases`.
fn render_with_jinja2(
    sources: &BTreeMap<String, String>,
    cases: &[Case],
) -> Result<BTreeMap<String, Vec<Rendered>>> {
    let python = venv::programs("templates", &["jinja2==3.1.6", "markupsafe==3.0.4"], &[])?;
    let mut conversations = serde_json::Map::new();
    for case in cases {
        let mut variables = json!({
            "messages": case.messages,
            "tools": case.tools,
            "documents": null,
            "add_generation_prompt": case.add_generation_prompt,
            "bos_token": BOS,
            "eos_token": EOS,
        });
        for (name, value) in &case.variables {
            variables[name] = value.clone();
        }
        conversations.insert(case.name.clone(), variables);
    }
    let task = json!({"templates": sources, "conversations": conversations, "now": NOW});
    let mut script = shell::program(python.join("python"));
    script.args(["-I", "-c", include_str!("../assets/render_chat_templates.py")]);
    let mut child = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut stdin = child.stdin.take().context("no standard input")?;
    // The script reads everything before it writes.
    stdin.write_all(task.to_string().as_bytes())?;
    drop(stdin);
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "jinja2's renderer failed: {}", output.status);
    let results: Value = serde_json::from_slice(&output.stdout)?;
    let result = |name: &String, case: &Case| {
        let result = &results[name][&case.name];
        match (result["text"].as_str(), result["error"].as_str()) {
            (Some(text), _) => Ok(Ok(text.to_owned())),
            (None, Some(error)) => Ok(Err(error.to_owned())),
            (None, None) => bail!("{name}: no result for {}", case.name),
        }
    };
    let row = |name: &String| {
        let row: Result<Vec<Rendered>> = cases.iter().map(|case| result(name, case)).collect();
        Ok((name.clone(), row?))
    };
    sources.keys().map(row).collect()
}

/// The files `*.jinja` of `folder` by their names without the ending.
fn read(folder: &Path) -> Result<BTreeMap<String, String>> {
    let mut sources = BTreeMap::new();
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "jinja") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let source = fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            sources.insert(name, source);
        }
    }
    Ok(sources)
}

/// The folder of the package's templates, downloaded and unpacked when they are not there yet.
fn templates() -> Result<PathBuf> {
    let folder = shell::target_dir().join("templates");
    let unpacked = folder.join(format!("{}-{VERSION}", PACKAGE.replace('-', "_")));
    let templates = unpacked.join(TEMPLATES);
    let stamp = folder.join("unpacked");
    if fs::read_to_string(&stamp).is_ok_and(|sha256| sha256 == SHA256) {
        return Ok(templates);
    }
    fs::create_dir_all(&folder)?;
    let archive = folder.join(format!("{}-{VERSION}.tar.gz", PACKAGE.replace('-', "_")));
    if !archive.exists() || sha256(&archive)? != SHA256 {
        download(&folder)?;
    }
    let found = sha256(&archive)?;
    ensure!(found == SHA256, "{}: expected SHA-256 {SHA256}, got {found}", archive.display());
    // Python's tarfile is there wherever pip is; its filter keeps every file inside the folder.
    let unpack = "import sys, tarfile\n\
        archive = tarfile.open(sys.argv[1])\n\
        wanted = [m for m in archive if m.name.endswith('.jinja') and sys.argv[3] in m.name]\n\
        archive.extractall(sys.argv[2], wanted, filter='data')";
    let python = venv::programs("templates", &["jinja2==3.1.6", "markupsafe==3.0.4"], &[])?;
    let mut script = shell::program(python.join("python"));
    script.args(["-I", "-c", unpack]).arg(&archive).arg(&folder).arg(TEMPLATES);
    shell::output(&mut script)?;
    fs::remove_file(&archive)?;
    fs::write(&stamp, SHA256)?;
    Ok(templates)
}

/// Fetches the source package. pip asks a source package for its metadata even when it only
/// downloads; the package's build backend for that comes as wheels, and nothing is compiled.
fn download(folder: &Path) -> Result<()> {
    let python = venv::programs("templates", &["jinja2==3.1.6", "markupsafe==3.0.4"], &[])?;
    let mut pip = shell::program(python.join("python"));
    pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"])
        .args(["--no-binary", PACKAGE, "--dest"])
        .arg(folder)
        .arg(format!("{PACKAGE}=={VERSION}"));
    shell::run(&mut pip)
}

fn sha256(path: &Path) -> Result<String> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut reader = BufReader::new(file);
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let n = reader.read(&mut buffer)?;
        if n == 0 {
            return Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect());
        }
        digest.update(&buffer[..n]);
    }
}
