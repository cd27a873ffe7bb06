//! `cargo xtask dist`: the archive that users download.
//!
//! ```text
//! stonechat-TARGET.tar.gz (.zip on Windows), and beside it .sha256
//! stonechat-VERSION-TARGET/stonechat, README.md, LICENSE-*, THIRD-PARTY.md, completions/, man/
//! ```

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;
use walkdir::WalkDir;
use xtask::models::sha256;

use crate::shell;

/// Files of the workspace that go into the archive.
const FILES: [&str; 3] = ["README.md", "LICENSE-MIT", "LICENSE-APACHE"];

/// Shells and the names that they look for.
const SHELLS: [(&str, &str); 5] = [
    ("bash", "stonechat.bash"),
    ("zsh", "_stonechat"),
    ("fish", "stonechat.fish"),
    ("elvish", "stonechat.elv"),
    ("powershell", "stonechat.ps1"),
];

/// Options of `cargo xtask dist`.
#[derive(Debug, clap::Args)]
pub(crate) struct DistArgs {
    /// Build for this target, which this machine must be able to run [default: this machine's]
    #[arg(long, value_name = "TRIPLE")]
    target: Option<String>,
    /// Folder of the archive
    #[arg(long, value_name = "DIR", default_value = "target/archives")]
    output: PathBuf,
}

/// Builds the program with the profile `dist` and packs it.
pub(crate) fn run(args: &DistArgs) -> Result<()> {
    let mut build = shell::cargo();
    build.args(["build", "--profile", "dist", "--package", "stonechat-cli", "--features", "full"]);
    let mut binary = shell::target_dir();
    if let Some(target) = &args.target {
        build.args(["--target", target]);
        binary.push(target);
    }
    shell::run(&mut build)?;
    let target = match &args.target {
        Some(target) => target.clone(),
        None => host()?,
    };
    let metadata = metadata(&target)?;
    let program = if target.contains("windows") { "stonechat.exe" } else { "stonechat" };
    let binary = binary.join("dist").join(program);
    let name = format!("stonechat-{}-{target}", version(&metadata)?);
    let output = shell::workspace_root().join(&args.output);
    let folder = output.join(&name);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(folder.join("completions"))?;
    fs::copy(&binary, folder.join(program))
        .with_context(|| format!("cannot copy `{}`", binary.display()))?;
    for file in FILES {
        fs::copy(shell::workspace_root().join(file), folder.join(file))?;
    }
    fs::write(folder.join("THIRD-PARTY.md"), third_party(&metadata)?)?;
    for (shell, file) in SHELLS {
        let script = shell::output(Command::new(&binary).args(["completions", shell]))?;
        fs::write(folder.join("completions").join(file), script)?;
    }
    shell::output(Command::new(&binary).arg("man-pages").arg(folder.join("man")))?;

    let files = files_below(&folder)?;
    let archive = if target.contains("windows") {
        let path = output.join(format!("stonechat-{target}.zip"));
        pack_zip(&path, &output, &files)?;
        path
    } else {
        let path = output.join(format!("stonechat-{target}.tar.gz"));
        pack_tar(&path, &output, &files)?;
        path
    };
    let file_name = archive.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let sum = format!("{}  {file_name}\n", sha256(&archive)?);
    fs::write(output.join(format!("{file_name}.sha256")), &sum)?;
    for file in &files {
        println!("{:>10}  {}", fs::metadata(file)?.len(), file.strip_prefix(&output)?.display());
    }
    println!("{:>10}  {}", fs::metadata(&archive)?.len(), archive.display());
    print!("{sum}");
    Ok(())
}

