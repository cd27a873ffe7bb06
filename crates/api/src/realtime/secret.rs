//! Body and answer of `POST /v1/realtime/client_secrets`: short-lived keys with the configuration of their sessions.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::config::{Config, SessionUpdate};
use super::server::{SessionView, view};
use crate::ids::{new_id, unix_seconds};
use crate::json::{JsonFields, ParseBody, from_bytes, kind_of};
use crate::{ApiError, ApiResult, Defaults};

/// Seconds until a secret expires, as in OpenAI's API.
const SECONDS: RangeInclusive<u64> = 10..=7200;
/// Default of it.
const DEFAULT_SECONDS: u64 = 600;
/// Maximum characters of a name that an error repeats.
const MAX_NAME_CHARS: usize = 64;

/// Names of the fields that have an effect, by the path of their object.
const NAMES: [(&str, &[&str]); 8] = [
    ("", &["expires_after", "session"]),
    ("expires_after", &["anchor", "seconds"]),
    ("session", &["type", "audio", "include"]),
    ("session.audio", &["input"]),
    ("session.audio.input", &["format", "transcription", "turn_detection"]),
    ("session.audio.input.format", &["type", "rate"]),
    (
        "session.audio.input.transcription",
        &["model", "language", "languages", "prompt", "keywords"],
    ),
    (
        "session.audio.input.turn_detection",
        &["type", "threshold", "prefix_padding_ms", "silence_duration_ms", "eagerness"],
    ),
];

/// Body of a request for a client secret.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ClientSecretBody {
    /// Time until the secret expires.
    #[serde(default)]
    expires_after: Option<ExpiresAfter>,
    /// Configuration of the sessions of the secret: a `transcription` one, as in `session.update`.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    session: Option<SessionUpdate>,
}

/// Time until a secret expires.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ExpiresAfter {
    /// `created_at`.
    #[serde(default)]
    anchor: Option<String>,
    /// 10 to 7200; default 600.
    #[serde(default)]
    seconds: Option<u64>,
}

impl ParseBody for ClientSecretBody {
    fn parse(body: &[u8], _: &Defaults<'_>) -> ApiResult<Self> {
        let body: Value = from_bytes(body)?;
        check_names(&body, "")?;
        JsonFields::new(body)?.take()
    }
}

/// Refuses fields without an effect.
fn check_names(value: &Value, path: &str) -> ApiResult<()> {
    let names = NAMES.iter().find(|(of, _)| *of == path);
    let (Value::Object(fields), Some((_, names))) = (value, names) else { return Ok(()) };
    for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
        let short: String = name.chars().take(MAX_NAME_CHARS).collect();
        let path = if path.is_empty() { short } else { format!("{path}.{short}") };
        if !names.contains(&name.as_str()) {
            return Err(ApiError::field(&path, "none: it is not supported", kind_of(value)));
        }
        check_names(value, &path)?;
    }
    Ok(())
}

impl ClientSecretBody {
    /// Configuration of the sessions, and seconds until the secret expires.
    ///
    /// # Errors
    /// 400 with the field, what was expected and what was found.
    pub fn prepare(self) -> ApiResult<(Config, u64)> {
        let (anchor, seconds) =
            self.expires_after.map_or((None, None), |after| (after.anchor, after.seconds));
        if let Some(other) = anchor.filter(|anchor| anchor != "created_at") {
            let other: String = other.chars().take(MAX_NAME_CHARS).collect();
            return Err(ApiError::field(
                "expires_after.anchor",
                "created_at",
                format!("`{other}`"),
            ));
        }
        let seconds = seconds.unwrap_or(DEFAULT_SECONDS);
        if !SECONDS.contains(&seconds) {
            let expected = format!("{} to {}", SECONDS.start(), SECONDS.end());
            return Err(ApiError::field("expires_after.seconds", &expected, seconds));
        }
        let config = Config::default().updated(self.session.unwrap_or_default())?;
        Ok((config, seconds))
    }
}

/// A client secret.
#[derive(Debug, Serialize)]
pub struct ClientSecret {
    value: String,
    /// Seconds since 1970.
    expires_at: u64,
    session: SessionView,
}

impl ClientSecret {
    /// A secret that expires in `seconds`.
    #[must_use]
    pub fn new(value: String, seconds: u64, config: &Config) -> Self {
        let session = view(&new_id("sess_"), config);
        Self { value, expires_at: unix_seconds().saturating_add(seconds), session }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use stonechat::sampling::SamplingOptions;

    use super::{ClientSecret, ClientSecretBody};
    use crate::json::ParseBody;
    use crate::realtime::Config;
    use crate::{ApiResult, Defaults};

    fn prepare(body: &Value) -> ApiResult<(Config, u64)> {
        let sampling = SamplingOptions::default();
        let body = ClientSecretBody::parse(body.to_string().as_bytes(), &Defaults::new(&sampling))?;
        body.prepare()
    }

    #[test]
    fn a_secret_has_the_configuration_of_its_sessions() {
        assert_eq!(prepare(&json!({})).unwrap(), (Config::default(), 600));
        let session = json!({"type": "transcription", "audio": {"input": {
            "transcription": {"model": "base", "language": "de"}, "turn_detection": null, "noise_reduction": null}}});
        let expires_after = json!({"anchor": "created_at", "seconds": 10});
        let body = json!({"session": session, "expires_after": expires_after});
        let (config, seconds) = prepare(&body).unwrap();
        assert_eq!(
            (config.model.as_deref(), config.turn_detection, seconds),
            (Some("base"), None, 10)
        );
        let answer =
            serde_json::to_value(ClientSecret::new("ek_1".to_owned(), 10, &config)).unwrap();
        assert_eq!(answer["value"], "ek_1");
        assert!(answer["expires_at"].as_u64().unwrap() > 1_700_000_000);
        assert_eq!(answer["session"]["type"], "transcription");
        assert_eq!(answer["session"]["audio"]["input"]["transcription"]["language"], "de");
        assert!(answer["session"]["id"].as_str().unwrap().starts_with("sess_"));
    }

    #[test]
    fn what_has_no_effect_is_refused_by_name() {
        let input = |input: Value| json!({"session": {"audio": {"input": input}}});
        for (body, name) in [
            (json!({"seconds": 5}), "`seconds`: expected none"),
            (
                json!({"session": {"instructions": "Be kind."}}),
                "`session.instructions`: expected none",
            ),
            (json!({"session": {"type": "realtime"}}), "`session.type`"),
            (json!({"session": {"audio": {"output": {}}}}), "`session.audio.output`"),
            (
                input(json!({"noise_reduction": {"type": "near_field"}})),
                "`session.audio.input.noise_reduction`: expected none",
            ),
            (
                input(json!({"turn_detection": {"create_response": true}})),
                "`session.audio.input.turn_detection.create_response`",
            ),
            (input(json!({"transcription": {"delay": "low"}})), "transcription.delay`"),
            (input(json!({"format": {"type": "audio/opus"}})), "`session.audio.input.format`"),
            (json!({"session": 5}), "`session`: invalid type"),
            (json!({"expires_after": {"anchor": "now"}}), "`expires_after.anchor`"),
            (
                json!({"expires_after": {"seconds": 9}}),
                "`expires_after.seconds`: expected 10 to 7200, got 9",
            ),
            (json!({"expires_after": {"seconds": 7201}}), "`expires_after.seconds`"),
            (json!([]), "expected an object"),
        ] {
            let error = prepare(&body).unwrap_err();
            assert_eq!(error.status(), 400);
            assert!(error.message().contains(name), "{body}: {}", error.message());
        }
    }
}
