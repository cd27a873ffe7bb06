//! Fields of voice activity detection: `chunking_strategy` and `vad_filter`.

use serde::Deserialize;
use stonechat::VadMode;
use stonechat::whisper::Options;

use super::values::number;
use crate::{ApiError, ApiResult};

/// Options of `server_vad`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub(super) struct VadFields {
    #[serde(rename = "type")]
    kind: Option<String>,
    threshold: Option<f32>,
    prefix_padding_ms: Option<u32>,
    silence_duration_ms: Option<u32>,
}

impl VadFields {
    pub(super) fn set(&mut self, key: &str, text: &str) -> ApiResult<()> {
        let name = format!("chunking_strategy[{key}]");
        match key {
            "type" => self.kind = Some(text.to_owned()),
            "threshold" => self.threshold = Some(number(&name, text)?),
            "prefix_padding_ms" => self.prefix_padding_ms = Some(number(&name, text)?),
            "silence_duration_ms" => self.silence_duration_ms = Some(number(&name, text)?),
            _ => {
                let expected = "type, threshold, prefix_padding_ms or silence_duration_ms";
                return Err(ApiError::field("chunking_strategy", expected, format!("`{key}`")));
            }
        }
        Ok(())
    }

    /// Sets the options of a strategy, `chunking_strategy`, and of the flag `vad_filter`.
    ///
    /// # Errors
    /// 400 with the field.
    pub(super) fn apply(
        self,
        strategy: Option<&str>,
        filter: Option<bool>,
        options: &mut Options,
    ) -> ApiResult<()> {
        let mut vad = self;
        match strategy {
            None => {}
            Some("auto") => vad.kind = vad.kind.or(Some("auto".to_owned())),
            Some("server_vad") => vad.kind = Some("server_vad".to_owned()),
            Some(text) => {
                vad = serde_json::from_str(text).map_err(|error| {
                    let expected = "`auto` or {\"type\": \"server_vad\", …}";
                    ApiError::field("chunking_strategy", expected, format!("`{text}` ({error})"))
                })?;
            }
        }
        let is_on = match vad.kind.as_deref() {
            None if vad == Self::default() => false,
            Some("auto" | "server_vad") => true,
            kind => {
                let got = format!("`{}`", kind.unwrap_or("none"));
                return Err(ApiError::field("chunking_strategy[type]", "`server_vad`", got));
            }
        };
        match filter {
            Some(false) => options.vad = VadMode::Off,
            None if !is_on => {}
            Some(true) | None => options.vad = VadMode::On,
        }
        let vad_options = &mut options.vad_options;
        vad_options.threshold = vad.threshold.unwrap_or(vad_options.threshold);
        vad_options.speech_pad_ms = vad.prefix_padding_ms.unwrap_or(vad_options.speech_pad_ms);
        vad_options.min_silence_ms = vad.silence_duration_ms.unwrap_or(vad_options.min_silence_ms);
        Ok(())
    }
}
