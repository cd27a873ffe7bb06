//! Opening a model until it could run.

use std::path::PathBuf;

use anyhow::Result;
use stonechat_benches::protocol::{PeakKind, PeakWork, Stage, Unit};
use stonechat_formats::ModelFile;
use stonechat_llm::StateOptions;
use stonechat_nn::{Device, KvDType};
use stonechat_whisper::{Model, Options, Transcriber};

use super::{Work, timed};

/// Loads a model repeatedly.
pub(super) struct Load {
    device: Device,
    model: PathBuf,
    is_speech: bool,
    file_bytes: u64,
}

impl Load {
    pub(super) fn new(device: impl Into<Device>, model: PathBuf) -> Result<Self> {
        let file = ModelFile::open(&model)?;
        let is_speech = stonechat_whisper::Config::from_file(&file).is_ok();
        let file_bytes = file.file_bytes();
        Ok(Self { device: device.into(), model, is_speech, file_bytes })
    }
}

impl Work for Load {
    fn stages(&self) -> Vec<Stage> {
        let amount = self.file_bytes as f64;
        vec![Stage {
            name: "load".to_owned(),
            amount,
            unit: Unit::Bytes,
            peak: vec![PeakWork { kind: PeakKind::Read, amount }],
            kernel: None,
        }]
    }

    fn settings(&self) -> String {
        "file in the page cache".to_owned()
    }

    fn sample(&mut self) -> Result<Vec<f64>> {
        let device = self.device.clone();
        let path = &self.model;
        // The models are dropped after the clock has stopped.
        let seconds = if self.is_speech {
            let load = || -> Result<_> {
                let file = ModelFile::open(path)?;
                let model = Model::load(device, &file, |_| {})?;
                Ok(Transcriber::new(&model, &Options::default(), KvDType::F16)?)
            };
            let (seconds, loaded) = timed(load);
            loaded?;
            seconds
        } else {
            let load = || -> Result<_> {
                let file = ModelFile::open(path)?;
                let model = stonechat_llm::Model::load(device, &file, |_| {})?;
                let state = model.state(StateOptions::new(512))?;
                Ok((model, state))
            };
            let (seconds, loaded) = timed(load);
            loaded?;
            seconds
        };
        Ok(vec![seconds])
    }
}
