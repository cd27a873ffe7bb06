//! Tests of chat templates as a whole: expected texts written by hand from jinja2's documentation.

use serde_json::{Value, json};

use super::{ChatTemplate, Conversation};
use crate::error::Error;

fn conversation(messages: Value) -> Conversation {
    let messages = messages.as_array().cloned().unwrap();
    Conversation { messages, now: Some(1_772_368_496), ..Conversation::default() }
}

fn render(source: &str) -> Result<String, Error> {
    let messages = json!([
        {"role": "system", "content": "Sys"},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yo"},
    ]);
    let mut conversation = conversation(messages);
    conversation.variables = json!({
        "object": {"z": 1, "a": [1.5, true, null, "ü\n\"<'"], "items": 2},
        "list": [3, 1, 2],
        "empty": [],
    })
    .as_object()
    .cloned()
    .unwrap();
    ChatTemplate::new(source, "<s>", "</s>")?.render_unchanged(&conversation)
}

#[track_caller]
fn check(source: &str, expected: &str) {
    assert_eq!(render(source).unwrap(), expected, "{source}");
}

#[track_caller]
fn check_fails(source: &str, expected_line: usize, expected: &str) {
    match render(source) {
        Err(Error::ChatTemplate { line, reason }) => {
            assert!(reason.contains(expected), "{source:.80}: {reason}");
            assert_eq!(line, expected_line, "{source:.80}: {reason}");
        }
        other => panic!("{source:.80}: expected an error with {expected:?}, got {other:?}"),
    }
}

#[test]
fn whitespace_around_blocks_is_trimmed_as_transformers_does() {
    check("a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc");
    check("a\n  {%+ if true %}b{% endif +%}\nc", "a\n  b\nc");
    check("{{ 1 }}\n{{ 2 }} {#- x -#} 3\r\n4", "1\n23\n4");
    check("{%- for m in messages -%} \n {{ m.role }} {%- endfor -%} ", "systemuserassistant");
}

#[test]
fn values_print_as_in_python() {
    check(
        "{{ true }} {{ none }} {{ false|string }} {{ 1.0 }} {{ missing }}|",
        "True None False 1.0 |",
    );
    check(
        "{{ list }} {{ [1, 'a', none, true] }} {{ (1,) }}",
        "[3, 1, 2] [1, 'a', None, True] (1,)",
    );
    check("{{ {'a': 'it\\'s', 'b': 2.5} }}", "{'a': \"it's\", 'b': 2.5}");
    check("{{ 'x' ~ list ~ none }}", "x[3, 1, 2]None");
}

#[test]
fn tojson_is_json_dumps() {
    check(
        "{{ object|tojson }}",
        "{\"z\": 1, \"a\": [1.5, true, null, \"ü\\n\\\"<'\"], \"items\": 2}",
    );
    check(
        "{{ {'b': [1, {}], 'a': []}|tojson(indent=2) }}",
        "{\n  \"b\": [\n    1,\n    {}\n  ],\n  \"a\": []\n}",
    );
    check("{{ object.a|tojson(ensure_ascii=True) }}", "[1.5, true, null, \"\\u00fc\\n\\\"<'\"]");
    check(
        "{{ {'b': 1, 'a': 2}|tojson(sort_keys=true, separators=(',', ':')) }}",
        "{\"a\":2,\"b\":1}",
    );
    check("{{ 1e100|tojson }} {{ '😀'|tojson(ensure_ascii=true) }}", "1e+100 \"\\ud83d\\ude00\"");
}

#[test]
fn loops_have_controls_and_neighbours() {
    check(
        "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
        "023",
    );
    check(
        "{% for m in messages %}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.previtem.role if loop.previtem is defined }} {% endfor %}",
        "0TrueFalse 1FalseFalsesystem 2FalseTrueuser ",
    );
    check(
        "{% for m in messages if m.role != 'system' %}{{ m.content }}{{ loop.length }}{% else %}none{% endfor %}",
        "Hi2Yo2",
    );
    check(
        "{% for k, v in object|dictsort %}{{ k }}{% endfor %}{% for k, v in object.items() %}{{ k }}{% endfor %}",
        "aitemszzaitems",
    );
}

