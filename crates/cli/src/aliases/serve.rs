//! Flags of llama-server for `stonechat serve`.

use super::Alias::{self, Ignored, IgnoredSwitch, Is, Refused};
use super::FUSED;
use super::llama::{
    BATCH, EXPERTS, FIT, KV_PLACE, MEMORY_MAP, METADATA, ONE_TEAM, ROPE, SYSTEM_THREADS, TEMPLATES,
    TOP_K, WARM_UP, WHOLE_CONTEXT,
};

const TIMEOUT: &str = "sockets have no timeout of their own: see --request-timeout";
const BATCHED: &str = "requests are always batched";
const ONE_CACHE: &str = "all requests share one KV cache";
const BY_MEMORY: &str = "open models are bounded by memory: see --models-memory";
const NO_PAGE: &str = "there is no page in this build";
const AGENT: &str = "this server runs no tools";
const IMAGES: &str = "images are not supported yet";
const ADAPTERS: &str = "adapters are not supported yet";
const FILE_OF_REPO: &str = "name the file after the repository: --model user/repo:file.gguf";
const ALL_ROUTES: &str = "the routes of embeddings are always on";
const PREFIXES: &str = "earlier prompts stay in the KV cache: see --kv-tokens";
const SHIFT: &str = "an answer ends when its context is full, but for --context-shift";

const LOGS_OF_SERVER: &str = "see --log and --quiet";
const TIMINGS_OF_SERVER: &str = "answers and /metrics have timings";

