//! Flags of llama.cpp, and of `ollama run`, for the verbs of language models.

use super::Alias::{self, FileText, Ignored, IgnoredSwitch, Is, Refused};
use super::FUSED;

const BATCH: &str = "--batch-size is the batch of one pass";
const ONE_TEAM: &str = "--threads counts for prompts, too";
const MEMORY_MAP: &str = "weights are repacked once: see --repack";
const INTERACTIVE: &str = "chat is interactive, generate is not";
const COLORS: &str = "colors follow the terminal and NO_COLOR";
const WARM_UP: &str = "kernels are warmed up while the model loads";
const PROMPT: &str = "prompts are never printed";
const TIMINGS: &str = "--verbose prints timings";
const SIMPLE_IO: &str = "Alt-Enter, or \\ at the end of a line, continues a message";
const TEMPLATES: &str = "templates are always Jinja";
const DRAFT_MODEL: &str = "a draft model has the device and the context of the model";
const TOP_K: &str = "a device selects the likeliest tokens where it can";
const EXPERTS: &str = "layers are placed as a whole: see --gpu-layers";
const FIT: &str = "--gpu-layers auto stores as many layers as fit";
const KV_PLACE: &str = "the KV cache is on the device of its layer";
const WHOLE_CONTEXT: &str = "all layers keep the keys and values of the whole context";
const METADATA: &str = "the metadata of a model is that of its file";
const ROPE: &str = "the scaling of positions is that of the model file";
const SYSTEM_THREADS: &str = "the system places threads: see numactl and nice";
const PREFIX: &str = "the chat template has what encloses a message";
const LOGS: &str = "nothing is logged without --log";
const CHAT_INSTEAD: &str =
    "a completion has no chat template: see `stonechat chat MODEL -sys TEXT -p TEXT -st`";

/// Flags of llama.cpp that llama-server has, too.
pub(super) const COMMON: &[(&str, Alias)] = &[
    ("-ngl", Is(&["--gpu-layers"])),
    ("-ctk", Is(&["--cache-type-k"])),
    ("-ctv", Is(&["--cache-type-v"])),
    ("-hf", Is(&["--model"])),
    ("-hfr", Is(&["--model"])),
    ("--hf-repo", Is(&["--model"])),
    ("-dev", Is(&["--device"])),
    ("--predict", Is(&["--n-predict"])),
    ("-bs", Ignored(0, TOP_K)),
    ("--backend-sampling", Ignored(0, TOP_K)),
    ("--no-jinja", Ignored(0, TEMPLATES)),
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
    ("--warmup", Ignored(0, WARM_UP)),
    ("--swa-full", Ignored(0, WHOLE_CONTEXT)),
    ("-fa", IgnoredSwitch(FUSED)),
    ("--flash-attn", IgnoredSwitch(FUSED)),
    ("-ub", Ignored(1, BATCH)),
    ("--ubatch-size", Ignored(1, BATCH)),
    ("-tb", Ignored(1, ONE_TEAM)),
    ("--threads-batch", Ignored(1, ONE_TEAM)),
    ("--mlock", Ignored(0, MEMORY_MAP)),
    ("--mmap", Ignored(0, MEMORY_MAP)),
    ("--no-mmap", Ignored(0, MEMORY_MAP)),
    ("--jinja", Ignored(0, TEMPLATES)),
    ("--chat-template-file", Is(&["--chat-template"])),
    ("--no-warmup", Ignored(0, WARM_UP)),
    ("--list-devices", Refused("see `stonechat devices`")),
    ("-hff", Refused("name the file after the repository: --model user/repo:file.gguf")),
    ("--hf-file", Refused("name the file after the repository: --model user/repo:file.gguf")),
    ("--lora", Refused("adapters are not supported yet")),
    ("--mmproj", Refused("images are not supported yet")),
];