#[test]
fn slices_are_pythons() {
    check("{{ list[1:] }}{{ list[:-1] }}{{ list[::-1] }}{{ list[-1] }}", "[1, 2][3, 1][2, 1, 3]2");
    check("{{ empty[::-1] }}{{ list[5:] }}{{ list[-2::-1] }}{{ list[::2] }}", "[][][1, 3][3, 2]");
    check("{{ 'größe'[2:4] }}{{ 'abc'[::-1] }}{{ 'abc'[0] }}", "ößcbaa");
    check(
        "{% set rest = messages[1:] %}{{ rest[0].role }}{{ rest|length }}{{ rest is sequence }}",
        "user2True",
    );
}

#[test]
fn strings_have_pythons_methods() {
    check(
        "[{{ ' \\x1c a b '.strip() }}][{{ 'xxaxx'.strip('x') }}][{{ 'ab '.rstrip() }}]",
        "[a b][a][ab]",
    );
    check(
        "{{ 'a,b,c'.split(',', 1) }}{{ ' a  b '.split() }}{{ 'a b c'.rsplit(None, 1) }}",
        "['a', 'b,c']['a', 'b']['a b', 'c']",
    );
    check("{{ 'a</think>b'.split('</think>')[-1] }}{{ 'abc'.startswith(('x', 'a')) }}", "bTrue");
    check(
        "{{ 'abc'.removeprefix('a').removesuffix('c') }}{{ 'a=b'.partition('=') }}",
        "b('a', '=', 'b')",
    );
    check(
        "{{ 'Ab'.upper() }}{{ 'Ab'.lower() }}{{ 'a-a'.replace('a', 'b', 1) }}{{ '-'.join(['x', 'y']) }}",
        "ABabb-ax-y",
    );
    check("{{ '{}/{}'.format(1, 'a') }} {{ '%s=%d' % ('n', 5) }} {{ 'ab' * 2 }}", "1/a n=5 abab");
    check(
        "{{ object.get('z') }}{{ object.get('y') }}{{ object.get('y', 7) }}{{ object.keys()|list }}",
        "1None7['z', 'a', 'items']",
    );
}

#[test]
fn tests_are_jinja2s() {
    check(
        "{{ 'a' is string }}{{ 'a' is iterable }}{{ 'a' is sequence }}{{ object is mapping }}{{ object is sequence }}",
        "TrueTrueTrueTrueTrue",
    );
    check(
        "{{ 1 is number }}{{ true is number }}{{ true is integer }}{{ 1.0 is float }}{{ true is boolean }}",
        "TrueTrueFalseTrueTrue",
    );
    check(
        "{{ none is iterable }}{{ missing is defined }}{{ none is none }}{{ 3 is odd }}{{ missing is iterable }}",
        "FalseFalseTrueTrueTrue",
    );
}

#[test]
fn filters_are_jinja2s() {
    check("{{ messages|map(attribute='role')|join(', ') }}", "system, user, assistant");
    check("{{ (messages|selectattr('role', 'equalto', 'user')|first).content }}", "Hi");
    check("{{ messages|rejectattr('role', 'in', ['user', 'system'])|list|length }}", "1");
    check("{{ missing|default('d') }}{{ ''|default('e', true) }}{{ missing|length }}", "de0");
    check("{{ 'a\\n\\nb'|indent(2) }}|{{ 'a\\nb'|indent(1, true) }}", "a\n\n  b| a\n b");
    check(
        "{{ ' a '|trim }}{{ 'ab'|upper }}{{ '7'|int + 1 }}{{ list|sort|join }}{{ list|max }}",
        "aAB81233",
    );
}

