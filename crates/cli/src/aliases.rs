//! Aliases of flags that clap cannot declare: those of whisper.cpp's `whisper-cli`, openai-whisper, faster-whisper and
//! whisperx for `transcribe`, and those of llama.cpp and Ollama for the verbs of language models.
//!
//! Each argument is looked up in the tables of its verb by its flag, with dashes for underscores, and is replaced, ignored
//! with a note, or refused with a hint. [`special`] has the flags whose values are parsed.

mod llama;
mod serve;
mod special;
mod speech;
#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};

use llama::{COMMON, DRAFTS, LLAMA, OLLAMA, WITHOUT_TEMPLATE};
use serve::LLAMA_SERVER;
use speech::WHISPER;

/// Translation of another program's flag.
#[derive(Debug, Clone, Copy)]
enum Alias {
    /// Replaced by these arguments; a value may follow.
    Is(&'static [&'static str]),
    /// Replaced as by `Is`, with a note.
    Noted(&'static [&'static str], &'static str),
    /// Dropped with this number of values, for this reason.
    Ignored(usize, &'static str),
    /// A switch, dropped with its value from [`SWITCH_VALUES`], if there is one, for this reason.
    IgnoredSwitch(&'static str),
    /// Replaced by the first arguments, or with the value False by the second ones.
    Switch(&'static [&'static str], &'static [&'static str]),
    /// Replaced with its value by the arguments of the value; with another value or none as the last alias says.
    Values(&'static [Value], &'static Alias),
    /// A flag of this program.
    Own,
    /// Replaced by this flag with the text of the file that the value names.
    FileText(&'static str),
    /// A usage error with this hint.
    Refused(&'static str),
}
use Alias::{FileText, Ignored, IgnoredSwitch, Is, Noted, Own, Refused, Switch, Values};

/// Values of a flag, and the arguments that replace it.
type Value = (&'static [&'static str], &'static [&'static str]);

/// Values of a switch that is on.
const TRUE: &[&str] = &["True", "true"];
/// Values of a switch that is off.
const FALSE: &[&str] = &["False", "false"];

/// Flags with dashes for underscores, and the alias of all of them.
type Table = &'static [(&'static [&'static str], Alias)];

const FUSED: &str = "attention is always fused";

/// Hint for users of whisper-cli, whose `-f` is the input.
pub(super) const FORMAT_HINT: &str = "-f is the output format here; inputs are positional";

/// Flags of every verb, which have a value.
const GLOBAL_FLAGS: [&str; 5] = ["--models-dir", "--config", "--log", "--log-file", "--log-format"];

/// Verbs of language models.
const LLAMA_VERBS: [&str; 6] = ["run", "generate", "chat", "embed", "perplexity", "bench"];

/// Verbs of Ollama that are none here, and why.
const MISSING_VERBS: [(&str, &str); 5] = [
    (
        "ps",
        "a model is gone with its command, and GET /v1/models of a server tells which are loaded",
    ),
    ("stop", "a model is gone with its command; a server unloads it after --sleep-idle-seconds"),
    ("cp", "a name is that of a file: see `stonechat models`"),
    (
        "create",
        "a model is its file: flags such as --system-prompt and --temp are in the table of a verb of the configuration file",
    ),
    ("push", "models are only downloaded: see `stonechat pull`"),
];

/// Values of switches of other programs.
const SWITCH_VALUES: [&str; 9] = ["on", "off", "auto", "1", "0", "True", "False", "true", "false"];

/// Command line with the aliases replaced, for clap.
#[derive(Debug, Default)]
pub(super) struct Expanded {
    pub(super) args: Vec<OsString>,
    /// One line for each ignored flag.
    pub(super) notes: Vec<String>,
    /// Flags that clap gets with dashes, as the user wrote them.
    pub(super) spelled: Vec<(String, String)>,
    /// Arguments to add unless one of the flags is given.
    defaults: Vec<(&'static [&'static str], String)>,
}

/// A command line that is refused.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) verb: Option<String>,
    pub(super) message: String,
}

