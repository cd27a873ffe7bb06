//! Models by the names of requests.

use std::sync::Arc;

use stonechat::ModelKind;

use super::spec::ModelSpec;
use super::table::ModelId;
use crate::ApiError;

/// Models with their properties.
type Specs = [(ModelId, Arc<ModelSpec>)];

/// The model that has this very name; `None` without one, an error if it is of another kind.
pub(super) fn exact(
    specs: &Specs,
    name: &str,
    kind: ModelKind,
) -> Option<Result<ModelId, ApiError>> {
    let (id, spec) = specs.iter().find(|(_, spec)| spec.has_name(name))?;
    Some(if spec.kind == kind {
        Ok(*id)
    } else {
        let expected = format!("the name of a {}", kind_name(kind));
        let got = format!("`{name}`, which is a {}", kind_name(spec.kind));
        Err(ApiError::field("model", &expected, got))
    })
}

/// Model for a missing or unknown name: the only one of the kind, else the only one named at the start.
pub(super) fn default_of(
    specs: &Specs,
    name: Option<&str>,
    kind: ModelKind,
) -> Result<ModelId, ApiError> {
    let of_kind: Vec<_> = specs.iter().filter(|(_, spec)| spec.kind == kind).collect();
    let mut presets = of_kind.iter().filter(|(_, spec)| spec.is_preset);
    if let (Some((id, _)), None) = (presets.next(), presets.next()) {
        return Ok(*id);
    }
    let names = || of_kind.iter().map(|(_, spec)| spec.name.as_str()).collect::<Vec<_>>();
    match (of_kind.as_slice(), name) {
        ([(id, _)], _) => Ok(*id),
        ([], _) => Err(ApiError::not_supported(format!(
            "this server has no {}: start it with one (`--model`)",
            kind_name(kind)
        ))),
        (_, Some(name)) => Err(ApiError::not_found(format!(
            "model `{name}` not found: expected one of {}",
            names().join(", ")
        ))),
        (_, None) => {
            let expected = format!("one of {}", names().join(", "));
            Err(ApiError::field("model", &expected, "none"))
        }
    }
}

/// Model by its name alone, whatever its kind.
pub(super) fn any(specs: &Specs, name: &str) -> Result<(ModelId, Arc<ModelSpec>), ApiError> {
    let found = specs.iter().find(|(_, spec)| spec.has_name(name)).cloned();
    found.ok_or_else(|| {
        let names: Vec<_> = specs.iter().map(|(_, spec)| spec.name.as_str()).collect();
        let expected = names.join(", ");
        ApiError::not_found(format!("model `{name}` not found: expected one of {expected}"))
    })
}

/// Kind of a model, for messages.
pub(super) fn kind_name(kind: ModelKind) -> &'static str {
    match kind {
        ModelKind::Language => "language model",
        _ => "speech model",
    }
}
