//! Flags of llama-server for `stonechat serve`.

use super::Alias::{self, Ignored, IgnoredSwitch, Is, Refused};
use super::{BATCH, FUSED, MEMORY_MAP, ONE_GPU, ONE_TEAM, TEMPLATES, WARM_UP};

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
    ("--swa-full", Ignored(0, "layers with a window keep all pages of a prompt")),
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
    ("--no-jinja", Refused(TEMPLATES)),
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
    ("-bs", Refused("sampling runs on the CPU")),
    ("--backend-sampling", Refused("sampling runs on the CPU")),
    ("-sm", Refused(ONE_GPU)),
    ("--split-mode", Refused(ONE_GPU)),
    ("-ts", Refused(ONE_GPU)),
    ("--tensor-split", Refused(ONE_GPU)),
    ("-mg", Refused(ONE_GPU)),
    ("--main-gpu", Refused(ONE_GPU)),
    ("--list-devices", Refused("see `stonechat devices`")),
];
