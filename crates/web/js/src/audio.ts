/** Recordings in the forms that callers have, as bytes or samples for the engine. */

import { invalid } from "./errors.js";
import { isNode, nodeModule } from "./host.js";
import type { WireAudio } from "./protocol.js";
import type { AudioInput } from "./types.js";

/** Samples a second that the engine works with. */
const ENGINE_RATE = 16_000;

/** Maximum samples a second, as of the engine's decoder. */
const MAX_RATE = 768_000;

/** Maximum bytes of samples in a WAV file, whose sizes have 32 bits. */
const MAX_WAV = 2 ** 32 - 1024;

/** Recording that is ready for the worker. @internal */
export interface PreparedAudio {
  audio: WireAudio;
  transfer: Transferable[];
}

/** Prepares a recording. Addresses are downloaded; arrays of the caller are copied, not taken. @internal */
export async function prepareAudio(input: AudioInput, signal: AbortSignal | undefined): Promise<PreparedAudio> {
  if (typeof input === "string" || input instanceof URL) {
    return plain(await fetchAudio(input, signal));
  }
  if (input instanceof Blob) {
    // A `Blob` is not copied to send it; Node's are read here, since its threads cannot read one at once.
    return plain(isNode ? new Uint8Array(await input.arrayBuffer()) : input);
  }
  if (input instanceof ArrayBuffer) {
    return owned(new Uint8Array(input.slice(0)));
  }
  if (input instanceof Float32Array) {
    return owned(new Float32Array(input));
  }
  if (input instanceof Uint8Array) {
    return owned(new Uint8Array(input));
  }
  if (typeof AudioBuffer !== "undefined" && input instanceof AudioBuffer) {
    const channels = Array.from({ length: input.numberOfChannels }, (_, i) => input.getChannelData(i));
    return owned(waveFile(channels, input.sampleRate));
  }
  if (typeof input === "object" && input !== null && "samples" in input) {
    const { samples, sampleRate } = input;
    const channels = Array.isArray(samples) ? samples : [samples];
    const isMono = channels.length === 1 && channels[0] instanceof Float32Array;
    return owned(isMono && sampleRate === ENGINE_RATE ? new Float32Array(channels[0] as Float32Array) : waveFile(channels, sampleRate));
  }
  throw invalid("audio", "an address, Blob, ArrayBuffer, Uint8Array, Float32Array, AudioBuffer or {samples, sampleRate}", input);
}

function plain(audio: WireAudio): PreparedAudio {
  return { audio, transfer: [] };
}

function owned(audio: Uint8Array<ArrayBuffer> | Float32Array<ArrayBuffer>): PreparedAudio {
  return { audio, transfer: [audio.buffer] };
}

async function fetchAudio(address: string | URL, signal: AbortSignal | undefined): Promise<WireAudio> {
  const text = String(address);
  if (isNode && !/^(https?|data|blob):/i.test(text)) {
    const [fs, { fileURLToPath }] = await Promise.all([nodeModule("fs"), nodeModule("url")]);
    const path = text.startsWith("file:") ? fileURLToPath(text) : text;
    try {
      return new Uint8Array(fs.readFileSync(path));
    } catch (error) {
      throw invalid("audio", "a file that can be read", `${path} (${String(error)})`);
    }
  }
  const response = await fetch(text, { signal: signal ?? null });
  if (!response.ok) {
    throw invalid("audio", "status 200", `${response.status} of ${text}`);
  }
  return isNode ? new Uint8Array(await response.arrayBuffer()) : response.blob();
}

/** WAV file of 32-bit floating-point samples, interleaved. @internal */
export function waveFile(channels: Float32Array[], rate: number): Uint8Array<ArrayBuffer> {
  const [first] = channels;
  const n = channels.length;
  if (!(first instanceof Float32Array) || n > 32 || channels.some((one) => one.length !== first.length)) {
    throw invalid("audio.samples", "1 to 32 Float32Arrays of the same length", `${n} arrays`);
  }
  if (!Number.isInteger(rate) || rate < 1 || rate > MAX_RATE) {
    throw invalid("audio.sampleRate", `a whole number from 1 to ${MAX_RATE}`, rate);
  }
  const size = first.length * n * 4;
  if (size > MAX_WAV) {
    throw invalid("audio.samples", `at most ${Math.floor(MAX_WAV / 4)} samples`, `${size / 4} samples`);
  }
  const bytes = new Uint8Array(44 + size);
  const view = new DataView(bytes.buffer);
  const text = (at: number, value: string) => bytes.set(new TextEncoder().encode(value), at);
  text(0, "RIFF");
  view.setUint32(4, 36 + size, true);
  text(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  // Format 3: IEEE floating point.
  view.setUint16(20, 3, true);
  view.setUint16(22, n, true);
  view.setUint32(24, rate, true);
  view.setUint32(28, rate * n * 4, true);
  view.setUint16(32, n * 4, true);
  view.setUint16(34, 32, true);
  text(36, "data");
  view.setUint32(40, size, true);
  const samples = new Float32Array(bytes.buffer, 44);
  channels.forEach((channel, c) => {
    for (let i = 0; i < channel.length; i += 1) {
      samples[i * n + c] = channel[i] as number;
    }
  });
  return bytes;
}
