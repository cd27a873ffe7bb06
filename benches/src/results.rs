//! Markdown tables of saved runs, for `docs/performance.md`: this engine beside its peers, one section per run.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::report::Report;

/// The engine that the ratios are of.
const OWN: &str = "stonechat";

/// A saved run and its path relative to the workspace root.
#[derive(Debug)]
pub struct SavedRun {
    /// For example `benches/runs/zen-5-2-cores/2026-11-24.json`.
    pub path: String,
    /// The run.
    pub report: Report,
}

/// One stage of one model, medians of all engines.
#[derive(Debug)]
struct Measured<'a> {
    model: String,
    stage: &'a str,
    threads: usize,
    /// Seconds by engine.
    p50_s: BTreeMap<&'a str, f64>,
    /// Units of work of a sample: tokens, or seconds of audio.
    amount: f64,
}

impl Measured<'_> {
    /// The fastest peer and its time over this engine's.
    fn best_peer(&self) -> Option<(&str, f64)> {
        let own = self.p50_s.get(OWN)?;
        let peers = self.p50_s.iter().filter(|(engine, _)| **engine != OWN);
        let (engine, p50_s) = peers.min_by(|a, b| a.1.total_cmp(b.1))?;
        Some((engine, p50_s / own))
    }
}

/// The rows of `work` that some peer has too, in the report's order.
fn beside_peers<'a>(report: &'a Report, work: &str) -> Vec<Measured<'a>> {
    let mut found: Vec<Measured<'a>> = Vec::new();
    for row in report.rows.iter().filter(|row| row.work == work) {
        let named = row.model.ends_with(&row.weights);
        let model =
            if named { row.model.clone() } else { format!("{} {}", row.model, row.weights) };
        let same = |m: &Measured<'_>| {
            (m.model.as_str(), m.stage, m.threads) == (model.as_str(), &row.stage, row.threads)
        };
        match found.iter_mut().find(|m| same(m)) {
            Some(m) => {
                m.p50_s.insert(&row.engine, row.p50_s);
            }
            None => found.push(Measured {
                stage: &row.stage,
                threads: row.threads,
                p50_s: BTreeMap::from([(row.engine.as_str(), row.p50_s)]),
                amount: row.amount,
                model,
            }),
        }
    }
    found.retain(|m| m.best_peer().is_some());
    found
}

/// The engines other than this one of `rows`, in alphabetical order.
fn peers<'a>(rows: &[Measured<'a>]) -> Vec<&'a str> {
    let mut names: Vec<&str> = rows.iter().flat_map(|m| m.p50_s.keys().copied()).collect();
    names.retain(|name| *name != OWN);
    names.sort_unstable();
    names.dedup();
    names
}

/// A table of `rows`: this engine, each peer, and the ratio to the best of them.
fn table(rows: &[Measured<'_>], cell: impl Fn(&Measured<'_>, f64) -> String) -> String {
    let peers = peers(rows);
    let mut text = String::from("| model | stage | stonechat |");
    for peer in &peers {
        let _ = write!(text, " {peer} |");
    }
    text.push_str(" times as fast |\n|---|---|---|");
    text.push_str(&"---|".repeat(peers.len() + 1));
    text.push('\n');
    for row in rows {
        let _ = write!(text, "| {} | {} |", row.model, row.stage);
        for engine in [OWN].iter().chain(&peers) {
            let shown = row.p50_s.get(engine).map_or_else(String::new, |s| cell(row, *s));
            let _ = write!(text, " {shown} |");
        }
        let ratio = row.best_peer().map_or_else(String::new, |(_, ratio)| format!("{ratio:.1}"));
        let _ = writeln!(text, " {ratio} |");
    }
    text
}

/// Tokens per second, with thousands separated.
fn tokens_per_second(row: &Measured<'_>, p50_s: f64) -> String {
    let rate = row.amount / p50_s;
    let whole = format!("{rate:.0}");
    let cut = whole.len().saturating_sub(3);
    if cut == 0 { whole } else { format!("{},{}", &whole[..cut], &whole[cut..]) }
}

/// The processor that a run's folder names, `zen-5-2-cores` for example, as people write it.
fn processor(path: &str) -> String {
    let folder = path.rsplit('/').nth(1).unwrap_or_default();
    let words: Vec<&str> = folder.split('-').collect();
    let words = &words[..words.len().saturating_sub(2)];
    let titled = words.iter().map(|word| word[..1].to_uppercase() + &word[1..]);
    titled.collect::<Vec<_>>().join(" ")
}

/// The command line of a run in lines of a page's width, without the places of this machine's Pythons.
fn command(arguments: &[String]) -> String {
    let mut lines = vec!["cargo xtask".to_owned()];
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        if argument == "--peer-python" {
            arguments.next();
            continue;
        }
        let last = lines.last_mut().map_or("", |line| line.as_str());
        if last.len() + argument.len() > 100 {
            lines.push(format!("    {argument}"));
        } else if let Some(line) = lines.last_mut() {
            line.push(' ');
            line.push_str(argument);
        }
    }
    lines.join(" \\\n")
}

