//! Formats of answers of a model file, with other templates.

use serde_json::{Value, json};
use stonechat_formats::ModelFile;
use stonechat_sampling::{GrammarSource, GrammarStart};
use stonechat_text::Conversation;

use super::parse_with;
use crate::chat::{AnswerFormat, AnswerOptions, Tool, ToolChoice};
use crate::{ChatFormat, Config, Error, ModelInfo};

pub(super) fn model() -> ModelInfo {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/golden/llm/llama.gguf");
    let file = ModelFile::open(path).unwrap();
    let config = Config::from_file(&file).unwrap();
    ModelInfo::new(&file, config).unwrap()
}

/// Template of messages after their roles, which prints tools and calls as Hermes does.
fn template(prompt: &str) -> String {
    "{% if tools %}{{ tools|tojson }}{% endif %}{% for m in messages %}[{{ m.role }}]{{ m.content }}\
     {% for c in m.tool_calls or [] %}<tool_call>\n{{ c.function|tojson }}\n</tool_call>{% endfor %}{% endfor %}\
     {% if add_generation_prompt %}[assistant]"
        .to_owned()
        + prompt
        + "{% endif %}{# <think> </think> #}"
}

fn conversation(messages: Value) -> Conversation {
    Conversation {
        messages: messages.as_array().unwrap().clone(),
        add_generation_prompt: true,
        now: Some(0),
        ..Conversation::default()
    }
}

fn tool(parameters: Value, is_strict: bool) -> Tool {
    Tool { name: "look_up".to_owned(), parameters, is_strict }
}

fn options<'a>(tools: &'a [Tool], choice: &'a ToolChoice) -> AnswerOptions<'a> {
    AnswerOptions { tools, choice, parallel: true, splits_reasoning: true, content: None }
}

fn answer(source: &str, tools: &[Tool], choice: &ToolChoice) -> Result<AnswerFormat, Error> {
    let model = model();
    let format = ChatFormat::new(&model, Some(source)).unwrap();
    let asked = conversation(json!([{"role": "user", "content": "Hi <think>"}]));
    format.answer_format(&model, &format.prompt(asked).unwrap(), &options(tools, choice))
}

#[test]
fn a_prompt_that_ends_in_reasoning_is_seen() {
    for (end, is_open) in [
        ("", false),
        ("<think>\n", true),
        ("<think>\n\n</think>\n\n", false),
        ("<think></think>", false),
    ] {
        let format = answer(&template(end), &[], &ToolChoice::Auto).unwrap();
        let reasoning = format.reasoning.unwrap();
        assert_eq!((reasoning.is_open, reasoning.end.as_str()), (is_open, "</think>"), "{end:?}");
        let got = parse_with(format.parser, &["a</think>b"], true);
        let expected = if is_open { ("a", "b") } else { ("", "a</think>b") };
        assert_eq!((got.reasoning.as_str(), got.content.as_str()), expected);
    }
}

#[test]
fn a_message_that_has_begun_to_reason_goes_on_so() {
    let model = model();
    let format = ChatFormat::new(&model, Some(&template(""))).unwrap();
    assert!(format.supports_tools() && format.supports_reasoning());
    for (begun, is_open) in
        [("<think>\nHm", true), ("<think>\nHm\n</think>\n\nSo", false), ("So", false)]
    {
        let mut continued = conversation(json!([
            {"role": "user", "content": "Hi"}, {"role": "assistant", "content": begun},
        ]));
        (continued.add_generation_prompt, continued.continues) = (false, true);
        let prompt = format.prompt(continued).unwrap();
        let choice = ToolChoice::Auto;
        let answer = format.answer_format(&model, &prompt, &options(&[], &choice)).unwrap();
        assert_eq!(answer.reasoning.unwrap().is_open, is_open, "{begun:?}");
    }
}

#[test]
fn templates_without_tools_get_them_as_text() {
    let model = model();
    let format = ChatFormat::new(&model, Some("chatml")).unwrap();
    assert!(!format.supports_tools() && !format.supports_reasoning());
    let mut asked = conversation(json!([{"role": "user", "content": "Hi"}]));
    asked.tools =
        Some(json!([{"type": "function", "function": {"name": "look_up", "parameters": {}}}]));
    let text = format.prompt(asked).unwrap().text();
    assert!(text.starts_with("<|im_start|>system\nYou are a function calling AI model."), "{text}");
    assert!(text.contains("\"look_up\"") && text.ends_with("<|im_start|>assistant\n"), "{text}");
    let answer = answer("chatml", &[tool(Value::Null, false)], &ToolChoice::Auto).unwrap();
    let call = "<tool_call>\n{\"name\": \"look_up\", \"arguments\": {}}\n</tool_call>";
    assert_eq!(parse_with(answer.parser, &[call], true).tool_calls.len(), 1);
}