/// Flags of other programs that a verb knows.
#[derive(Clone, Copy)]
struct Program {
    is_speech: bool,
    tables: &'static [Table],
}

impl Program {
    fn of(verb: &str) -> Option<Self> {
        let tables: &[Table] = match verb {
            "transcribe" => &[WHISPER],
            "serve" => &[LLAMA_SERVER, COMMON, DRAFTS],
            "generate" => &[WITHOUT_TEMPLATE, LLAMA, COMMON, DRAFTS, OLLAMA],
            _ if LLAMA_VERBS.contains(&verb) => &[LLAMA, COMMON, DRAFTS, OLLAMA],
            _ => return None,
        };
        Some(Self { is_speech: verb == "transcribe", tables })
    }

    fn find(self, flag: &str) -> Option<Alias> {
        let mut aliases = self.tables.iter().copied().flatten();
        aliases.find(|(names, _)| names.contains(&flag)).map(|(_, alias)| *alias)
    }
}

/// A flag of the command line.
#[derive(Debug, Clone, Copy)]
struct Given<'a> {
    /// Name with dashes for underscores.
    flag: &'a str,
    /// Name as the user wrote it.
    spelled: &'a str,
    /// Value after `=`.
    value: Option<&'a str>,
    /// Next argument.
    next: Option<&'a OsStr>,
}

impl<'a> Given<'a> {
    /// Value after `=`, else the next argument.
    fn text(self) -> Option<&'a str> {
        self.value.or_else(|| self.next?.to_str())
    }

    /// Number of arguments that the value takes.
    fn n_used(self) -> usize {
        usize::from(self.value.is_none())
    }

    /// Value that is True or False.
    fn truth(self) -> Option<bool> {
        let text = self.text()?;
        [(TRUE, true), (FALSE, false)].iter().find(|(all, _)| all.contains(&text)).map(|t| t.1)
    }
}

/// Replaces the aliases of a command line, up to `--`.
///
/// # Errors
/// The hint of a refused flag or verb.
pub(super) fn expand(args: impl Iterator<Item = OsString>) -> Result<Expanded, Refusal> {
    let mut args = args.peekable();
    let mut expanded = Expanded { args: args.by_ref().take(1).collect(), ..Expanded::default() };
    // The flags of every verb may precede it.
    while let Some(flag) = args.next_if(|arg| arg.to_string_lossy().starts_with('-')) {
        let has_value = GLOBAL_FLAGS.iter().any(|name| flag == *name);
        expanded.args.push(flag);
        expanded.args.extend(args.by_ref().take(usize::from(has_value)));
    }
    let verb = args.next();
    let name = verb.as_ref().and_then(|verb| verb.to_str()).unwrap_or_default().to_owned();
    if let Some((_, why)) = MISSING_VERBS.iter().find(|(verb, _)| *verb == name) {
        return Err(Refusal { verb: None, message: format!("there is no verb `{name}`: {why}") });
    }
    expanded.args.extend(verb);
    let Some(program) = Program::of(&name) else {
        expanded.args.extend(args);
        return Ok(expanded);
    };
    let first = expanded.args.len();
    while let Some(arg) = args.next() {
        if arg == "--" {
            expanded.args.push(arg);
            expanded.args.extend(args);
            break;
        }
        let next = args.peek().map(OsString::as_os_str);
        let n_consumed = expanded
            .push(program, arg, next)
            .map_err(|message| Refusal { verb: Some(name.clone()), message })?;
        (0..n_consumed).for_each(|_| drop(args.next()));
    }
    expanded.insert_defaults(first);
    Ok(expanded)
}

