//! Log events as JSON, an object a line: `timestamp`, `level`, `target`, `message` and the fields of the event.

use std::fmt;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// The format of JSON lines.
pub(super) struct Json;

impl<S, N> FormatEvent<S, N> for Json
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        writeln!(writer, "{}", Value::Object(object(time, event)))
    }
}

fn object(time: String, event: &Event<'_>) -> Map<String, Value> {
    let metadata = event.metadata();
    let mut object = Map::new();
    object.insert("timestamp".to_owned(), time.into());
    object.insert("level".to_owned(), metadata.level().as_str().into());
    object.insert("target".to_owned(), metadata.target().into());
    event.record(&mut Fields(&mut object));
    object
}

/// Adds the fields of an event. Those of an event of the crate `log` tell its place.
struct Fields<'a>(&'a mut Map<String, Value>);

impl Fields<'_> {
    fn insert(&mut self, field: &Field, value: Value) {
        match field.name().strip_prefix("log.") {
            None => self.0.insert(field.name().to_owned(), value),
            Some("target") => self.0.insert("target".to_owned(), value),
            Some(_) => None,
        };
    }
}

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.insert(field, format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.insert(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.insert(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.insert(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.insert(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.insert(field, value.into());
    }
}
