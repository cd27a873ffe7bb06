//! `xtask-bindgen WASM FOLDER NAME`: writes `NAME.js`, `NAME.d.ts` and `NAME_bg.wasm` to a folder.
//!
//! The generator is linked as a library, so that the lockfile keeps its version equal to that of the bindings.

#![forbid(unsafe_code)]

use anyhow::{Result, bail};
use wasm_bindgen_cli_support::Bindgen;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [wasm, folder, name] = &args[..] else {
        bail!("expected the arguments WASM FOLDER NAME, got {}", args.len());
    };
    Bindgen::new()
        .input_path(wasm)
        .web(true)?
        // Declarations are those of the package.
        .typescript(false)
        .out_name(name)
        .remove_name_section(true)
        .remove_producers_section(true)
        .generate(folder)
}
