//! Templates for models that come without one, by llama.cpp's names.

const SOURCES: [(&str, &str); 1] = [("chatml", include_str!("builtin/chatml.jinja"))];

pub(super) fn names() -> impl Iterator<Item = &'static str> {
    SOURCES.iter().map(|(name, _)| *name)
}

pub(super) fn source(name: &str) -> Option<&'static str> {
    SOURCES.iter().find(|(known, _)| *known == name).map(|(_, source)| *source)
}
