//! `stonechat serve`: the HTTP server.

mod reload;
mod systemd;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use bytesize::ByteSize;
use stonechat::llm::Pooling;
use stonechat::sampling::SamplingOptions;
use stonechat::{Device, GpuLayers, Models};
use stonechat_server::{
    EngineOptions, ModelOption, PageFile, Server, ServerOptions, TlsFiles, Traces, WebPackage,
    read_keys, stop_signal,
};

use super::completions::installed_names;
use super::console::{Console, print_note};
use super::find_model;
use super::headings::{CONTEXT, DEVICE, OPTIONS, SAMPLING};
use super::interrupt::INTERRUPTED;
use super::kv_type::KvTypeArgs;
use super::llm::read_template;
use super::llm::speculation::SpeculationArgs;
use super::settings::MODELS;
use reload::Hangups;
use systemd::notify;

const NETWORK: &str = "Network";
const ROUTES: &str = "Routes";

const EXAMPLES: &str = "\
Examples:
  stonechat serve -m qwen3:0.6b
  stonechat serve -m qwen3:0.6b -m base --host 0.0.0.0 --api-key SECRET
  stonechat serve --models-dir path/to/models --models-memory 8GB --sleep-idle-seconds 600
  stonechat serve -m model.gguf --host 127.0.0.1,server.sock --metrics";

/// Arguments of `stonechat serve`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// The same as --model
    #[arg(value_name = "MODEL", add = installed_names())]
    positional: Vec<String>,
    /// Model to load: file, folder, name or user/repo[:TYPE]; repeatable
    ///
    /// A language model or a Whisper model; one that is missing is downloaded. Without one, requests name the models of
    /// --models-dir. With one of a kind, requests of that kind may name any model, and get that one for a name that no
    /// model has.
    #[arg(short, long, value_name = "MODEL", add = installed_names())]
    model: Vec<String>,
    /// Names of the first model, separated by commas; the first is its id
    #[arg(short, long, value_name = "NAMES", value_delimiter = ',')]
    alias: Vec<String>,
    /// Tags of the first model in /v1/models, separated by commas
    #[arg(long, value_name = "TAGS", value_delimiter = ',')]
    tags: Vec<String>,
    /// Never download a model
    #[arg(long)]
    offline: bool,
    /// Serve all installed models, too
    ///
    /// This is the default if no model is named.
    #[arg(long)]
    all_models: bool,
    /// Memory for open models; idle ones are unloaded for others [default: 80 %]
    ///
    /// A size such as 8GB; without it 80 % of the machine's memory, less --cache-ram. The need of a model is estimated
    /// from its file and its KV cache. The least recently used model without requests is unloaded first; one that has
    /// requests never is. Models on a GPU count against its free memory instead.
    #[arg(long, value_name = "SIZE")]
    models_memory: Option<ByteSize>,
    /// Unload a model after this idle time; -1 never does
    ///
    /// The next request loads it again. /health, /props, /models and /metrics do not count.
    #[arg(long, value_name = "SECONDS", default_value_t = -1, allow_negative_numbers = true)]
    sleep_idle_seconds: i64,
    #[command(flatten)]
    network: NetworkArgs,
    #[command(flatten)]
    routes: RouteArgs,
    #[command(flatten)]
    context: ContextArgs,
    #[command(flatten)]
    sampling: SamplingDefaults,
    #[command(flatten)]
    speculation: SpeculationArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// Print nothing but errors
    #[arg(short, long, help_heading = OPTIONS)]
    quiet: bool,
}

