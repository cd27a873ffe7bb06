// An open recording: its transcript, and the transcription that runs.

import { signal } from "@preact/signals";

import { splitChannels } from "./audio";
import { titleOf, type Chat, type Recording } from "./conversation";
import * as database from "./database";
import { isAbort, messageOf, type Segment, type SpeechEvent, type Transcript } from "./engine";
import { saveItem } from "./history";
import type { Item } from "./history_file";
import { engineFor } from "./models";
import { announce } from "./notices";
import { recordSpeech } from "./records";
import { settings } from "./settings";
import { mergeChannels, textOf, withText } from "./subtitles";

const SPEAKERS = ["Speaker 1", "Speaker 2"];

/** A running transcription. */
export interface Progress {
  segments: Segment[];
  /** Share that is done; undefined while unknown. */
  fraction: number | undefined;
}

export class SpeechSession {
  readonly chat;
  readonly recording;
  readonly progress = signal<Progress | undefined>(undefined);
  readonly error = signal("");
  private controller: AbortController | undefined;

  constructor(item: Item) {
    this.chat = signal(item.chat);
    this.recording = signal<Recording>(item.recording ?? { chat: item.chat.id, name: item.chat.title });
  }

  get id(): string {
    return this.chat.peek().id;
  }

  save(fields: Partial<Recording>, chatFields: Partial<Chat> = {}): Promise<void> {
    const chat = (this.chat.value = { ...this.chat.peek(), ...chatFields });
    const recording = (this.recording.value = { ...this.recording.peek(), ...fields });
    return saveItem({ chat, messages: [], recording }, () => database.putRecording(chat, recording));
  }

  change(fields: Pick<Partial<Chat>, "title">) {
    void this.save({}, fields);
  }

  stop() {
    this.controller?.abort(new DOMException("stopped", "AbortError"));
  }

  /** Transcribes the audio with the options of the settings. `duration` gives the length, once the player knows it. */
  async transcribe(duration: () => number) {
    const { audio } = this.recording.peek();
    if (!audio) return;
    this.stop();
    const controller = (this.controller = new AbortController());
    this.error.value = "";
    this.progress.value = { segments: [], fraction: undefined };
    announce("Transcribing");
    const start = performance.now();
    try {
      const parts = settings.peek().byChannel ? await splitChannels(audio, duration()) : [audio];
      const { engine, model } = await engineFor("speech", settings.peek().speechModel);
      const { speechLanguage, translates, wordTimes, vad, speechPrompt } = settings.peek();
      const options = {
        model, wordTimes, vad, language: speechLanguage, task: translates ? ("translate" as const) : ("transcribe" as const), prompt: speechPrompt,
      };
      const channels: { speaker: string; segments: Segment[] }[] = [];
      let last: Transcript | undefined;
      for (const [i, part] of parts.entries()) {
        const before = mergeChannels(channels);
        const show = (event: SpeechEvent) => this.show(event, before, { channel: i, nChannels: parts.length, duration: duration() });
        last = await engine.transcribe(part, options, controller.signal, show);
        channels.push({ speaker: SPEAKERS[i] ?? `Speaker ${i + 1}`, segments: last.segments });
      }
      if (!last) return;
      const segments = parts.length > 1 ? mergeChannels(channels) : last.segments;
      await this.finish({ ...last, segments, text: textOf(segments) }, model, (performance.now() - start) / 1000, duration());
    } catch (error) {
      if (this.controller === controller) await this.fail(error);
    } finally {
      if (this.controller === controller) this.progress.value = undefined;
    }
  }

  private show(event: SpeechEvent, before: readonly Segment[], at: { channel: number; nChannels: number; duration: number }) {
    const now = this.progress.peek();
    if (!now) return;
    const share = (fraction: number) => Math.min(1, (at.channel + fraction) / at.nChannels);
    if (event.type === "segment") {
      const { segment } = event;
      const labelled = at.nChannels > 1 ? { ...segment, speaker: SPEAKERS[at.channel] } : segment;
      const own = now.segments.filter((one) => at.nChannels === 1 || one.speaker === SPEAKERS[at.channel]);
      const segments = at.nChannels > 1 ? [...before, ...own, labelled].sort((a, b) => a.start - b.start) : [...own, labelled];
      this.progress.value = { segments, fraction: at.duration > 0 ? share(segment.end / at.duration) : now.fraction };
    } else if (event.type === "progress") {
      this.progress.value = { ...now, fraction: share(event.fraction) };
    }
  }

  private async finish(transcript: Transcript, model: string, seconds: number, duration: number) {
    const audioSeconds = transcript.duration ?? (duration || (transcript.segments.at(-1)?.end ?? 0));
    recordSpeech({ model, audioSeconds, seconds });
    const title = transcript.text ? titleOf(transcript.text) : this.recording.peek().name;
    await this.save({ transcript: { ...transcript, duration: audioSeconds }, seconds }, { title, model, updated: Date.now() });
    announce(`Transcript complete: ${transcript.text.slice(0, 500)}`);
  }

  /** Keeps the segments that came. */
  private async fail(error: unknown) {
    const segments = this.progress.peek()?.segments ?? [];
    if (segments.length > 0) await this.save({ transcript: { text: textOf(segments), segments } });
    const kept = segments.length > 0 ? " What came until then is kept." : "";
    this.error.value = isAbort(error) ? `Stopped.${kept}` : `${messageOf(error)}.${kept}`;
    if (!isAbort(error)) announce(`Failed: ${messageOf(error)}`);
  }

  editSegment(index: number, text: string) {
    this.changeSegments((segments) => segments.map((segment, i) => (i === index ? withText(segment, text) : segment)));
  }

  removeSegment(index: number) {
    this.changeSegments((segments) => segments.filter((_, i) => i !== index));
  }

  renameSpeaker(from: string, to: string) {
    this.changeSegments((segments) => segments.map((segment) => (segment.speaker === from ? { ...segment, speaker: to } : segment)));
  }

  private changeSegments(change: (segments: Segment[]) => Segment[]) {
    const { transcript } = this.recording.peek();
    if (!transcript) return;
    const segments = change(transcript.segments).map((segment, id) => ({ ...segment, id }));
    void this.save({ transcript: { ...transcript, segments, text: textOf(segments) } });
  }
}