#[test]
fn namespaces_macros_and_captures_work() {
    check(
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
        "3",
    );
    check(
        "{% macro m(a, b='x') %}<{{ a }}{{ b }}>{% endmacro %}{{ m(1) }}{{ m(2, b='y') }}",
        "<1x><2y>",
    );
    check(
        "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
        "3210",
    );
    check("{% set x %}a{{ bos_token }}{% endset %}{{ x ~ eos_token }}", "a<s></s>");
    check("{% generation %}{% set y = 1 %}{{ y }}{% endgeneration %}{{ y }}", "1");
    check("{% filter upper %}a{% endfilter %}{% raw %}{{ x }}{% endraw %}", "A{{ x }}");
}

#[test]
fn what_is_added_to_a_safe_string_is_escaped() {
    check("{{ 'a'|safe + '\"<b>' }}{{ 'a' + '<'|safe }}{{ '&' + 'x' }}", "a&#34;&lt;b&gt;a<&x");
}

#[test]
fn the_date_is_the_callers() {
    check("{{ strftime_now('%d %b %Y') }}", "01 Mar 2026");
}

#[test]
fn a_refusal_carries_the_templates_words_and_line() {
    let source = "a\n{% if messages[0].role == 'system' %}\n{{ raise_exception('No system role') }}{% endif %}";
    match render(source) {
        Err(Error::ChatRefused { line, message }) => {
            assert_eq!((line, message.as_str()), (3, "No system role"));
        }
        other => panic!("expected a refusal, got {other:?}"),
    }
    let in_macro = "{% macro m() %}\n\n{{ raise_exception('deep') }}{% endmacro %}\n{{ m() }}";
    assert!(matches!(render(in_macro), Err(Error::ChatRefused { line: 3, .. })));
}

#[test]
fn broken_templates_are_errors_with_a_line() {
    check_fails("a\n{% if x %}\nb", 3, "");
    check_fails("\n{{ 1 + }}", 2, "syntax error");
    check_fails("\n\n{{ x.y.z }}", 3, "undefined");
    check_fails("{{ 'a' + 1 }}", 1, "+ takes no string and number");
    check_fails("{{ nothing() }}", 1, "nothing");
    check_fails("{% for x in none %}{% endfor %}", 1, "loop over");
    check_fails("{{ x|from_json }}", 1, "from_json");
    check_fails("\n{% include 'x' %}", 2, "one file");
    check_fails("{{ list.append(1) }}", 1, "must not");
    check_fails("{{ 7 % 0 }}", 1, "zero");
    check_fails("{{ list[::0] }}", 1, "step");
}

#[test]
fn hostile_templates_end_in_errors() {
    let forever = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
    check_fails(forever, 1, "too many steps");
    let output = "{% for a in range(99999) %}{{ 'x' * 10000 }}{% endfor %}";
    check_fails(output, 1, "at most");
    let raw = format!("{{% for a in range(99999) %}}{}{{% endfor %}}", "y".repeat(10_000));
    check_fails(&raw, 1, "at most");
    let captured =
        "{% set x %}{% for a in range(99999) %}{{ 'x' * 10000 }}{% endfor %}{% endset %}";
    check_fails(captured, 1, "at most");
    let doubling = "{% set n = namespace(s='x') %}{% for a in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}";
    check_fails(doubling, 1, "at most");
    check_fails(&doubling.replace('~', "+"), 1, "at most");
    check_fails(&doubling.replace("n.s ~ n.s", "n.s * 2"), 1, "at most");
    check_fails(&doubling.replace("n.s ~ n.s", "n.s.replace('x', 'xx')"), 1, "at most");
    check_fails(&doubling.replace("n.s ~ n.s", "n.s|replace('x', 'xx')"), 1, "at most");
    check_fails(&doubling.replace("n.s ~ n.s", "[n.s, n.s]|join"), 1, "at most");
    check_fails(&doubling.replace("'x'", "[1]").replace('~', "+"), 1, "at most");
    check_fails(
        &doubling.replace("range(99)", "range(9999)").replace("n.s ~ n.s", "[n.s]"),
        1,
        "nesting",
    );
    check_fails(&doubling.replace("n.s ~ n.s", "[n.s, n.s]"), 1, "at most");
    let work =
        "{% set x = 'x' * 9999999 %}{% for a in range(99999) %}{% set y = x[1:] %}{% endfor %}";
    check_fails(work, 1, "too many steps");
    check_fails("{{ '%999999999d' % 1 }}", 1, "width");
    check_fails("{{ '{:>999999999}'.format(1) }}", 1, "width");
    let knot = "{% set n = namespace() %}{% set n.n = n %}{{ n }}";
    check_fails(knot, 1, "nesting");
    let recursive = "{% macro m(x) %}{{ m(x) }}{% endmacro %}\n{{ m(1) }}";
    check_fails(recursive, 1, "recursion");
}