impl Expanded {
    /// Adds the translation of `arg`, a flag of `program`, and returns the number of arguments consumed after it: `next`
    /// and its followers.
    fn push(
        &mut self,
        program: Program,
        arg: OsString,
        next: Option<&OsStr>,
    ) -> Result<usize, String> {
        let Some(text) = arg.to_str().filter(|text| text.starts_with('-')) else {
            self.args.push(arg);
            return Ok(0);
        };
        let (spelled, value) = match text.split_once('=') {
            Some((flag, value)) => (flag, Some(value)),
            None => (text, None),
        };
        let is_long = spelled.starts_with("--");
        let flag = if is_long { spelled.replace('_', "-") } else { spelled.to_owned() };
        let given = Given { flag: &flag, spelled, value, next };
        if let Some(n_consumed) = self.push_special(program.is_speech, given) {
            return n_consumed;
        }
        self.push_alias(program.find(&flag).unwrap_or(Own), given)
    }

    fn push_alias(&mut self, alias: Alias, given: Given<'_>) -> Result<usize, String> {
        let Given { flag, spelled, value, next } = given;
        match alias {
            Own => {
                let end = value.map(|value| format!("={value}")).unwrap_or_default();
                self.args.push(format!("{flag}{end}").into());
                self.spelled.push((flag.to_owned(), spelled.to_owned()));
                Ok(0)
            }
            Is(replacement) => {
                let is_whole = replacement.last().is_some_and(|last| last.contains('='));
                if let Some(value) = value.filter(|_| is_whole) {
                    return Err(format!("{spelled}: expected no value, got `{value}`"));
                }
                self.args.extend(replacement.iter().map(OsString::from));
                self.args.extend(value.map(OsString::from));
                Ok(0)
            }
            Values(values, other) => {
                let is_given =
                    |(texts, _): &&Value| given.text().is_some_and(|t| texts.contains(&t));
                match values.iter().find(is_given) {
                    Some((_, replacement)) => {
                        self.args.extend(replacement.iter().map(OsString::from));
                        Ok(given.n_used())
                    }
                    None => self.push_alias(*other, given),
                }
            }
            Noted(replacement, why) => {
                self.notes.push(format!("{spelled}: {why}"));
                self.push_alias(Is(replacement), given)
            }
            Ignored(n_values, why) => {
                self.ignore(given, why);
                // Some flags have optional values; a negative number is a value.
                let is_flag = |next: &OsStr| {
                    let rest = next.to_string_lossy();
                    let rest = rest.strip_prefix('-');
                    rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
                };
                let has_value = next.is_some_and(|next| !is_flag(next));
                Ok(if value.is_some() || !has_value { 0 } else { n_values })
            }
            IgnoredSwitch(why) => {
                self.ignore(given, why);
                let has_value = next.is_some_and(|next| SWITCH_VALUES.iter().any(|v| next == *v));
                Ok(usize::from(value.is_none() && has_value))
            }
            Switch(on, off) => {
                let truth = given.truth();
                let chosen = if truth == Some(false) { off } else { on };
                self.args.extend(chosen.iter().map(OsString::from));
                Ok(truth.map_or(0, |_| given.n_used()))
            }
            FileText(flag) => {
                let path = given.text().ok_or_else(|| format!("{spelled}: expected a file"))?;
                let text = std::fs::read_to_string(path)
                    .map_err(|error| format!("{spelled}: cannot read `{path}`: {error}"))?;
                self.args.push(format!("{flag}={}", text.trim_end()).into());
                Ok(given.n_used())
            }
            Refused(hint) => Err(format!("{spelled} is not supported: {hint}")),
        }
    }

    fn ignore(&mut self, given: Given<'_>, why: &str) {
        self.notes.push(format!("{} is ignored: {why}", given.spelled));
    }

    /// Inserts the default arguments at `first` whose flags are not given.
    fn insert_defaults(&mut self, first: usize) {
        for (flags, arg) in std::mem::take(&mut self.defaults) {
            let is_flag = |given: &OsString| {
                let given = given.to_str().unwrap_or_default();
                let mut rests = flags.iter().filter_map(|flag| given.strip_prefix(flag));
                rests.any(|rest| rest.is_empty() || rest.starts_with('='))
            };
            if !self.args[first..].iter().any(is_flag) {
                self.args.insert(first, arg.into());
            }
        }
    }
}
