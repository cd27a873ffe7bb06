//! Any bytes as the metadata and tensor table of a language model.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| stonechat_fuzz::check_llm(data));
