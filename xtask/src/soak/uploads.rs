//! Clients that upload recordings, and the samples of recordings.

use std::time::Duration;

use anyhow::{Context, Result};
use fastrand::Rng;
use serde_json::Value;

use super::ledger::Work;
use super::raw;
use super::traffic::Traffic;
use crate::load::client::{Answer, Recording, TRANSCRIPTIONS, form, multipart};

/// Route of whisper-asr-webservice.
const ASR: &str = "/asr?output=json&task=transcribe&language=en";
/// One of as many uploads to it is given up, after this time at the latest.
const ABORT_SHARE: usize = 4;
const ABORT_TIME: Duration = Duration::from_millis(500);
/// Samples of a second, which is that of the models.
pub(super) const SAMPLE_RATE: u32 = 16_000;

/// Recording of 16 kHz with one channel, and its samples of 16 bits, little-endian.
#[derive(Debug)]
pub(super) struct Clip {
    recording: Recording,
    pub(super) pcm: Vec<u8>,
}

impl Clip {
    /// Reads a WAV file; `None` of another format.
    pub(super) fn new(recording: &Recording) -> Option<Self> {
        Some(Self { recording: recording.clone(), pcm: pcm16(&recording.bytes)? })
    }

    pub(super) fn work(&self) -> Work {
        let audio_seconds = (self.pcm.len() / 2) as f64 / f64::from(SAMPLE_RATE);
        Work { recordings: 1, audio_seconds, ..Work::default() }
    }
}

/// Samples of a WAV file of 16 kHz with one channel, of 32-bit floats or 16-bit integers.
fn pcm16(bytes: &[u8]) -> Option<Vec<u8>> {
    const FLOATS: (u16, u16) = (3, 32);
    const INTEGERS: (u16, u16) = (1, 16);
    let mut rest = bytes.strip_prefix(b"RIFF")?.get(4..)?.strip_prefix(b"WAVE")?;
    let mut format = None;
    loop {
        let (id, after) = rest.split_first_chunk::<4>()?;
        let (n, after) = after.split_first_chunk::<4>()?;
        let n = u32::from_le_bytes(*n) as usize;
        let chunk = after.get(..n)?;
        let u16_at = |at: usize| Some(u16::from_le_bytes(*chunk.get(at..)?.first_chunk()?));
        match id {
            b"fmt " => {
                let rate = u32::from_le_bytes(*chunk.get(4..)?.first_chunk()?);
                if (u16_at(2)?, rate) != (1, SAMPLE_RATE) {
                    return None;
                }
                format = Some((u16_at(0)?, u16_at(14)?));
            }
            b"data" if format == Some(INTEGERS) => return Some(chunk.to_vec()),
            b"data" if format == Some(FLOATS) => {
                let samples = chunk.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x));
                let samples = samples.map(|x| (x * 32_767.0) as i16);
                return Some(samples.flat_map(i16::to_le_bytes).collect());
            }
            b"data" => return None,
            _ => {}
        }
        // Chunks begin at even places.
        rest = after.get(n + n % 2..)?;
    }
}

impl Traffic {
    /// A recording to OpenAI's route.
    pub(super) fn upload(&self, random: &mut Rng) {
        const NAME: &str = "upload";
        let Some(recording) = random.choice(&self.recordings) else { return };
        let (content_type, body) = multipart(recording);
        let answer = self.target.send(TRANSCRIPTIONS, &content_type, &body);
        self.take_transcript(NAME, answer, |json| {
            json["text"].as_str()?;
            let audio_seconds = json["duration"].as_f64().filter(|&seconds| seconds > 0.0)?;
            Some(Work { recordings: 1, audio_seconds, ..Work::default() })
        });
    }

    /// A recording to the route of whisper-asr-webservice.
    pub(super) fn asr(&self, random: &mut Rng) {
        const NAME: &str = "asr";
        let Some(clip) = random.choice(&self.clips) else { return };
        let (content_type, body) = form(&[], "audio_file", &clip.recording);
        if random.usize(..ABORT_SHARE) == 0 {
            let request = raw::post(ASR, &content_type, &body);
            let wait = Duration::from_millis(random.u64(..ABORT_TIME.as_millis() as u64));
            match raw::send_and_close(self.target.address(), &request, wait) {
                Ok(()) => self.ledger.aborted(NAME, Work::default(), clip.work()),
                Err(error) => self.failed(NAME, None, &error.to_string()),
            }
            return self.pause_after_abort();
        }
        let answer = self.target.send(ASR, &content_type, &body);
        self.take_transcript(NAME, answer, |json| {
            json["text"].as_str()?;
            json["segments"].is_array().then(|| clip.work())
        });
    }

    /// Files an answer; `work` is that of a whole one.
    fn take_transcript(
        &self,
        kind: &'static str,
        answer: Result<Answer>,
        work: impl FnOnce(&Value) -> Option<Work>,
    ) {
        let answer = match answer {
            Ok(answer) if answer.is_success() => answer,
            Ok(answer) => return self.failed(kind, Some(answer.status), &answer.error()),
            Err(error) => return self.failed(kind, None, &format!("{error:#}")),
        };
        self.ledger.answered(kind, answer.status);
        let read = answer
            .json()
            .and_then(|json| work(&json).with_context(|| format!("no transcript: {json}")));
        match read {
            Ok(work) => self.ledger.worked(work, work),
            Err(error) => self.ledger.problem(kind, &format!("{error:#}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A WAV file with a chunk of odd length before its samples.
    fn wav(tag: u16, channels: u16, rate: u32, bits: u16, data: &[u8]) -> Vec<u8> {
        let chunk =
            |id: &[u8], bytes: &[u8]| [id, &(bytes.len() as u32).to_le_bytes(), bytes].concat();
        let mut format = [tag.to_le_bytes(), channels.to_le_bytes()].concat();
        format.extend(rate.to_le_bytes());
        format.extend([0; 6]);
        format.extend(bits.to_le_bytes());
        let parts = [
            b"RIFF\0\0\0\0WAVE".to_vec(),
            chunk(b"fmt ", &format),
            chunk(b"LIST", b"abc"),
            vec![0],
            chunk(b"data", data),
        ];
        parts.concat()
    }

    #[test]
    fn samples_are_read_from_floats_and_integers() {
        let floats = [0.0_f32, 1.0, -1.0].map(f32::to_le_bytes).concat();
        let expected = [0_i16, 32_767, -32_767].map(i16::to_le_bytes).concat();
        assert_eq!(pcm16(&wav(3, 1, 16_000, 32, &floats)), Some(expected.clone()));
        assert_eq!(pcm16(&wav(1, 1, 16_000, 16, &expected)), Some(expected));
    }

    #[test]
    fn other_files_are_none() {
        for other in [
            wav(1, 2, 16_000, 16, &[0; 4]),
            wav(1, 1, 48_000, 16, &[0; 4]),
            wav(1, 1, 16_000, 24, &[0; 6]),
            wav(1, 1, 16_000, 16, &[0; 4])[..58].to_vec(),
            b"ID3".to_vec(),
            Vec::new(),
        ] {
            assert_eq!(pcm16(&other), None);
        }
    }
}
