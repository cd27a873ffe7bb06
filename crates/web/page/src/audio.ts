// Recordings: capture from the microphone, and channels of a stereo file.

/** Maximum bytes and seconds of a file whose channels are split: the browser decodes it as a whole, to 128 kB a second. */
const MAX_SPLIT_BYTES = 200 << 20;
const MAX_SPLIT_SECONDS = 3600;
/** Sample rate of the speech models. */
const RATE = 16_000;
/** Milliseconds in which the audio of the browser must start. */
const MAX_START_MS = 10_000;
/** Maximum length of a recording. */
export const MAX_RECORDING_SECONDS = 4 * 3600;

/** Mono WAV files of the channels of a stereo file. `seconds` is its length, 0 if it is unknown. */
export async function splitChannels(audio: Blob, seconds: number): Promise<Blob[]> {
  if (seconds > MAX_SPLIT_SECONDS) throw new Error("expected at most an hour for speakers by channel");
  if (audio.size > MAX_SPLIT_BYTES) {
    throw new Error(`expected a file of at most ${MAX_SPLIT_BYTES >> 20} MiB for speakers by channel`);
  }
  // The context resamples while it decodes.
  const context = new OfflineAudioContext(1, 1, RATE);
  const buffer = await context.decodeAudioData(await audio.arrayBuffer()).catch(() => {
    throw new Error("this browser cannot decode the file, which speakers by channel need");
  });
  if (buffer.numberOfChannels !== 2) {
    throw new Error(`expected a stereo file for speakers by channel, got ${buffer.numberOfChannels} channel(s)`);
  }
  return [0, 1].map((channel) => wav(buffer.getChannelData(channel), buffer.sampleRate));
}

/** A WAV file of 16-bit samples. */
export function wav(samples: Float32Array, rate: number): Blob {
  const view = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const text = (at: number, letters: string) => [...letters].forEach((c, i) => view.setUint8(at + i, c.charCodeAt(0)));
  text(0, "RIFF");
  view.setUint32(4, 36 + 2 * samples.length, true);
  text(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true);
  view.setUint16(22, 1, true);
  view.setUint32(24, rate, true);
  view.setUint32(28, 2 * rate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  text(36, "data");
  view.setUint32(40, 2 * samples.length, true);
  for (let i = 0; i < samples.length; i++) {
    const sample = Math.max(-1, Math.min(1, samples[i] ?? 0));
    view.setInt16(44 + 2 * i, Math.round(sample * 32767), true);
  }
  return new Blob([view.buffer], { type: "audio/wav" });
}

/** A running recording. */
export interface Capture {
  /** Loudness of the last moment, 0 to 1. */
  level(): number;
  /** Ends the recording and gives its file. */
  stop(): Promise<File>;
  cancel(): void;
}

/** Opens the microphone. */
async function openMicrophone(): Promise<MediaStream> {
  // The browser has no microphone for a page that is neither of this machine nor encrypted.
  if (!navigator.mediaDevices) throw new Error("the microphone needs a page with HTTPS or of localhost");
  try {
    return await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1, echoCancellation: true, noiseSuppression: true } });
  } catch (error) {
    const name = error instanceof DOMException ? error.name : "";
    if (name === "NotAllowedError") throw new Error("the microphone was not allowed");
    if (name === "NotFoundError") throw new Error("no microphone was found");
    throw error;
  }
}

/** Records the microphone into a file. */
export async function startCapture(): Promise<Capture> {
  const stream = await openMicrophone();
  const context = new AudioContext();
  const analyser = context.createAnalyser();
  analyser.fftSize = 1024;
  context.createMediaStreamSource(stream).connect(analyser);
  const samples = new Float32Array(analyser.fftSize);
  const recorder = new MediaRecorder(stream);
  const parts: Blob[] = [];
  recorder.ondataavailable = (event) => parts.push(event.data);
  recorder.start(1000);
  const close = () => {
    for (const track of stream.getTracks()) track.stop();
    void context.close();
  };
  return {
    level() {
      analyser.getFloatTimeDomainData(samples);
      const power = samples.reduce((sum, sample) => sum + sample * sample, 0) / samples.length;
      return Math.min(1, Math.sqrt(power) * 4);
    },
    stop: () =>
      new Promise((resolve) => {
        recorder.onstop = () => {
          close();
          const type = recorder.mimeType || parts[0]?.type || "audio/webm";
          const extension = /audio\/(ogg|mp4|webm|wav)/.exec(type)?.[1] ?? "webm";
          resolve(new File(parts, `recording.${extension}`, { type }));
        };
        recorder.stop();
      }),
    cancel() {
      recorder.onstop = null;
      recorder.stop();
      close();
    },
  };
}

/** Waits until the clock of a context runs: that of Firefox never does without an output device. */
function started(context: AudioContext): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error("the browser does not start its audio: is there an output device?")), MAX_START_MS);
    void context.resume().then(() => {
      clearTimeout(timer);
      resolve();
    });
  });
}

/** Streams the samples of the microphone; the function ends it. */
export async function streamMicrophone(onSamples: (samples: Float32Array, rate: number) => void): Promise<() => void> {
  const stream = await openMicrophone();
  const context = new AudioContext();
  try {
    await context.audioWorklet.addModule(new URL("capture.js", document.baseURI));
    await started(context);
  } catch (error) {
    for (const track of stream.getTracks()) track.stop();
    void context.close();
    throw error;
  }
  const node = new AudioWorkletNode(context, "capture", { numberOfOutputs: 0 });
  node.port.onmessage = (event: MessageEvent<Float32Array>) => onSamples(event.data, context.sampleRate);
  context.createMediaStreamSource(stream).connect(node);
  return () => {
    node.port.onmessage = null;
    for (const track of stream.getTracks()) track.stop();
    void context.close();
  };
}
