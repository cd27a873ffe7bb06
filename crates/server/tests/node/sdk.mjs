// Libraries of npm: Vercel's AI SDK by each of its providers, OpenAI's and Ollama's own.

import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { Ollama } from "ollama";
import OpenAI from "openai";
import { z } from "zod";

import { check, idle, main, server } from "./harness.mjs";

const TASK = "Do this in two steps: find my city, then its weather.";
const ANSWER = "It is 21 degrees in Oslo.";
const EXPECTED = ["get_city {}", 'get_weather {"city":"Oslo","unit":"celsius"}'];
const at = { baseURL: `${server.base}/v1`, apiKey: server.key };

/** Tools that note their calls. */
function tools(calls) {
  const noted = (name, answer) => (input) => {
    calls.push(`${name} ${JSON.stringify(input)}`);
    return answer;
  };
  return {
    get_city: tool({ description: "City of the user", inputSchema: z.object({}), execute: noted("get_city", "Oslo") }),
    get_weather: tool({
      description: "Weather of a city",
      inputSchema: z.object({ city: z.string(), unit: z.enum(["celsius", "kelvin"]).optional() }),
      execute: noted("get_weather", "21 degrees"),
    }),
  };
}

const compatible = createOpenAICompatible({ name: "stonechat", includeUsage: true, ...at });
const providers = {
  compatible,
  responses: (model) => createOpenAI(at).responses(model),
  chat: (model) => createOpenAI(at).chat(model),
  anthropic: createAnthropic(at),
};

for (const [name, provider] of Object.entries(providers)) {
  const options = () => ({ model: provider(server.scripted), maxRetries: 0 });

  check(`ai.${name}_does_a_task_of_two_steps`, async () => {
    const calls = [];
    const result = await generateText({ ...options(), prompt: TASK, tools: tools(calls), stopWhen: stepCountIs(5) });
    assert.deepEqual([result.text, calls], [ANSWER, EXPECTED]);
    assert.equal(result.finishReason, "stop");
    assert.ok(result.usage.inputTokens > 0 && result.usage.outputTokens > 0, JSON.stringify(result.usage));
  });

  check(`ai.${name}_streams_a_task`, async () => {
    const calls = [];
    const result = streamText({ ...options(), prompt: TASK, tools: tools(calls), stopWhen: stepCountIs(5) });
    const types = new Set();
    for await (const part of result.fullStream) {
      assert.notEqual(part.type, "error", JSON.stringify(part.error?.message ?? part.error));
      types.add(part.type);
    }
    const steps = await result.steps;
    assert.deepEqual([steps.at(-1).text, calls, steps.length], [ANSWER, EXPECTED, 3]);
    for (const type of ["text-delta", "tool-input-delta", "tool-call", "tool-result", "finish"]) {
      assert.ok(types.has(type), `${type} in ${[...types]}`);
    }
  });

  check(`ai.${name}_reads_reasoning`, async () => {
    // The provider of responses asks for a summary; the others have no such option.
    const providerOptions = { openai: { reasoningSummary: "auto", forceReasoning: true } };
    const result = streamText({ ...options(), prompt: "Think of a stone.", providerOptions });
    const order = [];
    for await (const part of result.fullStream) {
      assert.notEqual(part.type, "error", JSON.stringify(part.error?.message ?? part.error));
      order.push(part.type);
    }
    assert.equal(await result.text, "Granite is a hard stone.");
    if (name !== "chat") {
      // That of chats reads none.
      assert.ok(order.includes("reasoning-delta"), String(order));
      assert.ok(order.indexOf("reasoning-delta") < order.indexOf("text-delta"), String(order));
    }
  });

  check(`ai.${name}_calls_in_parallel`, async () => {
    const run_code = tool({ inputSchema: z.object({ code: z.string(), path: z.string() }) });
    const { get_weather } = tools([]);
    const result = await generateText({ ...options(), prompt: "Do this in parallel.", tools: { run_code, get_weather } });
    const calls = result.toolCalls;
    assert.deepEqual(calls.map((call) => call.toolName), ["get_weather", "run_code", "get_weather"]);
    assert.deepEqual(calls[1].input, { code: 'if (x) { y("}"); }', path: "C:\\path\\new" });
    assert.equal(new Set(calls.map((call) => call.toolCallId)).size, 3);
  });

  check(`ai.${name}_chooses_a_tool`, async () => {
    const { get_city, get_weather } = tools([]);
    const result = await generateText({ ...options(), prompt: "Hello", tools: { get_city, get_weather }, toolChoice: "required" });
    assert.ok(result.toolCalls.length > 0, result.text);
  });

  check(`ai.${name}_names_errors`, async () => {
    const call = generateText({ model: provider("no-such-model"), prompt: "Hello", maxRetries: 0 });
    await assert.rejects(call, (error) => {
      assert.ok(APICallError.isInstance(error), String(error));
      assert.equal(error.statusCode, 404);
      assert.match(error.message, /no-such-model/);
      return true;
    });
  });

  check(`ai.${name}_cancels_a_stream`, async () => {
    const abort = new AbortController();
    const result = streamText({ ...options(), prompt: "Tell me a long story.", abortSignal: abort.signal });
    let n = 0;
    for await (const part of result.fullStream) {
      n += part.type === "text-delta" ? 1 : 0;
      if (n === 3) {
        abort.abort();
      }
    }
    assert.ok(n >= 3, `${n} parts`);
    await idle();
  });
}

