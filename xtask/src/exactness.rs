//! Runs of `cargo xtask exactness` and the matrix that `docs/accuracy.md` shows of them.
//!
//! A run is a file of [`RUNS`], named after its machine. Measuring a row again replaces it, so that a run can be made
//! in several calls.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use stonechat_benches::results::replaced;

use crate::shell;

/// Folder of the committed runs.
pub const RUNS: &str = "benches/accuracy";
/// The page with the matrix, between the marks `<!-- exactness -->`.
const PAGE: &str = "docs/accuracy.md";
/// Version of the format.
const SCHEMA: u32 = 1;

/// Bound of a near-tie, in logits: at a first difference, both engines' largest logits are less than this apart.
pub const NEAR_TIE: f32 = 0.5;

/// Rows of one machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    schema: u32,
    /// Processor and cores.
    pub machine: String,
    /// Language models, in the order in which they were measured first.
    pub language: Vec<LanguageRow>,
    /// Speech models, likewise.
    pub speech: Vec<SpeechRow>,
}

/// Model, weight type and device of a row, and what it was measured with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subject {
    /// Name of the model.
    pub model: String,
    /// Type of most weights.
    pub weights: String,
    /// Device and its instruction set or adapter.
    pub device: String,
    /// Git revision; with `+` if tracked files differed from it.
    pub revision: String,
    /// The other engine and its version.
    pub peer: String,
}

impl Subject {
    /// Whether two rows measure the same thing.
    fn is_same(&self, other: &Self) -> bool {
        let key = |s: &Self| (s.model.clone(), s.weights.clone(), s.device.clone());
        key(self) == key(other)
    }
}

/// A language model beside llama.cpp.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LanguageRow {
    /// Model, weights, device.
    pub subject: Subject,
    /// Greedy continuations.
    pub greedy: Greedy,
    /// Largest logits given llama.cpp's continuations.
    pub forced: Forced,
    /// Perplexity of a text.
    pub perplexity: Perplexity,
}

/// Greedy continuations of prompts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Greedy {
    /// Prompts.
    pub n_prompts: usize,
    /// Longest continuation, in tokens.
    pub n_tokens: usize,
    /// First differences of the prompts whose continuations are not equal.
    pub differences: Vec<Difference>,
}

/// First difference between two greedy continuations.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Difference {
    /// Index of the prompt.
    pub prompt: usize,
    /// Index of the token in the continuation.
    pub token: usize,
    /// Largest logit minus the second, here.
    pub margin: f32,
    /// Largest logit minus the second, other engine.
    pub peer_margin: f32,
}

impl Difference {
    /// Whether both engines have two tokens nearly level.
    #[must_use]
    pub fn is_near_tie(&self) -> bool {
        self.margin.max(self.peer_margin) < NEAR_TIE
    }
}

/// Positions whose largest logit is the same token, given the same tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Forced {
    /// Positions compared.
    pub n_positions: usize,
    /// Equal to the other engine, both token by token.
    pub decode: usize,
    /// Equal to the other engine, both in one batch.
    pub prefill: usize,
    /// Equal between token by token and one batch, here.
    pub own: usize,
    /// Equal between token by token and one batch, other engine.
    pub peer: usize,
}

/// Perplexity of the same windows by both engines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Perplexity {
    /// Tokens of a window.
    pub n_ctx: usize,
    /// Windows.
    pub n_windows: usize,
    /// Here.
    pub own: f64,
    /// Other engine.
    pub peer: f64,
}

/// A speech model beside faster-whisper.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpeechRow {
    /// Model, weights, device.
    pub subject: Subject,
    /// Beams of both engines; 1 is greedy.
    pub beam_size: usize,
    /// Clips that both engines transcribed.
    pub n_clips: usize,
    /// Audio of these clips in seconds.
    pub seconds: f64,
    /// Clips that an engine cannot transcribe, with its reason; they are in no count.
    pub failed: Vec<String>,
    /// Errors by metric and language: `wer all`, `wer en`, `insertions all`.
    pub errors: BTreeMap<String, ErrorCounts>,
    /// Times of the words that both engines have.
    pub words: WordTimes,
}

/// Errors of both engines over the same references.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorCounts {
    /// Units of the references.
    pub units: usize,
    /// Errors here.
    pub own: usize,
    /// Errors of the other engine.
    pub peer: usize,
}

/// Absolute differences of starts and ends of words.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WordTimes {
    /// Starts and ends compared.
    pub n_edges: usize,
    /// Median in seconds.
    pub median_s: f64,
    /// 95th percentile in seconds.
    pub p95_s: f64,
}

