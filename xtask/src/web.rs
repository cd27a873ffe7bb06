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

/// Maximum bytes of a binary after gzip, with and without language models.
const MAX_GZIP: usize = 2_000_000;
const MAX_SPEECH_GZIP: usize = 1_000_000;

/// Maximum bytes of the JavaScript that one page loads, after gzip.
const MAX_SCRIPTS_GZIP: usize = 40_000;

/// Weights of voice activity detection, a file beside the binaries.
const VAD_WEIGHTS: &str = "crates/audio/src/vad/silero_vad_v6.bin";

/// Features and exports of a module whose memory the host makes and workers share.
const THREADS: &str = "-C target-feature=+atomics,+bulk-memory,+mutable-globals \
    -C link-arg=--shared-memory -C link-arg=--import-memory -C link-arg=--max-memory=4294967296 \
    -C link-arg=--export=__heap_base -C link-arg=--export=__wasm_init_tls -C link-arg=--export=__tls_size \
    -C link-arg=--export=__tls_align -C link-arg=--export=__tls_base";

/// A panic, which is a bug of the engine, traps without a message, and `Debug` of a struct prints its name: both are a tenth
/// of a binary.
const SILENT_PANICS: &str =
    "-Z unstable-options -C panic=immediate-abort -Z location-detail=none -Z fmt-debug=shallow";

const SMALL_AUDIO: &str = "profile.web.package.stonechat-audio.opt-level='z'";

/// The binary for GPUs runs speech detection and little else on the CPU.
const SMALL_KERNELS: [&str; 4] = [
    SMALL_AUDIO,
    "profile.web.package.stonechat-compute.opt-level='z'",
    "profile.web.package.stonechat-quant.opt-level='z'",
    "profile.web.package.stonechat-sampling.opt-level='z'",
];

/// Profiles of binaries that are packed.
const FULL: &str = "web";
const QUICK: &str = "web-quick";

/// Binary for a kind of browser.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Binary {
    Relaxed,
    RelaxedSpeech,
    Base,
    BaseSpeech,
    Scalar,
    ScalarSpeech,
    Gpu,
}

/// Row of the table of binaries.
struct Recipe {
    name: &'static str,
    /// Flags of the compiler, beside those of threads.
    flags: &'static str,
    has_threads: bool,
    /// Features of the crate.
    features: &'static [&'static str],
    /// Settings that replace those of the profile, as `cargo --config` takes them.
    settings: &'static [&'static str],
    /// Flags of wasm-opt, before those of all binaries.
    optimizer: &'static [&'static str],
}

impl Recipe {
    fn has_language(&self) -> bool {
        self.features.contains(&"language")
    }
}

