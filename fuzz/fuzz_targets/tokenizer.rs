//! Any bytes as a `tokenizer.json` or the vocabulary of a GGUF file, and a text.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| stonechat_fuzz::check_tokenizer(data));