impl Run {
    /// The saved run of this path if there is one, else an empty run.
    ///
    /// # Errors
    /// If the file is no run, or of another machine.
    pub fn open(path: &Path, machine: &str) -> Result<Self> {
        let run = if path.is_file() { Self::read(path)? } else { Self::new(machine) };
        let (shown, saved) = (path.display(), &run.machine);
        ensure!(saved == machine, "{shown}: expected a run of {machine}, got one of {saved}");
        Ok(run)
    }

    /// A run without rows.
    #[must_use]
    pub fn new(machine: &str) -> Self {
        Self {
            schema: SCHEMA,
            machine: machine.to_owned(),
            language: Vec::new(),
            speech: Vec::new(),
        }
    }

    fn read(path: &Path) -> Result<Self> {
        let shown = path.display();
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
        let run: Self = serde_json::from_str(&text)
            .with_context(|| format!("{shown}: expected a run of `cargo xtask exactness`"))?;
        let got = run.schema;
        ensure!(got == SCHEMA, "{shown}: expected version {SCHEMA} of the format, got {got}");
        Ok(run)
    }

    /// Writes the run.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)
                .with_context(|| format!("cannot make {}", folder.display()))?;
        }
        let text = serde_json::to_string_pretty(self)? + "\n";
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Adds a row, in the place of an older one of the same subject.
    pub fn add_language(&mut self, row: LanguageRow) {
        match self.language.iter_mut().find(|old| old.subject.is_same(&row.subject)) {
            Some(old) => *old = row,
            None => self.language.push(row),
        }
    }

    /// Adds a row, in the place of an older one of the same subject and search.
    pub fn add_speech(&mut self, row: SpeechRow) {
        let is_same = |old: &&mut SpeechRow| {
            old.subject.is_same(&row.subject) && old.beam_size == row.beam_size
        };
        match self.speech.iter_mut().find(is_same) {
            Some(old) => *old = row,
            None => self.speech.push(row),
        }
    }

    /// The tables in Markdown.
    #[must_use]
    pub fn tables(&self) -> String {
        let mut text = String::new();
        if !self.language.is_empty() {
            let _ = writeln!(
                text,
                "Language models, numbers as stonechat / llama.cpp. Near-tie: at the first difference, the two largest \
                 logits are less\nthan {NEAR_TIE} apart in both. Same argmax: given llama.cpp's tokens, of both, and of each \
                 with itself (one batch, token by token).\n"
            );
            text.push_str(
                "| model | device | perplexity (windows) | | equal | near-ties | widest gap | same argmax |\n\
                 |---|---|---|---|---|---|---|---|\n",
            );
            self.language.iter().for_each(|row| text.push_str(&language_line(row)));
        }
        if !self.speech.is_empty() {
            if !self.language.is_empty() {
                text.push('\n');
            }
            text.push_str(
                "Speech models, numbers as stonechat / faster-whisper in float32. Word times: absolute difference of starts \
                 and ends of\nequal words, median and 95 %. Invented: words on clips without speech.\n\
                 Clips that an engine cannot read are in no count.\n\n\
                 | model | device | beams | clips | WER | WER en | CER zh ja th | invented | word times |\n\
                 |---|---|---|---|---|---|---|---|---|\n",
            );
            self.speech.iter().for_each(|row| text.push_str(&speech_line(row)));
        }
        text
    }

    /// Names of the other engines and revisions of the rows, each once.
    fn sources(&self) -> (Vec<&str>, Vec<String>) {
        let language = self.language.iter().map(|row| &row.subject);
        let subjects: Vec<_> = language.chain(self.speech.iter().map(|row| &row.subject)).collect();
        let mut peers: Vec<&str> = subjects.iter().map(|s| s.peer.as_str()).collect();
        peers.sort_unstable();
        peers.dedup();
        let short = |revision: &str| {
            let dirty = if revision.ends_with('+') { "+" } else { "" };
            format!("{revision:.12}{dirty}")
        };
        let mut revisions: Vec<String> = subjects.iter().map(|s| short(&s.revision)).collect();
        revisions.sort_unstable();
        revisions.dedup();
        (peers, revisions)
    }
}

/// Two numbers, here and by the other engine.
fn pair(own: impl std::fmt::Display, peer: impl std::fmt::Display) -> String {
    format!("{own} / {peer}")
}

/// A share in percent with a minus sign of its own width.
fn signed_percent(share: f64) -> String {
    let sign = if share < 0.0 { "−" } else { "+" };
    format!("{sign}{:.2} %", 100.0 * share.abs())
}

