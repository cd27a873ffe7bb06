"""Fifty tasks for five tools, answered by a real model: every call has the name of a tool and arguments that conform to
its schema. Which tool a model chooses, and with which arguments, is its own matter: those figures are printed."""

import json

import jsonschema

from harness import check, equal, expect

TEXT = {"type": "string"}


def tool(name, description, required, **properties):
    schema = {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = [
    tool(
        "get_weather",
        "Get the weather forecast of a city",
        "city",
        city=TEXT,
        days={"type": "integer", "minimum": 1, "maximum": 14, "description": "Days to forecast"},
        unit={"enum": ["celsius", "fahrenheit"]},
    ),
    tool(
        "send_message",
        "Send a text message to a person",
        "to text",
        to={"type": "string", "description": "Name of the person"},
        text=TEXT,
        is_urgent={"type": "boolean"},
    ),
    tool(
        "set_timer",
        "Start a countdown timer",
        "minutes",
        minutes={"type": "number", "exclusiveMinimum": 0},
        label=TEXT,
    ),
    tool(
        "convert_currency",
        "Convert an amount of money between currencies",
        "amount from to",
        amount={"type": "number"},
        **{name: {"type": "string", "pattern": "^[A-Z]{3}$", "description": "ISO 4217"} for name in ("from", "to")},
    ),
    tool(
        "create_event",
        "Add an event to the calendar",
        "title date",
        title=TEXT,
        date={"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$", "description": "YYYY-MM-DD"},
        guests={"type": "array", "items": TEXT},
    ),
]
SCHEMAS = {entry["function"]["name"]: entry["function"]["parameters"] for entry in TOOLS}

# What is asked, the tool that answers it, and one argument that a right answer has.
TASKS = [
    ("What is the weather in Oslo?", "get_weather", ("city", "Oslo")),
    ("Will it rain in Lisbon over the next 3 days?", "get_weather", ("days", 3)),
    ("Give me the forecast for Chicago in fahrenheit.", "get_weather", ("unit", "fahrenheit")),
    ("How warm is it in Nairobi right now, in celsius?", "get_weather", ("unit", "celsius")),
    ("I travel to Kyoto for a week. What will the weather be like for the 7 days?", "get_weather", ("days", 7)),
    ("Do I need an umbrella in São Paulo today?", "get_weather", ("city", "São Paulo")),
    ("Weather Reykjavik please", "get_weather", ("city", "Reykjavik")),
    ("Is it snowing in Zermatt?", "get_weather", ("city", "Zermatt")),
    ("Tell me the temperature in Cairo for the coming 2 days in fahrenheit.", "get_weather", ("days", 2)),
    ("What's it like outside in Melbourne?", "get_weather", ("city", "Melbourne")),
    ("Tell Anna that I will be late.", "send_message", ("to", "Anna")),
    ('Send Ben the message "The meeting is at noon".', "send_message", ("to", "Ben")),
    ("Text Mom: happy birthday!", "send_message", ("to", "Mom")),
    ("Urgently let Priya know that the server is down.", "send_message", ("is_urgent", True)),
    ("Write to Kenji that his package has arrived.", "send_message", ("to", "Kenji")),
    ("Ask Laura by text whether she wants pizza.", "send_message", ("to", "Laura")),
    ('Message Tom: he said "no" and then {left}.', "send_message", ("to", "Tom")),
    ("Please inform Dr. Schmidt that the results are ready.", "send_message", ("to", "Dr. Schmidt")),
    ("Send an urgent message to Omar: call me back.", "send_message", ("is_urgent", True)),
    ("Tell Zoë the door code is 4711.", "send_message", ("to", "Zoë")),
    ("Set a timer for 10 minutes.", "set_timer", ("minutes", 10)),
    ("Remind me to take out the cake in 45 minutes.", "set_timer", ("minutes", 45)),
    ("Start a countdown of an hour and a half.", "set_timer", ("minutes", 90)),
    ("Wake me in 20 minutes.", "set_timer", ("minutes", 20)),
    ("Timer, 3 minutes, tea.", "set_timer", ("minutes", 3)),
    ("I need a 25 minute pomodoro.", "set_timer", ("minutes", 25)),
    ("Set a timer of two hours called laundry.", "set_timer", ("minutes", 120)),
    ("Count down 7.5 minutes for the eggs.", "set_timer", ("minutes", 7.5)),
    ("Let me know when 15 minutes have passed.", "set_timer", ("minutes", 15)),
    ("Please time 1 minute.", "set_timer", ("minutes", 1)),
    ("How many euros are 250 US dollars?", "convert_currency", ("to", "EUR")),
    ("Convert 99.99 GBP to JPY.", "convert_currency", ("amount", 99.99)),
    ("What is 1000 Indian rupees in US dollars?", "convert_currency", ("from", "INR")),
    ("I have 40 Swiss francs. How much is that in euros?", "convert_currency", ("from", "CHF")),
    ("Change 5000 yen to Australian dollars.", "convert_currency", ("from", "JPY")),
    ("What are 12 dollars in Mexican pesos?", "convert_currency", ("to", "MXN")),
    ("Exchange 75 EUR into SEK.", "convert_currency", ("to", "SEK")),
    ("20 pounds sterling in Canadian dollars?", "convert_currency", ("from", "GBP")),
    ("How much is one million Korean won in euros?", "convert_currency", ("amount", 1000000)),
    ("Convert 3.5 dollars to Brazilian reais.", "convert_currency", ("to", "BRL")),
    ("Add the dentist to my calendar on 2026-12-03.", "create_event", ("date", "2026-12-03")),
    ("Schedule a lunch with Ida and Max for 2027-01-15.", "create_event", ("guests", ["Ida", "Max"])),
    ("Put 'Team offsite' on my calendar for May 4th, 2027.", "create_event", ("date", "2027-05-04")),
    ("Create an event: concert, 24 July 2027.", "create_event", ("date", "2027-07-24")),
    ("Book the yearly review on 2026-12-18 and invite Noor.", "create_event", ("guests", ["Noor"])),
    ("New calendar entry: moving day, 2027-03-01.", "create_event", ("date", "2027-03-01")),
    ("Note in my calendar that the rent is due on 2027-02-01.", "create_event", ("date", "2027-02-01")),
    ("Plan a birthday party for 2027-08-09 with Eve, Bo and Li.", "create_event", ("guests", ["Eve", "Bo", "Li"])),
    ("Save the date: wedding on June 12, 2027.", "create_event", ("date", "2027-06-12")),
    ("My flight is on 2026-12-24, please add it.", "create_event", ("date", "2026-12-24")),
]


def run(server, choice, is_strict):
    """Runs all tasks and prints the figures; the calls that are no calls of a tool with its arguments."""
    equal(len(TASKS), 50, "tasks")
    tools = [{**entry, "function": {**entry["function"], "strict": is_strict}} for entry in TOOLS]
    called, right_tool, right_value, invalid = 0, 0, 0, []
    for question, expected, (key, value) in TASKS:
        answer = server.chat(question, tools=tools, tool_choice=choice, max_tokens=200, seed=1).choices[0]
        calls = answer.message.tool_calls or []
        called += bool(calls)
        for call in calls:
            try:
                arguments = json.loads(call.function.arguments)
                jsonschema.validate(arguments, SCHEMAS[call.function.name])
            except (KeyError, ValueError, jsonschema.ValidationError) as error:
                invalid.append(f"{question!r}: {call.function.name} {call.function.arguments}: {str(error)[:100]!r}")
        if calls and calls[0].function.name == expected:
            right_tool += 1
            try:
                right_value += json.loads(calls[0].function.arguments).get(key) == value
            except ValueError:
                pass
    kind = f"{choice}{', strict' if is_strict else ''}"
    print(
        f"tool tasks of {server.model}, {kind}: {called} of 50 called a tool, {right_tool} the right one, "
        f"{right_value} with the argument; {len(invalid)} invalid calls",
        flush=True,
    )
    return called, invalid


@check
def required_calls_conform(server):
    called, invalid = run(server, "required", False)
    equal(called, 50, "tasks with a call")
    equal(invalid, [], "invalid calls")


@check
def calls_of_choice_conform(server):
    called, invalid = run(server, "auto", False)
    expect(called > 0, "no task had a call")
    equal(invalid, [], "invalid calls")


@check
def strict_calls_of_choice_conform(server):
    called, invalid = run(server, "auto", True)
    expect(called > 0, "no task had a call")
    equal(invalid, [], "invalid calls")