#[test]
fn limits_hold_for_each_rendering_of_a_template() {
    let source =
        "{% for a in range(n) %}{% for b in range(90000) %}{% endfor %}{% endfor %}{{ n }}";
    let template = ChatTemplate::new(source, "", "").unwrap();
    let render = |n: u32| {
        let mut conversation = conversation(json!([]));
        conversation.variables.insert("n".to_owned(), n.into());
        template.render_unchanged(&conversation)
    };
    // More than half of the steps of one rendering.
    for _ in 0..3 {
        assert_eq!(render(20).unwrap(), "20");
    }
    assert!(matches!(render(99), Err(Error::ChatTemplate { line: 1, .. })));
    assert_eq!(render(20).unwrap(), "20");
}

#[test]
fn deep_sources_are_refused_before_they_are_parsed() {
    check_fails(&format!("\n{{{{ {} }}}}", "1+".repeat(5_000) + "1"), 2, "complex");
    check_fails(&format!("{{{{ x{} }}}}", "|e".repeat(5_000)), 1, "complex");
    check_fails(&format!("{{{{ {}1 }}}}", "not ".repeat(5_000)), 1, "complex");
    check_fails(
        &format!("{{% if x %}}{}{{% endif %}}", "{% elif x %}".repeat(5_000)),
        1,
        "complex",
    );
    check_fails(&"{% if x %}".repeat(5_000), 1, "recursion");
    check_fails(&"x".repeat(1 << 19), 0, "bytes");
    let nested = format!("{}{}", "[".repeat(200), "]".repeat(200));
    check_fails(&format!("{{{{ {nested} }}}}"), 1, "recursion");
}

const PARTS_ONLY: &str =
    "{% for m in messages %}{% for p in m.content %}{{ p.text }};{% endfor %}{% endfor %}";
const NO_SYSTEM: &str = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('x') }}\
    {% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}";
const TOOLS: &str = "{{ tools|tojson if tools }}{% for m in messages %}<{{ m.role }}>{{ m.content }}\
    {% for c in m.tool_calls %}{{ c.function.name }}({% for k, v in c.function.arguments.items() %}\
    {{ k }}={{ v }}{% endfor %}){% endfor %}{% endfor %}";

#[test]
fn capabilities_are_found_by_rendering() {
    let capabilities = |source: &str| *ChatTemplate::new(source, "", "").unwrap().capabilities();
    let parts = capabilities(PARTS_ONLY);
    assert!(parts.needs_parts && parts.supports_parts && parts.supports_system_role);
    let no_system = capabilities(NO_SYSTEM);
    assert!(!no_system.supports_system_role && !no_system.needs_parts && !no_system.supports_parts);
    assert!(!no_system.supports_tools && !no_system.supports_tool_calls);
    let tools = capabilities(TOOLS);
    assert!(tools.supports_tools && tools.supports_tool_calls && tools.needs_object_arguments);
    assert!(!tools.supports_reasoning);
}

#[test]
fn messages_are_fitted_to_the_template() {
    let render = |source: &str, messages: Value| {
        ChatTemplate::new(source, "", "").unwrap().render(&conversation(messages)).unwrap()
    };
    let messages = json!([
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]},
    ]);
    assert_eq!(render(NO_SYSTEM, messages.clone()), "<user>Be kind.\nA\nB");
    assert_eq!(render(PARTS_ONLY, messages), "Be kind.;A;B;");
}

