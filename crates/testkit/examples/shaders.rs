//! Writes every shader of the wgpu backend without cooperative matrices as a browser gets it, for `crates/web/tests/shaders.mjs`:
//! a file `N.wgsl` each, and `shaders.json` with their names and the accesses to their storage buffers.

use std::path::Path;

use serde::Serialize;
use stonechat_compute::wgpu::{Access, Dialect, Variant, ops};

/// Entry of `shaders.json`.
#[derive(Serialize)]
struct Entry<'a> {
    name: &'a str,
    file: String,
    needs_subgroups: bool,
    /// `read-only-storage` or `storage`, from binding 1 on.
    buffers: Vec<&'static str>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("expected a folder for the shaders")?;
    let folder = Path::new(&folder);
    std::fs::create_dir_all(folder)?;
    let mut sources = Vec::new();
    for &variant in Variant::ALL {
        let dense = ops::sources(variant);
        let all = dense.into_iter().chain(stonechat_quant::wgpu::sources(variant));
        sources.extend(all.map(|source| (variant, source)));
    }
    let mut entries = Vec::new();
    for (variant, source) in &sources {
        // The text with the polyfill is compiled, too, where it differs.
        let texts = [true, false]
            .map(|has_int8_dot| source.text(Dialect { has_int8_dot, ..Dialect::BROWSER }));
        let n = if texts[0] == texts[1] { 1 } else { 2 };
        for text in &texts[..n] {
            let file = format!("{}.wgsl", entries.len());
            std::fs::write(folder.join(&file), text)?;
            let buffers = source.access().iter().map(|access| match access {
                Access::Read => "read-only-storage",
                Access::Write => "storage",
            });
            let needs_subgroups = *variant == Variant::Subgroups;
            let buffers = buffers.collect();
            entries.push(Entry { name: source.name(), file, needs_subgroups, buffers });
        }
    }
    std::fs::write(folder.join("shaders.json"), serde_json::to_string_pretty(&entries)?)?;
    Ok(())
}
