//! Recording from a microphone.

use std::sync::mpsc::SyncSender;

use anyhow::{Context, anyhow};
use cpal::traits::{DeviceTrait, HostTrait, StreamTrait};
use cpal::{ErrorKind, FromSample, SampleFormat, SizedSample};
use stonechat::audio::Resampler;

use super::input::News;

/// A microphone that records.
pub(super) struct Microphone {
    name: String,
    /// Ends the recording when it is dropped.
    _stream: cpal::Stream,
}

impl std::fmt::Debug for Microphone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Microphone").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Microphone {
    /// Records from the microphone whose name holds `name`, or from the system's.
    pub(super) fn open(name: Option<&str>, sender: SyncSender<News>) -> anyhow::Result<Self> {
        let device = find(name)?;
        let name = name_of(&device);
        let config = device
            .default_input_config()
            .with_context(|| format!("cannot record from `{name}`"))?;
        let stream = match config.sample_format() {
            SampleFormat::F32 => record::<f32>(&device, &config, sender),
            SampleFormat::I16 => record::<i16>(&device, &config, sender),
            SampleFormat::I32 => record::<i32>(&device, &config, sender),
            SampleFormat::U16 => record::<u16>(&device, &config, sender),
            other => Err(anyhow!("expected samples as f32, i16, i32 or u16, got {other}")),
        };
        let stream = stream.with_context(|| format!("cannot record from `{name}`"))?;
        Ok(Self { name, _stream: stream })
    }

    /// Its name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

fn name_of(device: &cpal::Device) -> String {
    device
        .description()
        .map_or_else(|_| "microphone".to_owned(), |description| description.name().to_owned())
}

fn find(name: Option<&str>) -> anyhow::Result<cpal::Device> {
    let host = cpal::default_host();
    let Some(name) = name else {
        let none = "no microphone: pipe raw sound in, for example from `ffmpeg -f s16le -`";
        return host.default_input_device().context(none);
    };
    let devices: Vec<_> = host.input_devices().context("cannot list microphones")?.collect();
    let names: Vec<String> = devices.iter().map(name_of).collect();
    let found = names.iter().position(|found| found.contains(name));
    found.and_then(|index| devices.into_iter().nth(index)).with_context(|| {
        format!("microphone: expected one of `{}`, got `{name}`", names.join("`, `"))
    })
}

fn record<T: SizedSample>(
    device: &cpal::Device,
    config: &cpal::SupportedStreamConfig,
    sender: SyncSender<News>,
) -> anyhow::Result<cpal::Stream>
where
    f32: FromSample<T>,
{
    let n_channels = usize::from(config.channels());
    let mut resampler = Resampler::new(config.sample_rate())?;
    let failed = sender.clone();
    let mut mono = Vec::new();
    let take = move |samples: &[T], _: &cpal::InputCallbackInfo| {
        mono.clear();
        let mean = |frame: &[T]| {
            let sum: f32 = frame.iter().map(|&x| <f32 as FromSample<T>>::from_sample_(x)).sum();
            sum / n_channels as f32
        };
        mono.extend(samples.chunks_exact(n_channels).map(mean));
        let mut resampled = Vec::new();
        resampler.push(&mono, &mut resampled);
        // The sound card does not wait: what nobody takes is lost.
        let _ = sender.try_send(News::Samples(resampled));
    };
    let fail = move |error: cpal::Error| {
        // Some sound was lost, or comes from another device: it goes on.
        let goes_on = matches!(
            error.kind(),
            ErrorKind::DeviceChanged | ErrorKind::Xrun | ErrorKind::RealtimeDenied
        );
        if !goes_on {
            let _ = failed.try_send(News::Failed(anyhow::Error::new(error)));
        }
    };
    let stream = device.build_input_stream(config.config(), take, fail, None)?;
    stream.play()?;
    Ok(stream)
}
