// Speech: a file, a recording or live speech, and the transcript of one.

import { useEffect, useRef, useState } from "preact/hooks";

import { MAX_RECORDING_SECONDS, startCapture, streamMicrophone, type Capture } from "../audio";
import { messageOf, type Live } from "../engine";
import { formatNumber, formatTime } from "../format";
import { engine, engineFor, modelsError, speechModel } from "../models";
import { copy, download, notify } from "../notices";
import { startSpeech } from "../sessions";
import { change, settings } from "../settings";
import type { SpeechSession } from "../speech_session";
import { writeTranscript, type TranscriptFormat } from "../subtitles";
import { Popover } from "./dialog";
import { Icon } from "./icons";
import { TranscriptView } from "./transcript_view";

/** Maximum bytes of a file. */
const MAX_BYTES = 2 ** 31;

/** Languages of Whisper. */
const CODES =
  "af am ar as az ba be bg bn bo br bs ca cs cy da de el en es et eu fa fi fo fr gl gu ha haw he hi hr ht hu hy id is it ja jw ka kk km kn ko la " +
  "lb ln lo lt lv mg mi mk ml mn mr ms mt my ne nl nn no oc pa pl ps pt ro ru sa sd si sk sl sn so sq sr su sv sw ta te tg th tk tl tr tt uk ur " +
  "uz vi yi yo yue zh";
const NAMES = new Intl.DisplayNames("en", { type: "language" });
const LANGUAGES = CODES.split(" ")
  .map((code): [string, string] => [code, NAMES.of(code) ?? code])
  .sort(([, a], [, b]) => (a < b ? -1 : 1));

export function SpeechView({ session }: { session: SpeechSession | undefined }) {
  return (
    <div class="scroller">
      <div class="column">{session ? <RecordingView key={session.id} session={session} /> : <NewRecording />}</div>
    </div>
  );
}

function begin(name: string, audio: Blob) {
  if (audio.size === 0) return notify(`${name}: the file is empty`, "error");
  if (audio.size > MAX_BYTES) return notify(`${name}: expected at most 2 GiB`, "error");
  startSpeech(name, audio);
}

function NewRecording() {
  const [isOver, setOver] = useState(false);
  const [mode, setMode] = useState<"choose" | "record" | "live">("choose");
  if (mode === "record") return <Recorder onEnd={() => setMode("choose")} />;
  if (mode === "live") return <LiveView onEnd={() => setMode("choose")} />;
  return (
    <div class="new-recording">
      <h1>Transcribe speech</h1>
      {modelsError.value && <p class="error" role="alert">{modelsError.value}</p>}
      <label
        class={`drop ${isOver ? "over" : ""}`}
        onDragOver={(event) => {
          event.preventDefault();
          setOver(true);
        }}
        onDragLeave={() => setOver(false)}
        onDrop={(event) => {
          event.preventDefault();
          setOver(false);
          const file = event.dataTransfer?.files[0];
          if (file) begin(file.name, file);
        }}
      >
        <Icon name="upload" />
        <strong>Drop a file or choose one</strong>
        <span class="detail">WAV, MP3, FLAC, OGG, Opus, M4A, MP4, MKV, WebM</span>
        <input
          id="audio-file"
          class="hidden"
          type="file"
          accept="audio/*,video/*,.mkv,.flac,.opus,.ogg,.m4a"
          aria-label="Audio or video file"
          onChange={(event) => {
            const file = event.currentTarget.files?.[0];
            if (file) begin(file.name, file);
          }}
        />
      </label>
      <div class="ways">
        <button type="button" class="button large" onClick={() => setMode("record")}><Icon name="mic" />Record</button>
        {engine.value?.listen && (
          <button type="button" class="button large" onClick={() => setMode("live")}><Icon name="live" />Live</button>
        )}
      </div>
      <SpeechOptions />
    </div>
  );
}

