//! `stonechat inspect`: metadata of a model or audio file.

use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Context, bail};
use serde_json::{Map, Value, json};
use stonechat::audio::{self, Error, SourceInfo};
use stonechat::formats::{DType, ModelFile, Summary};
use stonechat::whisper::Config;

use super::find_model;

const EXAMPLES: &str = "\
Examples:
  stonechat inspect model.gguf
  stonechat inspect --json talk.m4a";

/// Arguments of `stonechat inspect`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// Model (path or name) or audio file
    #[arg(value_name = "FILE")]
    file: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Prints the summary of a model, or else of an audio file.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let path: PathBuf = find_model::find(&args.file)?;
    let text = match ModelFile::open(&path) {
        Ok(model) if args.json => format!("{}\n", model_json(&model)),
        Ok(model) => model_text(&model)?,
        Err(error) if path.is_dir() => return Err(error.into()),
        Err(not_model) => match audio::decode_file(&path) {
            Ok(audio) if args.json => format!("{}\n", audio_json(&audio.source)),
            Ok(audio) => audio_text(&audio.source)?,
            Err(not_audio @ (Error::NotAudio { .. } | Error::Open { .. } | Error::Read { .. })) => {
                bail!("neither a model ({not_model}) nor audio ({not_audio})")
            }
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        },
    };
    Ok(super::print(&text)?)
}

fn model_text(model: &ModelFile) -> anyhow::Result<String> {
    let mut text = String::new();
    let summary = &model.summary();
    let Summary { format, version, n_parameters, .. } = summary;
    writeln!(text, "format      {format}, version {version}")?;
    writeln!(text, "size        {}", super::format_bytes(summary.file_bytes))?;
    let types: Vec<_> = model.dtypes().into_iter().map(DType::name).collect();
    writeln!(text, "parameters  {n_parameters} ({})", types.join(", "))?;
    if let Ok(config) = Config::from_file(model) {
        let Config { d_model, n_audio_layers, n_text_layers, n_text_heads, .. } = config;
        writeln!(
            text,
            "whisper     {n_audio_layers} encoder and {n_text_layers} decoder layers, {d_model} wide, \
             {n_text_heads} heads, {} mels, {} tokens",
            config.n_mels, config.vocab_size
        )?;
    }
    for (name, bytes) in &summary.companions {
        writeln!(text, "companion   {name}, {}", super::format_bytes(*bytes as u64))?;
    }
    if !summary.metadata.is_empty() {
        writeln!(text, "\nmetadata")?;
    }
    let width = summary.metadata.iter().map(|(key, _)| key.len()).max().unwrap_or(0);
    for (key, value) in &summary.metadata {
        writeln!(text, "  {key:width$}  {value}")?;
    }
    writeln!(text, "\ntensors ({})", summary.tensors.len())?;
    let width = summary.tensors.iter().map(|tensor| tensor.name.len()).max().unwrap_or(0);
    for tensor in &summary.tensors {
        let (name, dtype, bytes) = (&tensor.name, tensor.dtype, tensor.bytes);
        let shape = format!("{:?}", tensor.shape);
        writeln!(text, "  {name:width$}  {dtype:6} {shape:16} {bytes:>12} bytes")?;
    }
    Ok(text)
}

fn model_json(model: &ModelFile) -> Value {
    let summary = &model.summary();
    let metadata: Map<String, Value> =
        summary.metadata.iter().map(|(k, v)| (k.clone(), Value::from(v.as_str()))).collect();
    let companions: Map<String, Value> =
        summary.companions.iter().map(|(k, bytes)| (k.clone(), Value::from(*bytes))).collect();
    let tensors: Vec<Value> = summary
        .tensors
        .iter()
        .map(|t| {
            json!({ "name": t.name, "dtype": t.dtype.name(), "shape": t.shape, "bytes": t.bytes })
        })
        .collect();
    json!({
        "kind": "model",
        "format": summary.format.to_string(),
        "version": summary.version,
        "file_bytes": summary.file_bytes,
        "n_parameters": summary.n_parameters,
        "tensor_bytes": summary.tensor_bytes,
        "whisper": Config::from_file(model).ok(),
        "companions": companions,
        "metadata": metadata,
        "tensors": tensors,
    })
}

fn audio_text(source: &SourceInfo) -> anyhow::Result<String> {
    let mut text = String::new();
    writeln!(text, "container    {}", source.container)?;
    writeln!(text, "codec        {}", source.codec)?;
    writeln!(text, "sample rate  {} Hz", source.sample_rate)?;
    writeln!(text, "channels     {}", source.channels)?;
    writeln!(text, "duration     {:.3} s", source.duration_s)?;
    for (index, track) in source.tracks.iter().enumerate() {
        let mark = if index + 1 == source.track { " (decoded)" } else { "" };
        writeln!(text, "track        {track}{mark}")?;
    }
    if source.n_bad_packets > 0 {
        writeln!(text, "damaged      {} packets", source.n_bad_packets)?;
    }
    if source.is_cut {
        writeln!(text, "cut          the file ends before its headers say")?;
    }
    if source.missing_s > 0.0 {
        writeln!(text, "missing      {:.3} s", source.missing_s)?;
    }
    if source.is_through_ffmpeg {
        writeln!(text, "decoder      the installed ffmpeg")?;
    }
    Ok(text)
}

fn audio_json(source: &SourceInfo) -> Value {
    json!({
        "kind": "audio",
        "container": source.container,
        "codec": source.codec,
        "sample_rate": source.sample_rate,
        "channels": source.channels,
        "duration_s": source.duration_s,
        "n_bad_packets": source.n_bad_packets,
        "missing_s": source.missing_s,
        "is_cut": source.is_cut,
        "tracks": source.tracks,
        "track": source.track,
        "is_through_ffmpeg": source.is_through_ffmpeg,
    })
}
