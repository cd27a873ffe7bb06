"""Render chat templates as transformers does, for `cargo xtask templates`.

Standard input: one JSON object, {"templates": {name: source}, "conversations": {name: variables},
"now": seconds}. Standard output: one JSON object, {template: {conversation: {"text"} or
{"error"}}}.

The environment is that of transformers' `apply_chat_template` (utils/chat_template_utils.py),
written from its documentation, with a fixed clock. One departure: `tojson` takes the generators
that jinja2's `map` and `select` return, as lists. transformers refuses them; llama.cpp, for which
one of the templates was written, has lists there.
"""

import datetime
import json
import sys
import types

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    """The tag that marks what the assistant wrote; it prints its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_body")
        return nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def environment(now: int) -> ImmutableSandboxedEnvironment:
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def generated(x):
        if isinstance(x, types.GeneratorType):
            return list(x)
        raise TypeError(f"Object of type {type(x).__name__} is not JSON serializable")

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(
            x,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
            default=generated,
        )

    def strftime_now(format):
        date = datetime.datetime.fromtimestamp(now, datetime.timezone.utc)
        return date.replace(tzinfo=None).strftime(format)

    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


def main() -> None:
    task = json.load(sys.stdin)
    env = environment(task["now"])
    results = {}
    for name, source in task["templates"].items():
        results[name] = {}
        try:
            template = env.from_string(source)
        except jinja2.TemplateError as error:
            failed = {"error": f"{type(error).__name__}: {error}"}
            results[name] = {conversation: failed for conversation in task["conversations"]}
            continue
        for conversation, variables in task["conversations"].items():
            try:
                text = template.render(**variables)
                results[name][conversation] = {"text": text}
            except Exception as error:  # every failure is a result here
                results[name][conversation] = {"error": f"{type(error).__name__}: {error}"}
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
