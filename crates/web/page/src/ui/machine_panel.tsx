// The machine: facts of the engine, counters of a server with charts, speeds of the last requests.

import { useEffect, useState } from "preact/hooks";

import { messageOf, type Counters, type MachineState } from "../engine";
import { formatNumber } from "../format";
import { rate } from "../metrics";
import { engine, engines, languageModel } from "../models";
import { speechRecords, textRecords } from "../records";
import { Dialog } from "./dialog";
import { EngineSwitch } from "./model_picker";

/** Milliseconds between two readings. */
const INTERVAL = 1000;
/** Readings of a chart. */
const N_READINGS = 90;

export function MachinePanel({ onClose }: { onClose: () => void }) {
  const [state, setState] = useState<MachineState>();
  const [error, setError] = useState("");
  const [readings, setReadings] = useState<Counters[]>([]);
  const current = engine.value;
  useEffect(() => {
    let isGone = false;
    let timer: ReturnType<typeof setTimeout>;
    setReadings([]);
    const read = async () => {
      try {
        const now = await current?.machine(languageModel.peek()?.id);
        if (isGone) return;
        setState(now);
        setError("");
        if (now?.counters) {
          const { counters } = now;
          setReadings((before) => [...before, counters].slice(-N_READINGS));
        }
      } catch (error) {
        if (!isGone) setError(messageOf(error));
      }
      if (!isGone) timer = setTimeout(() => void read(), INTERVAL);
    };
    void read();
    return () => {
      isGone = true;
      clearTimeout(timer);
    };
  }, [current]);
  return (
    <Dialog title="Machine" class="machine" onClose={onClose}>
      {engines.value.length > 1 && <EngineSwitch />}
      {error && <p class="error" role="alert">{error}</p>}
      {state && (
        <dl class="facts">
          {state.facts.map(([label, value], i) => <div key={i}><dt>{label}</dt><dd>{value}</dd></div>)}
        </dl>
      )}
      {readings.length > 0 && <ServerCharts readings={readings} />}
      {state?.note && <p class="detail">{state.note}</p>}
      <PageCharts />
    </Dialog>
  );
}

function ServerCharts({ readings }: { readings: Counters[] }) {
  const rates = (name: "promptTokens" | "generatedTokens" | "audioSeconds") =>
    readings.slice(1).map((after, i) => rate(readings[i] ?? after, after, name));
  const last = readings.at(-1);
  if (!last) return null;
  const prompt = last.promptTokens;
  const hits = prompt > 0 ? last.cachedTokens / prompt : 0;
  const speed = last.audioSpeedCount > 0 ? last.audioSpeedSum / last.audioSpeedCount : 0;
  return (
    <section aria-label="Metrics of the server">
      <h3>Server</h3>
      <div class="charts">
        <Chart label="Generated" unit="tok/s" values={rates("generatedTokens")} />
        <Chart label="Prompts" unit="tok/s" values={rates("promptTokens")} />
        <Chart label="Requests" unit="running" values={readings.map((one) => one.running)} />
        <Chart label="Waiting" unit="requests" values={readings.map((one) => one.waiting)} />
        <Chart label="KV cache in use" unit="%" values={readings.map((one) => 100 * one.kvUse)} most={100} />
        <Chart label="Speech" unit="s of audio / s" values={rates("audioSeconds")} />
      </div>
      <dl class="facts">
        <div><dt>Prompt tokens from the cache</dt><dd>{formatNumber(100 * hits)} % of {prompt.toLocaleString()}</dd></div>
        <div><dt>Generated tokens</dt><dd>{last.generatedTokens.toLocaleString()}</dd></div>
        {speed > 0 && <div><dt>Speech, mean</dt><dd>{formatNumber(speed)} × real time</dd></div>}
      </dl>
    </section>
  );
}

/** Speeds of the requests of this page. */
function PageCharts() {
  const texts = textRecords.value;
  const speeches = speechRecords.value;
  const cached = texts.reduce((sum, one) => sum + one.cachedTokens, 0);
  const prompts = texts.reduce((sum, one) => sum + one.promptTokens, 0);
  return (
    <section aria-label="Requests of this page">
      <h3>Requests of this page</h3>
      {texts.length + speeches.length === 0 && <p class="empty">None yet.</p>}
      <div class="charts">
        {texts.length > 0 && <Chart label="Generation" unit="tok/s" values={texts.map((one) => one.tokensPerSecond)} />}
        {texts.length > 0 && <Chart label="Prompt" unit="tok/s" values={texts.map((one) => one.promptPerSecond)} />}
        {speeches.length > 0 && <Chart label="Speech" unit="× real time" values={speeches.map((one) => one.audioSeconds / Math.max(0.001, one.seconds))} />}
      </div>
      {prompts > 0 && (
        <dl class="facts">
          <div><dt>Cache hits</dt><dd>{cached.toLocaleString()} of {prompts.toLocaleString()} prompt tokens</dd></div>
        </dl>
      )}
    </section>
  );
}

const [WIDTH, HEIGHT] = [240, 48];

/** A line of values with the last one beside it. */
function Chart({ label, unit, values, most }: { label: string; unit: string; values: number[]; most?: number }) {
  const top = most ?? Math.max(1e-9, ...values);
  const x = (i: number) => (values.length > 1 ? (i / (values.length - 1)) * WIDTH : WIDTH);
  const y = (value: number) => HEIGHT - 2 - (Math.min(value, top) / top) * (HEIGHT - 4);
  const points = values.map((value, i) => `${x(i).toFixed(1)},${y(value).toFixed(1)}`);
  const now = values.at(-1) ?? 0;
  const text = `${label}: ${formatNumber(now)} ${unit}, at most ${formatNumber(top)}`;
  return (
    <figure class="chart">
      <figcaption>
        <span>{label}</span>
        <strong>{formatNumber(now)} <small>{unit}</small></strong>
      </figcaption>
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={text}>
        {points.length > 1 && <polygon points={`0,${HEIGHT} ${points.join(" ")} ${WIDTH},${HEIGHT}`} />}
        {points.length > 1 ? <polyline points={points.join(" ")} /> : <line x1="0" x2={WIDTH} y1={y(now)} y2={y(now)} />}
      </svg>
    </figure>
  );
}
