/** The microphone as a source of live speech. */

import { unsupported } from "./errors.js";
import { isNode } from "./host.js";

/** Milliseconds for which audio may take to start. */
const START_TIMEOUT = 5000;

/** Receiver of samples, such as a `LiveTranscriber`. */
export interface SampleSink {
  /** Takes mono samples, -1 to 1, at `rate` a second. */
  push(samples: Float32Array, rate: number): void;
}

/** Options of {@link microphone}. */
export interface MicrophoneOptions {
  /** Device of `navigator.mediaDevices.enumerateDevices()`. */
  deviceId?: string | undefined;
  /** Stops the microphone. */
  signal?: AbortSignal | undefined;
  /** URL of the folder that holds `microphone.js`. Default: beside the module. */
  assets?: string | URL | undefined;
  /** Called with an error of the receiver, after which the microphone is stopped. */
  onError?: ((error: unknown) => void) | undefined;
}

/** A running microphone. */
export interface Microphone {
  /** Samples a second. */
  readonly rate: number;
  /** The stream of the device, for level meters. */
  readonly stream: MediaStream;
  /** Releases the device. */
  stop(): Promise<void>;
}

/**
 * Opens the microphone, which asks the user, and passes its samples on as mono.
 *
 * @example
 * const live = asr.listen({ onPartial, onCommitted });
 * const mic = await microphone(live);
 * await mic.stop();
 * const transcript = await live.end();
 */
export async function microphone(sink: SampleSink, options: MicrophoneOptions = {}): Promise<Microphone> {
  if (isNode || !globalThis.navigator?.mediaDevices) {
    throw unsupported("expected a page of https or localhost with a microphone, got one without `navigator.mediaDevices`");
  }
  const { deviceId, signal, assets, onError } = options;
  signal?.throwIfAborted();
  const audio = { channelCount: 1, ...(deviceId && { deviceId: { exact: deviceId } }) };
  const stream = await navigator.mediaDevices.getUserMedia({ audio });
  const release = () => stream.getTracks().forEach((track) => track.stop());
  let context: AudioContext | undefined;
  try {
    signal?.throwIfAborted();
    context = new AudioContext();
    await context.audioWorklet.addModule(workletUrl(assets));
    await started(context);
    signal?.throwIfAborted();
  } catch (error) {
    release();
    await context?.close();
    throw error;
  }
  const opened = context;
  const node = new AudioWorkletNode(opened, "stonechat-microphone", { numberOfOutputs: 0 });
  const stop = async (): Promise<void> => {
    signal?.removeEventListener("abort", onAbort);
    node.port.onmessage = null;
    release();
    if (opened.state !== "closed") {
      await opened.close();
    }
  };
  const onAbort = () => void stop();
  signal?.addEventListener("abort", onAbort, { once: true });
  node.port.onmessage = (event: MessageEvent<Float32Array>) => {
    try {
      sink.push(event.data, opened.sampleRate);
    } catch (error) {
      void stop();
      onError?.(error);
    }
  };
  opened.createMediaStreamSource(stream).connect(node);
  return { rate: opened.sampleRate, stream, stop };
}

/** Starts an audio context; browsers keep one suspended until the user has acted on the page. */
async function started(context: AudioContext): Promise<void> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const refusal = new Promise<never>((_, reject) => {
    const message = "expected audio that starts, got none: it needs an audio device, and a click or key of the user on the page";
    timer = setTimeout(() => reject(unsupported(message)), START_TIMEOUT);
  });
  await Promise.race([context.resume(), refusal]).finally(() => clearTimeout(timer));
}

/** Address of the module of the audio thread: a file, since strict policies forbid modules from `blob:`. */
function workletUrl(assets: string | URL | undefined): string {
  if (assets === undefined) {
    return new URL("./microphone.js", import.meta.url).href;
  }
  const text = String(assets);
  return new URL("microphone.js", new URL(text.endsWith("/") ? text : `${text}/`, globalThis.location.href)).href;
}