/// Device and instruction set or adapter, without threads and drivers.
fn short_device(device: &str) -> &str {
    let end = [", ", " ("].iter().filter_map(|end| device.find(end)).min();
    &device[..end.unwrap_or(device.len())]
}

fn language_line(row: &LanguageRow) -> String {
    let Subject { model, weights, device, .. } = &row.subject;
    let device = short_device(device);
    let LanguageRow { greedy, forced, perplexity, .. } = row;
    let n_different = greedy.differences.len();
    let near = greedy.differences.iter().filter(|d| d.is_near_tie()).count();
    let widest = |margin: fn(&Difference) -> f32| {
        let widest = greedy.differences.iter().map(margin).fold(0.0, f32::max);
        format!("{widest:.2}")
    };
    let equal = greedy.n_prompts - n_different;
    let ties = if n_different == 0 { String::new() } else { format!("{near} of {n_different}") };
    let gap = if n_different == 0 {
        String::new()
    } else {
        pair(widest(|d| d.margin), widest(|d| d.peer_margin))
    };
    let percent = |n: usize| format!("{:.2}", 100.0 * n as f64 / forced.n_positions as f64);
    format!(
        "| {model} {weights} | {device} | {} ({}) | {} | {equal} of {} | {ties} | {gap} | {}; {} % |\n",
        pair(format!("{:.4}", perplexity.own), format!("{:.4}", perplexity.peer)),
        perplexity.n_windows,
        signed_percent(perplexity.own / perplexity.peer - 1.0),
        greedy.n_prompts,
        percent(forced.decode),
        pair(percent(forced.own), percent(forced.peer)),
    )
}

fn speech_line(row: &SpeechRow) -> String {
    let Subject { model, weights, device, .. } = &row.subject;
    let device = short_device(device);
    let rate = |metric: &str| {
        let errors = row.errors.get(metric).filter(|errors| errors.units > 0);
        errors.map_or_else(String::new, |errors| {
            let percent = |n: usize| format!("{:.2}", 100.0 * n as f64 / errors.units as f64);
            format!("{} %", pair(percent(errors.own), percent(errors.peer)))
        })
    };
    let invented = row.errors.get("insertions all").map(|errors| pair(errors.own, errors.peer));
    let WordTimes { n_edges, median_s, p95_s } = row.words;
    let times = if n_edges == 0 { String::new() } else { format!("{median_s:.2}, {p95_s:.2} s") };
    format!(
        "| {model} {weights} | {device} | {} | {} of {} ({:.0} min) | {} | {} | {} | {} | {times} |\n",
        row.beam_size,
        row.n_clips,
        row.n_clips + row.failed.len(),
        row.seconds / 60.0,
        rate("wer all"),
        rate("wer en"),
        rate("cer all"),
        invented.unwrap_or_default(),
    )
}

/// The page's section of every run, in the order of their names.
fn sections(runs: &[(String, Run)]) -> String {
    let mut text = String::new();
    for (path, run) in runs {
        let (peers, revisions) = run.sources();
        let _ = write!(
            text,
            "\n### {}\n\n[Run](../{path}) of revision {}, beside {}.\n\n{}",
            run.machine,
            revisions.join(", "),
            peers.join(" and "),
            run.tables(),
        );
    }
    text
}

/// Path of the run `name`.
#[must_use]
pub fn path_of(name: &str) -> PathBuf {
    shell::workspace_root().join(RUNS).join(format!("{name}.json"))
}

/// The page and its new text, if it differs from the runs.
///
/// # Errors
/// If a run or the page cannot be read, or the page has no marks.
pub fn page() -> Result<Option<(&'static str, String)>> {
    let root = shell::workspace_root();
    let mut runs = Vec::new();
    let folder = root.join(RUNS);
    // No machine has a run yet.
    if folder.is_dir() {
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {RUNS}"))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            runs.push((format!("{RUNS}/{name}"), Run::read(&folder.join(&name))?));
        }
    }
    runs.sort_by(|a, b| a.0.cmp(&b.0));
    let text =
        fs::read_to_string(root.join(PAGE)).with_context(|| format!("cannot read {PAGE}"))?;
    let new = replaced(&text, "exactness", &sections(&runs)).with_context(|| {
        format!("{PAGE}: expected the lines `<!-- exactness -->` and `<!-- /exactness -->`")
    })?;
    Ok((new != text).then_some((PAGE, new)))
}

