//! Arguments of `stonechat serve`.

use std::path::PathBuf;

use bytesize::ByteSize;
use stonechat::llm::Pooling;
use stonechat::{Device, GpuLayers};

use super::chat_defaults::ChatDefaultArgs;
use crate::completions::installed_names;
use crate::headings::{CONTEXT, DEVICE, OPTIONS, SAMPLING};
use crate::kv_type::KvTypeArgs;
use crate::llm::speculation::SpeculationArgs;

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
pub(crate) struct Args {
    /// The same as --model
    #[arg(value_name = "MODEL", add = installed_names())]
    pub(super) positional: Vec<String>,
    /// Model to load: file, folder, name or user/repo[:TYPE]; repeatable
    ///
    /// A language model or a Whisper model; one that is missing is downloaded. Without one, requests name the models of
    /// --models-dir. With one of a kind, requests of that kind may name any model, and get that one for a name that no
    /// model has.
    #[arg(short, long, value_name = "MODEL", add = installed_names())]
    pub(super) model: Vec<String>,
    /// Names of the first model, separated by commas; the first is its id
    #[arg(short, long, value_name = "NAMES", value_delimiter = ',')]
    pub(super) alias: Vec<String>,
    /// Tags of the first model in /v1/models, separated by commas
    #[arg(long, value_name = "TAGS", value_delimiter = ',')]
    pub(super) tags: Vec<String>,
    /// Never download a model
    #[arg(long)]
    pub(super) offline: bool,
    /// Serve all installed models, too
    ///
    /// This is the default if no model is named.
    #[arg(long)]
    pub(super) all_models: bool,
    /// Memory for open models; idle ones are unloaded for others [default: 80 %]
    ///
    /// A size such as 8GB; without it 80 % of the machine's memory, less --cache-ram. The need of a model is estimated
    /// from its file and its KV cache. The least recently used model without requests is unloaded first; one that has
    /// requests never is. Models on a GPU count against its free memory instead.
    #[arg(long, value_name = "SIZE")]
    pub(super) models_memory: Option<ByteSize>,
    /// Unload a model after this idle time; -1 never does
    ///
    /// The next request loads it again. /health, /props, /models and /metrics do not count.
    #[arg(long, value_name = "SECONDS", default_value_t = -1, allow_negative_numbers = true)]
    pub(super) sleep_idle_seconds: i64,
    #[command(flatten)]
    pub(super) network: NetworkArgs,
    #[command(flatten)]
    pub(super) routes: RouteArgs,
    #[command(flatten)]
    pub(super) context: ContextArgs,
    #[command(flatten)]
    pub(super) sampling: SamplingDefaults,
    #[command(flatten)]
    pub(super) speculation: SpeculationArgs,
    #[command(flatten)]
    pub(super) device: DeviceArgs,
    /// Print nothing but errors
    #[arg(short, long, help_heading = OPTIONS)]
    pub(super) quiet: bool,
}