// Texts and reasoning of earlier answers are sent as references to kept items.
check("ai.responses_goes_on", async () => {
  for (const store of [true, false]) {
    const providerOptions = { openai: { store, reasoningSummary: "auto", forceReasoning: true } };
    const options = { model: providers.responses(server.scripted), maxRetries: 0, providerOptions };
    const messages = [{ role: "user", content: "Think of a stone." }];
    const first = await generateText({ ...options, messages });
    assert.match(first.reasoningText, /Granite fits/);
    messages.push(...first.response.messages, { role: "user", content: "Hello" });
    const second = await generateText({ ...options, messages });
    assert.equal(second.text, "Granite is a hard stone.");
    assert.ok(second.usage.inputTokens > first.usage.inputTokens + 20, JSON.stringify(second.usage));
  }
});

check("ai.objects_follow_their_schema", async () => {
  const model = createOpenAICompatible({ name: "stonechat", supportsStructuredOutputs: true, ...at })(server.model);
  const schema = z.object({ hard: z.boolean(), size: z.enum(["small", "large"]) });
  const { object } = await generateObject({ model, schema, prompt: "Describe a stone.", maxOutputTokens: 60 });
  assert.deepEqual(Object.keys(object).sort(), ["hard", "size"]);
});

const openai = new OpenAI({ ...at, maxRetries: 0 });
const CITY = { type: "function", function: { name: "get_city", parameters: { type: "object", properties: {} }, function: () => "Oslo" } };
const WEATHER = {
  type: "function",
  function: {
    name: "get_weather",
    parse: JSON.parse,
    parameters: { type: "object", properties: { city: { type: "string" }, unit: { type: "string" } }, required: ["city"] },
    function: ({ city }) => `21 degrees in ${city}`,
  },
};

check("openai.runs_tools", async () => {
  const runner = openai.chat.completions.runTools({
    model: server.scripted,
    messages: [{ role: "user", content: TASK }],
    tools: [CITY, WEATHER],
  });
  assert.equal(await runner.finalContent(), ANSWER);
});

check("openai.streams_tools", async () => {
  const runner = openai.chat.completions.runTools({
    model: server.scripted,
    stream: true,
    messages: [{ role: "user", content: TASK }],
    tools: [CITY, WEATHER],
  });
  let text = "";
  runner.on("content", (part) => (text += part));
  assert.equal(await runner.finalContent(), ANSWER);
  assert.equal(text, ANSWER);
});

check("openai.streams_responses", async () => {
  const stream = openai.responses.stream({ model: server.scripted, input: "Think of a stone." });
  const types = [];
  stream.on("event", (event) => types.push(event.type));
  const response = await stream.finalResponse();
  assert.equal(response.output_text, "Granite is a hard stone.");
  assert.equal(types[0], "response.created");
  assert.equal(types.at(-1), "response.completed");
});

check("openai.errors_have_their_classes", async () => {
  const chat = openai.chat.completions.create({ model: "no-such-model", messages: [{ role: "user", content: "Hi" }] });
  await assert.rejects(chat, OpenAI.NotFoundError);
  const response = openai.responses.create({ model: server.scripted, input: 7 });
  await assert.rejects(response, OpenAI.BadRequestError);
  const wrong = new OpenAI({ ...at, apiKey: "wrong", maxRetries: 0 });
  await assert.rejects(wrong.models.list(), OpenAI.AuthenticationError);
});

check("openai.cancels_a_stream", async () => {
  const stream = await openai.chat.completions.create({
    model: server.scripted,
    stream: true,
    messages: [{ role: "user", content: "Tell me a long story." }],
  });
  for await (const chunk of stream) {
    if (chunk.choices[0]?.delta.content) {
      break;
    }
  }
  await idle();
});

const ollama = new Ollama({ host: server.base, headers: { authorization: `Bearer ${server.key}` } });
const asked = (content, options = {}) => ({ model: server.scripted, messages: [{ role: "user", content }], ...options });
const plain = (tools) => tools.map(({ type, function: { name, parameters } }) => ({ type, function: { name, description: name, parameters } }));

check("ollama.lists_models", async () => {
  const { models } = await ollama.list();
  assert.ok(models.some(({ name }) => name.startsWith(server.scripted)), JSON.stringify(models));
  const shown = await ollama.show({ model: server.scripted });
  assert.ok(shown.capabilities.includes("tools"), JSON.stringify(shown.capabilities));
});

check("ollama.calls_a_tool", async () => {
  const { message } = await ollama.chat(asked("What is the weather?", { tools: plain([WEATHER]) }));
  assert.deepEqual(message.tool_calls.map((call) => call.function), [
    { name: "get_weather", arguments: { city: "Oslo", unit: "celsius" }, ...("index" in message.tool_calls[0].function ? { index: 0 } : {}) },
  ]);
});

check("ollama.streams_reasoning", async () => {
  const stream = await ollama.chat(asked("Think of a stone.", { stream: true, think: true }));
  let [thinking, content, ends] = ["", "", 0];
  for await (const part of stream) {
    thinking += part.message.thinking ?? "";
    content += part.message.content;
    ends += part.done ? 1 : 0;
  }
  assert.deepEqual([thinking.trim(), content, ends], ["A stone is asked for. Granite fits.", "Granite is a hard stone.", 1]);
});

check("ollama.errors_are_messages", async () => {
  await assert.rejects(ollama.chat({ model: "no-such-model", messages: [] }), /no-such-model/);
});

check("ollama.cancels_a_stream", async () => {
  const stream = await ollama.chat(asked("Tell me a long story.", { stream: true }));
  await assert.rejects(async () => {
    for await (const part of stream) {
      if (part.message.content) {
        stream.abort();
      }
    }
  }, /abort/i);
  await idle();
});

await main();
