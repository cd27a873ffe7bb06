//! Banned words: each mechanism has the field's name and keeps it, in code, comments and documents. Comments begin with
//! their subject.

use super::SourceFile;

/// Whole words with the field's term, in code, comments and documents.
const WORDS: &[(&str, &str)] = &[
    ("ASKS", "PREFETCH"),
    ("ask_for", "prefetch"),
    ("asking", "prefetching"),
    ("word_again", "interleaved u32x16"),
    ("N_WORDS", "interleaved u32x16"),
    ("lone_factor", "block scale"),
    ("lone_exponent", "block scale"),
    ("SHARING", "blocks per scale vector"),
    ("RowRoom", "row writer"),
    ("BlockRoom", "block writer"),
    ("take_shape", "resize"),
    ("WideSimd", "GEMM"),
    ("OnTiles", "AMX"),
    ("twin", "f16 or q8 copy"),
    ("twins", "f16 or q8 copies"),
    ("Twin", "copy"),
    ("TwinKind", "copy format"),
    ("Halves", "f16 copy"),
    ("leave4", "store copy"),
    ("Beside", "copy"),
    ("Deferred", "fusion window"),
    ("Waiting", "pending op"),
    ("may_wait", "can_fuse"),
    ("settled", "flush"),
    ("rehearse", "warm_up"),
    ("rehearsed", "warmed up"),
    ("rehearsed_sizes", "warmup_batch_sizes"),
    ("Stretch", "pipeline stage or clip"),
    ("Seat", "worker slot"),
    ("is_away", "is_benched"),
    ("come_back", "rejoin"),
    ("AWAKE", "spin time"),
    ("LATE", "lateness limit"),
    ("greatest", "top_k or largest"),
    ("read_greatest", "read_top_k"),
    ("n_deciding", "required_top_k"),
    ("Ranked", "TopKEntry"),
    ("Wanted", "required output"),
    ("SoftmaxOfChosen", "NormalizedTopK"),
    ("GatedNetwork", "GatedMlp"),
    ("gated_network", "gated_mlp"),
    ("WithProducts", "AsProducts"),
    ("RopeDivisors", "rope_freq_factors"),
    ("attention_few", "attention_decode"),
    ("attention_blocks", "attention_prefill"),
    ("take_over", "load"),
    ("LoadCost", "LoadStats"),
    ("rearranged", "repacked"),
    ("floors", "peaks or rooflines"),
    ("Heard", "WindowContext"),
    ("Listened", "AudioSource"),
    ("Told", "emitted"),
    ("MAIN", "Slot"),
    ("NEGATIVE", "Slot"),
    ("x_head", "group header"),
    ("chunks_apart", "one file"),
    ("gemv_alike", "one file"),
    ("one_matrix", "one file"),
    ("START_UNITS", "block start cost"),
    ("publish_shared", "fence_proxy_async"),
    ("begin_warpgroup", "wgmma_fence"),
    ("raise_registers", "setmaxnreg_inc"),
    ("lower_registers", "setmaxnreg_dec"),
    ("gives_up", "timed out"),
    ("give_way", "yield_slice"),
    ("busy_rows", "saturating_batch"),
    ("load_again", "reload"),
    ("runs_ahead", "async scheduling"),
    ("LlmRequest", "llm::Request"),
    ("LlmEvent", "llm::RequestEvent"),
];

/// Parts of a line, in lower case, with the field's term; comments and documents say them, too.
const PHRASES: &[(&str, &str)] = &[
    ("products of many rows", "GEMM (prefill)"),
    ("product of many rows", "GEMM (prefill)"),
    ("single rows", "GEMV (decode)"),
    ("gated network", "gated MLP"),
    ("units of a block", "groups of 32"),
    ("beside their buffer", "cached copy"),
    ("stretching of", "RoPE scaling"),
    ("used in place", "memory-mapped"),
    ("at hand", "current"),
    ("asks for lines", "prefetches"),
    ("asks for a later", "prefetches"),
    ("at most it can do", "peak"),
    ("what it can do at most", "roofline"),
    ("instructions of warpgroups", "wgmma"),
    ("instructions of warps", "mma"),
    ("one a line", "one per line"),
    ("share a step", "are batched"),
    ("behind the last", "past the last"),
    ("so many", "a number"),
    ("bits an element", "bits per element"),
    ("values an invocation", "values per invocation"),
    ("workgroup a row", "workgroup per row"),
    ("has no meaning", "is malformed"),
    ("no kept crate", "no maintained crate"),
];