function SpeechOptions() {
  const { speechLanguage, translates, wordTimes, vad, byChannel, speechPrompt } = settings.value;
  // Models for English alone know no other language.
  const isEnglish = speechModel.value?.id.includes(".en") ?? false;
  const check = (label: string, value: boolean, set: (value: boolean) => void, hint: string, disabled = false) => (
    <label class="check" title={hint}>
      <input type="checkbox" checked={value} disabled={disabled} onChange={(event) => set(event.currentTarget.checked)} />
      <span>{label}<small>{hint}</small></span>
    </label>
  );
  return (
    <fieldset class="options">
      <legend>Options</legend>
      <label class="field">
        Language
        <select value={isEnglish ? "en" : speechLanguage} disabled={isEnglish} onChange={(event) => change({ speechLanguage: event.currentTarget.value })}>
          <option value="">Detect the language</option>
          {LANGUAGES.map(([code, name]) => <option key={code} value={code}>{name}</option>)}
        </select>
      </label>
      <label class="field">
        Prompt
        <input
          dir="auto"
          placeholder="Names and terms to expect"
          value={speechPrompt}
          maxLength={1000}
          onChange={(event) => change({ speechPrompt: event.currentTarget.value })}
        />
      </label>
      {check("Times of words", wordTimes, (wordTimes) => change({ wordTimes }), "Words light up while the recording plays")}
      {check("Skip silence", vad, (vad) => change({ vad }), "Cut silence out before the model hears it")}
      {check("Translate to English", translates && !isEnglish, (translates) => change({ translates }), "For models of many languages", isEnglish)}
      {check("Speakers by channel", byChannel, (byChannel) => change({ byChannel }), "One speaker per channel of a stereo file")}
    </fieldset>
  );
}

function Recorder({ onEnd }: { onEnd: () => void }) {
  const [seconds, setSeconds] = useState(0);
  const [isOn, setOn] = useState(false);
  const capture = useRef<Capture | undefined>(undefined);
  const meter = useRef<HTMLMeterElement>(null);
  const stop = async () => {
    const running = capture.current;
    capture.current = undefined;
    const file = await running?.stop();
    onEnd();
    if (file) begin(`Recording ${new Date().toLocaleString()}`, file);
  };
  useEffect(() => {
    let isGone = false;
    let timer: ReturnType<typeof setInterval>;
    startCapture().then(
      (started) => {
        if (isGone) return started.cancel();
        capture.current = started;
        setOn(true);
        const since = performance.now();
        timer = setInterval(() => {
          const now = (performance.now() - since) / 1000;
          setSeconds(now);
          if (meter.current) meter.current.value = started.level();
          if (now > MAX_RECORDING_SECONDS) void stop();
        }, 100);
      },
      (error: unknown) => {
        notify(messageOf(error), "error");
        onEnd();
      },
    );
    return () => {
      isGone = true;
      clearInterval(timer);
      capture.current?.cancel();
    };
  }, []);
  return (
    <div class="recorder">
      <span class={`record-dot ${isOn ? "on" : ""}`} />
      <output class="clock" aria-label="Length">{formatTime(seconds)}</output>
      <meter ref={meter} min={0} max={1} aria-label="Loudness" />
      <div class="ways">
        <button type="button" class="button large primary" disabled={!isOn} onClick={() => void stop()}><Icon name="stop" />Stop and transcribe</button>
        <button type="button" class="button large" onClick={onEnd}>Cancel</button>
      </div>
    </div>
  );
}

function LiveView({ onEnd }: { onEnd: () => void }) {
  const [committed, setCommitted] = useState("");
  const [partial, setPartial] = useState("");
  const [isOn, setOn] = useState(false);
  const live = useRef<{ live: Live; close: () => void } | undefined>(undefined);
  useEffect(() => {
    let isGone = false;
    const start = async () => {
      const { engine: current, model } = await engineFor("speech", settings.value.speechModel);
      if (!current.listen) throw new Error("this engine has no live speech");
      const options = { model, language: settings.value.speechLanguage, task: "transcribe" as const, wordTimes: false, vad: false, prompt: "" };
      const listener = await current.listen(options, (event) => {
        if (event.type === "partial") return setPartial(event.text);
        setPartial("");
        setCommitted((before) => [before.trimEnd(), event.text.trim()].filter(Boolean).join(" "));
      });
      const close = await streamMicrophone((samples, rate) => {
        try {
          listener.push(samples, rate);
        } catch (error) {
          // The engine is slower than the speaker.
          notify(messageOf(error), "error");
          void end();
        }
      });
      if (isGone) {
        close();
        listener.cancel();
        return;
      }
      live.current = { live: listener, close };
      setOn(true);
    };
    start().catch((error: unknown) => {
      notify(messageOf(error), "error");
      onEnd();
    });
    return () => {
      isGone = true;
      live.current?.close();
      live.current?.live.cancel();
    };
  }, []);
  const end = async () => {
    const running = live.current;
    live.current = undefined;
    setOn(false);
    if (!running) return onEnd();
    running.close();
    try {
      const transcript = await running.live.end();
      onEnd();
      const one = startSpeech(`Live ${new Date().toLocaleString()}`, undefined);
      await one.save({ transcript });
    } catch (error) {
      notify(messageOf(error), "error");
      onEnd();
    }
  };
  return (
    <div class="live">
      <p class="live-text" dir="auto" aria-live="polite">
        {committed} <span class="partial">{partial}</span>
        {!committed && !partial && <span class="detail">{isOn ? "Listening…" : "Opening the model and the microphone…"}</span>}
      </p>
      <div class="ways">
        <button type="button" class="button large primary" disabled={!isOn} onClick={() => void end()}><Icon name="stop" />End</button>
        <button type="button" class="button large" onClick={onEnd}>Cancel</button>
      </div>
    </div>
  );
}

