/** Audio thread of `microphone()`: sends blocks of mono samples to the page. */

/** Samples of a message: about 43 ms at 48 kHz. */
const BLOCK = 2048;

declare class AudioWorkletProcessor {
  readonly port: MessagePort;
}

declare function registerProcessor(name: string, processor: new () => AudioWorkletProcessor): void;

class Collector extends AudioWorkletProcessor {
  #block = new Float32Array(BLOCK);
  #size = 0;

  process([channels]: Float32Array[][]): boolean {
    const n = channels?.[0]?.length ?? 0;
    for (let i = 0; channels && i < n; i += 1) {
      let sum = 0;
      for (const channel of channels) {
        sum += channel[i] ?? 0;
      }
      this.#block[this.#size] = sum / channels.length;
      this.#size += 1;
      if (this.#size === BLOCK) {
        this.port.postMessage(this.#block, [this.#block.buffer]);
        this.#block = new Float32Array(BLOCK);
        this.#size = 0;
      }
    }
    return true;
  }
}

registerProcessor("stonechat-microphone", Collector);