/// Sockets, keys and limits.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = NETWORK)]
pub(super) struct NetworkArgs {
    /// Addresses or *.sock to listen on, with commas
    ///
    /// A variable of llama-server such as `LLAMA_ARG_HOST` counts where that of this program, `STONECHAT_HOST`, is not set.
    #[arg(long, value_name = "HOSTS", default_value = "127.0.0.1", value_delimiter = ',')]
    pub(super) host: Vec<String>,
    /// Port to listen on; 0 is a free one
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    pub(super) port: u16,
    /// API key that clients must send, or several with commas; repeatable
    ///
    /// As `Authorization: Bearer KEY` or `X-Api-Key: KEY`. /health and the page need none.
    #[arg(long, value_name = "KEYS", value_delimiter = ',')]
    pub(super) api_key: Vec<String>,
    /// File with API keys, one per line; blank lines and comments are ignored
    #[arg(long, value_name = "FILE")]
    pub(super) api_key_file: Option<PathBuf>,
    /// Origins that browsers may call from, separated by commas, or *; off without it
    #[arg(long, value_name = "ORIGINS", value_delimiter = ',')]
    pub(super) cors_origins: Vec<String>,
    /// Private key of TLS (PEM)
    #[arg(long, value_name = "FILE", requires = "ssl_cert_file")]
    pub(super) ssl_key_file: Option<PathBuf>,
    /// Certificate of TLS (PEM), with those of its authorities
    #[arg(long, value_name = "FILE", requires = "ssl_key_file")]
    pub(super) ssl_cert_file: Option<PathBuf>,
    /// Maximum size of a request's body
    #[arg(long, value_name = "SIZE", default_value = "32MiB")]
    pub(super) max_body_size: ByteSize,
    /// Maximum size of an uploaded recording
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    pub(super) max_audio_size: ByteSize,
    /// Maximum length of an uploaded recording
    #[arg(long, value_name = "SECONDS", default_value_t = 14_400)]
    pub(super) max_audio_seconds: u64,
    /// Memory for all uploaded recordings, with their samples; others get 503
    #[arg(long, value_name = "SIZE", default_value = "2GiB")]
    pub(super) max_audio_memory: ByteSize,
    /// Maximum live sessions, by WebSocket and Wyoming; others get 429
    ///
    /// Each holds up to 10 minutes of audio that waits for its transcription, 38 MB.
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(super) max_live_sessions: usize,
    /// Seconds without audio or events after which a live session is closed; 0 is no limit
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub(super) live_idle_timeout: u64,
    /// Port of Wyoming, for Home Assistant (usually 10300) [default: off]
    ///
    /// On the addresses of --host. The protocol has no keys: anybody who reaches the port can use the speech models.
    #[arg(long, value_name = "PORT")]
    pub(super) wyoming_port: Option<u16>,
    /// Announce Wyoming in the local network (mDNS)
    ///
    /// Home Assistant then finds it. Needs the feature `discovery` of the build.
    #[arg(long, requires = "wyoming_port")]
    pub(super) wyoming_discovery: bool,
    /// Maximum open connections; others wait
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub(super) max_connections: usize,
    /// Maximum requests of a model, running or waiting; others get 429
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub(super) max_queue: usize,
    /// Seconds that a request may take; 0 is no limit
    ///
    /// A text ends with what it has; one without a token, embeddings and transcriptions get 503, but streams of
    /// transcriptions have no limit. The field `timeout_ms` of a request wins.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub(super) request_timeout: u64,
    /// Seconds that a request waits for its model to be loaded; 0 is no limit
    ///
    /// Mostly for memory that other models use. Then it gets 503.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub(super) load_timeout: u64,
    /// Seconds in which the body of a request must arrive; 0 is no limit
    ///
    /// Otherwise it gets 408. --request-timeout counts, too, if it is shorter.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub(super) body_timeout: u64,
    /// Seconds in which the next part of a body must arrive; 0 is no limit
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub(super) body_idle_timeout: u64,
    /// Seconds in which a client must read a part of its answer; 0 is no limit
    ///
    /// Otherwise its connection is closed and its request ends.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub(super) write_timeout: u64,
    /// Seconds that running requests have to end after SIGTERM or Ctrl-C
    ///
    /// New connections are refused at once. A second signal ends the server.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub(super) stop_timeout: u64,
    /// URL of an OpenTelemetry collector to send traces to (OTLP/HTTP)
    ///
    /// Such as `http://localhost:4318`; without it `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` or
    /// `OTEL_EXPORTER_OTLP_ENDPOINT`. The variables `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_SERVICE_NAME` and
    /// `OTEL_TRACES_SAMPLER` also apply. Needs the feature `traces` of the build.
    #[arg(long, visible_alias = "otlp-traces-endpoint", value_name = "URL")]
    pub(super) otlp_endpoint: Option<String>,
    /// Seconds between the comments in a stream without data; -1 sends none
    #[arg(long, value_name = "SECONDS", default_value_t = 30, allow_negative_numbers = true)]
    pub(super) sse_ping_interval: i64,
}

/// Routes that can be switched.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = ROUTES)]
pub(super) struct RouteArgs {
    /// Do not serve the page at /
    #[arg(long)]
    pub(super) no_page: bool,
    /// Folder of the npm package's dist, for the page's engine in the browser
    ///
    /// The files are read at the start and served at /web/. With it the page may download models from other hosts.
    #[arg(long, value_name = "DIR", conflicts_with = "no_page")]
    pub(super) web_dir: Option<PathBuf>,
    /// Let clients download and remove models (/api/pull, /api/delete)
    ///
    /// Everybody who reaches the server, or has a key, can fill the disk with models then.
    #[arg(long)]
    pub(super) manage_models: bool,
    /// Serve /metrics for Prometheus
    #[arg(long)]
    pub(super) metrics: bool,
    /// Pooling of embeddings: mean, cls, last or none [default: the model's]
    #[arg(long, value_name = "TYPE")]
    pub(super) pooling: Option<Pooling>,
    /// Do not serve /slots
    #[arg(long)]
    pub(super) no_slots: bool,
    /// Folder of saved prompts of /slots
    #[arg(long, value_name = "DIR")]
    pub(super) slot_save_path: Option<PathBuf>,
}

