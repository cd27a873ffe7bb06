//! Flags whose values are parsed.

use std::ffi::OsStr;
use std::path::Path;

use stonechat::whisper::OutputFormat;

use super::{Expanded, Given};

const WHOLE_PROMPT: &str = "all text that the model takes is given, or none with 0";
const ONE_GPU: &str = "the first GPU is the default: see --device";
const SPLIT: &str = "--device cuda:0,1 splits every layer among GPUs";
const EVEN: &str = "every layer is split evenly";
const FIRST_GPU: &str = "--device cuda:N names another GPU";
const DEVICE: &[&str] = &["--device"];
/// Flags that set the standard output of whisper-cli.
const PRINTS: &[&str] = &["--print-timestamps", "--no-timestamps", "--output-dir", "-o"];

/// Number of consumed arguments, or the hint of a refused value; `None` for flags that are not special.
type Consumed = Option<Result<usize, String>>;

impl Expanded {
    /// Adds a flag whose value is parsed.
    pub(super) fn push_special(&mut self, is_speech: bool, given: Given<'_>) -> Consumed {
        if is_speech { self.push_speech(given) } else { self.push_gpus(given) }
    }

    /// Adds an argument of text.
    fn add(&mut self, arg: &str) {
        self.args.push(arg.into());
    }

    fn push_speech(&mut self, given: Given<'_>) -> Consumed {
        let n_used = given.n_used();
        match (given.flag, given.text(), given.truth()) {
            // faster-whisper's batch has eight windows by default.
            ("--batched", _, wanted) => {
                if wanted != Some(false) {
                    self.defaults.push((&["--batch-size"], "--batch-size=8".to_owned()));
                }
                Some(Ok(wanted.map_or(0, |_| n_used)))
            }
            // The value names a model's alignment heads, which come with the model file here.
            ("-dtw" | "--dtw", Some(_), _) => {
                self.add("--word-timestamps");
                Some(Ok(n_used))
            }
            ("-mc" | "--max-context", text, _) => {
                match text.and_then(|text| text.parse::<i64>().ok()) {
                    None => return Some(Err(wrong(given, "a number of tokens"))),
                    Some(0) => self.add("--condition-on-previous-text=false"),
                    Some(n @ 1..) => {
                        self.notes
                            .push(format!("{} {n} is ignored: {WHOLE_PROMPT}", given.spelled));
                    }
                    Some(_) => {}
                }
                Some(Ok(n_used))
            }
            // whisper-cli's `-f` is the input, openai-whisper's the output format.
            ("-f", ..) => {
                let value = given.value.map(OsStr::new).or(given.next)?;
                is_input(value).then(|| {
                    self.add_inputs(value);
                    Ok(n_used)
                })
            }
            ("--file", Some(_), _) => {
                self.add_inputs(given.value.map(OsStr::new).or(given.next)?);
                Some(Ok(n_used))
            }
            _ => None,
        }
    }

    /// Adds an input of whisper-cli, or several that commas separate. Like there, their text is printed with times.
    fn add_inputs(&mut self, value: &OsStr) {
        self.defaults.push((PRINTS, PRINTS[0].to_owned()));
        let text = value.to_str().unwrap_or_default();
        let is_list = text.contains(',') && text.split(',').all(|part| Path::new(part).exists());
        if is_list && !Path::new(value).exists() {
            self.args.extend(text.split(',').map(Into::into));
        } else {
            self.args.push(value.to_owned());
        }
    }

    /// Adds the flags of llama.cpp that name GPUs.
    fn push_gpus(&mut self, given: Given<'_>) -> Consumed {
        let value = given.text();
        match given.flag {
            "-sm" | "--split-mode" => {
                let is_one = value == Some("none");
                self.ignore(given, if is_one { ONE_GPU } else { SPLIT });
                Some(Ok(given.n_used()))
            }
            "-mg" | "--main-gpu" => Some(match value.and_then(|value| value.parse().ok()) {
                Some(index) => {
                    self.use_gpu(given, index);
                    Ok(given.n_used())
                }
                None => Err(wrong(given, "the number of a GPU")),
            }),
            "-ts" | "--tensor-split" => Some(match value.and_then(shares) {
                Some(shares) => {
                    self.use_shares(given, &shares);
                    Ok(given.n_used())
                }
                None => Err(wrong(given, "shares of GPUs such as 1,1")),
            }),
            "-dev" | "--device" => {
                self.add(&format!("--device={}", device(value?)?));
                Some(Ok(given.n_used()))
            }
            _ => None,
        }
    }

    /// Makes a GPU the device, unless another flag does.
    fn use_gpu(&mut self, given: Given<'_>, index: usize) {
        if index == 0 {
            self.ignore(given, FIRST_GPU);
        } else if self.defaults.iter().all(|(flags, _)| *flags != DEVICE) {
            self.defaults.push((DEVICE, format!("--device=cuda:{index}")));
        }
    }

    fn use_shares(&mut self, given: Given<'_>, shares: &[f64]) {
        let used = || shares.iter().enumerate().filter(|(_, share)| **share > 0.0);
        let indexes: Vec<usize> = used().map(|(index, _)| index).collect();
        if let [index] = indexes[..] {
            return self.use_gpu(given, index);
        }
        if used().any(|(_, share)| *share != shares[indexes[0]]) {
            self.notes.push(format!("{}: {EVEN}", given.spelled));
        }
        let names: Vec<String> = indexes.iter().map(ToString::to_string).collect();
        self.defaults.retain(|(flags, _)| *flags != DEVICE);
        self.defaults.push((DEVICE, format!("--device=cuda:{}", names.join(","))));
    }
}

fn wrong(given: Given<'_>, expected: &str) -> String {
    let got = given.text().map_or_else(|| "none".to_owned(), |text| format!("`{text}`"));
    format!("{}: expected {expected}, got {got}", given.spelled)
}

/// Shares of GPUs, not all of them 0.
fn shares(text: &str) -> Option<Vec<f64>> {
    let is_share = |share: &f64| share.is_finite() && *share >= 0.0;
    let parse = |part: &str| part.trim().parse().ok().filter(is_share);
    let shares = text.split([',', '/']).map(parse).collect::<Option<Vec<f64>>>()?;
    shares.iter().any(|share| *share > 0.0).then_some(shares)
}

/// Value of `--device` for devices by llama.cpp's names.
fn device(text: &str) -> Option<String> {
    if text.eq_ignore_ascii_case("none") {
        return Some("cpu".to_owned());
    }
    let number = |name: &str, api: &str| {
        let (head, tail) = name.split_at_checked(api.len())?;
        let is_number = !tail.is_empty() && tail.bytes().all(|b| b.is_ascii_digit());
        (head.eq_ignore_ascii_case(api) && is_number).then(|| tail.to_owned())
    };
    let all = |api: &str| text.split(',').map(|name| number(name, api)).collect::<Option<Vec<_>>>();
    if let Some(numbers) = all("CUDA") {
        return Some(format!("cuda:{}", numbers.join(",")));
    }
    let index = number(text, "Vulkan").or_else(|| number(text, "MTL"));
    index.map(|index| format!("wgpu:{index}"))
}

/// Tells a recording from a list of output formats.
fn is_input(value: &OsStr) -> bool {
    let text = value.to_string_lossy();
    let mut names = text.split(',').map(str::trim);
    if text.is_empty() || names.all(|name| name == "all" || name.parse::<OutputFormat>().is_ok()) {
        return false;
    }
    let is_path = || text.contains(['.', '/', '\\']) || Path::new(value).exists();
    text == "-" || (!text.starts_with('-') && is_path())
}
