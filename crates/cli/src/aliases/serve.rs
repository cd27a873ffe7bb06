//! Flags of llama-server for `stonechat serve`.

use super::Alias::{self, Ignored, IgnoredSwitch, Is, Refused};

const TIMEOUT: &str = "sockets have no timeout of their own: see --request-timeout";
const BATCHED: &str = "requests are always batched";
const ONE_CACHE: &str = "all requests share one KV cache";
const BY_MEMORY: &str = "open models are bounded by memory: see --models-memory";
const NO_PAGE: &str = "there is no page in this build";
const AGENT: &str = "this server runs no tools";
const IMAGES: &str = "images are not supported yet";
const ADAPTERS: &str = "adapters are not supported yet";
const ALL_ROUTES: &str = "the routes of embeddings are always on";
const PREFIXES: &str = "earlier prompts stay in the KV cache: see --kv-tokens";
const SHIFT: &str = "an answer ends when its context is full, but for --context-shift";

const LOGS_OF_SERVER: &str = "see --log and --quiet";
const TIMINGS_OF_SERVER: &str = "answers and /metrics have timings";

/// Further flags of llama-server, with dashes for underscores.
pub(super) const LLAMA_SERVER: &[(&str, Alias)] = &[
    ("-np", Is(&["--parallel"])),
    ("--verbose", Is(&["--log=debug"])),
    ("-v", Is(&["--log=debug"])),
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
    ("-to", Ignored(1, TIMEOUT)),
    ("--timeout", Ignored(1, TIMEOUT)),
    ("--threads-http", Ignored(1, "connections need no threads of their own")),
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
    ("--mmproj-url", Refused(IMAGES)),
    ("--no-mmproj", Ignored(0, IMAGES)),
    ("--lora-scaled", Refused(ADAPTERS)),
    ("--reasoning-format", Ignored(1, "thinking stays in the text of an answer")),
    ("--log-disable", Ignored(0, LOGS_OF_SERVER)),
    ("--log-colors", IgnoredSwitch(LOGS_OF_SERVER)),
    ("--log-prefix", Ignored(0, LOGS_OF_SERVER)),
    ("--log-timestamps", Ignored(0, LOGS_OF_SERVER)),
    ("-lv", Ignored(1, LOGS_OF_SERVER)),
    ("--verbosity", Ignored(1, LOGS_OF_SERVER)),
    ("--log-verbosity", Ignored(1, LOGS_OF_SERVER)),
    ("--perf", Ignored(0, TIMINGS_OF_SERVER)),
    ("--no-perf", Ignored(0, TIMINGS_OF_SERVER)),
];
