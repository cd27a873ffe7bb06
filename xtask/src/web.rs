//! `cargo xtask web`: the binaries for browsers, and the npm package around them. `cargo xtask page`: the page of the server.
//!
//! ```text
//! crates/web ─cargo─► .wasm ─xtask-bindgen─► .js, _bg.wasm ─wasm-opt─► target/web/package/dist
//! crates/web/js ─esbuild, tsc─► index.js, worker.js, *.d.ts ────────────────┘
//! ```

pub(crate) mod page;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::wasm::{FLAGS, LINKER, TARGET, WASM_LD};
use crate::{build_std, shell};

/// Maximum bytes of a binary after gzip.
const MAX_GZIP: usize = 2_000_000;

/// Weights of voice activity detection, a file beside the binaries.
const VAD_WEIGHTS: &str = "crates/audio/src/vad/silero_vad_v6.bin";

/// Features and exports of a module whose memory the host makes and workers share.
const THREADS: &str = "-C target-feature=+atomics,+bulk-memory,+mutable-globals \
    -C link-arg=--shared-memory -C link-arg=--import-memory -C link-arg=--max-memory=4294967296 \
    -C link-arg=--export=__heap_base -C link-arg=--export=__wasm_init_tls -C link-arg=--export=__tls_size \
    -C link-arg=--export=__tls_align -C link-arg=--export=__tls_base";

/// Binary for a kind of browser.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Binary {
    Relaxed,
    Base,
    Scalar,
    Gpu,
}

/// Row of the table of binaries.
struct Recipe {
    name: &'static str,
    /// Flags of the compiler, beside those of threads.
    flags: &'static str,
    has_threads: bool,
    /// Features of the crate, beside the default ones.
    features: &'static [&'static str],
    /// Flags of wasm-opt.
    optimizer: &'static [&'static str],
}

impl Binary {
    fn recipe(self) -> Recipe {
        let recipe = Recipe {
            name: "base",
            flags: "-C target-feature=+simd128",
            has_threads: true,
            features: &[],
            optimizer: &["--enable-simd", "--enable-threads"],
        };
        match self {
            Self::Base => recipe,
            Self::Relaxed => Recipe {
                name: "relaxed",
                flags: "-C target-feature=+simd128,+relaxed-simd",
                optimizer: &["--enable-simd", "--enable-relaxed-simd", "--enable-threads"],
                ..recipe
            },
            Self::Scalar => {
                Recipe { name: "scalar", flags: "", optimizer: &["--enable-threads"], ..recipe }
            }
            Self::Gpu => Recipe {
                name: "gpu",
                has_threads: false,
                features: &["gpu"],
                optimizer: &["--enable-simd"],
                ..recipe
            },
        }
    }
}

/// Options of `cargo xtask page`.
#[derive(Debug, clap::Args)]
pub(crate) struct PageArgs {
    /// Write nothing; fail if the checked-in bundle differs from its sources
    #[arg(long)]
    pub(crate) check: bool,
}

/// Builds or checks the page.
pub(crate) fn run_page(args: &PageArgs) -> Result<()> {
    page::build(args.check)
}

/// Options of `cargo xtask web`.
#[derive(Debug, clap::Args)]
pub(crate) struct WebArgs {
    /// Build only this binary; may be repeated
    #[arg(long, value_enum)]
    pub(crate) binary: Vec<Binary>,
    /// Build for tests, into target/web/quick: little optimized, with the conformance suite as an export
    #[arg(long)]
    pub(crate) quick: bool,
    /// Run tests of the binaries in Chromium after the build
    #[arg(long, value_enum)]
    pub(crate) test: Option<Tests>,
}

/// Extent of the tests of a binary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tests {
    /// One clip and greedy tokens of one model, beside the native program.
    Short,
    /// Ten clips and two models of each kind, beside the native program; of a quick build the conformance suite.
    All,
}