/// Writes the page, if it differs from the runs.
///
/// # Errors
/// If [`page`] fails or the page cannot be written.
pub fn write_page() -> Result<()> {
    if let Some((path, text)) = page()? {
        fs::write(shell::workspace_root().join(path), text)
            .with_context(|| format!("cannot write {path}"))?;
        println!("wrote {path}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(model: &str, revision: &str) -> Subject {
        Subject {
            model: model.to_owned(),
            weights: "q4_1".to_owned(),
            device: "cpu avx2, 2 threads".to_owned(),
            revision: revision.to_owned(),
            peer: "peer 1".to_owned(),
        }
    }

    fn language(revision: &str, differences: Vec<Difference>) -> LanguageRow {
        LanguageRow {
            subject: subject("small", revision),
            greedy: Greedy { n_prompts: 25, n_tokens: 64, differences },
            forced: Forced { n_positions: 1000, decode: 970, prefill: 960, own: 1000, peer: 965 },
            perplexity: Perplexity { n_ctx: 512, n_windows: 26, own: 19.9, peer: 20.0 },
        }
    }

    fn difference(margin: f32, peer_margin: f32) -> Difference {
        Difference { prompt: 1, token: 7, margin, peer_margin }
    }

    #[test]
    fn a_row_takes_the_place_of_the_older_one() {
        let mut run = Run::new("m");
        run.add_language(language("a", Vec::new()));
        run.add_language(language("b", vec![difference(0.1, 0.2)]));
        let other = Subject { device: "wgpu".to_owned(), ..subject("small", "b") };
        run.add_language(LanguageRow { subject: other, ..language("b", Vec::new()) });
        let revisions: Vec<_> = run.language.iter().map(|r| r.subject.revision.as_str()).collect();
        assert_eq!(revisions, ["b", "b"]);
        assert_eq!(run.language[0].greedy.differences.len(), 1);
    }

    #[test]
    fn both_margins_decide_about_a_near_tie() {
        assert!(difference(0.49, 0.1).is_near_tie());
        assert!(!difference(0.5, 0.1).is_near_tie());
        assert!(!difference(0.1, 0.51).is_near_tie());
    }

    #[test]
    fn rows_show_both_engines() {
        let row = language("a", vec![difference(0.1, 0.2), difference(0.7, 0.05)]);
        assert_eq!(
            language_line(&row),
            "| small q4_1 | cpu avx2 | 19.9000 / 20.0000 (26) | −0.50 % | 23 of 25 | 1 of 2 | 0.70 / 0.20 \
             | 97.00; 100.00 / 96.50 % |\n"
        );
        let errors = [("wer all", 200, 30, 32), ("wer en", 50, 1, 2), ("insertions all", 0, 2, 0)]
            .map(|(name, units, own, peer)| (name.to_owned(), ErrorCounts { units, own, peer }));
        let row = SpeechRow {
            subject: subject("tiny", "a"),
            beam_size: 1,
            n_clips: 9,
            seconds: 95.0,
            failed: vec!["x: stonechat: no such format".to_owned()],
            errors: errors.into(),
            words: WordTimes { n_edges: 300, median_s: 0.0, p95_s: 0.12 },
        };
        assert_eq!(
            speech_line(&row),
            "| tiny q4_1 | cpu avx2 | 1 | 9 of 10 (2 min) | 15.00 / 16.00 % | 2.00 / 4.00 % |  | 2 / 0 | 0.00, 0.12 s |\n"
        );
    }

    #[test]
    fn devices_are_short_in_tables() {
        assert_eq!(short_device("cpu avx2, 2 threads"), "cpu avx2");
        assert_eq!(short_device("wgpu llvmpipe (LLVM 15, 256 bits) (Vulkan), x"), "wgpu llvmpipe");
        assert_eq!(short_device("oracle"), "oracle");
    }

    #[test]
    fn a_saved_run_is_read_again_on_its_machine_only() {
        let folder = std::env::temp_dir().join(format!("exactness-{}", std::process::id()));
        let path = folder.join("m.json");
        let mut run = Run::open(&path, "m").unwrap();
        run.add_language(language("a", vec![difference(0.1, 0.2)]));
        run.write(&path).unwrap();
        assert_eq!(Run::open(&path, "m").unwrap(), run);
        let error = Run::open(&path, "n").unwrap_err().to_string();
        assert!(error.ends_with("expected a run of n, got one of m"), "{error}");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_section_names_revisions_and_engines_once() {
        let mut run = Run::new("m, 2 cores");
        run.add_language(language("0123456789abcdef+", Vec::new()));
        let text = sections(&[("benches/accuracy/m.json".to_owned(), run)]);
        assert!(
            text.starts_with(
                "\n### m, 2 cores\n\n[Run](../benches/accuracy/m.json) of revision 0123456789ab+, beside peer 1.\n"
            ),
            "{text}"
        );
    }
}