#[test]
fn the_choice_decides_when_the_grammar_starts() {
    let tools = [tool(json!({"type": "object", "properties": {"q": {"type": "string"}}}), false)];
    let start = |choice: &ToolChoice| {
        answer(&template(""), &tools, choice).unwrap().grammar.map(|grammar| grammar.start)
    };
    assert!(matches!(start(&ToolChoice::Auto), Some(GrammarStart::After(_))));
    assert_eq!(start(&ToolChoice::Required), Some(GrammarStart::Immediately));
    assert_eq!(start(&ToolChoice::Function("look_up".to_owned())), Some(GrammarStart::Immediately));
    assert_eq!(start(&ToolChoice::None), None);
    let unknown = answer(&template(""), &tools, &ToolChoice::Function("nobody".to_owned()));
    let message = unknown.unwrap_err().to_string();
    assert!(message.contains("tool_choice") && message.contains("look_up"), "{message}");
}

#[test]
fn content_beside_tools_may_have_a_schema_and_no_other_grammar() {
    let model = model();
    let format = ChatFormat::new(&model, Some(&template(""))).unwrap();
    let asked = conversation(json!([{"role": "user", "content": "Hi"}]));
    let prompt = format.prompt(asked).unwrap();
    let tools = [tool(json!({"type": "object", "properties": {"q": {"type": "string"}}}), false)];
    let answer = |tools: &[Tool], choice: &ToolChoice, content: GrammarSource| {
        let options = AnswerOptions { content: Some(&content), ..options(tools, choice) };
        format.answer_format(&model, &prompt, &options)
    };
    let schema = || GrammarSource::JsonSchema(json!({"type": "object"}).to_string());
    let regex = || GrammarSource::Regex("[a-z]+".to_owned());
    for (tools, choice) in [
        (&tools[..], ToolChoice::Auto),
        (&tools[..], ToolChoice::None),
        (&tools[..], ToolChoice::Required),
        (&[], ToolChoice::Auto),
    ] {
        let grammar = answer(tools, &choice, schema()).unwrap().grammar.unwrap();
        assert_eq!(grammar.start, GrammarStart::Immediately, "{choice:?}");
    }
    assert!(answer(&[], &ToolChoice::Auto, regex()).unwrap().grammar.is_some());
    assert!(answer(&tools, &ToolChoice::Required, regex()).unwrap().grammar.is_some());
    let error = answer(&tools, &ToolChoice::Auto, regex()).unwrap_err().to_string();
    assert!(error.contains("JSON schema"), "{error}");
    let invalid = GrammarSource::JsonSchema("{".to_owned());
    assert!(answer(&tools, &ToolChoice::Auto, invalid).is_err());
}

#[test]
fn a_schema_that_no_grammar_enforces_is_refused_where_it_must_hold() {
    let invalid =
        || json!({"type": "object", "properties": {"q": {"type": "string", "pattern": "("}}});
    for (tools, choice) in [
        ([tool(invalid(), false)], ToolChoice::Required),
        ([tool(invalid(), true)], ToolChoice::Auto),
    ] {
        let error = answer(&template(""), &tools, &choice).unwrap_err();
        assert!(matches!(&error, Error::ToolSchema { tool, .. } if tool == "look_up"), "{error}");
    }
    let any = answer(&template(""), &[tool(invalid(), false)], &ToolChoice::Auto).unwrap();
    assert!(any.grammar.is_some());
}

#[test]
fn grammars_of_tools_with_an_invalid_schema_are_kept_by_all_that_they_depend_on() {
    let model = model();
    let format = ChatFormat::new(&model, Some(&template(""))).unwrap();
    let asked = conversation(json!([{"role": "user", "content": "Hi"}]));
    let prompt = format.prompt(asked).unwrap();
    let invalid =
        json!({"type": "object", "properties": {"q": {"type": "string", "pattern": "("}}});
    let named =
        |name: &str, parameters: Value| Tool { name: name.to_owned(), ..tool(parameters, false) };
    let two = |parameters: Value| [named("bad", invalid.clone()), named("pick", parameters)];
    let integer = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    let text = json!({"type": "object", "properties": {"n": {"type": "string"}}});
    for (parameters, parallel, n) in
        [(&integer, true, 1), (&text, true, 2), (&integer, true, 2), (&text, false, 3)]
    {
        let (tools, choice) = (two(parameters.clone()), ToolChoice::Auto);
        let options = AnswerOptions { parallel, ..options(&tools, &choice) };
        assert!(format.answer_format(&model, &prompt, &options).unwrap().grammar.is_some());
        assert_eq!(model.grammars().n_loosened(), n, "{parameters}");
    }
}
