//! llama-server, built once for this processor from the sources in the Python package llama-cpp-python.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;

use anyhow::{Context, Result, ensure};
use flate2::read::GzDecoder;

use crate::{peers, shell, venv};

/// The build's tools, which distributions often have too old or not at all.
const TOOLS: [&str; 2] = ["cmake==4.4.5", "ninja==1.13.2"];
/// Static libraries, this processor's instructions, nothing that downloads or needs other libraries.
const OPTIONS: [&str; 9] = [
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DGGML_NATIVE=ON",
    "-DGGML_CCACHE=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
];

/// Path of the program; what is there already is kept.
pub(super) fn build() -> Result<PathBuf> {
    let (_, version) = peers::LLAMA_CPP.split_once("==").context("the version is pinned")?;
    let folder = shell::target_dir().join("peers").join(format!("llama.cpp-{version}"));
    let program =
        folder.join("build/bin").join(format!("llama-server{}", std::env::consts::EXE_SUFFIX));
    if program.is_file() {
        return Ok(program);
    }
    println!("llama-server is built from source: ten minutes on two cores, once");
    let tools = venv::programs("cmake", &TOOLS, &[])?;
    let source = folder.join("source");
    // CMake's first file exists when everything was unpacked: the folder is renamed at the end.
    if !source.is_dir() {
        unpack(&tools.join("python"), &folder, &source)?;
    }
    let build = folder.join("build");
    let cmake = || shell::program(tools.join("cmake"));
    let mut configure = cmake();
    configure.arg("-S").arg(source.join("vendor/llama.cpp")).arg("-B").arg(&build);
    let ninja = format!("-DCMAKE_MAKE_PROGRAM={}", tools.join("ninja").display());
    configure.args(["-G", "Ninja", &ninja]).args(OPTIONS);
    run(&mut configure, &folder.join("configure.log"))?;
    let jobs = available_parallelism().map_or(1, usize::from).to_string();
    let mut compile = cmake();
    compile.arg("--build").arg(&build).args(["--target", "llama-server", "-j", &jobs]);
    run(&mut compile, &folder.join("build.log"))?;
    ensure!(program.is_file(), "CMake built no {}", program.display());
    Ok(program)
}

/// Runs a step whose output, thousands of lines, goes to a file.
fn run(command: &mut std::process::Command, log: &Path) -> Result<()> {
    let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    command.stdout(file.try_clone()?).stderr(file);
    println!("$ {} > {}", shell::describe(command), log.display());
    shell::status(command).with_context(|| format!("see {}", log.display()))
}

/// Downloads the package's source archive and unpacks it into `source`.
fn unpack(python: &Path, folder: &Path, source: &Path) -> Result<()> {
    let partial = folder.join("partial");
    let _ = fs::remove_dir_all(&partial);
    fs::create_dir_all(&partial).with_context(|| format!("cannot make {}", partial.display()))?;
    let mut pip = shell::program(python);
    pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]);
    pip.args([peers::LLAMA_CPP_SOURCE, "--dest"]).arg(&partial).arg(peers::LLAMA_CPP);
    shell::run(&mut pip)?;
    let entries = fs::read_dir(&partial)?.collect::<std::io::Result<Vec<_>>>()?;
    let archive = entries
        .iter()
        .map(fs::DirEntry::path)
        .find(|path| path.extension().is_some_and(|extension| extension == "gz"));
    let archive = archive.context("pip downloaded no .tar.gz")?;
    tar::Archive::new(GzDecoder::new(File::open(&archive)?))
        .unpack(&partial)
        .with_context(|| format!("cannot unpack {}", archive.display()))?;
    let inner = archive.with_extension("").with_extension("");
    ensure!(inner.is_dir(), "{}: expected a folder of its name in it", archive.display());
    fs::rename(&inner, source).with_context(|| format!("cannot write {}", source.display()))?;
    fs::remove_dir_all(&partial).with_context(|| format!("cannot remove {}", partial.display()))
}
