//! A build without OpenTelemetry.

use std::convert::Infallible;

use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;

use super::endpoint::url;
use super::{SpeechTimes, TextTimes, TracesError, UtteranceTimes};
use crate::{AppState, AudioReport, RequestReport};

/// Has no value: [`Traces::start`] is an error or gives none.
#[derive(Debug, Clone)]
pub enum Traces {}

impl Traces {
    /// Refuses the endpoint of a collector. One that the variables of OpenTelemetry name is logged: they may be meant for other
    /// programs.
    ///
    /// # Errors
    /// If there is an endpoint.
    pub fn start(endpoint: Option<&str>) -> Result<Option<Self>, TracesError> {
        if url(endpoint, |_| None)?.is_some() {
            return Err(TracesError::Missing);
        }
        if url(None, |name| std::env::var(name).ok())?.is_some() {
            tracing::warn!("{}", TracesError::Missing);
        }
        Ok(None)
    }

    pub(crate) fn stop(&self) {
        match *self {}
    }
}

/// Trace of a request: nothing.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestTrace;

impl RequestTrace {
    pub(crate) fn start(_: &AppState, _: &Request, _: &str, _: &str) -> Self {
        Self
    }

    pub(crate) fn end(&self, _: u16, _: bool) {}

    pub(crate) fn text(&self, _: &RequestReport, _: &TextTimes) {}

    pub(crate) fn speech(&self, _: &AudioReport, _: &SpeechTimes) {}
}

/// Trace of a live session: nothing.
#[derive(Debug, Default)]
pub(crate) struct LiveTrace;

impl LiveTrace {
    pub(crate) fn of(_: &RequestTrace) -> Self {
        Self
    }

    pub(crate) fn wyoming(_: &AppState) -> Self {
        Self
    }

    pub(crate) fn utterance(&self, _: f64, _: &UtteranceTimes) {}

    pub(crate) fn end(&self, _: &AudioReport) {}
}

impl<S: Sync> FromRequestParts<S> for RequestTrace {
    type Rejection = Infallible;

    async fn from_request_parts(_: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::Traces;

    #[test]
    fn a_collector_is_refused_by_the_feature() {
        let error = Traces::start(Some("http://localhost:4318")).unwrap_err().to_string();
        assert!(error.contains("(feature `traces`"), "{error}");
        assert!(Traces::start(None).unwrap().is_none());
    }
}
