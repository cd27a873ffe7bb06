//! Flags of llama.cpp, and of `ollama run`, for the verbs of language models.

use super::Alias::{FileText, Ignored, IgnoredSwitch, Is, Own, Refused, Values};
use super::{FUSED, Table};

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
const NO_THINK: &[&str] = &["--no-think"];
const NO_TEMPLATE: &str = "a completion has no chat template";
const LOGS: &str = "nothing is logged without --log";
const CHAT_INSTEAD: &str =
    "a completion has no chat template: see `stonechat chat MODEL -sys TEXT -p TEXT -st`";

/// Flags of llama.cpp that llama-server has, too.
pub(super) const COMMON: Table = &[
    (&["-ngl"], Is(&["--gpu-layers"])),
    (&["-ctk"], Is(&["--cache-type-k"])),
    (&["-ctv"], Is(&["--cache-type-v"])),
    (&["-hf", "-hfr", "--hf-repo"], Is(&["--model"])),
    (&["-dev"], Is(&["--device"])),
    (&["--predict"], Is(&["--n-predict"])),
    (&["-bs", "--backend-sampling"], Ignored(0, TOP_K)),
    (&["--no-jinja", "--jinja"], Ignored(0, TEMPLATES)),
    (&["-ncmoe", "--n-cpu-moe", "-ot", "--override-tensor"], Ignored(1, EXPERTS)),
    (&["-cmoe", "--cpu-moe"], Ignored(0, EXPERTS)),
    (&["-fit", "--fit"], IgnoredSwitch(FIT)),
    (&["-nkvo", "--no-kv-offload", "-kvo", "--kv-offload"], Ignored(0, KV_PLACE)),
    (&["--override-kv"], Refused(METADATA)),
    (&["--rope-scaling", "--rope-scale", "--rope-freq-base", "--rope-freq-scale"], Refused(ROPE)),
    (&["--yarn-orig-ctx"], Refused(ROPE)),
    (&["--numa", "--prio", "--poll"], Ignored(1, SYSTEM_THREADS)),
    (&["--warmup", "--no-warmup"], Ignored(0, WARM_UP)),
    (&["--swa-full"], Ignored(0, WHOLE_CONTEXT)),
    (&["-fa", "--flash-attn"], IgnoredSwitch(FUSED)),
    (&["-ub", "--ubatch-size"], Ignored(1, BATCH)),
    (&["-tb", "--threads-batch"], Ignored(1, ONE_TEAM)),
    (&["--mlock", "--mmap", "--no-mmap"], Ignored(0, MEMORY_MAP)),
    (&["--chat-template-file"], Is(&["--chat-template"])),
    (&["--list-devices"], Refused("see `stonechat devices`")),
    (&["-hff"], Refused("name the file after the repository: --model user/repo:file.gguf")),
    (&["--hf-file"], Refused("name the file after the repository: --model user/repo:file.gguf")),
    (&["--lora"], Refused("adapters are not supported yet")),
    (&["--mmproj"], Refused("images are not supported yet")),
];

/// Further flags of llama.cpp.
pub(super) const LLAMA: Table = &[
    (&["-sys"], Is(&["--system-prompt"])),
    (&["-st"], Is(&["--single-turn"])),
    (&["-sp"], Is(&["--special"])),
    (&["-jf", "--json-schema-file"], FileText("--json-schema")),
    (&["-sysf", "--system-prompt-file"], FileText("--system-prompt")),
    (&["--reasoning-format"], Ignored(1, "see --show-thinking")),
    (
        &["--reasoning", "-rea"],
        Values(&[(&["off"], NO_THINK), (&["on"], &["--think"]), (&["auto"], &[])], &Own),
    ),
    (&["--yarn-ext-factor", "--yarn-attn-factor", "--yarn-beta-slow"], Refused(ROPE)),
    (&["--yarn-beta-fast"], Refused(ROPE)),
    (&["--prio-batch", "--cpu-mask", "--cpu-range", "--cpu-strict"], Ignored(1, SYSTEM_THREADS)),
    (&["--in-prefix", "--in-suffix"], Ignored(1, PREFIX)),
    (&["--in-prefix-bos"], Ignored(0, PREFIX)),
    (&["--log-disable", "--log-prefix", "--log-timestamps"], Ignored(0, LOGS)),
    (&["--log-colors"], IgnoredSwitch(LOGS)),
    (&["-lv", "--verbosity", "--log-verbosity"], Ignored(1, LOGS)),
    (&["--perf", "--no-perf", "--show-timings", "--no-show-timings"], Ignored(0, TIMINGS)),
    (&["--verbose-prompt", "--display-prompt", "--no-display-prompt"], Ignored(0, PROMPT)),
    (&["--check-tensors"], Ignored(0, "the values of tensors are not checked")),
    (&["-dio", "--direct-io"], Ignored(0, MEMORY_MAP)),
    (&["-if", "--interactive-first", "-cnv", "--conversation", "-no-cnv"], Ignored(0, INTERACTIVE)),
    (&["--no-conversation", "-i", "--interactive"], Ignored(0, INTERACTIVE)),
    (&["-co", "--color"], IgnoredSwitch(COLORS)),
    (&["-nr", "--no-repack"], Is(&["--repack=off"])),
    (&["--simple-io", "-mli", "--multiline-input"], Ignored(0, SIMPLE_IO)),
    (&["--image"], Refused("images are not supported yet")),
];

/// Flags of speculative decoding of llama.cpp and llama-server.
pub(super) const DRAFTS: Table = &[
    (&["-md", "--spec-draft-model"], Is(&["--model-draft"])),
    (&["--draft", "--draft-n"], Is(&["--spec-draft-n-max"])),
    (&["--draft-n-min"], Is(&["--spec-draft-n-min"])),
    (&["--spec-default"], Is(&["--spec-type=ngram-mod"])),
    (&["-ngld", "--gpu-layers-draft", "-devd", "--device-draft", "-cd"], Ignored(1, DRAFT_MODEL)),
    (&["--ctx-size-draft"], Ignored(1, DRAFT_MODEL)),
    // Measurements of llama.cpp's own tests.
    (&["--spec-synth-len", "--spec-synth-rates"], Refused("drafts are never made up")),
];

/// Flags of `ollama run`.
pub(super) const OLLAMA: Table = &[
    (&["--keepalive"], Ignored(1, "the model is gone with the command")),
    (&["--nowordwrap"], Ignored(0, "lines are wrapped on a terminal only")),
    (&["--format"], Values(&[(&["json"], &["--json-schema={}"])], &Is(&["--json-schema"]))),
    (&["--hidethinking"], Ignored(0, "thinking is folded without --show-thinking")),
    (&["--insecure"], Ignored(0, "models come from the Hugging Face hub")),
];

/// Flags of llama.cpp that need a chat template, which `generate` does not apply.
pub(super) const WITHOUT_TEMPLATE: Table = &[
    (&["-sys", "--system-prompt", "-sysf", "--system-prompt-file"], Refused(CHAT_INSTEAD)),
    (&["--chat-template", "--chat-template-file"], Refused(CHAT_INSTEAD)),
    (&["-st", "--single-turn"], Ignored(0, INTERACTIVE)),
    (&["--no-think"], Ignored(0, NO_TEMPLATE)),
    (&["--think"], IgnoredSwitch(NO_TEMPLATE)),
    (&["--reasoning", "-rea", "--reasoning-budget"], Ignored(1, NO_TEMPLATE)),
];