/// Sockets, keys and limits.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = NETWORK)]
struct NetworkArgs {
    /// Addresses or *.sock to listen on, with commas
    ///
    /// A variable of llama-server such as `LLAMA_ARG_HOST` counts where that of this program, `STONECHAT_HOST`, is not set.
    #[arg(long, value_name = "HOSTS", default_value = "127.0.0.1", value_delimiter = ',')]
    host: Vec<String>,
    /// Port to listen on; 0 is a free one
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    port: u16,
    /// API key that clients must send, or several with commas; repeatable
    ///
    /// As `Authorization: Bearer KEY` or `X-Api-Key: KEY`. /health and the page need none.
    #[arg(long, value_name = "KEYS", value_delimiter = ',')]
    api_key: Vec<String>,
    /// File with API keys, one per line; blank lines and comments are ignored
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Origins that browsers may call from, separated by commas, or *; off without it
    #[arg(long, value_name = "ORIGINS", value_delimiter = ',')]
    cors_origins: Vec<String>,
    /// Private key of TLS (PEM)
    #[arg(long, value_name = "FILE", requires = "ssl_cert_file")]
    ssl_key_file: Option<PathBuf>,
    /// Certificate of TLS (PEM), with those of its authorities
    #[arg(long, value_name = "FILE", requires = "ssl_key_file")]
    ssl_cert_file: Option<PathBuf>,
    /// Maximum size of a request's body
    #[arg(long, value_name = "SIZE", default_value = "32MiB")]
    max_body_size: ByteSize,
    /// Maximum size of an uploaded recording
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    max_audio_size: ByteSize,
    /// Maximum length of an uploaded recording
    #[arg(long, value_name = "SECONDS", default_value_t = 14_400)]
    max_audio_seconds: u64,
    /// Memory for all uploaded recordings, with their samples; others get 503
    #[arg(long, value_name = "SIZE", default_value = "2GiB")]
    max_audio_memory: ByteSize,
    /// Maximum live sessions, by WebSocket and Wyoming; others get 429
    ///
    /// Each holds up to 10 minutes of audio that waits for its transcription, 38 MB.
    #[arg(long, value_name = "N", default_value_t = 8)]
    max_live_sessions: usize,
    /// Seconds without audio or events after which a live session is closed; 0 is no limit
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    live_idle_timeout: u64,
    /// Port of Wyoming, for Home Assistant (usually 10300) [default: off]
    ///
    /// On the addresses of --host. The protocol has no keys: anybody who reaches the port can use the speech models.
    #[arg(long, value_name = "PORT")]
    wyoming_port: Option<u16>,
    /// Announce Wyoming in the local network (mDNS)
    ///
    /// Home Assistant then finds it. Needs the feature `discovery` of the build.
    #[arg(long, requires = "wyoming_port")]
    wyoming_discovery: bool,
    /// Maximum open connections; others wait
    #[arg(long, value_name = "N", default_value_t = 1024)]
    max_connections: usize,
    /// Maximum requests of a model, running or waiting; others get 429
    #[arg(long, value_name = "N", default_value_t = 512)]
    max_queue: usize,
    /// Seconds that a request may take; 0 is no limit
    ///
    /// A text ends with what it has; one without a token, embeddings and transcriptions get 503, but streams of
    /// transcriptions have no limit. The field `timeout_ms` of a request wins.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    request_timeout: u64,
    /// Seconds that a request waits for its model to be loaded; 0 is no limit
    ///
    /// Mostly for memory that other models use. Then it gets 503.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    load_timeout: u64,
    /// Seconds in which the body of a request must arrive; 0 is no limit
    ///
    /// Otherwise it gets 408. --request-timeout counts, too, if it is shorter.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    body_timeout: u64,
    /// Seconds in which the next part of a body must arrive; 0 is no limit
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    body_idle_timeout: u64,
    /// Seconds in which a client must read a part of its answer; 0 is no limit
    ///
    /// Otherwise its connection is closed and its request ends.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    write_timeout: u64,
    /// Seconds that running requests have to end after SIGTERM or Ctrl-C
    ///
    /// New connections are refused at once. A second signal ends the server.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    stop_timeout: u64,
    /// URL of an OpenTelemetry collector to send traces to (OTLP/HTTP)
    ///
    /// Such as `http://localhost:4318`; without it `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` or
    /// `OTEL_EXPORTER_OTLP_ENDPOINT`. The variables `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_SERVICE_NAME` and
    /// `OTEL_TRACES_SAMPLER` also apply. Needs the feature `traces` of the build.
    #[arg(long, visible_alias = "otlp-traces-endpoint", value_name = "URL")]
    otlp_endpoint: Option<String>,
    /// Seconds between the comments in a stream without data; -1 sends none
    #[arg(long, value_name = "SECONDS", default_value_t = 30, allow_negative_numbers = true)]
    sse_ping_interval: i64,
}

/// Routes that can be switched.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = ROUTES)]
struct RouteArgs {
    /// Do not serve the page at /
    #[arg(long)]
    no_page: bool,
    /// Folder of the npm package's dist, for the page's engine in the browser
    ///
    /// The files are read at the start and served at /web/. With it the page may download models from other hosts.
    #[arg(long, value_name = "DIR", conflicts_with = "no_page")]
    web_dir: Option<PathBuf>,
    /// Let clients download and remove models (/api/pull, /api/delete)
    ///
    /// Everybody who reaches the server, or has a key, can fill the disk with models then.
    #[arg(long)]
    manage_models: bool,
    /// Serve /metrics for Prometheus
    #[arg(long)]
    metrics: bool,
    /// Pooling of embeddings: mean, cls, last or none [default: the model's]
    #[arg(long, value_name = "TYPE")]
    pooling: Option<Pooling>,
    /// Do not serve /slots
    #[arg(long)]
    no_slots: bool,
    /// Folder of saved prompts of /slots
    #[arg(long, value_name = "DIR")]
    slot_save_path: Option<PathBuf>,
}

