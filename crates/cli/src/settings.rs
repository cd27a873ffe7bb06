//! Flags from other places than the command line: variables of the environment and a configuration file.
//!
//! Every flag `--some-flag` also is the variable `STONECHAT_SOME_FLAG`, and the key `some-flag` of the file: at its top
//! for every verb that has the flag, or in the table of a verb. The command line wins, then the environment, then the
//! table of the verb, then the top of the file. `serve` also reads variables of llama-server.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::builder::FalseyValueParser;
use clap::{Arg, ArgAction, Command};
use toml::{Table, Value};

/// Variables of llama-server by the flags of `serve`.
const LLAMA_SERVER: [(&str, &str); 22] = [
    ("model", "LLAMA_ARG_MODEL"),
    ("alias", "LLAMA_ARG_ALIAS"),
    ("tags", "LLAMA_ARG_TAGS"),
    ("offline", "LLAMA_OFFLINE"),
    ("host", "LLAMA_ARG_HOST"),
    ("port", "LLAMA_ARG_PORT"),
    ("api-key", "LLAMA_API_KEY"),
    ("ssl-key-file", "LLAMA_ARG_SSL_KEY_FILE"),
    ("ssl-cert-file", "LLAMA_ARG_SSL_CERT_FILE"),
    ("metrics", "LLAMA_ARG_ENDPOINT_METRICS"),
    ("ctx-size", "LLAMA_ARG_CTX_SIZE"),
    ("parallel", "LLAMA_ARG_N_PARALLEL"),
    ("batch-size", "LLAMA_ARG_BATCH"),
    ("cache-type-k", "LLAMA_ARG_CACHE_TYPE_K"),
    ("n-predict", "LLAMA_ARG_N_PREDICT"),
    ("chat-template", "LLAMA_ARG_CHAT_TEMPLATE"),
    ("chat-template-kwargs", "LLAMA_CHAT_TEMPLATE_KWARGS"),
    ("reasoning", "LLAMA_ARG_REASONING"),
    ("reasoning-budget", "LLAMA_ARG_THINK_BUDGET"),
    ("reasoning-format", "LLAMA_ARG_THINK"),
    ("threads", "LLAMA_ARG_THREADS"),
    ("gpu-layers", "LLAMA_ARG_N_GPU_LAYERS"),
];

/// Variable of `--models-dir`, as `STONECHAT_MODELS_DIR` is.
pub(super) const MODELS: &str = "STONECHAT_MODELS";

/// Variables that are no flags: of the GPU's kernels, the CPU's, tests and the installer.
const OTHER_VARIABLES: [&str; 5] =
    ["STONECHAT_CUDA_ARCH", "STONECHAT_CUDA_CUBINS", "STONECHAT_CUDA_PDL", "STONECHAT_ISA", MODELS];
/// Prefixes of further variables that are no flags.
const OTHER_PREFIXES: [&str; 2] = ["STONECHAT_TEST_", "STONECHAT_RELEASE"];

/// Keys of a configuration file.
#[derive(Debug, Default)]
pub(super) struct Settings {
    path: Option<PathBuf>,
    table: Table,
}

impl Settings {
    /// Reads the file of `--config` among `args`, else of `STONECHAT_CONFIG`, else `stonechat/config.toml` in the
    /// platform's configuration folder if it exists.
    pub(super) fn read(args: &[OsString]) -> anyhow::Result<Self> {
        let named = flag_value(args, "--config")
            .or_else(|| env::var_os("STONECHAT_CONFIG").filter(|value| !value.is_empty()))
            .map(PathBuf::from);
        let usual = || {
            let path = dirs::config_dir()?.join("stonechat").join("config.toml");
            path.is_file().then_some(path)
        };
        let Some(path) = named.or_else(usual) else { return Ok(Self::default()) };
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read `{}`", path.display()))?;
        let table = text.parse().map_err(|error: toml::de::Error| {
            anyhow::anyhow!("`{}`: {}", path.display(), error.to_string().trim_end())
        })?;
        Ok(Self { path: Some(path), table })
    }

    /// Path of the file that was read.
    pub(super) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Gives the flags of every verb their variables and the defaults of the file.
    pub(super) fn apply(&self, command: Command) -> anyhow::Result<Command> {
        self.check(&command)?;
        let verbs: Vec<String> =
            command.get_subcommands().map(|verb| verb.get_name().to_owned()).collect();
        let mut command = command.mut_args(|arg| self.set(arg, None, false));
        for name in verbs {
            let table = self.table.get(&name).and_then(Value::as_table);
            let is_server = name == "serve";
            command = command
                .mut_subcommand(&name, |verb| verb.mut_args(|arg| self.set(arg, table, is_server)));
        }
        Ok(command)
    }