/// First words of a comment that leave its subject out.
const OPENINGS: &[&str] = &[
    "Of ",
    "Those of ",
    "The same of ",
    "Behind ",
    "So many ",
    "One a line",
    "What ",
    "Which ",
    "How ",
    "Why ",
    "It ",
    "Its ",
    "They ",
    "Their ",
];

/// Files whose words and phrases are read.
const READ: [&str; 4] = [".rs", ".wgsl", ".md", ".toml"];
/// Files whose comments are read.
const COMMENTED: [&str; 5] = [".rs", ".wgsl", ".cu", ".cuh", ".toml"];

/// Words are data here.
const EXEMPT: [&str; 2] = ["xtask/src/tidy/words.rs", "test-data/"];

pub(super) fn check(files: &[SourceFile]) -> Vec<String> {
    files.iter().flat_map(check_file).collect()
}

fn check_file(file: &SourceFile) -> Vec<String> {
    let mut findings = Vec::new();
    if EXEMPT.iter().any(|path| file.path.starts_with(path)) {
        return findings;
    }
    let is_one_of = |ends: &[&str]| ends.iter().any(|end| file.path.ends_with(end));
    if is_one_of(&READ) {
        findings.extend(check_words(file));
    }
    if is_one_of(&COMMENTED) {
        findings.extend(check_comments(file));
    }
    findings
}

fn check_words(file: &SourceFile) -> Vec<String> {
    let mut findings = Vec::new();
    for (i, line) in file.text.lines().enumerate() {
        for word in line.split(|c: char| !(c.is_alphanumeric() || c == '_')) {
            if let Some((_, better)) = WORDS.iter().find(|(bad, _)| *bad == word) {
                findings.push(file.finding(i + 1, format!("`{word}`: say {better}")));
            }
        }
        let lower = line.to_lowercase();
        for (bad, better) in PHRASES.iter().filter(|(bad, _)| lower.contains(bad)) {
            findings.push(file.finding(i + 1, format!("`{bad}`: say {better}")));
        }
    }
    findings
}

fn check_comments(file: &SourceFile) -> Vec<String> {
    let opening = |text: &str| OPENINGS.iter().find(|opening| text.starts_with(**opening));
    let found = comments(file).into_iter();
    let found = found.filter_map(|(line, text)| opening(text).map(|opening| (line, opening)));
    found
        .map(|(line, opening)| {
            file.finding(line, format!("`{}`: begin with the subject", opening.trim_end()))
        })
        .collect()
}

/// First lines of the paragraphs of comments, with their numbers.
fn comments(file: &SourceFile) -> Vec<(usize, &str)> {
    let marker = if file.path.ends_with(".toml") { "#" } else { "//" };
    let mut found = Vec::new();
    let mut is_open = false;
    for (i, line) in file.text.lines().enumerate() {
        let text = if let Some(text) = line.trim_start().strip_prefix(marker) {
            let text = text.trim_start_matches(['/', '!']).trim_start();
            let begins = !is_open;
            is_open = !text.is_empty();
            begins.then_some(text)
        } else {
            is_open = false;
            // Between a code and a comment there is a space, in no literal after such a character.
            let parts = line.split_once(&format!(" {marker} "));
            parts
                .filter(|(code, _)| code.ends_with([';', ',', '{', '}', ')']))
                .map(|(_, text)| text)
        };
        found.extend(text.map(|text| (i + 1, text)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn found(path: &str, text: &str, expected: &[&str]) {
        assert_eq!(check_file(&SourceFile::new(path, text.to_owned())), expected);
    }

    #[test]
    fn words_are_found_whole_and_phrases_in_any_case() {
        found("a.rs", "//! Intertwined.\nlet twin = 1;\n", &["a.rs:2: `twin`: say f16 or q8 copy"]);
        found("b.md", "Single rows\n", &["b.md:1: `single rows`: say GEMV (decode)"]);
        found("test-data/a.md", "twin\n", &[]);
        found("a.json", "twin\n", &[]);
    }

    #[test]
    fn comments_begin_with_their_subject() {
        let finding = ["a.cu:2: `So many`: begin with the subject"];
        found("a.cu", "f();\n// So many rounds.\n// So many more.\n", &finding);
        found("a.cu", "//\n/// So many rounds.\n", &finding);
        found("a.cu", "\nf(x); // So many rounds.\n", &finding);
        found("a.rs", "//! Rounds.\n//! Those of it.\nlet a = \"// Those of \";\n", &[]);
        found("a.md", "Those of rounds.\n", &[]);
    }
}