/// Context and chat template.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = CONTEXT)]
struct ContextArgs {
    /// Context size in tokens; 0 is the model's [default: 0, up to 16384]
    #[arg(short, long, value_name = "N")]
    ctx_size: Option<usize>,
    /// Tokens of the KV cache for all requests [default: the context size]
    ///
    /// A request takes as many as it needs; earlier prompts stay in the others, so that requests that begin alike skip
    /// them.
    #[arg(long, value_name = "N")]
    kv_tokens: Option<usize>,
    /// Memory in MiB for earlier prompts that the KV cache drops, at most a quarter of the machine's
    #[arg(long, visible_alias = "cram", value_name = "MIB", default_value_t = 8192)]
    cache_ram: usize,
    /// Folder and size of a file for earlier prompts, which outlives the server
    ///
    /// A prompt is written as soon as it has run; the oldest ones are removed once the file exceeds the size. Needs
    /// the feature `disk-cache` of the build.
    #[arg(long, value_names = ["DIR", "SIZE"], num_args = 2)]
    cache_disk: Vec<String>,
    /// Number of slots (concurrent sequences) per model; -1 is 16
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    parallel: i64,
    /// Windows of recordings that a speech model decodes in one batch, 1 to 64
    #[arg(long, value_name = "N", default_value_t = 4)]
    audio_windows: usize,
    /// Maximum number of tokens in a batch
    #[arg(short, long, value_name = "N", default_value_t = 512)]
    batch_size: usize,
    /// Shift the context of a text when it is full instead of ending the text
    #[arg(long)]
    context_shift: bool,
    #[command(flatten)]
    kv_type: KvTypeArgs,
    /// Chat template in place of the model's: name, Jinja text or file
    #[arg(long, value_name = "TEMPLATE")]
    chat_template: Option<String>,
}

/// Sampling of requests that do not say otherwise.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = SAMPLING)]
struct SamplingDefaults {
    /// Default maximum of tokens to predict; -1 is no limit
    #[arg(short, long, value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    n_predict: i64,
    /// Default temperature; 0 is greedy
    #[arg(long, visible_alias = "temperature", value_name = "T", default_value_t = 0.8)]
    temp: f32,
    /// Default of top-k sampling; 0 disables
    #[arg(long, value_name = "N", default_value_t = 40, allow_negative_numbers = true)]
    top_k: i64,
    /// Default of top-p (nucleus) sampling; 1 disables
    #[arg(long, value_name = "P", default_value_t = 0.95)]
    top_p: f32,
    /// Default of min-p sampling; 0 disables
    #[arg(long, value_name = "P", default_value_t = 0.05)]
    min_p: f32,
    /// Default RNG seed; -1 is a random seed
    #[arg(short, long, value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    seed: i64,
}

/// Device of all models.
#[derive(Debug, Clone, Copy, clap::Args)]
#[command(next_help_heading = DEVICE)]
struct DeviceArgs {
    /// Number of CPU threads; 0 is one per physical core
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// Device: auto, cpu, cuda, cuda:N, cuda:N,N, wgpu or wgpu:N
    #[arg(long, value_name = "DEVICE", default_value_t = Device::Auto)]
    device: Device,
    /// Layers to store in VRAM: N, auto or all
    #[arg(long, visible_alias = "n-gpu-layers", value_name = "N", allow_hyphen_values = true)]
    gpu_layers: Option<GpuLayers>,
}

impl Args {
    /// Models to load.
    fn models(&self) -> impl Iterator<Item = &String> {
        self.positional.iter().chain(&self.model)
    }

    /// Default log level.
    pub(super) fn log_level(&self) -> &'static str {
        // symphonia warns of every tag that is not of its format.
        if self.quiet { "error" } else { "warn,symphonia=error" }
    }
}