    /// Refuses keys that are no flags.
    fn check(&self, command: &Command) -> anyhow::Result<()> {
        let Some(path) = self.path() else { return Ok(()) };
        let path = path.display();
        let has = |command: &Command, key: &str| {
            command.get_arguments().any(|arg| arg.get_long() == Some(&*flag_of(key)))
        };
        for (key, value) in &self.table {
            match (value, command.find_subcommand(key)) {
                (Value::Table(table), Some(verb)) => {
                    for (key, value) in table {
                        if !has(verb, key) {
                            let verb = verb.get_name();
                            bail!("`{path}`: `stonechat {verb}` has no flag --{}", flag_of(key));
                        }
                        check_values(key, value).with_context(|| format!("`{path}`: {key}"))?;
                    }
                }
                (Value::Table(_), None) => bail!("`{path}`: there is no verb `{key}`"),
                (value, _) => {
                    if !has(command, key) && !command.get_subcommands().any(|verb| has(verb, key)) {
                        bail!("`{path}`: no verb has a flag --{}", flag_of(key));
                    }
                    check_values(key, value).with_context(|| format!("`{path}`: {key}"))?;
                }
            }
        }
        Ok(())
    }

    /// Gives a flag its variable, and the value in `table`, else at the top of the file, as its default.
    fn set(&self, arg: Arg, table: Option<&Table>, is_server: bool) -> Arg {
        let Some(long) = arg.get_long().map(str::to_owned) else { return arg };
        let is_switch = matches!(arg.get_action(), ArgAction::SetTrue);
        if !is_switch && !arg.get_action().takes_values() {
            return arg;
        }
        let mut variable = variable_of(&long);
        let is_set = |name: &str| env::var_os(name).is_some();
        // The folder has a variable of its own, which the library reads, too.
        let is_named = env::var_os(MODELS).is_some_and(|folder| !folder.is_empty());
        if long == "models-dir" && !is_set(&variable) && is_named {
            variable = MODELS.to_owned();
        }
        if is_server
            && !is_set(&variable)
            && let Some((_, foreign)) = LLAMA_SERVER.iter().find(|(flag, _)| *flag == long)
            && is_set(foreign)
        {
            variable = (*foreign).to_owned();
        }
        let arg = arg.env(variable).hide_env(true);
        let arg = if is_switch { arg.value_parser(FalseyValueParser::new()) } else { arg };
        let top = self.table.iter().filter(|(_, value)| !value.is_table());
        let mut all = table.into_iter().flatten().chain(top);
        match all.find(|(key, _)| flag_of(key) == long).map(|(_, value)| texts(value)) {
            Some(Ok(values)) => arg.default_values(values),
            _ => arg,
        }
    }
}

/// Variable of a flag.
fn variable_of(flag: &str) -> String {
    format!("STONECHAT_{}", flag.replace('-', "_").to_uppercase())
}

/// The variable of the environment that a wrong value came from: `flag` and `value` as clap names them, such as
/// `--threads <N>`. A flag on the command line wins over it.
pub(super) fn wrong_variable(args: &[OsString], flag: &str, value: &str) -> Option<String> {
    let long = flag.strip_prefix("--")?.split([' ', '=', '[']).next()?;
    if flag_value(args, &format!("--{long}")).is_some() {
        return None;
    }
    let foreign = LLAMA_SERVER.iter().find(|(flag, _)| *flag == long);
    let foreign = foreign.map(|(_, variable)| (*variable).to_owned());
    let mut variables = std::iter::once(variable_of(long)).chain(foreign);
    variables.find(|name| env::var(name).is_ok_and(|text| text.split(',').any(|one| one == value)))
}

/// Variables that begin like those of this program and are none, sorted.
pub(super) fn unknown_variables(command: &Command) -> Vec<String> {
    let verbs = command.get_subcommands();
    let flags = std::iter::once(command).chain(verbs).flat_map(Command::get_arguments);
    let known: Vec<String> = flags.filter_map(Arg::get_long).map(variable_of).collect();
    let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let is_ours = |name: &String| {
        name.starts_with("STONECHAT_")
            && !known.contains(name)
            && !OTHER_VARIABLES.contains(&name.as_str())
            && !OTHER_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    };
    let mut unknown: Vec<String> = names.filter(is_ours).collect();
    unknown.sort();
    unknown
}

/// Name of a flag from a key, which may have `_` for `-`.
fn flag_of(key: &str) -> String {
    key.replace('_', "-")
}

/// Refuses values that are none, and an empty list of API keys: nobody means to open a server by it.
fn check_values(key: &str, value: &Value) -> anyhow::Result<()> {
    let is_empty = texts(value)?.is_empty();
    anyhow::ensure!(!is_empty || flag_of(key) != "api-key", "expected keys, got none");
    Ok(())
}

/// Values of a key as texts.
fn texts(value: &Value) -> anyhow::Result<Vec<String>> {
    Ok(match value {
        Value::String(text) => vec![text.clone()],
        Value::Integer(number) => vec![number.to_string()],
        Value::Float(number) => vec![number.to_string()],
        Value::Boolean(value) => vec![value.to_string()],
        Value::Array(values) => {
            let values: Result<Vec<_>, _> = values.iter().map(texts).collect();
            values?.concat()
        }
        Value::Datetime(_) | Value::Table(_) => {
            bail!("expected a string, a number, true, false or an array of them")
        }
    })
}

/// Value of a flag among arguments that are not parsed yet.
fn flag_value(args: &[OsString], flag: &str) -> Option<OsString> {
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == flag {
            return args.next().cloned();
        }
        let value = arg.to_str().and_then(|arg| arg.strip_prefix(flag)?.strip_prefix('='));
        if let Some(value) = value {
            return Some(value.into());
        }
    }
    None
}