/// Further flags of llama.cpp.
pub(super) const LLAMA: &[(&str, Alias)] = &[
    ("-sys", Is(&["--system-prompt"])),
    ("-st", Is(&["--single-turn"])),
    ("-sp", Is(&["--special"])),
    ("-jf", FileText("--json-schema")),
    ("--json-schema-file", FileText("--json-schema")),
    ("-sysf", FileText("--system-prompt")),
    ("--system-prompt-file", FileText("--system-prompt")),
    ("--reasoning-format", Ignored(1, "a text is printed as the model writes it")),
    ("--yarn-ext-factor", Refused(ROPE)),
    ("--yarn-attn-factor", Refused(ROPE)),
    ("--yarn-beta-slow", Refused(ROPE)),
    ("--yarn-beta-fast", Refused(ROPE)),
    ("--prio-batch", Ignored(1, SYSTEM_THREADS)),
    ("--cpu-mask", Ignored(1, SYSTEM_THREADS)),
    ("--cpu-range", Ignored(1, SYSTEM_THREADS)),
    ("--cpu-strict", Ignored(1, SYSTEM_THREADS)),
    ("--in-prefix", Ignored(1, PREFIX)),
    ("--in-suffix", Ignored(1, PREFIX)),
    ("--in-prefix-bos", Ignored(0, PREFIX)),
    ("--log-disable", Ignored(0, LOGS)),
    ("--log-colors", IgnoredSwitch(LOGS)),
    ("--log-prefix", Ignored(0, LOGS)),
    ("--log-timestamps", Ignored(0, LOGS)),
    ("-lv", Ignored(1, LOGS)),
    ("--verbosity", Ignored(1, LOGS)),
    ("--log-verbosity", Ignored(1, LOGS)),
    ("--perf", Ignored(0, TIMINGS)),
    ("--no-perf", Ignored(0, TIMINGS)),
    ("--verbose-prompt", Ignored(0, PROMPT)),
    ("--display-prompt", Ignored(0, PROMPT)),
    ("--check-tensors", Ignored(0, "the values of tensors are not checked")),
    ("-dio", Ignored(0, MEMORY_MAP)),
    ("--direct-io", Ignored(0, MEMORY_MAP)),
    ("-if", Ignored(0, INTERACTIVE)),
    ("--interactive-first", Ignored(0, INTERACTIVE)),
    ("-cnv", Ignored(0, INTERACTIVE)),
    ("--conversation", Ignored(0, INTERACTIVE)),
    ("-no-cnv", Ignored(0, INTERACTIVE)),
    ("--no-conversation", Ignored(0, INTERACTIVE)),
    ("-i", Ignored(0, INTERACTIVE)),
    ("--interactive", Ignored(0, INTERACTIVE)),
    ("-co", IgnoredSwitch(COLORS)),
    ("--color", IgnoredSwitch(COLORS)),
    ("-nr", Is(&["--repack=off"])),
    ("--no-repack", Is(&["--repack=off"])),
    ("--no-display-prompt", Ignored(0, PROMPT)),
    ("--show-timings", Ignored(0, TIMINGS)),
    ("--no-show-timings", Ignored(0, TIMINGS)),
    ("--simple-io", Ignored(0, SIMPLE_IO)),
    ("-mli", Ignored(0, SIMPLE_IO)),
    ("--multiline-input", Ignored(0, SIMPLE_IO)),
    ("--image", Refused("images are not supported yet")),
];

/// Flags of speculative decoding of llama.cpp and llama-server.
pub(super) const DRAFTS: &[(&str, Alias)] = &[
    ("-md", Is(&["--model-draft"])),
    ("--spec-draft-model", Is(&["--model-draft"])),
    ("--draft", Is(&["--spec-draft-n-max"])),
    ("--draft-n", Is(&["--spec-draft-n-max"])),
    ("--draft-n-min", Is(&["--spec-draft-n-min"])),
    ("--spec-default", Is(&["--spec-type=ngram-mod"])),
    ("-ngld", Ignored(1, DRAFT_MODEL)),
    ("--gpu-layers-draft", Ignored(1, DRAFT_MODEL)),
    ("-devd", Ignored(1, DRAFT_MODEL)),
    ("--device-draft", Ignored(1, DRAFT_MODEL)),
    ("-cd", Ignored(1, DRAFT_MODEL)),
    ("--ctx-size-draft", Ignored(1, DRAFT_MODEL)),
    // Measurements of llama.cpp's own tests.
    ("--spec-synth-len", Refused("drafts are never made up")),
    ("--spec-synth-rates", Refused("drafts are never made up")),
];

/// Flags of `ollama run`.
pub(super) const OLLAMA: &[(&str, Alias)] = &[
    ("--keepalive", Ignored(1, "the model is gone with the command")),
    ("--nowordwrap", Ignored(0, "lines are wrapped on a terminal only")),
    ("--hidethinking", Ignored(0, "--no-think turns thinking off")),
    ("--insecure", Ignored(0, "models come from the Hugging Face hub")),
];

/// Flags of llama.cpp that `generate` has no use for.
pub(super) const WITHOUT_TEMPLATE: &[(&str, Alias)] = &[
    ("-sys", Refused(CHAT_INSTEAD)),
    ("--system-prompt", Refused(CHAT_INSTEAD)),
    ("-sysf", Refused(CHAT_INSTEAD)),
    ("--system-prompt-file", Refused(CHAT_INSTEAD)),
    ("--chat-template", Refused(CHAT_INSTEAD)),
    ("--chat-template-file", Refused(CHAT_INSTEAD)),
    ("-st", Ignored(0, INTERACTIVE)),
    ("--single-turn", Ignored(0, INTERACTIVE)),
    ("--no-think", Ignored(0, "a completion has no chat template")),
];
