// Settings: appearance, sampling, output, the key.

import { useEffect, useState } from "preact/hooks";

import { apiKey, forgetApiKey, isRemembered } from "../api_key";
import { messageOf } from "../engine";
import { formatNumber } from "../format";
import { engine, engines, languageModel } from "../models";
import { notify } from "../notices";
import { change, parseObject, SAMPLING, settings, settingsError, type SamplingName, type Theme } from "../settings";
import { Dialog } from "./dialog";
import { EngineSwitch } from "./model_picker";

const THEMES: [Theme, string][] = [["auto", "Auto"], ["light", "Light"], ["dark", "Dark"]];

export function SettingsDialog({ onClose }: { onClose: () => void }) {
  const { theme, system, sendsOnEnter, hasKeys } = settings.value;
  return (
    <Dialog title="Settings" class="settings" onClose={onClose}>
      {settingsError.value && <p class="error" role="alert">{settingsError.value}</p>}
      <section>
        <h3>Appearance</h3>
        <div class="switch" role="group" aria-label="Colours">
          {THEMES.map(([value, label]) => (
            <button key={value} type="button" aria-pressed={theme === value} onClick={() => change({ theme: value })}>{label}</button>
          ))}
        </div>
        <Check label="Enter sends a message" hint="otherwise Ctrl+Enter does" value={sendsOnEnter} onChange={(sendsOnEnter) => change({ sendsOnEnter })} />
        <Check label="Single keys are shortcuts" hint="outside of fields" value={hasKeys} onChange={(hasKeys) => change({ hasKeys })} />
      </section>
      {engines.value.length > 1 && <section><h3>Engine</h3><EngineSwitch /></section>}
      <section>
        <h3>System prompt of new chats</h3>
        <textarea
          rows={3}
          dir="auto"
          aria-label="System prompt of new chats"
          value={system}
          onChange={(event) => change({ system: event.currentTarget.value })}
        />
      </section>
      <Sampling />
      <Output />
      <ApiKey />
    </Dialog>
  );
}

export function Check(props: { label: string; hint: string; value: boolean; onChange: (value: boolean) => void }) {
  return (
    <label class="check">
      <input type="checkbox" checked={props.value} onChange={(event) => props.onChange(event.currentTarget.checked)} />
      <span>{props.label}<small>{props.hint}</small></span>
    </label>
  );
}

function Sampling() {
  const [defaults, setDefaults] = useState<Record<string, number>>({});
  const { sampling, stop } = settings.value;
  const model = languageModel.value?.id;
  useEffect(() => {
    let isGone = false;
    if (model) {
      engine.peek()?.defaults(model).then((values) => {
        if (!isGone) setDefaults(values);
      }, () => undefined);
    }
    return () => (isGone = true) && undefined;
  }, [model]);
  const set = (name: SamplingName, input: HTMLInputElement) => {
    if (!input.reportValidity()) return;
    const next = { ...settings.peek().sampling };
    if (input.value === "") delete next[name];
    else next[name] = Number(input.value);
    change({ sampling: next });
  };
  const placeholder = (name: SamplingName) => {
    const value = defaults[name];
    return value === undefined || value < 0 || name === "seed" ? "default" : `default ${formatNumber(value)}`;
  };
  return (
    <section>
      <h3>Sampling</h3>
      <div class="fields">
        {SAMPLING.map(({ name, label, min, max, step, hint }) => (
          <label class="field" key={name}>
            <span>{label} <small>{hint}</small></span>
            <input
              type="number"
              name={name}
              min={min}
              max={max}
              step={step}
              value={sampling[name] ?? ""}
              placeholder={placeholder(name)}
              onChange={(event) => set(name, event.currentTarget)}
            />
          </label>
        ))}
        <label class="field">
          <span>Stop texts <small>one a line</small></span>
          <textarea rows={2} dir="auto" value={stop} onChange={(event) => change({ stop: event.currentTarget.value })} />
        </label>
      </div>
      <button type="button" class="button" onClick={() => change({ sampling: {}, stop: "" })}>Reset to the defaults</button>
    </section>
  );
}

function Output() {
  const { schema, extra } = settings.value;
  return (
    <section>
      <h3>Output</h3>
      <JsonField
        label="JSON schema of answers"
        placeholder={'{"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}'}
        value={schema}
        onChange={(schema) => change({ schema })}
      />
      <JsonField
        label="Further fields of requests"
        placeholder={'{"chat_template_kwargs": {"enable_thinking": false}}'}
        value={extra}
        onChange={(extra) => change({ extra })}
      />
    </section>
  );
}

/** A text that must be a JSON object, or empty. */
function JsonField(props: { label: string; placeholder: string; value: string; onChange: (text: string) => void }) {
  const [error, setError] = useState("");
  return (
    <label class="field wide">
      {props.label}
      <textarea
        rows={4}
        class="code-field"
        spellcheck={false}
        placeholder={props.placeholder}
        value={props.value}
        aria-invalid={error !== ""}
        onChange={(event) => {
          const text = event.currentTarget.value;
          try {
            if (text.trim()) parseObject(text, props.label);
            setError("");
            props.onChange(text);
          } catch (error) {
            setError(messageOf(error));
          }
        }}
      />
      {error && <span class="error" role="alert">{error}</span>}
    </label>
  );
}

function ApiKey() {
  const [, setForgotten] = useState(false);
  if (apiKey() === undefined) return null;
  const forget = () => {
    forgetApiKey();
    setForgotten(true);
    notify("The key is forgotten");
  };
  return (
    <section>
      <h3>API key</h3>
      <p class="detail">{isRemembered() ? "Kept in this browser." : "Kept until this tab is closed."}</p>
      <button type="button" class="button" onClick={forget}>Forget the key</button>
    </section>
  );
}
