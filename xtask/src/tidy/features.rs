//! Where conditional compilation on features may stand: at the roots of a crate and of a backend,
//! never inside a function.

use super::SourceFile;

const ROOTS: [&str; 5] = ["lib", "main", "device", "wgpu", "cuda"];

pub(super) fn check(files: &[SourceFile]) -> Vec<String> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.path.starts_with("crates/") && file.is_rust()) {
        if ROOTS.contains(&file.stem()) || !file.path.contains("/src/") {
            continue;
        }
        for (i, line) in file.code.lines().enumerate() {
            let tests =
                line.contains("cfg(") || line.contains("cfg!(") || line.contains("cfg_attr(");
            let line = line.replace(' ', "").replace("target_feature=", "");
            if tests && line.contains("feature=") {
                let what = "cfg(feature) belongs into lib.rs, device.rs or a backend's root";
                findings.push(file.finding(i + 1, what));
            }
        }
    }
    findings
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
                "crates/x/src/norm.rs:1: cfg(feature) belongs into lib.rs, device.rs or a backend's root"
            ]
        );
        assert!(check(&[root]).is_empty());
    }
}
