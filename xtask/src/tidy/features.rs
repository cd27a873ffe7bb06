//! Allowed places of conditional compilation on features: the roots of a crate and of a backend,
//! on the declaration or re-export of a module, and derived schemas, never inside a function.

use super::SourceFile;

const ROOTS: [&str; 5] = ["lib", "main", "device", "wgpu", "cuda"];
/// Derived schemas of the `OpenAPI` document: they change no code.
const SCHEMA: &str = "#[cfg_attr(feature = \"schema\", ";

pub(super) fn check(files: &[SourceFile]) -> Vec<String> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.path.starts_with("crates/") && file.is_rust()) {
        if ROOTS.contains(&file.stem()) || !file.path.contains("/src/") {
            continue;
        }
        let lines: Vec<&str> = file.code.lines().collect();
        for (i, (line, text)) in lines.iter().zip(file.text.lines()).enumerate() {
            // A module behind a feature is absent as a whole: no code around it looks different.
            if lines.get(i + 1).is_some_and(|next| is_module(next)) {
                continue;
            }
            if text.trim_start().starts_with(SCHEMA) {
                continue;
            }
            let tests =
                line.contains("cfg(") || line.contains("cfg!(") || line.contains("cfg_attr(");
            let line = line.replace(' ', "").replace("target_feature=", "");
            if tests && line.contains("feature=") {
                let what = "cfg(feature) belongs into lib.rs, device.rs or a backend's root, or on a module";
                findings.push(file.finding(i + 1, what));
            }
        }
    }
    findings
}

/// Whether a line declares a module or re-exports from one.
fn is_module(line: &str) -> bool {
    let public = ["pub ", "pub(crate) "].into_iter().find_map(|prefix| line.strip_prefix(prefix));
    let line = public.unwrap_or(line);
    (line.starts_with("mod ") || line.starts_with("use ")) && line.trim_end().ends_with(';')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_tested_at_roots_only() {
        let source = "#[cfg(feature = \"cuda\")]\nfn f() {}\n#[cfg(target_feature = \"avx2\")]\n";
        let inner = SourceFile::new("crates/x/src/norm.rs", source.to_owned());
        let root = SourceFile::new("crates/x/src/lib.rs", source.to_owned());
        assert_eq!(
            check(&[inner]),
            [
                "crates/x/src/norm.rs:1: cfg(feature) belongs into lib.rs, device.rs or a backend's root, or on a module"
            ]
        );
        assert!(check(&[root]).is_empty());
        let schema = format!("{SCHEMA}derive(utoipa::ToSchema))]\nstruct S;\n");
        assert!(check(&[SourceFile::new("crates/x/src/norm.rs", schema)]).is_empty());
        for item in ["mod a;", "pub use a::A;", "pub(crate) mod a;"] {
            let module = format!("#[cfg(feature = \"cuda\")]\n{item}\n");
            assert!(check(&[SourceFile::new("crates/x/src/norm.rs", module)]).is_empty());
        }
    }
}