/// Serves until a signal.
pub(super) fn run(args: &Args, models_dir: Option<&Path>) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(n_workers())
        .enable_all()
        .build()
        .context("cannot start the threads of the server")?;
    let entered = runtime.enter();
    let mut hangups = Hangups::new().context("cannot handle SIGHUP")?;
    drop(entered);
    let options = options(args, models_dir)?;
    let page_file = options.engine.page_file.clone();
    let sockets = systemd::sockets()?;
    let console = Console::with_bar(args.quiet, false);
    let served = runtime.block_on(async {
        let server = Server::bind_with(options, sockets).await?;
        for address in server.addresses() {
            console.note(&format!("listening on {address}"));
        }
        for address in server.wyoming_addresses() {
            console.note(&format!("Wyoming on {address}"));
        }
        let state = server.state().clone();
        let (started, is_quiet) = (state.clone(), args.quiet);
        tokio::spawn(async move {
            started.ready().await;
            notify("READY=1");
            Console::with_bar(is_quiet, false).note("ready");
        });
        tokio::select! {
            served = server.run(stop(args.network.stop_timeout, args.quiet)) => served,
            never = hangups.reload(args, &state) => match never {},
        }
    });
    // A model that is being loaded, or a step that runs, need not end.
    runtime.shutdown_background();
    if let Some(file) = page_file {
        file.close();
    }
    served?;
    Ok(ExitCode::SUCCESS)
}

/// Waits for a signal; a second one ends the process.
async fn stop(seconds: u64, is_quiet: bool) {
    stop_signal().await;
    notify("STOPPING=1");
    if !is_quiet {
        print_note(&format!("stopping: running requests have {seconds} s"));
    }
    tokio::spawn(async {
        stop_signal().await;
        std::process::exit(INTERRUPTED.into());
    });
}

/// Threads of the async side, which waits for most of its time: engines have threads of their own.
fn n_workers() -> usize {
    std::thread::available_parallelism().map_or(2, |n| (n.get() / 4).clamp(2, 8))
}

fn options(args: &Args, models_dir: Option<&Path>) -> anyhow::Result<ServerOptions> {
    let Args { network, routes, sampling, .. } = args;
    for (flag, limit) in [
        ("--max-queue", network.max_queue as u64),
        ("--max-connections", network.max_connections as u64),
        ("--max-audio-memory", network.max_audio_memory.as_u64()),
    ] {
        ensure!(limit > 0, usage_error!("{flag}: expected at least 1, got 0"));
    }
    let api_keys = api_keys(network)?;
    let tls = network.ssl_key_file.clone().zip(network.ssl_cert_file.clone());
    let seconds = |n: i64| u64::try_from(n).ok().map(Duration::from_secs);
    let limit = |n: u64| Some(Duration::from_secs(n)).filter(|limit| !limit.is_zero());
    let time = |n: u64| limit(n).unwrap_or(Duration::MAX);
    let installed = installed(args, models_dir)?;
    Ok(ServerOptions {
        models: models(args)?,
        installed,
        aliases: args.alias.clone(),
        tags: args.tags.clone(),
        engine: engine(args)?,
        models_memory: args.models_memory.map(|size| size.as_u64()),
        sleep_idle: seconds(args.sleep_idle_seconds),
        max_queue: network.max_queue,
        hosts: network.host.clone(),
        port: network.port,
        api_keys,
        cors_origins: network.cors_origins.clone(),
        tls: tls.map(|(key, certificate)| TlsFiles { key, certificate }),
        max_body_size: size(network.max_body_size),
        max_audio_size: size(network.max_audio_size),
        max_audio_seconds: network.max_audio_seconds,
        max_audio_memory: network.max_audio_memory.as_u64(),
        max_live_sessions: network.max_live_sessions,
        live_idle_timeout: time(network.live_idle_timeout),
        wyoming_port: network.wyoming_port,
        wyoming_discovery: network.wyoming_discovery,
        max_connections: network.max_connections,
        request_timeout: limit(network.request_timeout),
        load_timeout: limit(network.load_timeout),
        body_timeout: time(network.body_timeout),
        body_idle_timeout: time(network.body_idle_timeout),
        write_timeout: time(network.write_timeout),
        stop_timeout: Duration::from_secs(network.stop_timeout),
        sse_ping_interval: seconds(network.sse_ping_interval).filter(|time| !time.is_zero()),
        page: !routes.no_page,
        web_package: routes.web_dir.as_deref().map(WebPackage::read).transpose()?,
        manage_models: routes.manage_models,
        metrics: routes.metrics,
        traces: Traces::start(network.otlp_endpoint.as_deref())?,
        slots: !routes.no_slots,
        slot_save_path: routes.slot_save_path.clone(),
        pooling: routes.pooling,
        context_shift: args.context.context_shift,
        n_predict: usize::try_from(sampling.n_predict).ok(),
        sampling: SamplingOptions {
            seed: u64::try_from(sampling.seed).ok(),
            temperature: sampling.temp,
            top_k: usize::try_from(sampling.top_k).unwrap_or(0),
            top_p: sampling.top_p,
            min_p: sampling.min_p,
            ..SamplingOptions::default()
        },
        ..ServerOptions::default()
    })
}

