//! Recording from a microphone (cpal).

use std::sync::mpsc::SyncSender;

use anyhow::{Context, anyhow};
use cpal::traits::{DeviceTrait, HostTrait, StreamTrait};
use cpal::{ErrorKind, FromSample, SampleFormat, SizedSample};
use stonechat::audio::Resampler;

use super::pcm::Message;

/// A recording microphone.
pub(super) struct Microphone {
    name: String,
    /// Records until dropped.
    _stream: cpal::Stream,
}

impl std::fmt::Debug for Microphone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Microphone").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Microphone {
    /// Records from the first microphone whose name contains `name`, or from the default one.
    pub(super) fn open(name: Option<&str>, sender: SyncSender<Message>) -> anyhow::Result<Self> {
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

    /// Name of the device.
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
        let none = "no microphone: pipe raw PCM in, for example from `ffmpeg -f s16le -`";
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
    sender: SyncSender<Message>,
) -> anyhow::Result<cpal::Stream>
where
    f32: FromSample<T>,
{
    let n_channels = usize::from(config.channels());
    let mut resampler = Resampler::new(config.sample_rate())?;
    let failed = sender.clone();
    let mut mono = Vec::new();
    let on_samples = move |samples: &[T], _: &cpal::InputCallbackInfo| {
        mono.clear();
        let mean = |frame: &[T]| {
            let sum: f32 = frame.iter().map(|&x| <f32 as FromSample<T>>::from_sample_(x)).sum();
            sum / n_channels as f32
        };
        mono.extend(samples.chunks_exact(n_channels).map(mean));
        let mut resampled = Vec::new();
        resampler.push(&mono, &mut resampled);
        // The callback must not block: audio is dropped while the channel is full.
        let _ = sender.try_send(Message::Samples(resampled));
    };
    let on_error = move |error: cpal::Error| {
        // The stream continues after lost audio or a change of the device.
        let is_recoverable = matches!(
            error.kind(),
            ErrorKind::DeviceChanged | ErrorKind::Xrun | ErrorKind::RealtimeDenied
        );
        if !is_recoverable {
            let _ = failed.try_send(Message::Failed(anyhow::Error::new(error)));
        }
    };
    let stream = device.build_input_stream(config.config(), on_samples, on_error, None)?;
    stream.play()?;
    Ok(stream)
}
