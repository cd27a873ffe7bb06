//! `stonechat serve`: the HTTP server.

mod args;
mod chat_defaults;
mod reload;
mod systemd;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use bytesize::ByteSize;
use stonechat::Models;
use stonechat::sampling::SamplingOptions;
use stonechat_server::{
    EngineOptions, ModelOption, PageFile, Server, ServerOptions, TlsFiles, Traces, WebPackage,
    read_keys, stop_signal,
};

use super::console::{Console, print_note};
use super::find_model;
use super::interrupt::INTERRUPTED;
use super::llm::read_template;
use super::settings::MODELS;
use args::{ContextArgs, DeviceArgs, NetworkArgs};
use reload::Hangups;
use systemd::notify;

pub(super) use args::Args;

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
        chat: args.context.chat.defaults(),
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
