//! The module: what it was built with, its threads, panics.

use serde_json::json;
use stonechat::compute::Isa;
use wasm_bindgen::prelude::*;

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
        "has_gpu": cfg!(feature = "gpu"),
        "has_language": cfg!(feature = "language"),
    })
    .to_string()
}

/// Main function of a worker of the pool: runs loops of the engine, and never returns.
#[cfg(target_feature = "atomics")]
#[wasm_bindgen]
pub fn thread_main() {
    stonechat::compute::thread_main()
}

/// Number of workers of the pool that wait for a model.
#[wasm_bindgen]
pub fn idle_threads() -> usize {
    stonechat::compute::usable_cores() - 1
}