/// Context and chat template.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = CONTEXT)]
pub(super) struct ContextArgs {
    /// Context size in tokens; 0 is the model's [default: 0, up to 16384]
    #[arg(short, long, value_name = "N")]
    pub(super) ctx_size: Option<usize>,
    /// Tokens of the KV cache for all requests [default: the context size]
    ///
    /// A request takes as many as it needs; earlier prompts stay in the others, so that requests that begin alike skip
    /// them.
    #[arg(long, value_name = "N")]
    pub(super) kv_tokens: Option<usize>,
    /// Memory in MiB for earlier prompts that the KV cache drops, at most a quarter of the machine's
    #[arg(long, visible_alias = "cram", value_name = "MIB", default_value_t = 8192)]
    pub(super) cache_ram: usize,
    /// Folder and size of a file for earlier prompts, which outlives the server
    ///
    /// A prompt is written as soon as it has run; the oldest ones are removed once the file exceeds the size. Needs
    /// the feature `disk-cache` of the build.
    #[arg(long, value_names = ["DIR", "SIZE"], num_args = 2)]
    pub(super) cache_disk: Vec<String>,
    /// Number of slots (concurrent sequences) per model; -1 is 16
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    pub(super) parallel: i64,
    /// Windows of recordings that a speech model decodes in one batch, 1 to 64
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(super) audio_windows: usize,
    /// Maximum number of tokens in a batch
    #[arg(short, long, value_name = "N", default_value_t = 512)]
    pub(super) batch_size: usize,
    /// Shift the context of a text when it is full instead of ending the text
    #[arg(long)]
    pub(super) context_shift: bool,
    #[command(flatten)]
    pub(super) kv_type: KvTypeArgs,
    /// Chat template in place of the model's: name, Jinja text or file
    #[arg(long, value_name = "TEMPLATE")]
    pub(super) chat_template: Option<String>,
    #[command(flatten)]
    pub(super) chat: ChatDefaultArgs,
}

/// Sampling of requests that do not say otherwise.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = SAMPLING)]
pub(super) struct SamplingDefaults {
    /// Default maximum of tokens to predict; -1 is no limit
    #[arg(short, long, value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    pub(super) n_predict: i64,
    /// Default temperature; 0 is greedy
    #[arg(long, visible_alias = "temperature", value_name = "T", default_value_t = 0.8)]
    pub(super) temp: f32,
    /// Default of top-k sampling; 0 disables
    #[arg(long, value_name = "N", default_value_t = 40, allow_negative_numbers = true)]
    pub(super) top_k: i64,
    /// Default of top-p (nucleus) sampling; 1 disables
    #[arg(long, value_name = "P", default_value_t = 0.95)]
    pub(super) top_p: f32,
    /// Default of min-p sampling; 0 disables
    #[arg(long, value_name = "P", default_value_t = 0.05)]
    pub(super) min_p: f32,
    /// Default RNG seed; -1 is a random seed
    #[arg(short, long, value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    pub(super) seed: i64,
}

/// Device of all models.
#[derive(Debug, Clone, Copy, clap::Args)]
#[command(next_help_heading = DEVICE)]
pub(super) struct DeviceArgs {
    /// Number of CPU threads; 0 is one per physical core
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    pub(super) threads: usize,
    /// Device: auto, cpu, cuda, cuda:N, cuda:N,N, wgpu or wgpu:N
    #[arg(long, value_name = "DEVICE", default_value_t = Device::Auto)]
    pub(super) device: Device,
    /// Layers to store in VRAM: N, auto or all
    #[arg(long, visible_alias = "n-gpu-layers", value_name = "N", allow_hyphen_values = true)]
    pub(super) gpu_layers: Option<GpuLayers>,
}

impl Args {
    /// Models to load.
    pub(super) fn models(&self) -> impl Iterator<Item = &String> {
        self.positional.iter().chain(&self.model)
    }

    /// Default log level.
    pub(crate) fn log_level(&self) -> &'static str {
        // symphonia warns of every tag that is not of its format.
        if self.quiet { "error" } else { "warn,symphonia=error" }
    }
}
