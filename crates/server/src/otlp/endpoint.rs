//! Address of a collector.

use axum::http::Uri;

use super::TracesError;

/// Path of traces at a collector.
const PATH: &str = "/v1/traces";

/// URL to which spans are sent, by the flag or the variables; `None`: no traces.
pub(super) fn url(
    flag: Option<&str>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<Uri>, TracesError> {
    // OpenTelemetry takes an empty variable for none.
    let set = |name| variable(name).map(|text| text.trim().to_owned()).filter(|x| !x.is_empty());
    let is = |name, value: &str| set(name).is_some_and(|text| text.eq_ignore_ascii_case(value));
    if is("OTEL_SDK_DISABLED", "true") || is("OTEL_TRACES_EXPORTER", "none") {
        return Ok(None);
    }
    let with_path = |base: &str| format!("{}{PATH}", base.trim_end_matches('/'));
    let of_flag = |flag: &str| {
        if flag.ends_with(PATH) { flag.to_owned() } else { with_path(flag) }
    };
    let flag = flag.map(str::trim).filter(|flag| !flag.is_empty()).map(of_flag);
    let of_traces = || set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
    let of_all = || set("OTEL_EXPORTER_OTLP_ENDPOINT").map(|base| with_path(&base));
    let Some(endpoint) = flag.or_else(of_traces).or_else(of_all) else { return Ok(None) };
    match endpoint.parse::<Uri>() {
        Ok(url) if matches!(url.scheme_str(), Some("http" | "https")) => Ok(Some(url)),
        _ => Err(TracesError::Endpoint { endpoint }),
    }
}

#[cfg(test)]
mod tests {
    use super::url;

    #[track_caller]
    fn check(flag: Option<&str>, variables: &[(&str, &str)], expected: Option<&str>) {
        let variable = |name: &str| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let url = url(flag, variable).unwrap().map(|url| url.to_string());
        assert_eq!(url.as_deref(), expected);
    }

    #[test]
    fn the_flag_comes_before_the_variables() {
        const ALL: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all:4318/base/");
        const TRACES: (&str, &str) = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://traces/x");
        check(None, &[], None);
        check(None, &[("OTEL_EXPORTER_OTLP_ENDPOINT", "")], None);
        // Only the path of the general variable is extended.
        check(None, &[ALL], Some("http://all:4318/base/v1/traces"));
        check(None, &[ALL, TRACES], Some("http://traces/x"));
        for flag in ["http://a:4318", "http://a:4318/", "http://a:4318/v1/traces"] {
            check(Some(flag), &[ALL, TRACES], Some("http://a:4318/v1/traces"));
        }
    }

    #[test]
    fn variables_switch_traces_off() {
        let flag = Some("http://a:4318");
        check(flag, &[("OTEL_SDK_DISABLED", "True")], None);
        check(flag, &[("OTEL_TRACES_EXPORTER", "none")], None);
        check(flag, &[("OTEL_SDK_DISABLED", "false")], Some("http://a:4318/v1/traces"));
    }

    #[test]
    fn an_endpoint_is_a_url_of_http() {
        for wrong in ["localhost:4318", "grpc://localhost:4317", "http://", "/v1/traces"] {
            let error = url(Some(wrong), |_| None).unwrap_err().to_string();
            assert!(error.starts_with("OTLP endpoint: expected a URL such as "), "{error}");
        }
    }
}