/// `LocalAI` 10256: clients send arguments as a string of JSON, templates read members.
#[test]
fn arguments_of_earlier_calls_are_parsed_for_templates_that_read_members() {
    let render = |source: &str, arguments: &str| {
        let call = json!({"function": {"name": "f", "arguments": arguments}});
        let message = json!([{"role": "assistant", "content": null, "tool_calls": [call]}]);
        ChatTemplate::new(source, "", "").unwrap().render(&conversation(message))
    };
    assert_eq!(render(TOOLS, "{\"x\": 1}").unwrap(), "<assistant>f(x=1)");
    // A template that prints them gets the bytes of the client, broken ones as well.
    let printed = TOOLS.replace("{% for k, v in c.function.arguments.items() %}", "{% if true %}");
    let printed =
        printed.replace("{{ k }}={{ v }}{% endfor %}", "{{ c.function.arguments }}{% endif %}");
    for arguments in ["{\"x\":  1}", "{\"x\": "] {
        assert_eq!(render(&printed, arguments).unwrap(), format!("<assistant>f({arguments})"));
    }
    let error = render(TOOLS, "{\"x\": ").unwrap_err();
    assert!(matches!(error, Error::ChatTemplate { .. }), "{error}");
}

#[test]
fn unknown_builtin_names_are_refused_with_the_known_ones() {
    let error = ChatTemplate::builtin("nope", "", "").unwrap_err().to_string();
    assert!(error.contains("\"nope\"") && error.contains("chatml"), "{error}");
}

#[test]
fn filters_of_jinja_are_known() {
    check("{{ [1, 2, 3]|batch(2) }}", "[[1, 2], [3]]");
    check("{{ [1, 2, 3]|batch(2, 'x')|list }}", "[[1, 2], [3, 'x']]");
    check("{{ [1]|batch(linecount=2, fill_with=0) }}{{ []|batch(2) }}", "[[1, 0]][]");
    check("{{ [1, 2, 3, 4]|slice(3) }}", "[[1, 2], [3], [4]]");
    check("{{ [1, 2, 3, 4]|slice(slices=3, fill_with=0) }}", "[[1, 2], [3, 0], [4, 0]]");
    // The examples of jinja2's documentation.
    check("{{ 'foo bar baz qux'|truncate(9) }}", "foo...");
    check("{{ 'foo bar baz qux'|truncate(9, True) }}", "foo ba...");
    check("{{ 'foo bar baz qux'|truncate(11) }}", "foo bar baz qux");
    check("{{ 'foo bar baz qux'|truncate(11, False, '...', 0) }}", "foo bar...");
    check("{{ 'äöü äöü'|truncate(length=4, end='…', leeway=0, killwords=true) }}", "äöü…");
    check("{{ 'ab, c_d  e'|wordcount }}{{ ''|wordcount }}", "30");
    check("{{ 'a\\nb'|indent(width=2) }}|{{ 'a\\nb'|indent(first=true) }}", "a\n  b|    a\n    b");
    check("{{ '%r %s' % ('a', 'b') }} {{ '%r'|format([1, 'x']) }}", "'a' b [1, 'x']");
    check("{{ '%d%% %5r|' % (5, 'a') }} {{ '%r' % none }}", "5%   'a'| None");
}

#[test]
fn filters_of_jinja_are_bounded() {
    check_fails("{{ [1]|batch(0) }}", 1, "`linecount` of at least 1");
    check_fails("{{ [1]|slice(300000, 0) }}", 1, "at most");
    check_fails("{{ [1]|slice(1000000000000) }}", 1, "too many steps");
    check_fails("{{ [1]|batch(9000000000000000000, 0) }}", 1, "too many steps");
    check_fails("{{ 'abc'|truncate(1, leeway=0) }}", 1, "expected a length of at least");
}
