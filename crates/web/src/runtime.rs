//! The module: what it was built with, its threads, panics.

use serde_json::json;
use stonechat::audio::vad;
use stonechat::compute::Isa;
use wasm_bindgen::prelude::*;

use crate::error::thrown;
use crate::gpu;

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = console, js_name = error)]
    fn console_error(message: &str);
}

/// Prints the message of a panic, after which the module traps.
#[wasm_bindgen(start)]
fn start() {
    std::panic::set_hook(Box::new(|info| console_error(&info.to_string())));
}

/// Version and abilities of this binary, as JSON.
#[wasm_bindgen]
pub fn build_info() -> String {
    let isa = Isa::best().map_or("scalar", Isa::name);
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "isa": isa,
        "has_threads": cfg!(target_feature = "atomics"),
        "has_gpu": gpu::DEVICE.is_some(),
        "vad_weights": if vad::has_weights() { "embedded" } else { "external" },
    })
    .to_string()
}

/// Main function of a worker of the pool: runs loops of the engine, and never returns.
#[cfg(target_feature = "atomics")]
#[wasm_bindgen]
pub fn thread_main() {
    stonechat::compute::thread_main()
}

/// Whether `n` workers of the pool wait for a model.
#[wasm_bindgen]
pub fn wait_for_threads(n: usize) -> bool {
    stonechat::compute::usable_cores() > n
}

/// Sets the weights of voice activity detection: the content of `silero.bin`.
#[wasm_bindgen]
pub fn set_vad_weights(bytes: Vec<u8>) -> Result<(), JsValue> {
    vad::set_weights(bytes).map_err(|error| thrown(stonechat::Error::from(error)))
}
