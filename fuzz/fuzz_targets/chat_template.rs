//! Any text as a chat template, and any JSON as a conversation.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| stonechat_fuzz::check_chat_template(data));