/// Models of the folder, which are served if no model is named.
fn installed(args: &Args, models_dir: Option<&Path>) -> anyhow::Result<Option<Models>> {
    let is_alone = args.models().next().is_none();
    if !is_alone && !args.all_models {
        return Ok(None);
    }
    let models = find_model::models();
    if let Some(folder) = models_dir {
        let is_of_variable = std::env::var_os(MODELS).is_some_and(|value| value == *folder);
        let source = if is_of_variable { MODELS } else { "--models-dir" };
        let folder_text = folder.display();
        ensure!(folder.is_dir(), "{source}: expected a folder of models, got `{folder_text}`");
    }
    if is_alone && !args.quiet && models.installed().is_ok_and(|found| found.is_empty()) {
        print_note("warning: no models are installed and -m names none: every request fails");
    }
    Ok(Some(models))
}

/// Keys of the flags. An empty one is an error: a variable that is not set would open the server to everybody.
fn api_keys(network: &NetworkArgs) -> anyhow::Result<Vec<String>> {
    let mut keys = network.api_key.clone();
    let has_empty = keys.iter().any(|key| key.trim().is_empty());
    ensure!(!has_empty, usage_error!("--api-key: expected keys, got an empty one"));
    if let Some(path) = &network.api_key_file {
        let read = read_keys(path).with_context(|| format!("cannot read `{}`", path.display()))?;
        ensure!(!read.is_empty(), "`{}`: expected an API key a line, got none", path.display());
        keys.extend(read);
    }
    Ok(keys)
}

fn size(size: ByteSize) -> usize {
    usize::try_from(size.as_u64()).unwrap_or(usize::MAX)
}

fn engine(args: &Args) -> anyhow::Result<EngineOptions> {
    let ContextArgs { ctx_size, kv_type, chat_template, .. } = &args.context;
    kv_type.check()?;
    let audio_windows = args.context.audio_windows;
    ensure!((1..=64).contains(&audio_windows), usage_error!("--audio-windows: expected 1 to 64"));
    let defaults = EngineOptions::default();
    let DeviceArgs { threads, device, gpu_layers } = args.device;
    Ok(EngineOptions {
        device,
        n_threads: threads,
        gpu_layers,
        n_ctx: *ctx_size,
        kv_dtype: kv_type.dtype(),
        kv_tokens: args.context.kv_tokens,
        cache_ram: cache_ram(args.context.cache_ram),
        page_file: page_file(&args.context.cache_disk)?,
        n_parallel: usize::try_from(args.context.parallel).unwrap_or(defaults.n_parallel),
        n_batch: args.context.batch_size,
        audio_windows,
        on_step: None,
        drafts: args.speculation.source(|name| find(args, name))?,
        chat_template: chat_template.as_deref().map(read_template).transpose()?,
    })
}

/// Bytes for dropped prompts, at most a quarter of the machine's memory.
fn cache_ram(mib: usize) -> usize {
    let quarter = usize::try_from(stonechat_server::machine_memory() / 4).unwrap_or(usize::MAX);
    mib.saturating_mul(1 << 20).min(quarter)
}

/// File of `--cache-disk`.
fn page_file(flag: &[String]) -> anyhow::Result<Option<PageFile>> {
    let [folder, size] = flag else { return Ok(None) };
    let size: ByteSize = size.parse().map_err(|error| {
        anyhow::anyhow!("--cache-disk: expected a size such as 10GB, got `{size}`: {error}")
    })?;
    Ok(Some(PageFile::open(folder.as_ref(), size.0)?))
}

/// Paths of the models, under the names that requests use.
fn models(args: &Args) -> anyhow::Result<Vec<ModelOption>> {
    let option = |text: &String| Ok(ModelOption { name: name(text), path: find(args, text)? });
    args.models().map(option).collect()
}

/// Path of a model, which is downloaded if need be.
fn find(args: &Args, text: &str) -> anyhow::Result<PathBuf> {
    if args.offline { Ok(find_model::models().find(text)?) } else { find_model::find_or_pull(text) }
}

/// Name of a model: the stem of a file, the name of a folder, else as it is given.
fn name(text: &str) -> String {
    let path = Path::new(text);
    if !path.exists() {
        return text.to_owned();
    }
    let stem = if path.is_file() { path.file_stem() } else { path.file_name() };
    stem.map_or_else(|| text.to_owned(), |stem| stem.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_of_files_are_their_stems() {
        assert_eq!(super::name("Cargo.toml"), "Cargo");
        assert_eq!(super::name("qwen3:0.6b"), "qwen3:0.6b");
    }
}