const FORMATS: [TranscriptFormat, string, string][] = [
  ["srt", "Subtitles (SRT)", "application/x-subrip"],
  ["vtt", "Subtitles (WebVTT)", "text/vtt"],
  ["txt", "Text", "text/plain"],
  ["json", "JSON", "application/json"],
];

function RecordingView({ session }: { session: SpeechSession }) {
  const { audio, name, transcript, seconds } = session.recording.value;
  const progress = session.progress.value;
  const [player, setPlayer] = useState<HTMLAudioElement | null>(null);
  const [address, setAddress] = useState("");
  useEffect(() => {
    if (!audio) return;
    const url = URL.createObjectURL(audio);
    setAddress(url);
    return () => URL.revokeObjectURL(url);
  }, [audio]);
  const duration = () => (player && Number.isFinite(player.duration) ? player.duration : 0);
  const run = () => void session.transcribe(duration);
  useEffect(() => {
    if (player && !transcript && !progress && !session.error.peek()) run();
  }, [player]);
  const segments = progress?.segments ?? transcript?.segments ?? [];
  const length = transcript?.duration ?? 0;
  const speed = seconds && length ? `${formatNumber(length / seconds)} × real time` : "";
  const facts = [transcript?.language, length ? formatTime(length) : "", session.chat.value.model, speed].filter(Boolean).join(" · ");
  const base = name.replace(/\.[^.]*$/, "") || "transcript";
  return (
    <div class="recording">
      <h1 dir="auto">{name}</h1>
      <p class="detail">{facts}</p>
      {address ? (
        <audio ref={setPlayer} controls src={address} preload="metadata" aria-label="Recording" />
      ) : (
        !audio && <p class="detail">The audio is not in this browser.</p>
      )}
      {progress && (
        <div class="progress" role="status">
          <progress aria-label="Progress of the transcription" max={1} value={progress.fraction} />
          <button type="button" class="button" onClick={() => session.stop()}><Icon name="stop" />Stop</button>
        </div>
      )}
      {session.error.value && <p class="end error" role="alert">{session.error.value}</p>}
      {!progress && (transcript || session.error.value) && (
        <div class="toolbar">
          {transcript && (
            <>
              <Popover label="Download" button={<><Icon name="download" />Download</>}>
                {(close) =>
                  FORMATS.map(([format, label, type]) => (
                    <button
                      key={format}
                      type="button"
                      class="menu-item"
                      onClick={() => (close(), download(`${base}.${format}`, writeTranscript(transcript, format), type))}
                    >
                      {label}
                    </button>
                  ))
                }
              </Popover>
              <button type="button" class="button" onClick={() => void copy(writeTranscript(transcript, "txt").trim())}><Icon name="copy" />Copy text</button>
            </>
          )}
          {audio && (
            <Popover label="Transcribe again" button={<><Icon name="retry" />Transcribe again</>}>
              {(close) => (
                <div class="again">
                  <SpeechOptions />
                  <button type="button" class="button primary" onClick={() => (close(), run())}>Transcribe</button>
                </div>
              )}
            </Popover>
          )}
        </div>
      )}
      <TranscriptView session={session} segments={segments} canEdit={!progress} player={player} />
      {transcript && segments.length === 0 && !progress && <p class="empty">No speech was found.</p>}
    </div>
  );
}