/// The sections of `docs/performance.md`, one per run.
#[must_use]
pub fn sections(runs: &[SavedRun]) -> String {
    let mut text = String::new();
    for SavedRun { path, report } in runs {
        let machine = &report.machine;
        let _ = write!(text, "\n### {}, {} cores\n\n", processor(path), machine.cores);
        let _ = writeln!(
            text,
            "[Run]({}) of revision {:.12}, profile `{}`, on {}:\n`{}`.\n",
            format_args!("../{path}"),
            report.build.revision,
            report.build.profile,
            machine.cpu,
            report.build.device,
        );
        let _ = writeln!(text, "```sh\n{}\n```", command(&report.command));
        let whole: Vec<Measured<'_>> = beside_peers(report, "speech")
            .into_iter()
            .filter(|m| m.stage == "transcribe")
            .collect();
        if !whole.is_empty() {
            let audio_s = whole[0].amount;
            let _ = writeln!(
                text,
                "\nSpeech: seconds for a clip of {audio_s:.0} s, greedy, model loaded.\n"
            );
            text.push_str(&table(&whole, |_, p50_s| format!("{p50_s:.3}")));
        }
        let tokens: Vec<Measured<'_>> = beside_peers(report, "text");
        if !tokens.is_empty() {
            let _ = writeln!(text, "\nLanguage models: tokens per second.\n");
            text.push_str(&table(&tokens, tokens_per_second));
        }
    }
    text
}

/// A row of the README's table: what to look up and what to call it.
#[derive(Debug, Clone, Copy)]
pub struct Headline {
    /// Start of the model's name.
    pub model: &'static str,
    /// Stage of the job.
    pub stage: &'static str,
    /// First column.
    pub title: &'static str,
}

/// The README's table from one run, without rows that the run lacks.
#[must_use]
pub fn headline(run: &SavedRun, wanted: &[Headline]) -> String {
    let (report, cores) = (&run.report, run.report.machine.cores);
    let mut text = format!(
        "| on {cores} cores ({}) | stonechat | best peer | |\n|---|---|---|---|\n",
        processor(&run.path)
    );
    for Headline { model, stage, title } in wanted {
        let works = ["speech", "text"];
        let rows = works.iter().flat_map(|work| beside_peers(report, work));
        let Some(row) = rows.into_iter().find(|m| m.model.starts_with(model) && m.stage == *stage)
        else {
            continue;
        };
        let Some((peer, ratio)) = row.best_peer() else { continue };
        let cell = |engine: &str| {
            let p50_s = row.p50_s[engine];
            if row.stage == "transcribe" {
                format!("{p50_s:.2} s")
            } else {
                format!("{} tok/s", tokens_per_second(&row, p50_s))
            }
        };
        let (own, best) = (cell(OWN), cell(peer));
        let _ = writeln!(text, "| {title} | {own} | {peer} {best} | {ratio:.1} × |");
    }
    text
}

/// `document` with the text between the lines `<!-- NAME -->` and `<!-- /NAME -->` replaced; `None` without both.
#[must_use]
pub fn replaced(document: &str, name: &str, text: &str) -> Option<String> {
    let (open, close) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->"));
    let start = document.find(&open)? + open.len();
    let end = start + document[start..].find(&close)?;
    Some(format!("{}{}{}", &document[..start], text, &document[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Row;
    use crate::report::tests::example;

    fn row(engine: &str, work: &str, stage: &str, p50_s: f64, amount: f64) -> Row {
        let sample = example().rows.remove(0);
        Row {
            engine: engine.to_owned(),
            model: "tiny".to_owned(),
            weights: "q8_0".to_owned(),
            work: work.to_owned(),
            stage: stage.to_owned(),
            threads: 2,
            amount,
            p50_s,
            ..sample
        }
    }

    fn run() -> SavedRun {
        let rows = vec![
            row("stonechat", "speech", "transcribe", 0.25, 11.0),
            row("whisper.cpp", "speech", "transcribe", 2.0, 11.0),
            row("faster-whisper", "speech", "transcribe", 1.0, 11.0),
            row("stonechat", "speech", "mel", 0.1, 11.0),
            row("stonechat", "text", "prefill 128", 0.032, 128.0),
            row("llama.cpp", "text", "prefill 128", 0.064, 128.0),
        ];
        SavedRun {
            path: "benches/runs/m-2-cores/d.json".to_owned(),
            report: Report { rows, ..example() },
        }
    }

    #[test]
    fn sections_have_what_a_peer_ran_too() {
        let text = sections(&[run()]);
        assert!(
            text.contains("| tiny q8_0 | transcribe | 0.250 | 1.000 | 2.000 | 4.0 |"),
            "{text}"
        );
        assert!(text.contains("| tiny q8_0 | prefill 128 | 4,000 | 2,000 | 2.0 |"), "{text}");
        assert!(!text.contains("mel"), "{text}");
    }

    #[test]
    fn commands_have_the_width_of_a_page() {
        let long = ["bench", "--peers", "--peer-python", "x=/p", "--save", &"n".repeat(90)];
        let long: Vec<String> = long.iter().map(|&word| word.to_owned()).collect();
        let expected = format!("cargo xtask bench --peers --save \\\n    {}", "n".repeat(90));
        assert_eq!(command(&long), expected);
        assert_eq!(processor("benches/runs/zen-5-2-cores/d.json"), "Zen 5");
    }

    #[test]
    fn the_headline_names_the_best_peer() {
        let wanted = [
            Headline { model: "tiny", stage: "transcribe", title: "Speech" },
            Headline { model: "other", stage: "transcribe", title: "Absent" },
        ];
        let text = headline(&run(), &wanted);
        assert!(text.contains("| Speech | 0.25 s | faster-whisper 1.00 s | 4.0 × |"), "{text}");
        assert!(!text.contains("Absent"));
    }

    #[test]
    fn text_between_marks_is_replaced() {
        let document = "a\n<!-- t -->\nold\n<!-- /t -->\nb\n";
        assert_eq!(
            replaced(document, "t", "new\n").unwrap(),
            "a\n<!-- t -->\nnew\n<!-- /t -->\nb\n"
        );
        assert_eq!(replaced(document, "u", ""), None);
    }
}
