// Models that `cargo xtask models` has installed, for tests of the built package.

import { readdirSync } from "node:fs";
import { homedir } from "node:os";
import { join, resolve } from "node:path";

/** Folder of the models. */
export const models = resolve(process.env.MODELS ?? join(homedir(), ".cache/stonechat/models"));

const FILE = /^(model\.(bin|safetensors|gguf)|(config|tokenizer|vocabulary|preprocessor_config)\.(json|txt))$/;

/** Source of a model: its files by name, or its only one, each in its folder below `place`. */
export function filesOf(name, place) {
  const names = readdirSync(join(models, name)).filter((file) => FILE.test(file));
  const path = (file) => `${place}/${name}/${file}`;
  return names.length === 1 ? path(names[0]) : Object.fromEntries(names.map((file) => [file, path(file)]));
}