/// Builds the binaries and the package into `target/web`.
pub(crate) fn run(args: &WebArgs) -> Result<()> {
    let chosen = |binary: &&Binary| args.binary.is_empty() || args.binary.contains(binary);
    let folder = shell::target_dir().join("web").join(if args.quick { "quick" } else { "package" });
    let dist = folder.join("dist");
    fs::create_dir_all(&dist).with_context(|| format!("cannot create {}", dist.display()))?;
    page::install(&web_folder())?;
    shell::run(page::node(&web_folder()).arg("js/build.mjs").arg(&folder))?;
    fs::copy(shell::workspace_root().join(VAD_WEIGHTS), dist.join("silero.bin"))?;
    let mut is_small = true;
    for binary in Binary::value_variants().iter().filter(chosen) {
        let recipe = binary.recipe();
        let wasm = link(&recipe, args.quick)?;
        let bytes = pack(&recipe, &wasm, &dist, args.quick)?;
        let gzip = gzip_len(&bytes)?;
        println!("{:8} {:9} bytes, {gzip} after gzip", recipe.name, bytes.len());
        is_small &= args.quick || gzip <= MAX_GZIP;
    }
    ensure!(is_small, "expected at most {MAX_GZIP} bytes after gzip of each binary");
    if let Some(tests) = args.test {
        for binary in Binary::value_variants().iter().filter(chosen) {
            test(&binary.recipe(), &folder, tests, args.quick)?;
        }
    }
    Ok(())
}

/// Runs the tests of a binary.
fn test(recipe: &Recipe, folder: &Path, tests: Tests, is_quick: bool) -> Result<()> {
    let mut suites = vec!["tests/package-models.mjs"];
    if is_quick && recipe.has_threads && tests == Tests::All {
        suites.push("tests/package-conformance.mjs");
    }
    for suite in suites {
        let mut node = page::node(&web_folder());
        node.args(["--test", suite]);
        node.env("PACKAGE", folder).env("BINARY", recipe.name);
        if tests == Tests::Short {
            node.env("CLIPS", "1").env("NAMES", "tiny.en");
        }
        shell::run(&mut node)?;
    }
    Ok(())
}

fn web_folder() -> PathBuf {
    shell::workspace_root().join("crates/web")
}

/// Compiles and links a binary.
fn link(recipe: &Recipe, is_quick: bool) -> Result<PathBuf> {
    let profile = if is_quick { "web-quick" } else { "web" };
    let mut build = shell::cargo();
    build.args(["build", "--package", "stonechat-web", "--lib", "--target", TARGET]);
    build.args(["--profile", profile]);
    let target = shell::target_dir().join("wasm");
    build.arg("--target-dir").arg(&target);
    for feature in recipe.features.iter().copied().chain(is_quick.then_some("conformance")) {
        build.args(["--features", feature]);
    }
    build_std::from_source(&mut build, TARGET, "std,panic_abort")?;
    let threads = if recipe.has_threads { THREADS } else { "" };
    // Clippy does not see what only this target leaves unused.
    let lints = if is_quick { "-D warnings" } else { "" };
    let flags = format!("-C linker-flavor=wasm-ld {} {threads} {lints}", recipe.flags);
    build.env(FLAGS, flags).env(LINKER, WASM_LD);
    shell::run(&mut build)?;
    Ok(target.join(TARGET).join(profile).join("stonechat_web.wasm"))
}

/// Writes the module and its JavaScript to `dist`; returns the module.
fn pack(recipe: &Recipe, wasm: &Path, dist: &Path, is_quick: bool) -> Result<Vec<u8>> {
    let name = format!("stonechat-{}", recipe.name);
    let mut bindgen = shell::cargo();
    bindgen.args(["run", "--quiet", "--release", "--package", "xtask-bindgen", "--"]);
    bindgen.arg(wasm).arg(dist).arg(&name);
    shell::run(&mut bindgen)?;
    let (generated, packed) =
        (dist.join(format!("{name}_bg.wasm")), dist.join(format!("{name}.wasm")));
    if is_quick {
        fs::rename(&generated, &packed)?;
    } else {
        optimize(recipe, &generated, &packed)?;
        fs::remove_file(&generated)?;
    }
    fs::read(&packed).with_context(|| format!("cannot read {}", packed.display()))
}

/// Optimizes a module.
fn optimize(recipe: &Recipe, generated: &Path, packed: &Path) -> Result<()> {
    let mut optimize = page::node(&web_folder());
    optimize.arg("node_modules/binaryen/bin/wasm-opt");
    optimize.args(["-O3", "--enable-bulk-memory", "--enable-mutable-globals"]);
    optimize.args([
        "--enable-nontrapping-float-to-int",
        "--enable-sign-ext",
        "--enable-reference-types",
    ]);
    optimize.args(["--enable-multivalue"]).args(recipe.optimizer);
    shell::run(optimize.arg(generated).arg("-o").arg(packed))
}

/// Bytes after gzip at its best level.
fn gzip_len(bytes: &[u8]) -> Result<usize> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?.len())
}
