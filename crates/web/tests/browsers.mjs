// Browsers of the tests, as Debian installs them; CHROMIUM and FIREFOX name others.

import { chromium, firefox } from "playwright-core";

const FLAGS = [
  "--headless=new", "--no-sandbox", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
];
/** WebGPU on SwiftShader. */
const GPU = ["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"];
/** A microphone that beeps, and sound without a click. */
const MEDIA = ["--autoplay-policy=no-user-gesture-required", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"];
const PREFERENCES = { "app.update.enabled": false, "datareporting.policy.dataSubmissionEnabled": false };
const MEDIA_PREFERENCES = {
  "media.navigator.streams.fake": true,
  "media.navigator.permission.disabled": true,
  "media.autoplay.default": 0,
  "media.autoplay.blocking_policy": 0,
};

/** Options of Chromium. */
export function chromiumOptions({ hasGpu = false, hasMedia = false } = {}) {
  const args = [...FLAGS, ...(hasGpu ? GPU : ["--disable-gpu"]), ...(hasMedia ? MEDIA : [])];
  return { executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args };
}

/** Starts `chromium` or `firefox`. */
export function launch(name, options = {}) {
  if (name === "chromium") {
    return chromium.launch(chromiumOptions(options));
  }
  if (name !== "firefox") {
    throw new Error(`expected chromium or firefox, got ${name}`);
  }
  return firefox.launch({
    executablePath: process.env.FIREFOX ?? "/usr/bin/firefox-esr",
    channel: "moz-firefox",
    timeout: 120_000,
    firefoxUserPrefs: { ...PREFERENCES, ...(options.hasMedia ? MEDIA_PREFERENCES : {}) },
  });
}
