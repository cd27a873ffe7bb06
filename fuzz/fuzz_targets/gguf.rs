//! Any bytes as GGUF.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| stonechat_fuzz::check_model(b"GGUF", data));
