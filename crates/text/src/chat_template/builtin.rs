//! Templates for models that come without one, by llama.cpp's names.
//!
//! The templates print the same as llama.cpp's `llama_chat_apply_template` (`src/llama-chat.cpp`): no BOS,
//! which the tokenizer adds, and no tools. Contents must be strings. `plain` is not llama.cpp's: plain
//! questions and answers, for base models without chat training.

macro_rules! sources {
    ($($name:literal)*) => {
        [$(($name, include_str!(concat!("builtin/", $name, ".jinja")))),*]
    };
}

const SOURCES: [(&str, &str); 30] = sources! {
    "plain"
    "chatml"
    "llama2"
    "llama2-sys"
    "llama2-sys-bos"
    "llama2-sys-strip"
    "mistral-v1"
    "mistral-v3"
    "mistral-v3-tekken"
    "mistral-v7"
    "mistral-v7-tekken"
    "phi3"
    "phi4"
    "falcon3"
    "zephyr"
    "monarch"
    "gemma"
    "openchat"
    "vicuna"
    "vicuna-orca"
    "deepseek"
    "deepseek2"
    "deepseek3"
    "command-r"
    "llama3"
    "chatglm4"
    "exaone3"
    "llama4"
    "gpt-oss"
    "granite"
};

pub(super) fn names() -> impl Iterator<Item = &'static str> {
    SOURCES.iter().map(|(name, _)| *name)
}

pub(super) fn source(name: &str) -> Option<&'static str> {
    SOURCES.iter().find(|(known, _)| *known == name).map(|(_, source)| *source)
}