impl Binary {
    fn recipe(self) -> Recipe {
        let recipe = Recipe {
            name: "base",
            flags: "-C target-feature=+simd128",
            has_threads: true,
            features: &["language", "row-kernels"],
            settings: &[],
            optimizer: &["--enable-simd", "--enable-threads"],
        };
        let speech = |recipe, name| Recipe { name, features: &[], ..recipe };
        match self {
            Self::Base => recipe,
            Self::BaseSpeech => speech(recipe, "base-speech"),
            Self::Relaxed => Recipe {
                name: "relaxed",
                flags: "-C target-feature=+simd128,+relaxed-simd",
                optimizer: &["--enable-simd", "--enable-relaxed-simd", "--enable-threads"],
                ..recipe
            },
            Self::RelaxedSpeech => speech(Self::Relaxed.recipe(), "relaxed-speech"),
            Self::Scalar => {
                let optimizer = &["--enable-threads", "--code-folding"];
                Recipe { name: "scalar", flags: "", optimizer, settings: &[SMALL_AUDIO], ..recipe }
            }
            Self::ScalarSpeech => speech(Self::Scalar.recipe(), "scalar-speech"),
            Self::Gpu => Recipe {
                name: "gpu",
                has_threads: false,
                features: &["language", "gpu"],
                settings: &SMALL_KERNELS,
                optimizer: &["--enable-simd", "--code-folding"],
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
    /// Only link the binaries, not optimized
    #[arg(long, conflicts_with_all = ["quick", "test"])]
    pub(crate) link: bool,
    /// Run tests of the binaries in Chromium after the build
    #[arg(long, value_enum)]
    pub(crate) test: Option<Tests>,
}

/// Extent of the tests of a binary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tests {
    /// Scripts of the package in Node; one clip of one model, beside the native program.
    Short,
    /// Scripts of the package and the page; ten clips and two models of each kind, beside the native program; of a quick
    /// build the conformance suite, of a full one for the CPU the memory of a long run.
    All,
}

/// Builds the binaries and the package into `target/web`.
pub(crate) fn run(args: &WebArgs) -> Result<()> {
    let chosen = |binary: &&Binary| args.binary.is_empty() || args.binary.contains(binary);
    if args.link {
        let mut binaries = Binary::value_variants().iter().filter(chosen);
        return binaries.try_for_each(|binary| link(&binary.recipe(), "web-link").map(drop));
    }
    let folder = shell::target_dir().join("web").join(if args.quick { "quick" } else { "package" });
    let dist = folder.join("dist");
    fs::create_dir_all(&dist).with_context(|| format!("cannot create {}", dist.display()))?;
    page::install(&web_folder())?;
    shell::run(page::node(&web_folder()).arg("js/build.mjs").arg(&folder))?;
    fs::copy(shell::workspace_root().join(VAD_WEIGHTS), dist.join("silero.bin"))?;
    let mut is_small = true;
    for binary in Binary::value_variants().iter().filter(chosen) {
        let recipe = binary.recipe();
        let wasm = link(&recipe, if args.quick { QUICK } else { FULL })?;
        let bytes = pack(&recipe, &wasm, &dist, args.quick)?;
        let (gzip, scripts) = (gzip_len(&bytes)?, scripts_len(&recipe, &dist)?);
        let maximum = if recipe.has_language() { MAX_GZIP } else { MAX_SPEECH_GZIP };
        println!(
            "{:14} {:9} bytes, {gzip} after gzip (at most {maximum}); scripts of a page {scripts} after gzip",
            recipe.name,
            bytes.len(),
        );
        is_small &= args.quick || gzip <= maximum && scripts <= MAX_SCRIPTS_GZIP;
    }
    ensure!(
        is_small,
        "expected binaries and scripts (at most {MAX_SCRIPTS_GZIP} bytes) within their limits"
    );
    if let Some(tests) = args.test {
        test_scripts(tests)?;
        // A package loads the binary of speech with the one with language models: tests name the latter.
        let recipes = Binary::value_variants().iter().filter(chosen).map(|binary| binary.recipe());
        for recipe in recipes.filter(Recipe::has_language) {
            test(&recipe, &folder, tests, args.quick)?;
        }
    }
    Ok(())
}

/// Runs the tests of the package's scripts and of the page, which need no binary.
fn test_scripts(tests: Tests) -> Result<()> {
    let node = |arguments: &[&str]| shell::run(page::node(&web_folder()).args(arguments));
    node(&["--test", "tests/package-node.mjs", "tests/package-download.mjs"])?;
    if tests == Tests::All {
        node(&["--test", "tests/package-device.mjs", "tests/package-browser.mjs"])?;
        node(&["tests/page.mjs", "--browser", "chromium"])?;
    }
    Ok(())
}

/// Runs the tests of a binary.
fn test(recipe: &Recipe, folder: &Path, tests: Tests, is_quick: bool) -> Result<()> {
    let mut suites = vec!["tests/package-models.mjs"];
    if is_quick && recipe.has_threads && tests == Tests::All {
        suites.push("tests/package-conformance.mjs");
    }
    if !is_quick && recipe.has_threads && tests == Tests::All {
        suites.push("tests/package-soak.mjs");
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

/// Compiles and links a binary in a profile of cargo.
fn link(recipe: &Recipe, profile: &str) -> Result<PathBuf> {
    let (is_quick, is_full) = (profile == QUICK, profile == FULL);
    let mut build = shell::cargo();
    build.args(["build", "--package", "stonechat-web", "--lib", "--target", TARGET]);
    build.args(["--profile", profile]);
    let target = shell::target_dir().join("wasm");
    build.arg("--target-dir").arg(&target);
    build.arg("--no-default-features");
    for feature in recipe.features.iter().copied().chain(is_quick.then_some("conformance")) {
        build.args(["--features", feature]);
    }
    build_std::from_source(&mut build, TARGET, "std,panic_abort")?;
    if is_full {
        for setting in recipe.settings {
            build.args(["--config", setting]);
        }
        // Sorts are a tenth of a binary otherwise.
        build.args(["-Z", "build-std-features=optimize_for_size"]);
    }
    let threads = if recipe.has_threads { THREADS } else { "" };
    // Clippy does not see what only this target leaves unused.
    let lints = if is_full { "" } else { "-D warnings" };
    let panics = if is_full { SILENT_PANICS } else { "" };
    let flags = format!("-C linker-flavor=wasm-ld {} {threads} {panics} {lints}", recipe.flags);
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
    let script = dist.join(format!("{name}.js"));
    minify(&script)?;
    if is_quick {
        fs::rename(&generated, &packed)?;
        // The package takes the binaries without language models for speech; tests take these.
        if recipe.has_threads && recipe.has_language() {
            fs::copy(&packed, dist.join(format!("{name}-speech.wasm")))?;
            fs::copy(&script, dist.join(format!("{name}-speech.js")))?;
        }
    } else {
        optimize(recipe, &generated, &packed)?;
        fs::remove_file(&generated)?;
    }
    fs::read(&packed).with_context(|| format!("cannot read {}", packed.display()))
}

/// Minifies a script in its place.
fn minify(script: &Path) -> Result<()> {
    shell::run(page::node(&web_folder()).arg("js/minify.mjs").arg(script))
}

/// Optimizes a module.
fn optimize(recipe: &Recipe, generated: &Path, packed: &Path) -> Result<()> {
    let mut optimize = page::node(&web_folder());
    optimize.arg("node_modules/binaryen/bin/wasm-opt");
    // Higher levels save nothing more, and their reordering makes kernels up to a fifth slower.
    optimize.args(["-O1", "--enable-bulk-memory", "--enable-mutable-globals"]);
    optimize.args([
        "--enable-nontrapping-float-to-int",
        "--enable-sign-ext",
        "--enable-reference-types",
    ]);
    optimize.args(["--enable-multivalue"]).args(recipe.optimizer);
    // The further passes save 4 to 7 kB after gzip.
    optimize.args(["--dae-optimizing", "--rse", "-O1"]);
    shell::run(optimize.arg(generated).arg("-o").arg(packed))
}

/// Bytes of the scripts that a page with this binary loads, after gzip.
fn scripts_len(recipe: &Recipe, dist: &Path) -> Result<usize> {
    let glue = format!("stonechat-{}.js", recipe.name);
    let scripts = ["index.js", "worker.js", "microphone.js", &glue];
    scripts.iter().map(|script| gzip_len(&fs::read(dist.join(script))?)).sum()
}

/// Bytes after gzip at its best level.
fn gzip_len(bytes: &[u8]) -> Result<usize> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?.len())
}
