//! The `OpenAPI` document of the routes.
//!
//! A test makes it from the annotations of the routes and compares it with the file, so that a build does not make it.
//! `UPDATE_SNAPSHOTS=1` writes the file instead.

/// Text of `/openapi.json`.
pub(crate) const DOCUMENT: &str = include_str!("openapi.json");

#[cfg(test)]
mod tests {
    use utoipa::OpenApi;

    use super::DOCUMENT;

    #[derive(OpenApi)]
    #[openapi(
        info(
            title = "stonechat",
            description = "Language models and Whisper with the routes of OpenAI and llama-server."
        ),
        paths(
            crate::routes::anthropic::messages,
            crate::routes::anthropic::count_tokens,
            crate::routes::audio::transcriptions,
            crate::routes::audio::translations,
            crate::routes::audio::webservice::asr,
            crate::routes::audio::webservice::detect_language,
            crate::routes::chat::chat,
            crate::routes::client_secrets::client_secret,
            crate::routes::completion::completion,
            crate::routes::completion::infill,
            crate::routes::completions::completions,
            crate::routes::control::control,
            crate::routes::embeddings::embeddings,
            crate::routes::embeddings::embedding,
            crate::routes::health::health,
            crate::routes::lora::list,
            crate::routes::lora::set,
            crate::routes::metrics::metrics,
            crate::routes::models::list,
            crate::routes::models::retrieve,
            crate::routes::models::load,
            crate::routes::models::unload,
            crate::routes::ollama::chat,
            crate::routes::ollama::generate,
            crate::routes::ollama::embed,
            crate::routes::ollama::embeddings,
            crate::routes::ollama_manage::pull,
            crate::routes::ollama_manage::remove,
            crate::routes::ollama_models::version,
            crate::routes::ollama_models::tags,
            crate::routes::ollama_models::ps,
            crate::routes::ollama_models::show,
            crate::routes::ollama_models::copy,
            crate::routes::ollama_models::create,
            crate::routes::ollama_models::push,
            crate::routes::props::props,
            crate::routes::props::set_props,
            crate::routes::responses::create,
            crate::routes::responses::delete,
            crate::routes::responses::input_tokens,
            crate::routes::responses::retrieve,
            crate::routes::rerank::rerank,
            crate::routes::rerank::score,
            crate::routes::slots::slots,
            crate::routes::slots::act,
            crate::routes::template::apply_template,
            crate::routes::template::input_tokens,
            crate::routes::tokenize::tokenize,
            crate::routes::tokenize::detokenize,
        ),
        // Responses of an enum bring no schema along.
        components(schemas(stonechat_api::speech::TranscriptionAnswer))
    )]
    struct Annotations;

    #[test]
    fn the_document_is_that_of_the_annotations() {
        let expected = Annotations::openapi().to_pretty_json().unwrap() + "\n";
        if std::env::var_os("UPDATE_SNAPSHOTS").is_some_and(|value| !value.is_empty()) {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/openapi.json");
            std::fs::write(path, &expected).unwrap();
            return;
        }
        assert!(DOCUMENT == expected, "src/openapi.json is old: UPDATE_SNAPSHOTS=1 writes it");
    }

    #[test]
    fn references_of_the_document_have_a_schema() {
        let document: serde_json::Value = serde_json::from_str(DOCUMENT).unwrap();
        let mut references = DOCUMENT.split("\"$ref\": \"#").skip(1).peekable();
        assert!(references.peek().is_some(), "no reference");
        for reference in references {
            let (pointer, _) = reference.split_once('"').unwrap();
            assert!(document.pointer(pointer).is_some(), "expected a schema at {pointer}");
        }
    }
}