/// Flags by their names there, with dashes for underscores.
pub(super) const LLAMA_SERVER: &[(&str, Alias)] = &[
    ("-ngl", Is(&["--gpu-layers"])),
    ("-ctk", Is(&["--cache-type-k"])),
    ("-ctv", Is(&["--cache-type-v"])),
    ("-np", Is(&["--parallel"])),
    ("-dev", Is(&["--device"])),
    ("-hf", Is(&["--model"])),
    ("-hfr", Is(&["--model"])),
    ("--hf-repo", Is(&["--model"])),
    ("--predict", Is(&["--n-predict"])),
    ("--chat-template-file", Is(&["--chat-template"])),
    ("--verbose", Is(&["--log=debug"])),
    ("-v", Is(&["--log=debug"])),
    ("-hff", Refused(FILE_OF_REPO)),
    ("--hf-file", Refused(FILE_OF_REPO)),
    ("-mu", Refused("download the file and name it: --model FILE")),
    ("--model-url", Refused("download the file and name it: --model FILE")),
    ("--models-max", Ignored(1, BY_MEMORY)),
    ("--models-preset", Refused("name the models: --model, or --models-dir")),
    ("--models-autoload", Ignored(0, "a request always loads its model")),
    ("--no-models-autoload", Refused("a request always loads its model")),
    ("-cb", Ignored(0, BATCHED)),
    ("--cont-batching", Ignored(0, BATCHED)),
    ("--no-cont-batching", Refused(BATCHED)),
    ("-nocb", Refused(BATCHED)),
    ("-kvu", Ignored(0, ONE_CACHE)),
    ("--kv-unified", Ignored(0, ONE_CACHE)),
    ("--swa-full", Ignored(0, WHOLE_CONTEXT)),
    ("-fa", IgnoredSwitch(FUSED)),
    ("--flash-attn", IgnoredSwitch(FUSED)),
    ("-ub", Ignored(1, BATCH)),
    ("--ubatch-size", Ignored(1, BATCH)),
    ("-tb", Ignored(1, ONE_TEAM)),
    ("--threads-batch", Ignored(1, ONE_TEAM)),
    ("-to", Ignored(1, TIMEOUT)),
    ("--timeout", Ignored(1, TIMEOUT)),
    ("--threads-http", Ignored(1, "connections need no threads of their own")),
    ("--mlock", Ignored(0, MEMORY_MAP)),
    ("--mmap", Ignored(0, MEMORY_MAP)),
    ("--no-mmap", Ignored(0, MEMORY_MAP)),
    ("--warmup", Ignored(0, WARM_UP)),
    ("--no-warmup", Ignored(0, WARM_UP)),
    ("--jinja", Ignored(0, TEMPLATES)),
    ("--slots", Ignored(0, "/slots is on without --no-slots")),
    ("--props", Refused("properties cannot be changed while the server runs")),
    ("--embedding", Ignored(0, ALL_ROUTES)),
    ("--embeddings", Ignored(0, ALL_ROUTES)),
    ("--rerank", Refused("reranking is not supported yet")),
    ("--reranking", Refused("reranking is not supported yet")),
    ("--no-context-shift", Ignored(0, SHIFT)),
    ("--no-cache-idle-slots", Ignored(0, ONE_CACHE)),
    ("--cache-idle-slots", Ignored(0, ONE_CACHE)),
    ("-cram", Is(&["--cache-ram"])),
    ("--cache-reuse", Ignored(1, PREFIXES)),
    ("--slot-prompt-similarity", Ignored(1, PREFIXES)),
    ("-sps", Ignored(1, PREFIXES)),
    ("--ctx-checkpoints", Ignored(1, PREFIXES)),
    ("--ui", Refused(NO_PAGE)),
    ("--webui", Refused(NO_PAGE)),
    ("--no-ui", Ignored(0, NO_PAGE)),
    ("--no-webui", Ignored(0, NO_PAGE)),
    ("--ui-mcp-proxy", Refused(AGENT)),
    ("--tools", Refused(AGENT)),
    ("--tools-runtime", Refused(AGENT)),
    ("--mcp-servers-config", Refused(AGENT)),
    ("--mcp-servers-json", Refused(AGENT)),
    ("--media-path", Refused(IMAGES)),
    ("--mmproj", Refused(IMAGES)),
    ("--mmproj-url", Refused(IMAGES)),
    ("--no-mmproj", Ignored(0, IMAGES)),
    ("--lora", Refused(ADAPTERS)),
    ("--lora-scaled", Refused(ADAPTERS)),
    ("--no-jinja", Ignored(0, TEMPLATES)),
    ("-bs", Ignored(0, TOP_K)),
    ("--backend-sampling", Ignored(0, TOP_K)),
    ("--reasoning-format", Ignored(1, "thinking stays in the text of an answer")),
    ("-ncmoe", Ignored(1, EXPERTS)),
    ("--n-cpu-moe", Ignored(1, EXPERTS)),
    ("-cmoe", Ignored(0, EXPERTS)),
    ("--cpu-moe", Ignored(0, EXPERTS)),
    ("-ot", Ignored(1, EXPERTS)),
    ("--override-tensor", Ignored(1, EXPERTS)),
    ("-fit", IgnoredSwitch(FIT)),
    ("--fit", IgnoredSwitch(FIT)),
    ("-nkvo", Ignored(0, KV_PLACE)),
    ("--no-kv-offload", Ignored(0, KV_PLACE)),
    ("-kvo", Ignored(0, KV_PLACE)),
    ("--kv-offload", Ignored(0, KV_PLACE)),
    ("--override-kv", Refused(METADATA)),
    ("--rope-scaling", Refused(ROPE)),
    ("--rope-scale", Refused(ROPE)),
    ("--rope-freq-base", Refused(ROPE)),
    ("--rope-freq-scale", Refused(ROPE)),
    ("--yarn-orig-ctx", Refused(ROPE)),
    ("--numa", Ignored(1, SYSTEM_THREADS)),
    ("--prio", Ignored(1, SYSTEM_THREADS)),
    ("--poll", Ignored(1, SYSTEM_THREADS)),
    ("--log-disable", Ignored(0, LOGS_OF_SERVER)),
    ("--log-colors", IgnoredSwitch(LOGS_OF_SERVER)),
    ("--log-prefix", Ignored(0, LOGS_OF_SERVER)),
    ("--log-timestamps", Ignored(0, LOGS_OF_SERVER)),
    ("-lv", Ignored(1, LOGS_OF_SERVER)),
    ("--verbosity", Ignored(1, LOGS_OF_SERVER)),
    ("--log-verbosity", Ignored(1, LOGS_OF_SERVER)),
    ("--perf", Ignored(0, TIMINGS_OF_SERVER)),
    ("--no-perf", Ignored(0, TIMINGS_OF_SERVER)),
    ("--list-devices", Refused("see `stonechat devices`")),
];