/// Target triple of this machine.
fn host() -> Result<String> {
    let text = shell::output(Command::new("rustc").arg("-vV"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(line.context("`rustc -vV` names no host")?.to_owned())
}

/// `cargo metadata` with the dependencies of one target.
fn metadata(target: &str) -> Result<Value> {
    let mut cargo = shell::cargo();
    cargo.args(["metadata", "--format-version", "1", "--locked", "--filter-platform", target]);
    Ok(serde_json::from_str(&shell::output(&mut cargo)?)?)
}

fn packages(metadata: &Value) -> impl Iterator<Item = &Value> {
    metadata["packages"].as_array().into_iter().flatten()
}

fn version(metadata: &Value) -> Result<&str> {
    let package = packages(metadata).find(|package| package["name"] == "stonechat-cli");
    package.and_then(|package| package["version"].as_str()).context("no package stonechat-cli")
}

/// Table of the packages that the program contains, with their licences.
fn third_party(metadata: &Value) -> Result<String> {
    let mut text = "# Third-party packages\n\nWhat this program is built from, beside its own source, with the \
                    licences. The sources are unchanged.\n\n| package | version | licence | source |\n|---|---|---|---|\n"
        .to_owned();
    let linked = linked(metadata);
    for package in packages(metadata).filter(|package| package["source"].is_string()) {
        if !linked.contains(&package["id"].as_str().unwrap_or_default()) {
            continue;
        }
        let field = |key: &str| package[key].as_str().unwrap_or("see its source").to_owned();
        let [name, version, license, repository] =
            ["name", "version", "license", "repository"].map(field);
        writeln!(text, "| {name} | {version} | {license} | {repository} |")?;
    }
    Ok(text)
}

/// Ids of the packages that the program links: its dependencies and theirs, without those of builds and tests.
fn linked(metadata: &Value) -> Vec<&str> {
    let nodes: Vec<&Value> =
        metadata["resolve"]["nodes"].as_array().into_iter().flatten().collect();
    let is_root = |node: &&&Value| node["id"].as_str().is_some_and(|id| id.contains("crates/cli"));
    let mut found: Vec<&str> = Vec::new();
    let mut open: Vec<&Value> = nodes.iter().filter(is_root).copied().collect();
    while let Some(node) = open.pop() {
        let Some(id) = node["id"].as_str().filter(|id| !found.contains(id)) else { continue };
        found.push(id);
        for dependency in node["deps"].as_array().into_iter().flatten() {
            let mut kinds = dependency["dep_kinds"].as_array().into_iter().flatten();
            if kinds.any(|kind| kind["kind"].is_null()) {
                open.extend(nodes.iter().find(|node| node["id"] == dependency["pkg"]));
            }
        }
    }
    found
}

/// The files of a folder and of those below it, sorted.
fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = WalkDir::new(folder).sort_by_file_name().into_iter();
    let paths = entries.map(|entry| Ok(entry?.into_path()));
    paths.filter(|path| path.as_ref().map_or(true, |path| path.is_file())).collect()
}

/// Whether a file is the program, which users execute.
fn is_program(path: &Path) -> bool {
    path.file_stem().is_some_and(|stem| stem == "stonechat")
        && path.extension().is_none_or(|extension| extension == "exe")
}

fn pack_tar(archive: &Path, root: &Path, files: &[PathBuf]) -> Result<()> {
    let mut tar = tar::Builder::new(GzEncoder::new(File::create(archive)?, Compression::best()));
    for path in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(fs::metadata(path)?.len());
        header.set_mode(if is_program(path) { 0o755 } else { 0o644 });
        // The same files make the same archive.
        header.set_mtime(0);
        tar.append_data(&mut header, path.strip_prefix(root)?, File::open(path)?)?;
    }
    tar.into_inner()?.finish()?.sync_all()?;
    Ok(())
}

fn pack_zip(archive: &Path, root: &Path, files: &[PathBuf]) -> Result<()> {
    let mut zip = zip::ZipWriter::new(File::create(archive)?);
    for path in files {
        let mode = if is_program(path) { 0o755 } else { 0o644 };
        let options = zip::write::SimpleFileOptions::default().unix_permissions(mode);
        let name = path.strip_prefix(root)?.to_string_lossy().replace('\\', "/");
        zip.start_file(name, options)?;
        zip.write_all(&fs::read(path)?)?;
    }
    zip.finish()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::{is_program, linked, third_party};

    #[test]
    fn only_linked_packages_are_listed() {
        let package = |name: &str, source: Option<&str>| json!({"id": name, "name": name, "version": "1.0.0", "license": "MIT", "source": source});
        let dependency =
            |name: &str, kind: Option<&str>| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let metadata = json!({
            "packages": [
                package("path+file:///x/crates/cli#1", None),
                package("used", Some("registry")),
                package("builder", Some("registry")),
                package("below", Some("registry")),
            ],
            "resolve": {"nodes": [
                {
                    "id": "path+file:///x/crates/cli#1",
                    "deps": [dependency("used", None), dependency("builder", Some("build"))],
                },
                {"id": "used", "deps": [dependency("below", None)]},
                {"id": "builder", "deps": []},
                {"id": "below", "deps": []},
            ]},
        });
        assert_eq!(linked(&metadata).len(), 3);
        let text = third_party(&metadata).unwrap();
        assert!(text.contains("| used | 1.0.0 | MIT | see its source |"), "{text}");
        assert!(text.contains("| below |") && !text.contains("| builder |"), "{text}");
    }

    #[test]
    fn the_program_is_executable() {
        for (path, expected) in
            [("a/stonechat", true), ("a/stonechat.exe", true), ("man/stonechat.1", false)]
        {
            assert_eq!(is_program(Path::new(path)), expected, "{path}");
        }
    }
}
