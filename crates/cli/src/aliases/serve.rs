//! Flags of llama-server for `stonechat serve`.

use super::Alias::{Ignored, IgnoredSwitch, Is, Refused};
use super::Table;

const TIMEOUT: &str = "sockets have no timeout of their own: see --request-timeout";
const BATCHED: &str = "requests are always batched";
const ONE_CACHE: &str = "all requests share one KV cache";
const BY_MEMORY: &str = "open models are bounded by memory: see --models-memory";
const PAGE: &str = "the page is on without --no-page";
const AGENT: &str = "this server runs no tools";
const IMAGES: &str = "images are not supported yet";
const ADAPTERS: &str = "adapters are not supported yet";
const ALL_ROUTES: &str = "the routes of embeddings are always on";
const PREFIXES: &str = "earlier prompts stay in the KV cache: see --kv-tokens";
const SHIFT: &str = "an answer ends when its context is full, but for --context-shift";

const LOGS_OF_SERVER: &str = "see --log and --quiet";
const TIMINGS_OF_SERVER: &str = "answers and /metrics have timings";

/// Further flags of llama-server, with dashes for underscores.
pub(super) const LLAMA_SERVER: Table = &[
    (&["-np"], Is(&["--parallel"])),
    (&["--verbose", "-v"], Is(&["--log=debug"])),
    (&["-mu", "--model-url"], Refused("download the file and name it: --model FILE")),
    (&["--models-max"], Ignored(1, BY_MEMORY)),
    (&["--models-preset"], Refused("name the models: --model, or --models-dir")),
    (&["--models-autoload"], Ignored(0, "a request always loads its model")),
    (&["--no-models-autoload"], Refused("a request always loads its model")),
    (&["-cb", "--cont-batching"], Ignored(0, BATCHED)),
    (&["--no-cont-batching", "-nocb"], Refused(BATCHED)),
    (&["-kvu", "--kv-unified", "--no-cache-idle-slots"], Ignored(0, ONE_CACHE)),
    (&["--cache-idle-slots"], Ignored(0, ONE_CACHE)),
    (&["-to", "--timeout"], Ignored(1, TIMEOUT)),
    (&["--threads-http"], Ignored(1, "connections need no threads of their own")),
    (&["--slots"], Ignored(0, "/slots is on without --no-slots")),
    (&["--props"], Refused("properties cannot be changed while the server runs")),
    (&["--embedding", "--embeddings"], Ignored(0, ALL_ROUTES)),
    (&["--rerank", "--reranking"], Refused("reranking is not supported yet")),
    (&["--no-context-shift"], Ignored(0, SHIFT)),
    (&["-cram"], Is(&["--cache-ram"])),
    (&["--cache-reuse", "--slot-prompt-similarity", "-sps"], Ignored(1, PREFIXES)),
    (&["--ctx-checkpoints"], Ignored(1, PREFIXES)),
    (&["--ui", "--webui"], Ignored(0, PAGE)),
    (&["--no-ui", "--no-webui"], Is(&["--no-page"])),
    (&["--ui-mcp-proxy", "--tools", "--tools-runtime", "--mcp-servers-config"], Refused(AGENT)),
    (&["--mcp-servers-json"], Refused(AGENT)),
    (&["--media-path", "--mmproj-url"], Refused(IMAGES)),
    (&["--no-mmproj"], Ignored(0, IMAGES)),
    (&["--lora-scaled"], Refused(ADAPTERS)),
    (&["-rea"], Is(&["--reasoning"])),
    (&["--log-disable", "--log-prefix", "--log-timestamps"], Ignored(0, LOGS_OF_SERVER)),
    (&["--log-colors"], IgnoredSwitch(LOGS_OF_SERVER)),
    (&["-lv", "--verbosity", "--log-verbosity"], Ignored(1, LOGS_OF_SERVER)),
    (&["--perf", "--no-perf"], Ignored(0, TIMINGS_OF_SERVER)),
];
