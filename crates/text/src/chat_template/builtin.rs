//! Templates for models that come without one, by llama.cpp's names.
//!
//! They print what llama.cpp's `llama_chat_apply_template` prints for the name (`src/llama-chat.cpp`):
//! no token for the beginning of the text, which the tokenizer adds, and no tools. Contents must be
//! strings. `plain` is not llama.cpp's: questions and answers as text has them, which is what a
//! model that was never trained to chat goes on with.

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
